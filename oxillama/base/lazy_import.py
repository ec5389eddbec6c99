"""Names that are imported when they are first needed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any


def resolve(path: str) -> Any:
    """The object at "module:name", or "module:name.attribute"; imports the module."""
    module, _, name = path.partition(":")
    return attrgetter(name)(importlib.import_module(module))


def lazy(path: str) -> Callable[..., Any]:
    """Calls what is at ``path``, as `resolve` takes it; the module is imported with the first call."""
    return partial(_call, path)


def _call(path: str, *arguments: Any, **options: Any) -> Any:
    return resolve(path)(*arguments, **options)

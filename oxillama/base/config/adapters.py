"""The option that names the adapters of a request.

A path or a `LoadedLora`, alone or in a pair with its scale; a list of these; or a mapping of them to scales.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from oxillama.base.config import checks
from oxillama.base.config.option import Adapters as Adapters

AdapterSpec: TypeAlias = tuple[Any, float]
"""A path or a `LoadedLora`, and its scale."""


def adapter_specs(name: str, value: Adapters) -> tuple[AdapterSpec, ...]:
    """(path or `LoadedLora`, scale) of each adapter, in order; the scale is 1 where none is given.

    Raises ConfigError for anything else, and for a scale that is no finite number.
    """
    if isinstance(value, Mapping):
        return tuple(_spec(name, pair) for pair in value.items())
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and not _is_pair(value):
        return tuple(_spec(name, item) for item in value)
    return (_spec(name, value),)


def _is_pair(value: Any) -> bool:
    """Whether a value is an adapter with its scale."""
    is_number = isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], (int, float))
    return is_number and not isinstance(value[1], bool)


def _spec(name: str, value: Any) -> AdapterSpec:
    source, scale = value if _is_pair(value) else (value, 1.0)
    if isinstance(source, (str, os.PathLike)):
        source = os.fspath(source)
        if not source or not isinstance(source, str):
            raise checks.refuse(name, "the path of an adapter", source)
    elif not hasattr(source, "fingerprint"):
        raise checks.refuse(name, "paths or adapters, each alone or with its scale", value)
    return source, float(checks.number(name, scale))

"""Names of the last release, with a DeprecationWarning; the next release drops them."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    **{name: f"apps.{name}" for name in ("batch", "bench", "cli", "convert", "demo", "doctor", "evaluation")},
    **{name: f"apps.{name}" for name in ("mcp", "quantize", "ray", "server", "testing")},
    **{name: f"base.{name}" for name in ("config", "contract", "events", "formats", "locks", "targets")},
    **{name: f"text.{name}" for name in ("chat", "grammar", "tokenizer", "toolcalls")},
    **{name: f"engine.{name}" for name in ("cache", "sampling")},
    **{name: f"engine.features.{name}" for name in ("disk_prefixes", "media", "observability", "pipeline")},
    **{name: f"models.{name}" for name in ("adapters", "offload", "weights")},
    "hub": "gguf.hub",
}
"""New names of packages and modules, by their old names."""

CURRENT = {"config", "demo"}
"""Old names that stay: `oxillama.demo` is documented."""


RENAMED = {"Busy": "QueueFull", "SsmStatePool": "RecurrentStatePool"}
"""New names of classes, by their old names."""


def new_name(name: str) -> str:
    """The new name of a class. Warns DeprecationWarning."""
    warnings.warn(f"oxillama.{name} is called {RENAMED[name]} now", DeprecationWarning, stacklevel=3)
    return RENAMED[name]


class _Alias(Loader):
    """Loads a module by its new name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put the alias's spec there


class MovedModules:
    """A finder of modules that have moved. It comes first, for an old package has the path of the new one."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, *rest = name.split(".")
        first = rest.pop(0) if rest else ""
        if package != "oxillama" or first not in MOVED:
            return None
        new = ".".join([package, MOVED[first], *rest])
        if importlib.util.find_spec(new) is None:
            return None
        if first not in CURRENT and not rest:
            warnings.warn(f"{name} is called {new} now", DeprecationWarning, stacklevel=2)
        return ModuleSpec(name, _Alias(new), is_package=True)


sys.meta_path.insert(0, MovedModules)

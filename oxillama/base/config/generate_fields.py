"""Writes the options as keyword arguments for type checkers: `fields.pyi`. Run by setup.py.

The stub has a `TypedDict` for each class of options, read from its source: the classes are not imported,
because the kernels that the package needs are not built yet. It is not under version control.
"""

from __future__ import annotations

import ast
from pathlib import Path

HEAD = '''"""The options as keyword arguments, for type checkers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from oxillama.base.config.adapters import Adapters
from oxillama.base.config.engine import SchedulerConfig, Texts
from oxillama.base.config.offload import OffloadPolicy
from oxillama.base.config.option import AnyPath
from oxillama.base.config.sampler import SamplerConfig
'''

CLASSES = {
    "SamplerFields(TypedDict": ("sampler.py", "SamplerConfig"),
    "GenerationFields(SamplerFields": ("generation.py", "GenerationOptions"),
    "EngineFields(TypedDict": ("engine.py", "EngineConfig"),
}
"""The class of keyword arguments with its base: the class of options, and its file."""

POSITIONAL = ("model_path",)
KINDS = {"offload_policy": "OffloadPolicy | None"}
"""Types of fields that a class declares as `InitVar[Any]`."""


def write(folder: Path) -> None:
    """Writes the stub into the folder of the classes of options."""
    parts = [HEAD]
    for head, (file, name) in CLASSES.items():
        options = fields((folder / file).read_text(encoding="utf-8"), name)
        rows = "".join(f"    {option}: {kind}\n" for option, kind in options.items())
        parts.append(f"\nclass {head}, total=False):\n{rows}")
    path, text = folder / "fields.pyi", "".join(parts)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def fields(source: str, name: str) -> dict[str, str]:
    """The annotated fields of a class, but for positional ones, with their types."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            found = [each for each in node.body if isinstance(each, ast.AnnAssign)]
            pairs = ((ast.unparse(each.target), ast.unparse(each.annotation)) for each in found)
            return {field: KINDS.get(field, kind) for field, kind in pairs if field not in POSITIONAL}
    raise ValueError(f"class: expected {name}, got a file without it")

"""`import oxillama` lists each public name once, and imports nothing before a name is used."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import oxillama

STUB = ast.parse(Path(oxillama.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
NAMES = [
    (node.module, alias.name)
    for node in STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
    if alias.name == alias.asname
]
"""(module below `oxillama`, name): the list that type checkers read too."""


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_each_name_is_an_attribute_of_its_module(module: str | None, name: str) -> None:
    whole = "oxillama" + (f".{module}" if module else "")
    found = importlib.import_module(f"{whole}.{name}" if name in ("config", "demo", "errors") else whole)
    assert getattr(oxillama, name) is getattr(found, name, found)


def test_each_name_is_given_once() -> None:
    names = [name for _, name in NAMES]
    assert len(names) > 90
    assert sorted(names) == sorted(set(names)) == sorted(oxillama.__all__)
    offered = {name for name in dir(oxillama) if not name.startswith("__")}
    assert offered <= set(names) and 20 < len(offered) < 35
    assert {"InferenceEngine", "EngineConfig", "Completion", "errors", "demo"} <= offered


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = oxillama.no_such_name


def test_the_import_is_light() -> None:
    code = "import sys, oxillama; print(*[name for name in sys.modules if name.startswith(('numpy', 'oxi'))])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["oxillama"]


def test_modules_of_options_and_errors_need_no_import_of_their_own() -> None:
    code = (
        "import oxillama; print(oxillama.errors.ConfigError.__name__, oxillama.config.EngineConfig.__name__)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["ConfigError", "EngineConfig"]

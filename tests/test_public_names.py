"""`import oxillama` names each public thing once, and imports nothing before it is used."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import oxillama
from tests.support.paths import ROOT

TOOL = ROOT / "tools" / "make_stub.py"
STUB = Path(oxillama.__file__).with_suffix(".pyi")
NAMES = [(module, name) for module, names in oxillama._NAMES.items() for name in names.split()]


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_each_name_is_that_of_its_module(module: str, name: str) -> None:
    assert getattr(oxillama, name) is getattr(importlib.import_module(module), name)


def test_each_name_is_given_once() -> None:
    names = [name for _, name in NAMES]
    assert sorted(names) == sorted(set(names)) == oxillama.__all__
    assert set(names) <= set(dir(oxillama))


def test_the_stub_has_the_same_names() -> None:
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    found = [
        (node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == alias.asname
    ]
    assert found == [("oxillama", "config"), ("oxillama", "errors"), *NAMES]


def test_the_stub_is_up_to_date() -> None:
    if not (TOOL.exists() and STUB.is_relative_to(ROOT)):
        pytest.skip("the package is not that of a checkout")
    spec = importlib.util.spec_from_file_location("make_stub", TOOL)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert not tool.is_stale(), "run tools/make_stub.py"
    assert '"py.typed", "*.pyi"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_import_is_light() -> None:
    code = "import sys, oxillama; print(*[name for name in sys.modules if name.startswith(('numpy', 'oxi'))])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["oxillama"]


def test_modules_of_facts_need_no_import_of_their_own() -> None:
    code = (
        "import oxillama; print(oxillama.errors.ConfigError.__name__, oxillama.config.EngineConfig.__name__)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["ConfigError", "EngineConfig"]

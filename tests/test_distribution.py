"""The distribution has one name, in every hint, page and table; what it contains is what runs."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

import oxillama
from oxillama.distribution import DISTRIBUTION, install
from tests.support.paths import ROOT

PACKAGE = Path(oxillama.__file__).parent
PYPROJECT = ROOT / "pyproject.toml"
needs_checkout = pytest.mark.skipif(not PYPROJECT.is_file(), reason="only the package was unpacked")


def strings(path: Path) -> list[str]:
    """The strings of a module; "{}" stands for a value in an f-string."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(v.value if isinstance(v, ast.Constant) else "{}" for v in node.values))  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def test_hints_name_no_other_distribution() -> None:
    said = {
        (path.relative_to(PACKAGE).as_posix(), command)
        for path in PACKAGE.rglob("*.py")
        for text in strings(path)
        for command in re.findall(r"pip install [^`),;]*", text)
    }
    assert {command for file, command in said if file != "distribution.py"} == {"pip install -e ."}
    assert install() == f"pip install {DISTRIBUTION}"
    assert install("ray") == f"pip install '{DISTRIBUTION}[ray]'"


@needs_checkout
def test_hints_name_extras_that_exist() -> None:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    assert project["name"] == DISTRIBUTION
    extras = project["optional-dependencies"]
    named = {
        extra
        for path in PACKAGE.rglob("*.py")
        for extra in re.findall(r"\binstall\(['\"](\w+)['\"]\)", path.read_text(encoding="utf-8"))
    }
    assert named and named <= extras.keys()
    for needed in [each for extra in extras.values() for each in extra if each.startswith("oxillama")]:
        assert needed.startswith(f"{DISTRIBUTION}[")
        assert set(needed.partition("[")[2].rstrip("]").split(",")) <= extras.keys()


@needs_checkout
def test_pages_install_this_distribution() -> None:
    readme = ROOT / "README.md"
    assert f"\npip install {DISTRIBUTION} " in readme.read_text(encoding="utf-8")
    pages = [readme, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        commands = re.findall(
            r"pip install '?(oxillama[\w-]*(?:==)?|\.\[\w+)", page.read_text(encoding="utf-8")
        )
        other = {"oxillama=="} if page.name == "measuring.md" else set()  # a peer of the benchmarks
        assert set(commands) <= {DISTRIBUTION, ".[test", *other}, page

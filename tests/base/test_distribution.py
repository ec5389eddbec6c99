"""The distribution has one name, in every hint, page and table; what it contains is what runs."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

import oxillama
from oxillama.base.distribution import DISTRIBUTION, install
from tests.support.paths import ROOT

PACKAGE = Path(oxillama.__file__).parent
PYPROJECT, README = ROOT / "pyproject.toml", ROOT / "README.md"
needs_checkout = pytest.mark.skipif(
    not (PYPROJECT.is_file() and README.is_file()), reason="the package is not that of a checkout"
)


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
    assert {command for file, command in said if file != "base/distribution.py"} == {"pip install -e ."}
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
def test_the_first_page_lists_every_extra_of_users() -> None:
    extras = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    rows = re.findall(r"^\| (`[\w`, ]+`) \|", (ROOT / "docs" / "get-started.md").read_text("utf-8"), re.M)
    listed = [extra for row in rows for extra in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(extras.keys() - {"test", "docs", "release", "lint", "dev"})


@needs_checkout
def test_pages_install_this_distribution() -> None:
    stranger = "`pip install oxillama` is another author's"  # the first page warns of that package
    assert f"`{DISTRIBUTION}`" in README.read_text(encoding="utf-8")
    pages = [README, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        text = page.read_text(encoding="utf-8").replace(stranger, "")
        commands = re.findall(r"pip install '?(oxillama[\w-]*(?:==)?|\.\[\w+)", text)
        other = {"oxillama=="} if page.name == "measuring.md" else set()  # a peer of the benchmarks
        assert set(commands) <= {DISTRIBUTION, ".[hub", ".[server", ".[test", ".[dev", ".[release", *other}, (
            page
        )


@needs_checkout
def test_one_python_is_the_oldest() -> None:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    oldest = project["project"]["requires-python"].removeprefix(">=")
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["project"]["classifiers"]))
    assert named == sorted(named, key=lambda version: int(version[2:])) and named[0] == oldest
    assert project["tool"]["mypy"]["python_version"] == oldest
    assert "target-version" not in project["tool"]["ruff"]  # ruff reads requires-python
    tags = [f"cp{version.replace('.', '')}" for version in named]
    wheels = [f"{tag}-*" for tag in (*tags, f"{tags[-1]}t")]  # the last one is free-threaded
    assert project["tool"]["cibuildwheel"]["build"].split() == wheels
    readme = README.read_text(encoding="utf-8")
    assert f"Python {oldest} or newer" in " ".join(readme.split())
    workflow = ROOT / ".github" / "workflows" / "tests.yml"
    if workflow.is_file():
        assert f'python: ["{named[0]}", "{named[-1]}"]' in workflow.read_text(encoding="utf-8")


@needs_checkout
def test_the_source_distribution_has_every_source() -> None:
    """`MANIFEST.in` names every kind of file that the package has in the repository."""
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    listed = subprocess.run(["git", "ls-files", "oxillama"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode or not (ROOT / "MANIFEST.in").is_file():
        pytest.skip("this is no repository")
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8")
    kinds = {
        "*.py",
        *re.findall(r"\*\.\w+", re.findall("^recursive-include oxillama (.*)", manifest, re.M)[0]),
    }
    missing = {
        name
        for name in listed.stdout.split()
        if f"*{Path(name).suffix}" not in kinds
        and not name.endswith("py.typed")  # setuptools adds what is package data
        and not name.startswith("oxillama/apps/server/page/static/")
    }
    assert listed.stdout and not missing


def test_the_wheel_lists_what_it_is_made_of() -> None:
    """An installed wheel has its list of contents where PEP 770 says; an installation in place has none."""
    try:
        files = importlib.metadata.files(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("not installed")
    found = [
        file
        for file in files
        if file.match(f"{DISTRIBUTION.replace('-', '_')}-*.dist-info/sboms/oxillama.cdx.json")
    ]
    if not found:
        pytest.skip("not installed from a wheel")
    contents = json.loads(found[0].read_text())
    assert (contents["bomFormat"], contents["specVersion"]) == ("CycloneDX", "1.6")
    assert contents["metadata"]["component"]["purl"] == f"pkg:pypi/{DISTRIBUTION}@{oxillama.__version__}"
    assert {"cython", "numpy", "temml", "markdown-it"} <= {each["name"] for each in contents["components"]}


@pytest.mark.slow
@needs_checkout
def test_after_pip_install_readme_s_examples_run_in_the_checkout(tmp_path: Path) -> None:
    """`pip install .` builds a wheel in the checkout. There, Python imports the package of the checkout."""
    command = ["git", "ls-files", "oxillama", "README.md", "LICENSE", "setup.py", "pyproject.toml"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no repository")
    for name in listed.stdout.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    setup = tmp_path / "setup.py"  # half of the time of the build is that of the optimizer
    setup.write_text(setup.read_text(encoding="utf-8").replace('"-O3"', '"-O0"').replace('"-O1"', '"-O0"'))
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("OXILLAMA_")}

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**clean, **environment},
            capture_output=True,
            text=True,
        )

    built = run("-m", "pip", "wheel", "--no-deps", "-w", "wheels", ".", OXILLAMA_TARGETS="portable")
    if "No matching distribution" in built.stderr:
        pytest.skip("no package index")
    assert built.returncode == 0, built.stderr[-4000:]
    examples = (
        "import doctest, oxillama; print(oxillama.__file__);"
        "print(doctest.testfile('README.md', False, optionflags=doctest.NORMALIZE_WHITESPACE))"
    )
    shown = run("-c", examples).stdout
    assert shown.startswith(f"{tmp_path / 'oxillama' / '__init__.py'}\nTestResults(failed=0, attempted="), (
        shown
    )


@pytest.mark.slow
@needs_checkout
def test_the_source_distribution_is_small_and_made_of_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("build")
    pytest.importorskip("twine")
    pytest.importorskip("zopfli")
    tool = ROOT / "tools" / "build_wheel.py"
    subprocess.run([sys.executable, tool, "--sdist", "--twice", "--out", tmp_path], check=True, cwd=ROOT)
    (path,) = tmp_path.iterdir()
    with tarfile.open(path) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    listed = subprocess.run(
        ["git", "ls-files", "oxillama"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(listed.stdout.split()) <= names

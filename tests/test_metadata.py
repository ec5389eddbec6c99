"""The metadata of the distribution, as the package index shows it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from email.message import Message
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PROJECT = ROOT / "pyproject.toml"
if not (ROOT / "README.md").is_file() or find_spec("setuptools") is None:
    pytest.skip("needs a checkout and setuptools", allow_module_level=True)
BUILD = """
import sys, setuptools
from setuptools.build_meta import prepare_metadata_for_build_wheel
prepare_metadata_for_build_wheel(sys.argv[1])
"""


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Message:
    """METADATA as the build backend writes it."""
    import setuptools

    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip("pyproject.toml needs setuptools 77")
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    for name in ("oxillama/base/version.py", "oxillama/apps/server/page/static/vendor/README.md"):
        (source / name).parent.mkdir(parents=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    out = folder / "out"
    out.mkdir()
    subprocess.run([sys.executable, "-c", BUILD, str(out)], cwd=source, check=True, capture_output=True)
    (path,) = Path(out).glob("*.dist-info/METADATA")
    return Parser().parsestr(path.read_text(encoding="utf-8"))


def test_it_says_who_made_what_for_whom(metadata: Message) -> None:
    assert metadata["Name"] == "oxillama-cpu"
    assert "the oxillama developers" in (metadata["Author"] or metadata["Author-email"])
    assert metadata.get_all("Project-URL") and len(metadata["Keywords"].split(",")) >= 5
    kinds = {each.split(" :: ")[0] for each in metadata.get_all("Classifier") or ()}
    assert kinds >= {
        "Development Status",
        "Intended Audience",
        "Operating System",
        "Programming Language",
        "Topic",
    }


def test_the_readme_in_it_has_no_relative_link(metadata: Message) -> None:
    text = str(metadata.get_payload())
    assert "pip install . && oxillama demo" in text
    assert not re.search(r"\]\((?!https://)|(?:src|href)=\"(?!https://)", text)


def test_the_extra_for_developers_has_all_that_they_need() -> None:
    extras = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert "oxillama-cpu[docs,lint,release,test]" in extras["dev"]
    assert any(each.startswith("cython") for each in extras["dev"])
    assert any(each.startswith("setuptools") for each in extras["dev"])

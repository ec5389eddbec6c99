"""The README's examples run, and its lists of models and formats agree with the code."""

from __future__ import annotations

import doctest
import re
import shlex

import pytest

from oxillama.apps import cli
from oxillama.base.formats import FORMATS
from oxillama.models import FAMILIES
from tests.support.paths import DOCS, ROOT

README = ROOT / "README.md"
if not README.is_file():
    pytest.skip("only the package was unpacked", allow_module_level=True)
TEXT = README.read_text(encoding="utf-8")
SUPPORTED = (DOCS / "supported.md").read_text(encoding="utf-8")


def test_examples_run_and_print_what_they_show() -> None:
    failed, tried = doctest.testfile(
        str(README), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert (failed, tried) == (0, 5)


def test_it_is_one_screen_in_this_order() -> None:
    assert TEXT.count("\n") <= 50
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["sh", "sh", "sh", "python"]
    assert [text for _, text in blocks[:2]] == [
        "pip install . && oxillama demo\n",
        "pip install -e '.[test]' && pytest\n",  # CI runs this line, to the letter
    ]
    assert TEXT.index("**What is ours alone") > TEXT.index("```python")


def test_each_command_runs_with_the_shipped_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = re.findall(
        r"^(?:.*&& )?(oxillama \w+.*)$", "\n".join(re.findall(r"^```sh\n(.*?)^```", TEXT, re.M | re.S)), re.M
    )
    served: list[str] = []
    monkeypatch.setattr("oxillama.apps.cli.serve.serve", lambda args: served.append(args.model) or 0)
    for line in lines:
        assert cli.main(shlex.split(line, comments=True)[1:]) == 0, line
    assert [line.split()[1] for line in lines] == ["demo", "chat", "info", "serve"] and served == ["demo"]
    assert "fits" in capsys.readouterr().out


def test_links_are_absolute() -> None:
    links = re.findall(r"\]\((.*?)\)|(?:src|href)=\"(.*?)\"", TEXT)
    assert len(links) > 2 and all("".join(link).startswith("https://") for link in links)


def test_the_formats_are_those_with_kernels() -> None:
    listed = SUPPORTED[SUPPORTED.index("- **Formats**") : SUPPORTED.index("- **CPUs**")].split("mixed")[0]
    assert set(re.findall(r"\b[A-Z]+\d*[A-Z0-9_]*\d+[A-Z0-9_]*\b", listed)) == {
        name for name, fmt in FORMATS.items() if fmt.layout
    }


def test_the_architectures_are_those_that_load() -> None:
    listed = SUPPORTED[SUPPORTED.index("- **Models**") : SUPPORTED.index("- **Formats**")]
    assert set(re.findall(r"`([^`]+)`", listed)) == set(FAMILIES)

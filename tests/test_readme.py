"""What the README shows is what happens, and the lists of what runs are those of the code."""

from __future__ import annotations

import doctest
import re

import pytest

from oxillama import InferenceEngine, SamplerConfig, cli, demo
from oxillama.formats import FORMATS
from oxillama.models import FAMILIES
from tests.support.paths import DOCS, ROOT

README = ROOT / "README.md"
if not README.is_file():
    pytest.skip("only the package was unpacked", allow_module_level=True)
TEXT = README.read_text(encoding="utf-8")
SUPPORTED = (DOCS / "supported.md").read_text(encoding="utf-8")


def test_examples_run_and_print_what_they_show() -> None:
    flags = doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testfile(str(README), module_relative=False, optionflags=flags)
    assert (failed, tried > 8) == (0, True)


def test_the_sample_is_what_the_model_writes() -> None:
    shown = " ".join(line[1:] for line in TEXT.splitlines() if re.match(r">( |$)", line))
    words = TEXT[TEXT.index("oxillama demo -p") :]
    prompt, seed = re.search(r"-p \$'(.+?)' --seed (\d+)", words).groups()  # type: ignore[union-attr]
    prompt = prompt.replace("\\n", "\n")
    engine = InferenceEngine.from_gguf(demo.STORY)
    text = prompt + engine.generate(prompt, sampler=SamplerConfig(seed=int(seed)), max_tokens=400)
    assert text.split() == shown.split()


def test_the_commands_exist(capsys: pytest.CaptureFixture[str]) -> None:
    shown = set(re.findall(r"^oxillama (\w+)", TEXT, re.MULTILINE))
    assert {"demo", "run", "chat", "info", "tokenize", "bench", "doctor"} <= shown
    for command in shown:
        assert cli.main([command, "--help"]) == 0
    capsys.readouterr()


def test_the_formats_are_those_with_kernels() -> None:
    listed = SUPPORTED[SUPPORTED.index("- **Formats**") : SUPPORTED.index("- **CPUs**")].split("mixed")[0]
    assert set(re.findall(r"\b[A-Z]+\d*[A-Z0-9_]*\d+[A-Z0-9_]*\b", listed)) == {
        name for name, fmt in FORMATS.items() if fmt.layout
    }


def test_the_architectures_are_those_that_load() -> None:
    listed = SUPPORTED[SUPPORTED.index("- **Models**") : SUPPORTED.index("- **Formats**")]
    assert set(re.findall(r"`([^`]+)`", listed)) == set(FAMILIES)

"""Numbers and names of the pages that the code knows: counts, defaults, and lists that must be complete.

`tests/test_limits.py` compares the page of limits, `tests/test_readme.py` the lists of models and formats,
`tests/apps/server/test_documented.py` the paths and fields of the server. `tools/make_options.py`,
`make_fields.py`, `make_size_tables.py` and `make_pictures.py` make their pages and tables from code.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from typing import Any

import pytest

from oxillama import EngineConfig, GenerationOptions, SamplerConfig, SchedulerConfig
from oxillama.apps.cli.chat_commands import ALIASES, COMMANDS
from oxillama.base.config.server import ServerConfig
from oxillama.base.formats import KV_TYPES
from oxillama.base.targets import TARGETS
from oxillama.gguf.file_types import FILE_TYPES
from oxillama.models import FAMILIES
from oxillama.models.media.facts import AUDIO, VISION
from oxillama.models.registry import DRAFT_FAMILIES
from oxillama.reference.families import FAMILIES as STATED
from oxillama.text.grammar.schema.formats import FORMATS, UNENFORCEABLE
from oxillama.text.toolcalls import GRAMMARS
from tests.support.paths import DOCS, ROOT

if not DOCS.is_dir():
    pytest.skip("only the package was unpacked", allow_module_level=True)

PAGES = {page.stem: page.read_text(encoding="utf-8") for page in DOCS.glob("*.md")}
CLASSES = (EngineConfig, SchedulerConfig, GenerationOptions, SamplerConfig, ServerConfig)
BYTES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
DEFAULT = re.compile(r"`(?:--)?([a-z][a-z0-9_-]+)` \((\d[\d,.]*)(?: (KiB|MiB|GiB))?\)")
"""An option with its default: `--body-seconds` (60), `prefix_cache_bytes` (512 MiB)."""


def defaults(name: str) -> set[Any]:
    """The defaults of the options of this name."""
    found = [field for cls in CLASSES for field in fields(cls) if field.name == name.replace("-", "_")]
    return {field.default for field in found if field.default is not MISSING}


def names(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def between(page: str, begin: str, end: str) -> str:
    text = PAGES[page]
    assert begin in text, f"{page}: {begin}"
    return text[text.index(begin) :].partition(end)[0]


def first_cells(page: str, head: str) -> set[str]:
    """The names in the first cells of a table."""
    lines = between(page, head, "\n\n").splitlines()[2:]
    return {name for line in lines for name in names(line.split(" | ")[0])}


def test_defaults_are_those_of_the_options() -> None:
    shown = [
        (page, *found)
        for page, text in PAGES.items()
        if page != "limits"  # has limits of files, and a test of its own
        for found in DEFAULT.findall(text)
        if defaults(found[0])
    ]
    assert len(shown) >= 8
    for page, name, number, unit in shown:
        value = float(number.replace(",", "")) * BYTES.get(unit, 1)
        assert value in defaults(name), f"{page}: {name} ({number} {unit}) is {defaults(name)}"


def test_the_table_of_offloading_has_the_defaults() -> None:
    rows = re.findall(r"^\| `(offload_\w+)` \| (\S+) \|", PAGES["offload"], re.MULTILINE)
    written: dict[Any, str] = {None: "none", (): "()", True: "true", "auto": '`"auto"`'}
    config = {field.name: field.default for field in fields(EngineConfig)}
    assert len(rows) == len(
        [name for name in config if name.startswith("offload_") and name != "offload_policy"]
    )
    for name, shown in rows:
        assert written[config[name]] == shown, name


def test_counts_of_architectures() -> None:
    counts = {len(FAMILIES), len(STATED)}
    assert set(map(int, re.findall(r"\b(\d+) architectures", "".join(PAGES.values())))) == counts
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "more than a hundred architectures" in changelog and len(FAMILIES) > 100


def test_formats_of_tool_calls() -> None:
    table = first_cells("toolcalls", "| format | models | a call |")
    assert table == {*GRAMMARS, "ToolCallGrammar.Custom(open, close)"} - {"none"}
    assert "more than twenty" in PAGES["python"] and len(GRAMMARS) > 20


def test_formats_of_json_schema() -> None:
    known = between("json-schema", "Known: ", ".").removeprefix("Known: ")
    assert set(re.split(r",\s+", known)) == FORMATS
    assert names(between("json-schema", "- the formats `", ";")) == UNENFORCEABLE


def test_types_of_files() -> None:
    listed = re.sub(r"\(.*?\)", "", between("quantize", "The types: ", "How much memory"), flags=re.DOTALL)
    assert set(re.findall(r"\b(?:B?F\d+|[IT]?Q\d_\w+|NVFP4)", listed)) == set(FILE_TYPES)


def test_types_of_keys_and_values() -> None:
    listed = between("supported", "- **Keys and values**: ", ", with a type")
    assert set(re.findall(r"\b(?:b?f\d+|i?q\d_\w+)", listed)) == set(KV_TYPES)


def test_kinds_of_projector_files() -> None:
    assert f"{len(VISION) + len(AUDIO)} kinds of projector files" in PAGES["supported"]
    assert first_cells("media", "| `projector_type` |") == {*VISION, *AUDIO}


def test_drafters_with_files() -> None:
    assert names(between("supported", "- **Drafters**", "(also")) <= set(DRAFT_FAMILIES)
    for page, begin, end in (
        ("supported", "- **Drafters**", "- **CPUs**"),
        ("speculation", "| a path of a drafter |", "\n"),
        ("speculation", "| file | reads |", "\n\n"),
    ):
        assert set(DRAFT_FAMILIES) <= names(between(page, begin, end)), page


def test_targets() -> None:
    for text in re.findall(r"`target: expected one of ([\w, ]+)`", PAGES["troubleshooting"]):
        assert text.split(", ") == [target.name for target in TARGETS]


def test_commands_of_a_chat() -> None:
    listed = set(re.findall(r"`/(\w+)", between("chat", "## Commands", "A line that ends")))
    assert listed == {*COMMANDS, *ALIASES} - {"clear"}

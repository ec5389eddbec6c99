"""The examples of the pages run: those without a prompt, on a tiny model in the place of "model.gguf"."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import oxillama
from tests.support.media import picture, projector_file
from tests.support.paths import DOCS, ROOT
from tests.support.tiny_file import write_tiny_model

if not DOCS.is_dir():
    pytest.skip("only the package was unpacked", allow_module_level=True)

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]


def examples(page: Path) -> list[str]:
    """The blocks of Python of a page that are no doctests."""
    blocks = re.findall(r"^```python\n(.+?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [block for block in blocks if not block.startswith(">>>")]


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)], ids=lambda page: page.stem)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.stem == "mcp":
        pytest.importorskip("mcp", reason="needs the package mcp: pip install 'oxillama-cpu[mcp]'")
    write_tiny_model(tmp_path / "model.gguf")
    if page.stem == "media":
        image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
        (tmp_path / "mmproj-F16.gguf").write_bytes(projector_file())
        image.fromarray(picture(40, 30)).save(tmp_path / "cat.png")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {name: getattr(oxillama, name) for name in oxillama.__all__}
    names["__name__"] = page.stem
    for block in examples(page):
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def test_the_rooms_of_the_architecture_are_those_that_exist() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (\w+) \| (.+?) \|", text, re.MULTILINE)
    shown = {room: floor for floor, rooms in listed for room in re.findall(r"`(\w+)`", rooms.split(";")[0])}
    package = Path(oxillama.__file__).parent
    rooms = {path.parent.name: path.read_text(encoding="utf-8") for path in package.glob("*/__init__.py")}
    assert shown == {room: source.lstrip('"').split(":")[0] for room, source in rooms.items()}


def test_the_glossary_has_each_term_once_in_order() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    row = re.compile(r"^\| (.+?) \| [A-Z0-9].*\. \| [^|]*\|$", re.MULTILINE)
    terms = [term.casefold() for term in row.findall(text)]
    assert len(terms) > 70 and len(terms) + 2 == len(re.findall(r"^\|", text, re.MULTILINE))
    assert terms == sorted(set(terms))

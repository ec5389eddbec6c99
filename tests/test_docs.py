"""The examples of the pages run: those without a prompt, on a tiny model in the place of "model.gguf"."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import oxillama
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
    write_tiny_model(tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {name: getattr(oxillama, name) for name in oxillama.__all__}
    names["__name__"] = page.stem
    for block in examples(page):
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target

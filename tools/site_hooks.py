"""Hooks of `mkdocs build`: the tour of the code, the tables of recorded results, the order of the search."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
WORDS = tomllib.loads((ROOT / "tools" / "search_words.toml").read_text(encoding="utf-8"))

BOOSTS = {"Reference": 0.3, "Behind it": 0.1, None: 0.02}
"""Factors of a page's rank in the search, by the heading of the navigation; None for the decisions."""


def on_files(files: Files, config: Any) -> Files:
    """Adds the page that `tools/make_tour.py` prints."""
    command = [sys.executable, str(ROOT / "tools" / "make_tour.py")]
    page = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    files.append(File.generated(config, "tour.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Shows tables in the place of links to `benchmarks/results`; says how the search ranks the page."""
    name = page.file.src_uri.removesuffix(".md")
    section = page.ancestors[-1].title if page.ancestors else None
    section = "Reference" if name.startswith("api") else section
    words = WORDS.get(name, "").split()
    page.meta["search"] = {"boost": 1.0 if words else BOOSTS.get(section, 0.7)}
    page.meta["tags"] = words
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from benchmarks.results import drawn

    return drawn(markdown)

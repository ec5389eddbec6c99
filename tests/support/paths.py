"""Folders that tests read."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The project."""

DATA = ROOT / "tests" / "data"
"""Recorded expectations."""

DOCS = ROOT / "docs"

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
VOCABS = Path(os.environ.get("OXILLAMA_VOCABS") or _CACHE / "oxillama" / "vocabs")
"""Vocabularies, and chat templates, that `tools/fetch_vocabs.py` gets; tests of them are skipped without."""
TEMPLATES = sorted(VOCABS.glob("templates/*.jinja"))

SHARED = ROOT.parent / "shared"
"""Reference models and suites that may lie beside the project; tests of them are skipped elsewhere."""

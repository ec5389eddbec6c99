"""Folders that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The project."""

DATA = ROOT / "tests" / "data"
"""Recorded expectations."""

DOCS = ROOT / "docs"

SHARED = ROOT.parent / "shared"
"""Reference models and suites that may lie beside the project; tests of them are skipped elsewhere."""

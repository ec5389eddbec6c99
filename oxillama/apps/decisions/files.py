"""How files with receipts of decisions are recognised, without an engine."""

from __future__ import annotations

import os

from oxillama.sessions.receipt import read_file

FORMAT = "oxillama decision"


def is_decision(path: str | os.PathLike[str]) -> bool:
    """Whether a file contains, or claims to contain, a receipt of a decision."""
    return f'"format": "{FORMAT}"'.encode() in read_file(path, "receipt")[:200]

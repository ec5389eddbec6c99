"""Names of models: by their files, and with Ollama's tag."""

from __future__ import annotations

import os
from pathlib import Path

LATEST = ":latest"
"""The tag of a name without a tag: Ollama's clients add it, and some use the name on other paths, too."""


def other_name(name: str) -> str:
    """A name without its ``:latest``; with it if the name does not end so."""
    return name.removesuffix(LATEST) if name.endswith(LATEST) else name + LATEST


def name_of_file(path: object) -> str:
    """The default name of a file's model for clients. Bytes that are not UTF-8 are written as ``\\xff``."""
    return os.fsencode(Path(str(path)).stem).decode("utf-8", "backslashreplace")

"""The projector file of a model: where it is, and what it takes, without loading it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from oxillama.errors import OxiLlamaError
from oxillama.gguf.hub.names import projector_of
from oxillama.gguf.model_file import ModelFile
from oxillama.models.media.facts import projector_name

PATTERN = "*mmproj*.gguf"
"""Projector files beside a model."""

MOST_LISTED = 10
"""File names in a message."""

MODALITIES = {"vision": "image", "audio": "audio"}
"""The names of media by those of encoders, in this order."""

FORMAT = re.compile(r"[-._](?:i?q\d\w*|bf16|f16|f32|mxfp4|ud|model)(?=[-._]|$)", re.IGNORECASE)


def beside(model: str | os.PathLike[str]) -> list[Path]:
    """The projector files in the folder of a model file, by name.

    Else those at the top of its repository, for a model in a folder of the hub's cache.
    """
    path = Path(model)
    found = sorted(each for each in path.parent.glob(PATTERN) if each.name != path.name)
    top = next((up for up in path.parents if up.parent.name == "snapshots"), path.parent)
    return found or sorted(top.glob(PATTERN))


def found_beside(model: str | os.PathLike[str]) -> Path | None:
    """The projector file that belongs to a model file; None if no file or several files may belong to it.

    The only one beside it does. Of several, one whose name is the model's apart from "mmproj" and words for
    formats, else one that names no model; of 16 bits, if there are several formats.
    """
    paths = beside(model)
    if len(paths) < 2:
        return paths[0] if paths else None
    for wanted in (plain_name(Path(model).name), ""):
        same = {path.name: path for path in paths if plain_name(path.name) == wanted}
        if same:
            return same[projector_of(same) or ""]
    return None


def missing_reason(paths: Sequence[str | os.PathLike[str]]) -> str:
    """Why a model of these files has no projector file."""
    several = beside(paths[0]) if paths else []
    if several:
        names = ", ".join(path.name for path in several[:MOST_LISTED])
        return f"of the projector files beside it none has its name, mmproj must say which: {names}"
    return "it has no projector file (mmproj)"


def plain_name(name: str) -> str:
    """A file name without "mmproj", words for formats and numbers of shards."""
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", name.removesuffix(".gguf"))
    stem = re.sub("mmproj", "", stem, flags=re.IGNORECASE).strip("-._")
    return FORMAT.sub("", f"-{stem}").strip("-._").lower()


def takes(path: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """What a projector file takes, "image" and "audio"; () for None, and for a file that cannot be loaded."""
    if path is None:
        return ()
    try:
        facts = os.stat(path)
    except (OSError, ValueError):
        return ()
    return _taken(os.fspath(path), facts.st_size, facts.st_mtime_ns)


@lru_cache(256)
def _taken(path: str, size: int, changed: int) -> tuple[str, ...]:
    try:
        with ModelFile.open(path) as file:
            return tuple(word for kind, word in MODALITIES.items() if projector_name(file, kind) is not None)
    except OxiLlamaError:
        return ()

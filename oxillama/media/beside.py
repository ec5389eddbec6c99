"""The projector file of a model: where it is, and what it takes, without loading it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from oxillama.errors import OxiLlamaError
from oxillama.gguf.model_file import ModelFile
from oxillama.media.facts import projector_name

PATTERN = "*mmproj*.gguf"
"""Projector files beside a model."""

MODALITIES = {"vision": "image", "audio": "audio"}
"""The names of media by those of encoders, in this order."""

FORMAT = re.compile(r"[-._](?:i?q\d\w*|bf16|f16|f32|mxfp4|ud|model)(?=[-._]|$)", re.IGNORECASE)


def beside(model: str | os.PathLike[str]) -> list[Path]:
    """The projector files in the folder of a model file, by name."""
    path = Path(model)
    return sorted(each for each in path.parent.glob(PATTERN) if each.name != path.name)


def found_beside(model: str | os.PathLike[str]) -> Path | None:
    """The one projector file that belongs to a model file; None for none, or if several may.

    The only one in the folder does. Of several, the only one whose name is the model's beside "mmproj" and
    words for formats.
    """
    paths = beside(model)
    if len(paths) > 1:
        paths = [path for path in paths if plain_name(path.name) == plain_name(Path(model).name)]
    return paths[0] if len(paths) == 1 else None


def plain_name(name: str) -> str:
    """A file name without "mmproj", words for formats and numbers of shards."""
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", name.removesuffix(".gguf"))
    stem = re.sub("mmproj", "", stem, flags=re.IGNORECASE).strip("-._")
    return FORMAT.sub("", f"-{stem}").strip("-._").lower()


def best_of(names: Iterable[str]) -> str | None:
    """The projector file that is taken of a repository with several: of 16 bits, else the first by name."""
    found = sorted(name for name in names if re.search("mmproj", Path(name).name, re.IGNORECASE))
    for word in (r"(?<!b)f16", "bf16"):
        exact = [name for name in found if re.search(word, Path(name).name, re.IGNORECASE)]
        if exact:
            return exact[0]
    return found[0] if found else None


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

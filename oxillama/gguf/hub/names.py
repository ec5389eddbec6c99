"""Names of models on the hub, and the files of a repository that a name means.

    user/repo:Q4_K_M              the model whose file name has this part
    hf://user/repo:Q4_K_M         the same
    hf://user/repo/dir/file.gguf  this file; * and ? stand for any characters
    hf://user/repo                the only model of the repository, or the one in Q4_K_M
    hf://user/repo@revision/...   of a branch, a tag or a commit

A split model is one model, whichever of its files is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from oxillama.errors import ConfigError

SCHEME = "hf://"
REPO = r"[\w.-]+/[\w.-]+"
TAGGED = re.compile(rf"({REPO}):([\w.-]+)")
ADDRESS = re.compile(rf"hf://({REPO})(?:@([^/:@]+))?(?:/(.+)|:([\w.-]+))?")
SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
COMPANION = re.compile(
    r"(?i:mmproj)|(?i:(^|[-._])imatrix([-._]|$))|(^|[-._])(mtp|eagle3|dflash|dspark)-|(?i:^ggml-vocab-)"
    r"|(?i:[-._](lora|vocab)(-\d{5}-of-\d{5})?\.gguf$)"
)
"""Names of files that are no models: projectors, importance matrices, heads that draft tokens, vocabularies
and LoRA adapters.

The first three kinds are those of llama.cpp (``gguf_filename_is_model`` in its ``common/download.cpp``). An
ending "LoRA" or "vocab" is the type in GGUF's naming convention (https://github.com/ggml-org/ggml,
``docs/gguf.md``). A model that drafts for another is a model.
"""
USUAL = "Q4_K_M"
"""The format that is taken of several where a name has none."""

MOST_LISTED = 40
"""File names in a message."""


@dataclass(frozen=True)
class HubName:
    """A model of a repository.

    Attributes:
        repo: "user/repo".
        file: path of a file in it, or a pattern with * and ?; "" if ``tag`` says which.
        tag: part of the file's name between delimiters, as "Q4_K_M"; "" with a ``file``. With neither, the
            repository must have one model only, or one in `USUAL`.
        revision: branch, tag or commit; None for the repository's default.
    """

    repo: str
    file: str = ""
    tag: str = ""
    revision: str | None = None

    def __str__(self) -> str:
        at = "" if self.revision is None else f"@{self.revision}"
        rest = f"/{self.file}" if self.file else f":{self.tag}" if self.tag else ""
        return f"{SCHEME}{self.repo}{at}{rest}" if at or not self.tag else f"{self.repo}{rest}"


def hub_name(text: str) -> HubName | None:
    """The name that ``text`` is; None if it can only be a path.

    Raises ConfigError for text that begins with hf:// and names nothing.
    """
    if found := TAGGED.fullmatch(text):
        return HubName(found[1], tag=found[2])
    if not text.startswith(SCHEME):
        return None
    parts = ADDRESS.fullmatch(text)
    if parts is None:
        raise ConfigError(f"model: expected hf://user/repo/file.gguf or hf://user/repo:TAG, got {text}")
    return HubName(parts[1], parts[3] or "", parts[4] or "", parts[2])


def model_files(name: HubName, paths: Iterable[str]) -> list[str]:
    """The files of the one model that a name means, in order.

    Args:
        paths: of all files of the repository.

    Raises:
        ConfigError: no model fits the name, or several do, with a list; or a file of a split model is
            missing.
    """
    models = models_of(paths)
    found = [files for files in models if fits(name, files)]
    own = [files for files in found if not is_companion(files[0])]
    if not (name.file or name.tag) and len(own) > 1:
        own = [files for files in own if fits(replace(name, tag=USUAL), files)] or own
    if len(own) == 1:  # a pattern may fit companions of the model, too
        found = own
    if len(found) == 1:
        if n_missing(found[0]):
            raise ConfigError(f"{name}: expected all files of a split model, got {', '.join(found[0])}")
        return found[0]
    listed = [files[0] for files in (found or models)]
    shown = ", ".join(listed[:MOST_LISTED]) + (", ..." if len(listed) > MOST_LISTED else "")
    if found:
        raise ConfigError(f"{name}: expected a name of one model, {len(found)} have it: {shown}")
    has = f"it has {shown}" if listed else "it has no GGUF files"
    raise ConfigError(f"{name}: expected a model of the repository, {has}")


def models_of(paths: Iterable[str]) -> list[list[str]]:
    """The GGUF models among the files of a repository, each as the list of its files in order."""
    sets: dict[tuple[str, str], list[str]] = {}
    for path in sorted(paths):
        if path.lower().endswith(".gguf"):
            shard = SHARD.fullmatch(path)
            sets.setdefault((shard[1], shard[3]) if shard else (path, ""), []).append(path)
    return list(sets.values())


def projector_of(paths: Iterable[str]) -> str | None:
    """The projector file (mmproj) to use, if any: one with 16 bits, else the first by name."""
    names = sorted(path for path in paths if re.fullmatch(r".*mmproj[^/]*\.gguf", path, re.IGNORECASE))
    for word in (r"(?<!b)f16", "bf16", ""):
        found = [name for name in names if re.search(word, name.rpartition("/")[2], re.IGNORECASE)]
        if found:
            return found[0]
    return None


def n_missing(files: list[str]) -> int:
    """How many files of a split model are missing."""
    shard = SHARD.fullmatch(files[0])
    return int(shard[3]) - len(files) if shard else 0


def fits(name: HubName, files: list[str]) -> bool:
    """Whether a name means the model of these files."""
    if name.file:
        return name.file in files or any(fnmatchcase(file, name.file) for file in files)
    if is_companion(files[0]):
        return False
    if not name.tag:
        return True
    return re.search(rf"(?i:(^|[-._/]){re.escape(name.tag)}(?=[-./]|$))", files[0]) is not None


def is_companion(path: str) -> bool:
    """Whether a file, by its name, is no model but belongs to one."""
    return COMPANION.search(path.rpartition("/")[2]) is not None

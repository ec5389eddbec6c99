"""Reads the tensors of a Hugging Face folder: one safetensors file, or shards with an index.

A file is a length, a JSON header and the tensors' bytes, which are read on demand. The `safetensors` package
is not used because it needs a NumPy type for bfloat16, which NumPy does not have, and because it maps files:
truncating a mapped file ends the process.

Format: https://huggingface.co/docs/safetensors/index#format.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.errors import LoadError, ModelFileError
from oxillama.gguf.extent import Extent, OpenFile

MAX_HEADER = 100_000_000
"""Most bytes of a header, as in the format's own reader, and of any other JSON file of a model."""

MAX_DIMS = 8
WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of an element, by the kinds of weights."""

RAW = "U8"
"""The kind of MXFP4's blocks and their scales."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a file. The last dimension of ``shape`` is contiguous."""

    name: str
    kind: str
    shape: tuple[int, ...]
    data: Extent

    def values(self) -> np.ndarray:
        """float32 (shape).

        Raises LoadError for another kind than floats and for infinite values, and ModelFileError if the file
        cannot be read or has changed since it was opened.
        """
        if self.kind not in WIDTHS:
            raise LoadError(f"{self.name}: expected weights in one of {', '.join(WIDTHS)}, got {self.kind}")
        data = self.data.read()
        if self.kind == "BF16":  # the upper half of a float32
            found = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            dtype = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[self.kind]
            with np.errstate(over="ignore"):
                found = np.frombuffer(data, dtype).astype(np.float32)
        if not np.isfinite(found).all():
            raise LoadError(f"{self.name}: expected finite weights, got {found[~np.isfinite(found)][0]}")
        return found.reshape(self.shape)

    def raw(self) -> np.ndarray:
        """uint8 (shape). Raises LoadError for another kind than bytes, ModelFileError as `values` does."""
        if self.kind != RAW:
            raise LoadError(f"{self.name}: expected bytes ({RAW}), got {self.kind}")
        return self.data.read().reshape(self.shape)

    def piece(self, start: int, n: int) -> Stored:
        """``n`` indices of the first dimension, from ``start``."""
        width = self.data.nbytes // max(self.shape[0], 1)
        return replace(self, shape=(n, *self.shape[1:]), data=self.data.part(start * width, n * width))

    def pieces(self, nbytes: int) -> Iterator[Stored]:
        """Slices along the first dimension, of about ``nbytes`` bytes and at least one index each."""
        step = max(1, nbytes * self.shape[0] // max(self.data.nbytes, 1))
        for start in range(0, self.shape[0], step):
            yield self.piece(start, min(step, self.shape[0] - start))


def exists(path: Path) -> bool:
    """Whether there is a file, a folder or a link. Raises ModelFileError if the system cannot tell."""
    return _mode(os.lstat, path) is not None


def is_folder(path: Path) -> bool:
    """Whether there is a folder, or a link to a folder. Raises ModelFileError if the system cannot tell."""
    mode = _mode(os.stat, path)
    return mode is not None and stat.S_ISDIR(mode)


def _mode(status: Callable[[Path], os.stat_result], path: Path) -> int | None:
    """The mode of a file; None if there is nothing, and for impossible paths."""
    try:
        return status(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_text(path: Path) -> str:
    """A text in UTF-8, with line ends of one character.

    Raises ModelFileError if the file cannot be read, LoadError if it is too long or not UTF-8.
    """
    file = OpenFile(path)
    if file.size > MAX_HEADER:
        raise LoadError(f"{path}: expected a text of at most {MAX_HEADER} bytes, got {file.size}")
    try:
        text = Extent(file, 0, file.size).read().tobytes().decode()
    except UnicodeDecodeError as error:
        raise LoadError(f"{path}: expected UTF-8, got {error}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ModelFileError if the file cannot be read, LoadError for another content."""
    return _json_object(read_text(path), f"{path}: expected JSON")


def _json_object(text: str, expected: str) -> dict[str, Any]:
    """A JSON object without repeated names. Raises LoadError, whose text begins with ``expected``."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise LoadError(f"{expected} with every name once, got {name!r:.80} twice")
            found[name] = value
        return found

    try:
        found = json.loads(text, object_pairs_hook=unique)
    except LoadError:
        raise
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{expected}, got {error}") from error
    if not isinstance(found, dict):
        raise LoadError(f"{expected} of an object, got {type(found).__name__}")
    return found


def read_tensors(folder: Path) -> dict[str, Stored]:
    """The tensors of a folder by name.

    Raises:
        ModelFileError: a file is missing, or cannot be read.
        LoadError: a header is malformed, or a shard has other tensors than the index says.
    """
    index = folder / "model.safetensors.index.json"
    if not exists(index):
        return {tensor.name: tensor for tensor in read_file(folder / "model.safetensors")}
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise LoadError(f"{index}: expected a weight_map of tensors and file names")
    found: dict[str, Stored] = {}
    for shard in sorted(set(places.values())):
        if Path(shard).name != shard or shard == ".." or not shard.isprintable():
            raise LoadError(f"{index}: expected names of files beside it, got {shard!r:.80}")
        for tensor in read_file(folder / shard):
            if places.get(tensor.name) != shard:
                raise LoadError(f"{shard}: expected only tensors that the index has there, got {tensor.name}")
            found[tensor.name] = tensor
    missing = places.keys() - found.keys()
    if missing:
        raise LoadError(f"{places[min(missing)]}: expected the tensor {min(missing)} of the index, got none")
    return found


def read_file(path: Path) -> list[Stored]:
    """The tensors of one file, which stays open while one of them exists."""
    file = OpenFile(path)
    if file.size < 8:
        raise LoadError(f"{path}: expected a header of 8 bytes or more, got {file.size}")
    whole = Extent(file, 0, file.size)
    length = int.from_bytes(whole.read(0, 8).tobytes(), "little")
    if length > min(file.size - 8, MAX_HEADER):
        raise LoadError(f"{path}: expected a header inside {file.size} bytes, got one of {length}")
    try:
        text = whole.read(8, length).tobytes().decode()
    except UnicodeDecodeError as error:
        raise LoadError(f"{path}: expected a JSON header, got {error}") from error
    data = whole.part(8 + length, file.size - 8 - length)
    header = _json_object(text, f"{path}: expected a JSON header")
    found = [_stored(path, name, entry, data) for name, entry in header.items() if name != "__metadata__"]
    end, before = data.start, ""
    for tensor in sorted(found, key=lambda tensor: (tensor.data.start, tensor.data.nbytes)):
        if tensor.data.start < end and tensor.data.nbytes:
            raise LoadError(f"{path}: {tensor.name}: expected data after those of {before}, got an overlap")
        end, before = max(end, tensor.data.start + tensor.data.nbytes), tensor.name
    return found


def _stored(path: Path, name: str, entry: Any, data: Extent) -> Stored:
    try:
        kind, shape = str(entry["dtype"]), tuple(entry["shape"])
        start, end = entry["data_offsets"]
        numbers = (*shape, start, end)
        sound = len(shape) <= MAX_DIMS and all(type(n) is int and 0 <= n < 1 << 63 for n in numbers)
        sound = sound and start <= end <= data.nbytes
    except (TypeError, KeyError, ValueError) as error:
        raise LoadError(f"{path}: {name}: expected a dtype, a shape and two offsets, got others") from error
    if sound and (kind in WIDTHS or kind == RAW):
        sound = end - start == math.prod(shape) * WIDTHS.get(kind, 1)
    if not sound:
        found = f"{kind} {list(shape)} at {start} to {end}"
        raise LoadError(f"{path}: {name}: expected data inside the file, got {found:.200}")
    return Stored(name, kind, shape, data.part(start, end - start))


# --- by name ----------------------------------------------------------------------------------------


def by_name(tensors: dict[str, Stored], usual_name: Callable[[str], str]) -> dict[str, Stored]:
    """The tensors by their usual names. Raises LoadError if two have the same."""
    found: dict[str, Stored] = {}
    for name, tensor in tensors.items():
        usual = usual_name(name)
        if usual in found:
            raise LoadError(f"{name}: expected each tensor once, got {found[usual].name} too")
        found[usual] = tensor
    return found


def needed(tensors: dict[str, Stored], name: str) -> Stored:
    """The tensor of a name. Raises LoadError if it is missing."""
    if name not in tensors:
        raise LoadError(f"{name}: expected a tensor that config.json asks for, got none")
    return tensors[name]


def refuse_surplus(names: list[str], ignored: tuple[str, ...], owner: str) -> None:
    """Raises LoadError for names that do not begin with one of the ``ignored`` beginnings."""
    surplus = [name for name in names if not name.startswith(ignored)]
    if surplus:
        raise LoadError(f"tensors: expected those of {owner} only, got {', '.join(surplus):.400}")

"""Reads the tensors of a Hugging Face folder: one safetensors file, or shards with an index.

A file is a length, a JSON header and the tensors' bytes; it is mapped, so only what is asked for is read. It
is read here because NumPy has no bfloat16, which the `safetensors` package needs to give arrays of it.

Format: https://huggingface.co/docs/safetensors/index#format.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.errors import LoadError, ModelFileError

MAX_HEADER = 100_000_000
WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of an element of the kinds that weights come in."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a mapped file; ``shape`` in NumPy's order, the contiguous dimension last."""

    name: str
    kind: str
    shape: tuple[int, ...]
    file: memoryview
    start: int
    end: int

    def values(self) -> np.ndarray:
        """float32 of its shape. Raises LoadError if it holds anything but floats, or one too large."""
        if self.kind not in WIDTHS:
            raise LoadError(f"{self.name}: expected weights in one of {', '.join(WIDTHS)}, got {self.kind}")
        data = self.file[self.start : self.end]
        if self.kind == "BF16":  # the upper half of a float32
            found = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            dtype = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[self.kind]
            with np.errstate(over="ignore"):
                found = np.frombuffer(data, dtype).astype(np.float32)
        if not np.isfinite(found).all():
            raise LoadError(f"{self.name}: expected finite weights, got {found[~np.isfinite(found)][0]}")
        return found.reshape(self.shape)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ModelFileError if the file cannot be read, LoadError if it is something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: expected JSON, got {error}") from error
    if not isinstance(found, dict):
        raise LoadError(f"{path}: expected a JSON object, got {type(found).__name__}")
    return found


def read_tensors(folder: Path) -> dict[str, Stored]:
    """The tensors of a folder by name.

    Raises
    ------
    ModelFileError : there is no such file, or it cannot be read.
    LoadError : a header is malformed, or a shard does not hold what the index says.
    """
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return {tensor.name: tensor for tensor in read_file(folder / "model.safetensors")}
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise LoadError(f"{index}: expected a weight_map of tensors and file names")
    found: dict[str, Stored] = {}
    for shard in sorted(set(places.values())):
        if Path(shard).name != shard:
            raise LoadError(f"{index}: expected names of files beside it, got {shard!r:.80}")
        for tensor in read_file(folder / shard):
            if places.get(tensor.name) != shard:
                raise LoadError(f"{shard}: expected only tensors that the index has there, got {tensor.name}")
            found[tensor.name] = tensor
    missing = places.keys() - found.keys()
    if missing:
        raise LoadError(f"{places[min(missing)]}: expected the tensor {min(missing)} of the index, got none")
    return found


def read_file(path: Path) -> Iterator[Stored]:
    """The tensors of one file; the map lives as long as one of them."""
    try:
        with open(path, "rb") as file:
            size = path.stat().st_size
            if size < 8:
                raise LoadError(f"{path}: expected a header of 8 bytes or more, got {size}")
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    length = int.from_bytes(data[:8], "little")
    if length > min(size - 8, MAX_HEADER):
        raise LoadError(f"{path}: expected a header inside {size} bytes, got one of {length}")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: expected a JSON header, got {error}") from error
    if not isinstance(header, dict):
        raise LoadError(f"{path}: expected a JSON object as header, got {type(header).__name__}")
    for name, entry in header.items():
        if name != "__metadata__":
            yield _stored(path, name, entry, data, 8 + length)


def _stored(path: Path, name: str, entry: Any, data: memoryview, first: int) -> Stored:
    try:
        kind, shape = str(entry["dtype"]), tuple(entry["shape"])
        start, end = entry["data_offsets"]
        numbers = (*shape, start, end)
        sound = all(type(n) is int and n >= 0 for n in numbers) and start <= end <= len(data) - first
    except (TypeError, KeyError, ValueError) as error:
        raise LoadError(f"{path}: {name}: expected a dtype, a shape and two offsets, got others") from error
    if sound and kind in WIDTHS:
        sound = end - start == math.prod(shape) * WIDTHS[kind]
    if not sound:
        raise LoadError(
            f"{path}: {name}: expected data inside the file, got {kind} {list(shape)} at {start} to {end}"
        )
    return Stored(name, kind, shape, data, first + start, first + end)

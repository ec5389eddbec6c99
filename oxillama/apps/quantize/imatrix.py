"""Importance matrices: the weight of each input column of each matrix, as mean squared activations.

Reads both formats of llama.cpp (tools/imatrix). GGUF files have ``NAME.in_sum2`` (cols, matrices) and
``NAME.counts`` (1, matrices) for each tensor. The older ``.dat`` files have: int32 number of entries;
for each entry the length of its name, the name, calls, number of values, float32 values (mean squares times
calls); then optionally calls and the name of the text. Writes the GGUF format.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np

from oxillama.base.atomic_file import replaced_file
from oxillama.base.formats import FORMATS
from oxillama.errors import GGUFError
from oxillama.gguf import writer
from oxillama.gguf.extent import Extent, OpenFile
from oxillama.gguf.header import DEFAULT_ALIGNMENT, MAGIC, MAX_NAME_BYTES
from oxillama.gguf.model_file import ModelFile

SUMS, COUNTS = ".in_sum2", ".counts"
FLOOR = 1e-6
"""Minimum weight of a column relative to the mean, for columns whose activations were always 0."""


@dataclass
class Entry:
    """The sums of one tensor.

    Attributes:
        sums: float32 (matrices, cols), sums of squared activations; one matrix, or one for each expert.
        counts: float32 (matrices,), number of rows that were summed; 0 for an expert that saw none.
    """

    sums: np.ndarray
    counts: np.ndarray

    def weights(self, cols: int, matrices: int) -> np.ndarray | None:
        """float32 (matrices, cols), positive, mean 1 for each matrix; None if the sums have another shape.

        All 1 for a matrix that saw no row. A single row of sums is split, as older files do not separate
        experts.
        """
        if self.sums.shape not in ((matrices, cols), (1, matrices * cols)):
            return None
        sums = self.sums.reshape(matrices, cols).astype(np.float64)
        seen = (sums.sum(axis=1) > 0) & (self.counts > 0)
        with np.errstate(all="ignore"):
            scaled = sums / sums.mean(axis=1, keepdims=True)
        return np.where(seen[:, None], np.maximum(scaled, FLOOR), 1.0).astype(np.float32)


@dataclass
class ImportanceMatrix:
    """The entries of a file by tensor name, e.g. "blk.0.ffn_up.weight".

    Attributes:
        entries: entries by tensor name.
        datasets: names of the texts that were used.
        chunk_count: number of the text's chunks; 0 if unknown.
        chunk_size: tokens of a chunk; 0 if unknown.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    datasets: tuple[str, ...] = ()
    chunk_count: int = 0
    chunk_size: int = 0

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> ImportanceMatrix:
        """Read a file of either format.

        Raises:
            ModelFileError: the file cannot be read.
            GGUFError: the file is malformed, has no entries, or has negative or infinite numbers.
        """
        where = Path(os.fsdecode(path))
        file = OpenFile(where)
        data = Extent(file, 0, file.size)
        if data.read(0, min(len(MAGIC), file.size)).tobytes() == MAGIC:
            found = _read_gguf(where)
        else:
            found = _parse_dat(data.read().tobytes(), where.name)
        if not found.entries:
            raise GGUFError(f"{where.name}: expected an importance matrix, got no entries")
        for name, entry in found.entries.items():
            for numbers in (entry.sums, entry.counts):
                if not (np.isfinite(numbers) & (numbers >= 0)).all():
                    raise GGUFError(f"expected finite numbers >= 0, got others, in {where.name}", key=name)
        return found

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a GGUF file atomically. Raises ModelFileError if it cannot be written."""
        tensors: dict[writer.Tensor, np.ndarray] = {}
        for name, entry in sorted(self.entries.items()):
            for suffix, data in ((SUMS, entry.sums), (COUNTS, entry.counts[:, None])):
                tensor = writer.Tensor(name + suffix, FORMATS["F32"], data.shape[::-1])
                tensors[tensor] = np.ascontiguousarray(data, "<f4")
        pairs: Mapping[str, int | str | tuple[str, ...]] = {
            "general.type": "imatrix",
            "imatrix.datasets": self.datasets,
            "imatrix.chunk_count": self.chunk_count,
            "imatrix.chunk_size": self.chunk_size,
        }
        encoded = [writer.pair(key, value) for key, value in pairs.items()]
        with replaced_file(Path(os.fsdecode(path))) as file:
            file.write(writer.header(encoded, list(tensors)))
            for tensor, data in tensors.items():
                writer.write_tensor(file, tensor, [data], DEFAULT_ALIGNMENT)


def _read_gguf(path: Path) -> ImportanceMatrix:
    with ModelFile.open(path) as file:
        found = ImportanceMatrix(
            {},
            tuple(file.get("imatrix.datasets", list[str], [])),
            file.get("imatrix.chunk_count", int, 0),
            file.get("imatrix.chunk_size", int, 0),
        )
        for full, info in file.tensors.items():
            name = full.removesuffix(SUMS if full.endswith(SUMS) else COUNTS)
            other = file.tensors.get(name + (COUNTS if full.endswith(SUMS) else SUMS))
            if name == full or other is None or not info.format.name == other.format.name == "F32":
                wanted = f"F32 pairs of NAME{SUMS} and NAME{COUNTS}"
                raise GGUFError(f"expected {wanted}, got another tensor, in {path.name}", key=full)
            if full.endswith(COUNTS):
                continue
            cols = info.shape[0]
            if info.n_elements != cols * other.n_elements:
                raise GGUFError(
                    f"expected shape (cols, {other.n_elements}), got {info.shape}",
                    key=full,
                )
            sums = file.data(full).view("<f4").reshape(-1, cols).astype(np.float32)
            found.entries[name] = Entry(sums, file.data(other.name).view("<f4").astype(np.float32))
    return found


def _parse_dat(data: bytes, label: str) -> ImportanceMatrix:
    """Parse the older format. It does not separate matrices: an entry is one row, to be split later."""
    pos = 0

    def fail(what: str, key: str | None = None) -> NoReturn:
        raise GGUFError(f"{what}, in {label}", key=key, offset=pos)

    def take(n_bytes: int) -> bytes:
        nonlocal pos
        if n_bytes > len(data) - pos:
            fail(f"expected an importance matrix, got {len(data) - pos} bytes instead of {n_bytes}")
        pos += n_bytes
        return data[pos - n_bytes : pos]

    def integer(low: int, high: int, what: str) -> int:
        value: int = struct.unpack("<i", take(4))[0]
        if not low <= value <= high:
            fail(f"expected {what} from {low} to {high}, got {value}")
        return value

    found = ImportanceMatrix()
    for _ in range(integer(1, len(data) // 12, "the number of entries")):
        raw = take(integer(1, MAX_NAME_BYTES, "the length of a name"))
        name = raw.decode("utf-8", "surrogateescape")
        calls = integer(0, 2**31 - 1, "a number of calls")
        values = np.frombuffer(take(4 * integer(1, len(data) // 4, "a number of values")), "<f4")
        if name in found.entries:
            fail("expected the entry once, got it twice", name)
        found.entries[name] = Entry(values.astype(np.float32)[None], np.array([calls], np.float32))
    if pos < len(data):
        found.chunk_count = integer(0, 2**31 - 1, "the number of chunks")
        text = take(integer(0, len(data), "the length of the text's name"))
        found.datasets = (text.decode("utf-8", "surrogateescape"),)
    return found

"""Packed files: the matrices of a model in the kernels' layout, so that loading needs no packing.

    8 bytes    "OXIPACK1"
    u32        version, 1
    u32        bytes of the header
    32 bytes   BLAKE3 of all before and of the header
    header     JSON: the model and options of the panels, and the place of each matrix
    zeros      up to a multiple of 4096
    panels     of each matrix, from a multiple of 64 on, large ones from a multiple of 4096 on
    checksums  32 bytes BLAKE3 of each matrix's panels; the header has the checksum of them all

Numbers are little-endian. The header's ``matrices`` has for each matrix its tensor, its expert, its number
among the matrices that are made of the same part of the file, its format, rows, columns, and where its panels
lie from the first multiple of 4096 behind the header on. Panels are the same for every instruction set.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from blake3 import blake3

from oxillama._kernels import pack
from oxillama._kernels.memory import ALIGNMENT, aligned_empty
from oxillama.base.atomic_file import replaced_file
from oxillama.base.formats import IN_MEMORY
from oxillama.errors import ModelFileError
from oxillama.gguf.extent import Extent, OpenFile
from oxillama.gguf.known_hashes import KnownHashes
from oxillama.models.weights.packer import Source

MAGIC, VERSION = b"OXIPACK1", 1
START = struct.Struct("<8sII")
DIGEST = 32

PANELS_VERSION = 2
"""Version of the panels and of the set of matrices. Any change of either increments it."""

PAGE = 4096
"""Large matrices begin at a multiple of this."""
LARGE_BYTES = 1 << 16
LARGE_PAGE = 2 << 20
"""Bytes of a large page of x86 and of most other machines."""
PIECE_BYTES = 8 << 20
"""Bytes that are checked at a time."""
MOST_HEADER = 256 << 20
THREADED_BYTES = 1 << 20
"""Smallest piece that is hashed with several threads."""


VERIFIED = KnownHashes("panels", b"oxillama panels 1")
"""The checksums of checksums of files whose panels were compared with them."""

Finder = Callable[[Source, int], Extent | None]
"""Finds the panels of a matrix with a number of columns; None if the file does not have them."""


class PackedMatrix(NamedTuple):
    """Where the panels of a matrix lie.

    Attributes:
        tensor, expert, number: which matrix (`MatrixKeys`).
        format: of the matrix in memory.
        rows, cols: its shape.
        start, nbytes: the panels, from the first byte of all panels on.
    """

    tensor: str
    expert: int
    number: int
    format: str
    rows: int
    cols: int
    start: int
    nbytes: int

    @classmethod
    def of(cls, entry: Any) -> PackedMatrix:
        """A matrix from parsed JSON. Raises TypeError, ValueError if it is malformed."""
        found = cls(*entry)
        texts, numbers = (found.tensor, found.format), (found.expert, found.number, *found[4:])
        if any(type(text) is not str for text in texts) or any(type(number) is not int for number in numbers):
            raise ValueError(f"matrices: expected names and numbers, got {entry!r:.200}")
        return found


@dataclass(frozen=True)
class PackedFacts:
    """The model and the options that determine the panels of a packed file.

    Attributes:
        model: name of the model's (first) file.
        content: BLAKE3 hash of the model (`gguf.fingerprint`), in hexadecimal digits.
        files: inode, size, and times in ns of the last change and of the last change of the inode, of each
            file of the model when it was packed.
        settled: whether any later change must have changed the times.
        quantize, compute: as in `EngineConfig`.
        panels: `PANELS_VERSION`.
    """

    model: str
    content: str
    files: tuple[tuple[int, int, int, int], ...]
    settled: bool
    quantize: str | None
    compute: str
    panels: int = PANELS_VERSION

    @classmethod
    def of(cls, values: dict[str, Any]) -> PackedFacts:
        """Facts from parsed JSON. Raises KeyError, TypeError, ValueError if they are malformed."""
        facts = cls(**{**values, "files": tuple(map(tuple, values["files"]))})
        texts = (facts.model, facts.content, facts.compute, facts.quantize or "")
        numbers = [number for each in facts.files for number in each]
        if not all(type(text) is str for text in texts) or {len(each) for each in facts.files} - {4}:
            raise ValueError(f"facts: expected texts and four numbers of each file, got {values!r:.200}")
        if (
            any(type(number) is not int for number in (*numbers, facts.panels))
            or type(facts.settled) is not bool
        ):
            raise ValueError(f"facts: expected integers, got {values!r:.200}")
        return facts


class MatrixKeys:
    """Keys for the matrices of a model: tensor, expert, and the order in which layers request them.

    Several matrices are computed from one tensor where a layer splits it, always in the same order.
    """

    def __init__(self) -> None:
        self._asked: Counter[tuple[str, int]] = Counter()

    def of(self, source: Source) -> tuple[str, int, int]:
        """The key of the next matrix."""
        pair = (source.info.name, source.expert)
        self._asked[pair] += 1
        return (*pair, self._asked[pair] - 1)


class PackedFile:
    """An open packed file. Its header is read and checked; its panels are not.

    Attributes:
        facts: the model and the options of the panels.
        matrices: by tensor, expert and number, in order of their panels.
        panels: where all panels lie.
        file: the open file.
        absent: tensors of matrices that were requested and not found.

    Raises:
        ModelFileError: the file cannot be read, is not a packed file, has another version, or is damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.file: OpenFile = OpenFile(Path(os.fsdecode(path)))
        self.absent: list[str] = []
        try:
            self._read_header()
        except BaseException:
            self.file.close()
            raise

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self.file.size

    def find(self, key: tuple[str, int, int], source: Source, cols: int) -> Extent | None:
        """The panels of a matrix; None, noted in `absent`, if the file has none of this format and shape."""
        found = self.matrices.get(key)
        if found is None or found[3:6] != (source.format.name, source.rows, cols):
            self.absent.append(source.info.name)
            return None
        return self.panels.part(found.start, found.nbytes)

    @property
    def is_verified(self) -> bool:
        """Whether `verify` has read the file and found no damage since the file was changed."""
        return VERIFIED.find((self.file.identity,)) == self._checksum

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Reads all panels and compares their checksums.

        ``progress`` is called with the bytes read so far and the bytes in all.
        Raises ModelFileError, which names the first matrix that is damaged.
        """
        start, digests = time.time(), self._digests.read()
        if blake3(digests.data).digest() != self._checksum:
            raise self._damaged("checksums")
        done, buffer = 0, np.empty(PIECE_BYTES, np.uint8)
        for i, matrix in enumerate(self.matrices.values()):
            extent, hashed = self.panels.part(matrix.start, matrix.nbytes), _hasher(matrix.nbytes)
            for at in range(0, matrix.nbytes, PIECE_BYTES):
                piece = extent.read(at, min(PIECE_BYTES, matrix.nbytes - at), buffer)
                hashed.update(piece.data)
                done += len(piece)
                if progress is not None:
                    progress(done, self.panels.nbytes)
            if hashed.digest() != digests[DIGEST * i : DIGEST * (i + 1)].tobytes():
                raise self._damaged(f"{matrix.tensor}, expert {matrix.expert}, matrix {matrix.number}")
        VERIFIED.keep((self.file.identity,), self._checksum, start)

    def finder(self) -> Finder:
        """A function that finds the panels of matrices, to be called in the order of the layers' requests."""
        keys = MatrixKeys()
        return lambda source, cols: self.find(keys.of(source), source, cols)

    def close(self) -> None:
        """Closes the file. No other thread may be reading it; mappings remain valid."""
        self.file.close()

    def __enter__(self) -> PackedFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read_header(self) -> None:
        size = self.file.size
        start = Extent(self.file, 0, size).read(0, min(size, START.size + DIGEST)).tobytes()
        if len(start) < START.size + DIGEST or start[:8] != MAGIC:
            raise ModelFileError(f"{self.path}: expected a packed file, got {start[:8]!r} at its beginning")
        _, version, n_bytes = START.unpack(start[: START.size])
        if version != VERSION:
            raise ModelFileError(f"{self.path}: expected version {VERSION}, got {version}")
        if not len(start) + n_bytes <= min(size, len(start) + MOST_HEADER):
            raise self._cut(len(start) + n_bytes)
        text = Extent(self.file, len(start), n_bytes).read().tobytes()
        if blake3(start[: START.size] + text).digest() != start[START.size :]:
            raise self._damaged("header")
        try:
            header = json.loads(text)
            self.facts: PackedFacts = PackedFacts.of(header["facts"])
            matrices = [PackedMatrix.of(entry) for entry in header["matrices"]]
            self._checksum = bytes.fromhex(header["checksums"])
            byte_order = header["byte_order"]
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise ModelFileError(f"{self.path}: expected the header of a packed file: {error!r}") from error
        if byte_order != sys.byteorder:
            raise ModelFileError(
                f"{self.path}: expected panels of a {sys.byteorder}-endian machine, got {byte_order}"
            )
        first = _padded(len(start) + n_bytes, PAGE)
        end = matrices[-1].start + matrices[-1].nbytes if matrices else 0
        if size != first + end + DIGEST * len(matrices):
            raise self._cut(first + end + DIGEST * len(matrices))
        self.matrices: dict[tuple[str, int, int], PackedMatrix] = {matrix[:3]: matrix for matrix in matrices}
        if len(self.matrices) != len(matrices) or not _in_order(matrices):
            raise self._damaged("directory")
        self.panels: Extent = Extent(self.file, first, end)
        self._digests = Extent(self.file, first + end, DIGEST * len(matrices))

    def _cut(self, expected: int) -> ModelFileError:
        return ModelFileError(f"{self.path}: expected {expected} bytes, got {self.file.size}")

    def _damaged(self, part: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {part}: expected its checksum, got another: the file is damaged")


def write_packed(
    path: Path,
    facts: PackedFacts,
    matrices: Sequence[tuple[Source, int]],
    pack_matrix: Callable[[Source, int, np.ndarray], None],
) -> None:
    """Writes a packed file, which replaces ``path`` when it is complete and is read-only.

    Args:
        matrices: each with its columns, in the order in which the model's layers request them.
        pack_matrix: packs one of them, given its columns, into uint8 memory.

    Raises ModelFileError if the file cannot be written, and what ``pack_matrix`` raises.
    """
    directory = list(_directory(matrices))
    end = directory[-1].start + directory[-1].nbytes if directory else 0
    buffer = aligned_empty(max((matrix.nbytes for matrix in directory), default=0))
    digests = []
    with replaced_file(path, mode=0o444) as file:
        first = _padded(len(_head(facts, directory, b"")), PAGE)
        writer = _LargeWrites(file)
        for matrix, (source, cols) in zip(directory, matrices):
            panels = buffer[: matrix.nbytes]
            pack_matrix(source, cols, panels)
            writer.write(first + matrix.start, panels)
            digests.append(_hasher(matrix.nbytes).update(panels.data).digest())
        writer.write(first + end, np.frombuffer(b"".join(digests), np.uint8))
        writer.flush()
        file.seek(0)
        file.write(_head(facts, directory, b"".join(digests)))


class _LargeWrites:
    """Writes a file from its beginning on, zeros where nothing is given, in pieces of a large page.

    Linux keeps such pieces as large pages in its cache, and maps them as such: pages of 4 KB make the first
    token later, and each token some percent slower.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._piece = np.zeros(LARGE_PAGE, np.uint8)
        self._end = 0

    def write(self, start: int, data: np.ndarray) -> None:
        """Writes uint8 (n,) at ``start``, which is not before the end of what was written."""
        self._add(np.zeros(start - self._end, np.uint8))
        self._add(data)

    def _add(self, data: np.ndarray) -> None:
        while len(data):
            used = self._end % LARGE_PAGE
            n_bytes = min(len(data), LARGE_PAGE - used)
            self._piece[used : used + n_bytes] = data[:n_bytes]
            self._end += n_bytes
            data = data[n_bytes:]
            if used + n_bytes == LARGE_PAGE:
                self._file.write(self._piece.data)

    def flush(self) -> None:
        """Writes the rest of the buffer."""
        self._file.write(self._piece[: self._end % LARGE_PAGE].data)


def _directory(matrices: Sequence[tuple[Source, int]]) -> Iterator[PackedMatrix]:
    """Where each matrix goes."""
    keys, end = MatrixKeys(), 0
    for source, cols in matrices:
        n_bytes = source.packed_bytes(cols)
        start = _padded(end, PAGE if n_bytes >= LARGE_BYTES else ALIGNMENT)
        yield PackedMatrix(*keys.of(source), source.format.name, source.rows, cols, start, n_bytes)
        end = start + n_bytes


def _head(facts: PackedFacts, directory: Sequence[PackedMatrix], digests: bytes) -> bytes:
    """All bytes up to the end of the header, as many for any digests."""
    header = {
        "facts": asdict(facts),
        "byte_order": sys.byteorder,
        "checksums": blake3(digests).hexdigest(),
        "matrices": directory,
    }
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    start = START.pack(MAGIC, VERSION, len(text))
    return start + blake3(start + text).digest() + text


def _in_order(matrices: Sequence[PackedMatrix]) -> bool:
    """Whether the panels lie one behind the other, aligned, each as long as its matrix needs."""
    numbers = [value for matrix in matrices for value in (*matrix[1:3], *matrix[4:])]
    if any(type(value) is not int or value < 0 for value in numbers):
        return False
    for one in matrices:
        fmt = IN_MEMORY.get(one.format) if isinstance(one.format, str) else None
        if fmt is None or fmt.layout is None or one.start % ALIGNMENT:
            return False
        try:
            if pack.packed_bytes(fmt.id, one.rows, one.cols) != one.nbytes:
                return False
        except (ValueError, OverflowError):
            return False
    return all(one.start + one.nbytes <= two.start for one, two in pairwise(matrices))


def _hasher(n_bytes: int) -> blake3:
    """A hasher of ``n_bytes`` bytes, with threads if they are many."""
    return blake3(max_threads=blake3.AUTO if n_bytes >= THREADED_BYTES else 1)


def _padded(n_bytes: int, alignment: int) -> int:
    return -(-n_bytes // alignment) * alignment

"""Packs matrices of a file into panels in memory, and quantizes or dequantizes them first if requested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from oxillama._kernels import Kernels, pack
from oxillama._kernels.memory import ALIGNMENT, aligned_empty
from oxillama.base.formats import Format
from oxillama.gguf.extent import Extent, OpenFile
from oxillama.gguf.model_file import TensorInfo

ARENA_BYTES = 64 << 20
"""Memory that small matrices share."""

READ_BYTES = 1 << 22
"""Bytes that are read at a time where `pack.pack_file` cannot read."""

Progress = Callable[[str, int], None]
"""Called with the name of a tensor and its bytes in the file once the tensor is in memory."""


@dataclass(frozen=True, repr=False)
class MatrixPart:
    """Some rows of a tensor's matrix W, as a matrix of their own.

    Attributes:
        rows: of W.
        transposed: whether they are its columns.
    """

    rows: slice
    transposed: bool = False


@dataclass(frozen=True, repr=False)
class Source:
    """A matrix in a file.

    Attributes:
        info: the tensor that holds the matrix.
        format: format of the matrix in memory; the file's is ``info.format``.
        blocks: the rows as the file holds them.
        nbytes: bytes of ``blocks`` to report to the progress callback.
        rows: rows of the matrix.
        expert: index of the matrix in a tensor of several.
        part: place of the matrix in its tensor; None for one that is computed from it in another way.
        scale: products with the matrix are multiplied with it.
    """

    info: TensorInfo
    format: Format
    blocks: Extent
    nbytes: int
    rows: int
    expert: int = 0
    part: MatrixPart | None = MatrixPart(slice(None))
    scale: float = 1.0

    def packed_bytes(self, cols: int) -> int:
        """Bytes of the panels."""
        return pack.packed_bytes(self.format.id, self.rows, cols)


class Packer:
    """Allocates memory for panels and packs matrices into it.

    Args:
        kernels: the target that quantizes.
        n_threads: threads that pack.
        progress: called once per packed matrix.
    """

    def __init__(self, kernels: Kernels, n_threads: int, progress: Progress) -> None:
        self.kernels = kernels
        self.n_threads = n_threads
        self.progress = progress
        self._arena = aligned_empty(0)

    def memory(self, n_bytes: int) -> np.ndarray:
        """Memory for panels: uint8 (n_bytes,), aligned to 64 bytes.

        Small matrices share large pieces of memory, because the system backs only these with large pages:
        without large pages, a token that reads many small matrices waits for page tables.
        """
        n_padded = -(-n_bytes // ALIGNMENT) * ALIGNMENT
        if n_padded > ARENA_BYTES // 4:
            return aligned_empty(n_bytes)
        if n_padded > len(self._arena):
            self._arena = aligned_empty(ARENA_BYTES)
        memory, self._arena = self._arena[:n_bytes], self._arena[n_padded:]
        return memory

    def pack(self, source: Source, cols: int, data: np.ndarray) -> None:
        """Packs a matrix of ``cols`` columns into ``data``.

        Raises ModelFileError if the file cannot be read or has changed since it was opened, and GGUFError if
        ``source.format`` cannot hold a value.
        """
        info = source.info
        if source.format is info.format:
            self._pack_blocks(source, cols, data)
        else:
            self._pack_converted(source, cols, data)
        self.progress(info.name, source.nbytes)

    def _pack_blocks(self, source: Source, cols: int, data: np.ndarray) -> None:
        """Packs a matrix as the file holds it, some panels at a time."""
        fmt, blocks, n, start = source.format, source.blocks, self.n_threads, 0
        if isinstance(blocks.holder, OpenFile) and pack.pack_file(
            fmt.id, blocks.holder.fd, blocks.start, source.rows, cols, data, n
        ):
            blocks.holder.check()
            return
        from oxillama.models.weights.requantize import row_chunks  # on use

        for chunk, rows in row_chunks(blocks, fmt.nbytes(cols), READ_BYTES):  # raises the error of the file
            panels = data[start : start + pack.packed_bytes(fmt.id, rows, cols)]
            pack.pack(fmt.id, chunk, rows, cols, panels, n)
            start += len(panels)

    def _pack_converted(self, source: Source, cols: int, data: np.ndarray) -> None:
        """Converts a matrix to ``source.format`` and packs it, some panels at a time."""
        info, fmt, n, start = source.info, source.format, self.n_threads, 0
        from oxillama.models.weights.requantize import converted  # on use

        chunks = converted(self.kernels, info.name, info.format, source.blocks, cols, fmt, n_threads=n)
        for rows in chunks:
            panels = data[start : start + pack.packed_bytes(fmt.id, len(rows), cols)]
            pack.pack(fmt.id, rows.reshape(-1), len(rows), cols, panels, n)
            start += len(panels)

"""Embedding tables, which stay in the file unless they are small."""

from __future__ import annotations

import numpy as np

from oxillama._kernels import Kernels, pack
from oxillama.formats import FORMAT_BY_ID, Format
from oxillama.gguf.extent import Extent

KEPT_BYTES = 16 << 20
"""The largest table that is kept in memory from its first use on. Models with such a table are so fast that
reading rows would take some percent of their time."""


class Embedding:
    """A table of embeddings whose rows are dequantized when they are looked up.

    Parameters
    ----------
    name : of the tensor, for errors.
    table : the rows in the file.
    format_id : id of its format.
    cols : elements of a row.
    kernels : the target that quantizes.
    requantize : format that rows are quantized to, and dequantized from again; None to use them as they are.
    """

    def __init__(
        self,
        name: str,
        table: Extent,
        format_id: int,
        cols: int,
        kernels: Kernels,
        requantize: Format | None = None,
    ) -> None:
        self.name = name
        self.table = table
        self.row_bytes = FORMAT_BY_ID[format_id].nbytes(cols)
        self.format_id = format_id
        self.cols = cols
        self.kernels = kernels
        self.requantize = requantize
        self._kept: np.ndarray | None = None  # the table, if it is small

    def lookup(self, ids: np.ndarray, out: np.ndarray) -> None:
        """out (n, cols) float32 = the rows of ``ids`` (n,).

        Raises GGUFError if ``requantize`` cannot hold a value of these rows, and ModelFileError if the file
        cannot be read or has changed since it was opened.
        """
        if self._kept is None and self.table.nbytes <= KEPT_BYTES:
            self._kept = self.table.read().reshape(-1, self.row_bytes)
        rows = self.table.read_rows(ids, self.row_bytes) if self._kept is None else self._kept[ids]
        pack.dequantize(self.format_id, rows.reshape(-1), out)
        if self.requantize is not None and len(ids):
            from oxillama.weights.requantize import check_range, quantized  # on use

            check_range(self.name, out, self.requantize)
            blocks = quantized(self.kernels, out, self.requantize, None)
            pack.dequantize(self.requantize.id, blocks.reshape(-1), out)

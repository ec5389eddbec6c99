"""Weights with fewer bits than the file has, for drafts, which need not have the file's results."""

from __future__ import annotations

from oxillama._kernels import Kernels
from oxillama.base.formats import Format
from oxillama.gguf.file_types import fitting, is_quantized
from oxillama.gguf.model_file import ModelFile, TensorInfo
from oxillama.models.weights.loader import Weights


class LowBitWeights(Weights):
    """Matrices quantized to a format as they are packed, except those that have no more bits than that.

    Args:
        file, kernels, n_threads: as for `Weights`.
        format: one of `formats.WRITABLE`; `file_types.FALLBACK` replaces it where it does not fit the rows.
    """

    def __init__(self, file: ModelFile, kernels: Kernels, n_threads: int, format: Format) -> None:
        super().__init__(file, kernels, n_threads)
        self._format = format

    def linear_format(self, info: TensorInfo) -> Format:
        if not is_quantized(info.name, len(info.shape)):
            return info.format
        fewer = fitting(self._format, info.shape[0])
        return fewer if fewer.bits_per_weight < info.format.bits_per_weight else info.format

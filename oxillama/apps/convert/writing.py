"""Writes GGUF files, one tensor at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama.base.atomic_file import replaced_file
from oxillama.base.formats import FORMATS, Format
from oxillama.errors import LoadError
from oxillama.gguf.file_types import is_quantized
from oxillama.gguf.header import DEFAULT_ALIGNMENT
from oxillama.gguf.writer import Tensor, header, pair, write_tensor
from oxillama.models.weights.requantize import check_range, quantized

Piece = tuple[Tensor, Iterable[np.ndarray]]
"""A tensor to write, and its bytes: an iterator of uint8 chunks."""


@dataclass(frozen=True)
class Conversion:
    """A written file.

    Attributes:
        architecture: of the model, or of the base of the adapter.
        formats, nbytes: number of tensors by format, and size of the file.
        left_out: names of the source's tensors that are not written.
        is_adapter: the file is an adapter.
        folded: matrices of an adapter that were multiplied by a factor, and are therefore F32.
    """

    architecture: str
    formats: dict[str, int]
    nbytes: int
    left_out: tuple[str, ...] = ()
    is_adapter: bool = False
    folded: tuple[str, ...] = ()


def write(
    target: Path,
    metadata: Mapping[str, Any],
    pieces: Sequence[Piece],
    left_out: tuple[str, ...],
    check: Callable[[Path], None] = lambda path: None,
    *,
    overwrite: bool = True,
) -> Conversion:
    """Writes the file completely or not at all; ``check`` is called before the file appears.

    Raises ModelFileError if the file cannot be written, or exists and ``overwrite`` is false.
    """
    pairs = [checked_pair(key, value) for key, value in metadata.items()]
    with replaced_file(target, overwrite=overwrite) as file:
        file.write(header(pairs, [tensor for tensor, _ in pieces]))
        for tensor, chunks in pieces:
            write_tensor(file, tensor, chunks, DEFAULT_ALIGNMENT)
        file.flush()
        check(Path(file.name))
        n_bytes = file.tell()
    formats = Counter(tensor.format.name for tensor, _ in pieces)
    return Conversion(str(metadata["general.architecture"]), dict(formats), n_bytes, left_out)


def checked_pair(key: str, value: Any) -> bytes:
    """An encoded key and value. Raises LoadError for text that JSON can hold and GGUF cannot."""
    try:
        return pair(key, value)
    except UnicodeEncodeError as error:
        raise LoadError(
            f"{key[:80]!r}: expected text without lone surrogates, got {error.object[:80]!r}"
        ) from None


def encoded(kernels: Kernels, name: str, fmt: Format, values: np.ndarray) -> np.ndarray:
    """The values in a format, uint8 (rows, bytes of a row). Raises GGUFError if a value is too large."""
    check_range(name, values, fmt)
    rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]), np.float32)
    return quantized(kernels, rows, fmt, None)


def usual_format(name: str, shape: tuple[int, ...], width: int, kind: str) -> Format:
    """The format of a tensor: ``kind`` for matrices, F16 if a row has no whole number of blocks, else F32."""
    if not is_quantized(name, len(shape)):
        return FORMATS["F32"]
    return FORMATS["F16"] if width % FORMATS[kind].block_len else FORMATS[kind]


def reordered(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of heads whose halves rotate with each other, reordered so that neighbours do."""
    halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)

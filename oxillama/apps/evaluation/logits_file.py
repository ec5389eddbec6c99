"""Files of a model's logits for a text, as a base for comparisons.

The format with the magic ``_logits_`` is the same as llama-perplexity's ``--kl-divergence-base``: a header of
4-byte integers (window size, vocabulary size, number of windows), the token ids of all windows, and
for each scored token a row of 16-bit integers: two float32 (scale, lowest log-probability) and a
number for each token of the vocabulary, from 0 for the lowest to 65535 for the highest. Log-probabilities
more than 16 below the top token's are clipped.

The format with the magic ``_exact__`` has the same header, and a row of float32 logits for each scored token.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from oxillama._kernels import Kernels
from oxillama.apps.evaluation.distributions import Distribution, divergence
from oxillama.apps.evaluation.windows import Windows
from oxillama.base.atomic_file import replaced_file
from oxillama.errors import ConfigError, ModelFileError

MAGIC, EXACT_MAGIC = b"_logits_", b"_exact__"
HEADER = struct.Struct("<iii")
LEVELS = 65535
REACH = 16.0
"""Log-probabilities farther below the top token's are clipped to this distance."""


def row_bytes(n_vocab: int, exact: bool) -> int:
    """The size of a row in bytes."""
    return 4 * n_vocab if exact else 2 * (2 * ((n_vocab + 1) // 2) + 4)


class LogitsWriter:
    """Writes the rows of a logits file in any order.

    Args:
        n_vocab: size of the vocabulary.
        exact: True: float32 logits; False: 16-bit log-probabilities.
    """

    def __init__(self, file: BinaryIO, windows: Windows, n_vocab: int, exact: bool) -> None:
        self._file = file
        self._exact = exact
        self._row_bytes = row_bytes(n_vocab, exact)
        ids = np.array(windows.tokens, "<i4")
        header = HEADER.pack(windows.size, n_vocab, windows.count)
        self._start = file.write((EXACT_MAGIC if exact else MAGIC) + header + ids.tobytes())

    def add(self, number: int, row: Distribution) -> None:
        """Write the row of scored token ``number``, counted over all windows."""
        data = row.logits.astype("<f4").tobytes() if self._exact else packed(row)
        self._file.seek(self._start + number * self._row_bytes)
        self._file.write(data.ljust(self._row_bytes, b"\0"))


def packed(row: Distribution) -> bytes:
    """Log-probabilities as a scale, the lowest value, and 16-bit integers."""
    logits, one = row.logits, np.float32
    top = one(logits[row.top])
    low = max(one(logits.min()), one(top - one(REACH)))
    scale = one((top - low) / one(LEVELS))
    lowest = one(low - top - one(row.total - float(top)))
    levels = np.zeros(len(logits), "<u2")
    if scale:
        above = logits > low
        levels[above] = np.rint((one(1) / scale) * (logits[above] - low))
    return np.array([scale, lowest], "<f4").tobytes() + levels.tobytes()


@contextmanager
def written(
    path: str | os.PathLike[str], exact: bool, n_vocab: int
) -> Iterator[Callable[[Windows], LogitsWriter]]:
    """Yield a function that makes a writer; its file replaces ``path`` at the end of the block.

    Raises ModelFileError if the file cannot be written.
    """
    with replaced_file(Path(path)) as file:
        yield lambda windows: LogitsWriter(file, windows, n_vocab, exact)


class LogitsFile:
    """A file of logits.

    Attributes:
        windows: the windows that the model read; without BOS, which is not in the file.
        n_vocab: size of the vocabulary.
        exact: whether the file has float32 logits.

    Raises:
        ModelFileError: the file cannot be read.
        ConfigError: the file has another format, or is truncated.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        try:
            self._file = open(path, "rb")  # noqa: SIM115  # `close` closes it
        except OSError as error:
            raise ModelFileError(f"{self._path}: cannot be read: {error.strerror or error}") from error
        try:
            self._read_header(os.fstat(self._file.fileno()).st_size)
        except BaseException:
            self._file.close()
            raise

    def _read_header(self, n_bytes: int) -> None:
        start = self._file.read(8 + HEADER.size)
        if len(start) < 8 + HEADER.size or start[:8] not in (MAGIC, EXACT_MAGIC):
            raise ConfigError(f"{self._path}: expected a file of logits ({MAGIC.decode()}), got another one")
        self.exact: bool = start[:8] == EXACT_MAGIC
        size, self.n_vocab, count = HEADER.unpack(start[8:])
        if size < 4 or self.n_vocab < 1 or count < 1:
            raise ConfigError(
                f"{self._path}: expected windows of at least 4 tokens and a vocabulary, "
                f"got {count} windows of {size} tokens of {self.n_vocab}"
            )
        scored = size - 1 - size // 2
        self._row_bytes = row_bytes(self.n_vocab, self.exact)
        self._start = len(start) + 4 * size * count
        needed = self._start + count * scored * self._row_bytes
        if n_bytes != needed:
            raise ConfigError(f"{self._path}: expected {needed} bytes, got {n_bytes}")
        ids = np.frombuffer(self._file.read(4 * size * count), "<i4")
        if len(ids) < size * count or ids.min() < 0 or ids.max() >= self.n_vocab:
            raise ConfigError(f"{self._path}: expected token ids below {self.n_vocab}, got others")
        self.windows: Windows = Windows(ids.tolist(), size, None)

    def row(self, number: int, kernels: Kernels) -> Distribution:
        """The row of scored token ``number``, counted over all windows."""
        self._file.seek(self._start + number * self._row_bytes)
        data = self._file.read(self._row_bytes)
        if len(data) < self._row_bytes:
            raise ModelFileError(f"{self._path}: was cut off while it was read")
        if self.exact:
            return Distribution(np.frombuffer(data, "<f4", self.n_vocab), kernels)
        scale, lowest = np.frombuffer(data, "<f4", 2)
        levels = np.frombuffer(data, "<u2", self.n_vocab, offset=8)
        logprobs = scale * levels.astype(np.float32) + lowest
        return RoundedRow(logprobs, kernels)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> LogitsFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class RoundedRow(Distribution):
    """A row of log-probabilities from a file.

    They are used unchanged: their probabilities do not add up to 1, and values below -16 do not count, as in
    llama-perplexity.
    """

    def logprob(self, token: int) -> float:
        return float(self.logits[token])

    def divergence(self, other: Distribution) -> float:
        p = self.logits.astype(np.float64)
        return divergence(np.where(p > -REACH, p, -np.inf), other.logprobs)

"""Values of a snapshot: to bytes, and back with checks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from oxillama.config import checks
from oxillama.errors import ConfigError, OxiLlamaError, SnapshotIncompatible
from oxillama.sampling.logprobs import SampledToken, TokenLogprobs
from oxillama.sessions.container import MOST_HEADER, Buffer, Container

MOST_BYTES = 1 << 62


class Reader:
    """Reads checked values of a JSON object. Each method raises ConfigError."""

    def __init__(self, name: str, plain: Any) -> None:
        self._plain: Mapping[str, Any] = checks.instance(name, plain, dict)

    def value(self, name: str) -> Any:
        if name not in self._plain:
            raise ConfigError(f"{name}: expected a value, got none")
        return self._plain[name]

    def integer(self, name: str, low: int, high: int) -> int:
        return checks.integer(name, self.value(name), low, high)

    def number(self, name: str) -> float:
        return float(checks.number(name, self.value(name)))

    def text(self, name: str) -> str:
        return checks.encodable(name, self.value(name))

    def path(self, name: str) -> str:
        """Text of which UTF-8 need not express all: the bytes of a file's name."""
        found: str = checks.instance(name, self.value(name), str)
        return found

    def items(self, name: str) -> list[Any]:
        found: list[Any] = checks.instance(name, self.value(name), list)
        return found

    def bytes(self, name: str, n: int | None) -> bytes:
        """Of hexadecimal digits; ``n`` of them, None for any number."""
        try:
            found = bytes.fromhex(self.text(name))
        except ValueError as error:
            raise ConfigError(f"{name}: expected hexadecimal digits: {error}") from None
        if n is not None and len(found) != n:
            raise checks.refuse(name, f"{n} bytes", found)
        return found


@contextmanager
def refusals() -> Iterator[None]:
    """Turns errors of values that a snapshot holds into SnapshotIncompatible."""
    try:
        yield
    except SnapshotIncompatible:
        raise
    except OxiLlamaError as error:
        raise SnapshotIncompatible(str(error)) from error


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """The JSON text of a section. Raises ConfigError for what JSON cannot hold."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"snapshot: expected values that JSON can hold: {error}") from error
    if len(text) > MOST_HEADER:
        raise ConfigError(f"snapshot: expected at most {MOST_HEADER} bytes of JSON, got {len(text)}")
    return text


def stored(values: np.ndarray, kind: str) -> Buffer:
    """The bytes of an array."""
    return np.ascontiguousarray(values, kind).reshape(-1).view(np.uint8).data


def array_of(container: Container, name: str, kind: str, n: int | None, most: int = MOST_BYTES) -> np.ndarray:
    """An array of ``n`` numbers, None for any; read-only. Raises SnapshotIncompatible."""
    dtype = np.dtype(kind)
    data = container.bytes(name, most if n is None else n * dtype.itemsize)
    if len(data) % dtype.itemsize or (n is not None and len(data) != n * dtype.itemsize):
        wanted = "whole numbers" if n is None else f"{n * dtype.itemsize} bytes"
        raise SnapshotIncompatible(f"{name}: expected {wanted}, got {len(data)} bytes")
    return np.frombuffer(data, dtype)


def stored_logprobs(logprobs: list[SampledToken]) -> bytes:
    """int32 (n, 2) likeliest tokens, float64 (n, 2) log-probabilities, then ids and log-probabilities of all
    likeliest tokens; of each pair the first is raw, the second processed."""
    both = [part for token in logprobs for part in (token.raw, token.processed)]
    tops = [pair for part in both for pair in part.top]
    arrays = (
        ([len(part.top) for part in both], "<i4"),
        ([part.logprob for part in both], "<f8"),
        ([token for token, _ in tops], "<i4"),
        ([logprob for _, logprob in tops], "<f8"),
    )
    return b"".join(bytes(stored(np.array(values), kind)) for values, kind in arrays)


def read_logprobs(data: Buffer, tokens: np.ndarray, n_vocab: int) -> list[SampledToken]:
    """What `stored_logprobs` stored of these tokens. Raises SnapshotIncompatible."""
    n, wrong = 2 * len(tokens), SnapshotIncompatible("logprobs: expected those of each token, got others")
    if len(data) < 12 * n:
        raise wrong
    counts, values = np.frombuffer(data[: 4 * n], "<i4"), np.frombuffer(data[4 * n : 12 * n], "<f8")
    if n and not 0 <= counts.min() <= counts.max() <= n_vocab:
        raise wrong
    m = int(counts.sum(dtype=np.int64))
    if len(data) != 12 * (n + m):
        raise wrong
    at = 12 * n
    ids = np.frombuffer(data[at : at + 4 * m], "<i4").tolist()
    logprobs = np.frombuffer(data[at + 4 * m :], "<f8").tolist()
    if any(not 0 <= id < n_vocab for id in ids) or any(map(math.isnan, [*logprobs, *values.tolist()])):
        raise wrong
    tops = iter(zip(ids, logprobs))
    parts = [
        TokenLogprobs(token, value, tuple(next(tops) for _ in range(count)))
        for token, value, count in zip(
            np.repeat(tokens, 2).tolist(), values.tolist(), counts.tolist(), strict=True
        )
    ]
    return [SampledToken(raw.token, raw, processed) for raw, processed in zip(parts[::2], parts[1::2])]

"""The hash chain over the logits of a text's tokens: h[i] = BLAKE3(h[i - 1] + logits of token i)."""

from __future__ import annotations

import numpy as np
from blake3 import blake3

START: bytes = blake3(b"oxillama receipt 1").digest()
"""h[-1], the start of every chain; a future hash scheme will start from another value."""

LINK_BYTES = len(START)


class LogitsChain:
    """The hash chain of one text.

    Attributes:
        digest: the last link, 32 bytes.
    """

    def __init__(self) -> None:
        self.digest: bytes = START

    def add(self, row: np.ndarray) -> bytes:
        """Append float32 (vocab,) logits; returns the new link, 32 bytes. Hashes little-endian bytes."""
        data = np.ascontiguousarray(row, "<f4").view(np.uint8)
        self.digest = blake3(self.digest).update(data.data).digest()
        return self.digest

"""The chain of hashes over the logits that a text was chosen from: h[i] = BLAKE3(h[i - 1] + row i)."""

from __future__ import annotations

import numpy as np
from blake3 import blake3

START: bytes = blake3(b"oxillama receipt 1").digest()
"""h[-1]: a new way to hash begins with another one."""

LINK_BYTES = len(START)


class LogitsChain:
    """The chain of one text.

    Attributes
    ----------
    digest : 32 bytes, the last link.
    """

    def __init__(self) -> None:
        self.digest: bytes = START

    def add(self, row: np.ndarray) -> bytes:
        """The next link, 32 bytes, of float32 (vocab,) logits; hashed in little-endian order."""
        data = np.ascontiguousarray(row, "<f4").view(np.uint8)
        self.digest = blake3(self.digest).update(data.data).digest()
        return self.digest

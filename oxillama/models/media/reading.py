"""Checked reading of the metadata of projector files."""

from __future__ import annotations

import numpy as np

from oxillama.errors import LoadError
from oxillama.gguf.model_file import ModelFile


class Reading:
    """The metadata under a prefix. All methods raise LoadError or GGUFError that name the key."""

    def __init__(self, file: ModelFile, prefix: str) -> None:
        self.file = file
        self.prefix = prefix

    def size(self, key: str, default: int | None = None, *, least: int = 1, most: int = 1 << 31) -> int:
        """A whole number from ``least`` to ``most``; ``default`` without the key, if it is not None."""
        full = f"{self.prefix}.{key}"
        found = self.file.get(full, int) if default is None else self.file.get(full, int, default)
        if not least <= found <= most:
            raise LoadError(f"{full}: expected a number from {least} to {most}, got {found}")
        return found

    def number(self, key: str, least: float, most: float) -> float:
        """A number from ``least`` to ``most``."""
        full = f"{self.prefix}.{key}"
        found = self.file.get(full, float)
        if not least <= found <= most:
            raise LoadError(f"{full}: expected a number from {least:g} to {most:g}, got {found}")
        return found

    def flag(self, key: str) -> bool:
        """A truth value; False without the key."""
        return self.file.get(f"{self.prefix}.{key}", bool, False)

    def text(self, key: str) -> str:
        """A text; "" without the key."""
        return self.file.get(f"{self.prefix}.{key}", str, "")

    def three(self, key: str) -> np.ndarray:
        """float32 (3,): a finite number for each channel."""
        full = f"{self.prefix}.{key}"
        found = np.array(self.file.get(full, list[float]), np.float32)
        if found.shape != (3,) or not np.isfinite(found).all():
            raise LoadError(f"{full}: expected three finite numbers, got {found.tolist()[:8]}")
        return found

    def sizes(self, key: str) -> list[int]:
        """Whole numbers in pairs, from 1 to 2^14 each and 64 pairs at most; [] without the key."""
        full = f"{self.prefix}.{key}"
        found = self.file.get(full, list[int], [])
        if len(found) % 2 or len(found) > 128 or not all(1 <= n <= 1 << 14 for n in found):
            raise LoadError(
                f"{full}: expected at most 64 pairs of numbers from 1 to {1 << 14}, got {found[:8]}"
            )
        return found

"""Checked reading of the metadata of projector files."""

from __future__ import annotations

import numpy as np

from oxillama.models.metadata import Reader


class Reading(Reader):
    """The metadata under a prefix. All methods raise LoadError or GGUFError that name the key."""

    def size(self, key: str, default: int | None = None, least: int = 1, most: int = 1 << 31) -> int:
        """A whole number from ``least`` to ``most``; ``default`` without the key, if it is not None."""
        found: int = self.get(key, int, default)
        self.expect(least <= found <= most, key, f"a number from {least} to {most}", found)
        return found

    def epsilon(self, key: str) -> float:
        """A number from 1e-30 to 1."""
        found: float = self.get(key, float, None)
        self.expect(1e-30 <= found <= 1, key, "a number from 1e-30 to 1", found)
        return found

    def three(self, key: str) -> np.ndarray:
        """float32 (3,): a finite number for each channel."""
        found = np.array(self.get(key, list[float], None), np.float32)
        is_good = found.shape == (3,) and np.isfinite(found).all()
        self.expect(is_good, key, "three finite numbers", found.tolist()[:8])
        return found

    def sizes(self, key: str) -> list[int]:
        """Whole numbers in pairs, from 1 to 2^14 each and 64 pairs at most; [] without the key."""
        found: list[int] = self.get(key, list[int], [])
        are_pairs = len(found) % 2 == 0 and len(found) <= 128 and all(1 <= n <= 1 << 14 for n in found)
        self.expect(are_pairs, key, f"at most 64 pairs of numbers from 1 to {1 << 14}", found[:8])
        return found

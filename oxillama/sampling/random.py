"""The random numbers of sampling: small, readable, and the same on every machine."""

from __future__ import annotations

MASK = 2**64 - 1


class Xorshift64:
    """Marsaglia's xorshift64 (2003), seeded through a step of splitmix64 (Steele et al., 2014).

    Attributes
    ----------
    state : the whole state, an int in [1, 2^64); set it to continue from there.
    """

    def __init__(self, seed: int) -> None:
        z = (seed + 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        self.state = (z ^ (z >> 31)) or 1  # zero is the one state xorshift never leaves

    def uniform(self) -> float:
        """A double in [0, 1) with 53 random bits."""
        x = self.state
        x ^= (x << 13) & MASK
        x ^= x >> 7
        x ^= (x << 17) & MASK
        self.state = x
        return (x >> 11) * 2.0**-53

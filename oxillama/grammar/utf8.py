"""Sets of code points as automata over the bytes of UTF-8.

A set becomes a `Tree`: (bytes, what follows) pairs, the bytes of one pair as the bits of an int, None where
the character ends. Equal tails are one object, so a class of any size has few states: at most seven
beyond the first for all of Unicode. Surrogates have no bytes and are in no tree.
"""

from __future__ import annotations

from functools import lru_cache

from oxillama.grammar.codepoints import Ranges
from oxillama.grammar.rules import LAST_CODE_POINT

Tree = tuple[tuple[int, "Tree | None"], ...]
Sequence = tuple[tuple[int, int], ...]  # ranges of bytes, one after another

_LIMITS = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, LAST_CODE_POINT))


@lru_cache(maxsize=1024)
def byte_tree(ranges: Ranges) -> Tree:
    """The automaton of one character out of ascending, disjoint ranges; empty where there is none."""
    sequences: list[Sequence] = []
    for first, last in ranges:
        for low, high in _LIMITS:
            if max(first, low) <= min(last, high):
                _split(max(first, low), min(last, high), sequences)
    return _merge(tuple(sequences), {})


def _split(first: int, last: int, out: list[Sequence]) -> None:
    """Ranges of code points with equally long UTF-8 as sequences of byte ranges, in ascending order."""
    low, high = chr(first).encode(), chr(last).encode()
    for i in range(1, len(low)):
        mask = (1 << (6 * i)) - 1  # the code points that share all but the last i bytes
        if (first & ~mask) != (last & ~mask):
            if first & mask:
                _split(first, first | mask, out)
                _split((first | mask) + 1, last, out)
                return
            if last & mask != mask:
                _split(first, (last & ~mask) - 1, out)
                _split(last & ~mask, last, out)
                return
    out.append(tuple(zip(low, high)))


def _merge(sequences: tuple[Sequence, ...], known: dict[tuple[Sequence, ...], Tree]) -> Tree:
    """One level of the tree: first bytes with the same tails make one pair."""
    if sequences in known:
        return known[sequences]
    tails: dict[int, list[Sequence]] = {}
    for (low, high), *rest in sequences:
        for byte in range(low, high + 1):
            tails.setdefault(byte, []).append(tuple(rest))
    bits: dict[tuple[Sequence, ...], int] = {}
    for byte, after in tails.items():
        key = tuple(after)
        bits[key] = bits.get(key, 0) | 1 << byte
    tree = tuple((mask, None if after == ((),) else _merge(after, known)) for after, mask in bits.items())
    known[sequences] = tree
    return tree

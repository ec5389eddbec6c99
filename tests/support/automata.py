"""What automata and masks of grammars allow, read without the kernels that use them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from oxillama.text.grammar.rules import Dfa


@lru_cache(maxsize=16)
def _tables(dfa: Dfa) -> tuple[Any, frozenset[int]]:
    return dfa.edges, dfa.accepting


def accepts(dfa: Dfa, text: str) -> bool:
    """Whether an automaton accepts a text."""
    edges, accepting = _tables(dfa)
    state = 0
    for char in text:
        after = [target for first, last, target in edges[state] if first <= ord(char) <= last]
        if not after:
            return False
        state = after[0]
    return state in accepting


def allowed(mask: np.ndarray) -> list[int]:
    """The tokens that a bitmask allows, in ascending order."""
    found: list[int] = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    return found

"""Rows of parser states: bytes share an entry only where the same edges take them."""

from __future__ import annotations

import random

import pytest

from oxillama._kernels.grammar.parser_states import ParserStates
from oxillama.text.grammar import Grammar

FOLLOWING = {chr(0x21 + i): chr(0x21 + (i + 1) % 94) for i in range(94)}
SPECIAL = str.maketrans({char: f"\\x{ord(char):02X}" for char in '\\"[]^-'})


def written(chars: str) -> str:
    return chars.translate(SPECIAL)


class Texts:
    """Which texts a grammar matches, with the same rows for all of them."""

    def __init__(self, gbnf: str) -> None:
        self.states = ParserStates(Grammar.parse(gbnf).program, 1 << 24, 1 << 24)
        self.start = self.states.start()

    def matches(self, text: str) -> bool:
        return self.states.accepts(self.states.advance(self.start, text.encode()))


def test_each_of_many_bytes_has_an_entry_of_its_own() -> None:
    ways = " | ".join(f'"{written(char + after)}"' for char, after in FOLLOWING.items())
    grammar = Texts(f"root ::= {ways}")
    for char in FOLLOWING:
        for after in FOLLOWING:
            assert grammar.matches(char + after) == (FOLLOWING[char] == after)


@pytest.mark.parametrize("seed", range(20))
def test_overlapping_sets_of_bytes_are_told_apart(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice([1, 2, 10, 80, 94]) for _ in range(rng.randint(1, 9))]
    sets = ["".join(rng.sample([*FOLLOWING], size)) for size in sizes]
    ways = " | ".join(f'[{written(chars)}] "{i}"' for i, chars in enumerate(sets))
    grammar = Texts(f"root ::= {ways}")
    for char in FOLLOWING:
        assert [grammar.matches(f"{char}{i}") for i in range(len(sets))] == [char in chars for chars in sets]

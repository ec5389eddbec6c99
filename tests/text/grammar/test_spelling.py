"""The spellings of characters in JSON strings, in the ways that an automaton is asked for."""

from __future__ import annotations

import json

import pytest

from oxillama._kernels.grammar.spelling import DUMPED, EVERY_WAY, ONE_WAY, spell
from oxillama.text.grammar.rules import Dfa
from tests.support.automata import accepts

POINTS = [
    *range(0x30), 0x5B, 0x5C, 0x5D, 0x61, 0x7E, 0x7F, 0x80, 0xE9, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF,
]  # fmt: skip


def spellings(point: int) -> set[str]:
    """All JSON spellings of one character."""
    char = chr(point)
    units = char.encode("utf-16-be")
    codes = ["".join(f"\\u{units[i] * 256 + units[i + 1]:04x}" for i in range(0, len(units), 2))]
    codes.append(codes[0].upper().replace("\\U", "\\u"))
    short = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 0x22: '\\"', 0x2F: "\\/", 0x5C: "\\\\"}
    raw = [char] if point >= 0x20 and char not in '"\\' else []
    return {*codes, *raw} | ({short[point]} if point in short else set())


@pytest.mark.parametrize("point", POINTS)
def test_spellings_of_a_character(point: int) -> None:
    any_one = Dfa((((0, 0x10FFFF, 1),), ()), {1})
    just_this = Dfa((((point, point, 1),), ()), {1})
    dumped = {json.dumps(chr(point), ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    once = json.dumps(chr(point), ensure_ascii=False)[1:-1]
    for dfa in (any_one, just_this):
        for text in spellings(point):
            assert accepts(spell(dfa, EVERY_WAY), text), text
            assert accepts(spell(dfa, ONE_WAY), text) == (text == once), text
        assert all(accepts(spell(dfa, DUMPED), text) for text in dumped)
    if 0x20 <= point < 0x7F:
        assert not accepts(spell(any_one, DUMPED), f"\\u{point:04x}")

"""Slices of a vocabulary: masks with them equal masks without, and what each token does by itself."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from oxillama._kernels.grammar.matcher import Matcher
from oxillama.text.grammar import Grammar, GrammarState, Vocabulary
from tests.support.automata import allowed

LETTERS = "".join(chr(code) for code in range(0x61, 0x7B))
PIECES = [
    *(letter.encode() for letter in LETTERS + 'AB01 ",.[]{}:é日'),
    *("".join(pair).encode() for pair in product(LETTERS + "Aé0 ", repeat=2)),
    *("".join(three).encode() for three in product('ab", ', repeat=3)),
    *(
        b"\xc3", b"\xa9", b"a\xc3", b"\xc3a", b"\xa9a", b'\xc3"', b"\xe6\x97", b"\xa5", b"\xe6a", b"\xff",
        b"a\xffb",
    ),
    *(
        b'abababababababababababababababab"',
        b"abababababababababababababababab",
        b'"]',
        b'",',
        b'ab","',
        b'a":',
    ),
    *(text.encode() for text in ("—", "\u2028", "a\u2028", "a—", '—"', "あ", "ⴰa")),  # most begin with E2
    *(b"\xe2", b"\xe2\x80", b"a\xe2\x80", b"\xa8", b"\x94b", b"\xe2a", b"\xe3\x81"),
    *(b'",""', b'"",""', b'","",', b'a","a"', b'a","a",', b'b", "b"]', b'"a","a"', b'","a"]'),
]  # fmt: skip
TEXTS = [*dict.fromkeys(PIECES), b"<end>"]
VOCABULARY = Vocabulary(TEXTS, [len(TEXTS) - 1])

PATTERNS = {
    "all but a quotation mark": 'root ::= [^"]* "\\""',
    "all but two": 'root ::= [^b"]* ("\\"" | "b") root?',
    "letters": 'root ::= [a-z]* "," [a-zA]* "\\"" root?',
    "no letters beyond ASCII": 'root ::= [^"\\x80-\\U0010FFFF]* ("\\"" | "é") [^,]* ","',
    "all that stands in a line": 'root ::= [^"\\n\\r\\u2028\\u2029]* "\\"" root?',
    "a line, counted": 'root ::= [^",\\u2028]{1,30} "," [^"\\u2029]{0,3} "\\"" root?',
    "lines after a letter": 'root ::= [^b"\\u2028]* ("\\"" | "b" [^"]* "\\"") root?',
    "E2 and E3 lead to the same": 'root ::= [^"\\u2040-\\u2FFF\\u3040-\\u3FFF]* "\\"" root?',
    "a letter or mark, and what stands in a line": 'root ::= [a-y"] [^"\\u2028]* "\\"" root?',
    "only those of E2": 'root ::= [a-z\\u2000-\\u2FFF]* ("," | "\\"") root?',
    "all but those of E2": 'root ::= [a-z\\u0080-\\u1FFF\\u3000-\\U0010FFFF]* ("," | "—") root?',
    "counted, few": 'root ::= [^"]{2,5} "\\"" [^,]{1,3} ","',
    "counted, many": 'root ::= [^"]{0,31} "\\"" root?',
    "letters, counted": 'root ::= ([a-z]{1,30} | "A") "," root?',
    "two loops": 'root ::= "\\"" [^"]* "\\"" ("," | ":" [a-z ]* ",") root?',
}

NEVER_SLICED = "letters"
"""After its comma as much may follow as before, so the comma is taken for one of the loop's characters."""


def mask_of(state: GrammarState, matcher: Matcher) -> set[int]:
    mask = np.zeros(VOCABULARY.n_words, np.uint32)
    matcher.compute_bitmask(state._states[-1], mask)
    return set(allowed(mask))


def follow(grammar: Grammar, rng: random.Random, text: str = "", steps: int = 12) -> Matcher:
    """Compare masks with and without slices with what can be taken; returns the matcher with slices."""
    state = GrammarState(grammar, VOCABULARY)
    sliced, plain = (Matcher(VOCABULARY.trie, state._tables.states) for _ in range(2))
    sliced.sliced, sliced.min_loop = 1, 8
    plain.sliced = 1 << 29
    for char in text:
        state.advance(TEXTS.index(char.encode()))
    for _ in range(steps):
        expected = {token for token in range(len(TEXTS) - 1) if state.allows_token(token)}
        assert mask_of(state, sliced) == expected, state.tokens
        assert mask_of(state, plain) == expected, state.tokens
        if not expected:
            break
        state.advance(rng.choice(sorted(expected)))
    assert plain.n_shared == 0
    return sliced


@pytest.mark.parametrize("name", PATTERNS)
def test_slices_hold_the_tokens_of_a_loop(name: str) -> None:
    for seed in range(4):
        sliced = follow(Grammar.parse(PATTERNS[name]), random.Random(seed))
        assert (sliced.n_shared > 0) == (name != NEVER_SLICED)


@pytest.mark.parametrize(
    "items", [{"type": "string"}, {"type": "string", "maxLength": 4}, {"type": ["string", "array"]}]
)
def test_items_that_differ_end_within_tokens_that_leave_a_loop(items: dict) -> None:
    grammar = Grammar.from_json_schema({"type": "array", "items": items, "uniqueItems": True})
    for text in ('["","a', '["","a","', '["a","b","0', '["b","a","ab", "', '["0","1","'):
        follow(grammar, random.Random(text), text, steps=3)

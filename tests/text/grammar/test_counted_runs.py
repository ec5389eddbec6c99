"""Counted runs of a character class over vocabularies of real size, against the reference."""

from __future__ import annotations

import os
import random
import re
from functools import cache

import pytest

from oxillama.errors import GrammarError
from oxillama.reference.gbnf import Reader
from oxillama.reference.grammar import Recogniser
from oxillama.text.grammar import Grammar, GrammarState, Vocabulary
from tests.support.automata import allowed
from tests.support.spread import leading

N_GRAMMARS = int(os.environ.get("OXILLAMA_RANDOM_GRAMMARS", "300"))
"""Random grammars to try; set the variable to try more."""


@cache
def vocabulary(n_tokens: int, longest: int) -> tuple[Vocabulary, list[bytes]]:
    """Every byte, runs of one character, random words: ``n_tokens`` tokens of up to ``longest`` bytes."""
    rng = random.Random(n_tokens)
    strings = dict.fromkeys([bytes([i]) for i in range(256)])
    for char in (" ", "a", "z", "0", "-", "é", "\n"):
        for length in (2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, longest):
            strings[(char * length).encode()[:longest]] = None
    letters = ["etaoinshrdlu", " ", "AZ", "09", '",:{}', "xyz", "é日🙂", "\n\t", "-_."]
    while len(strings) < n_tokens:
        words = [
            "".join(rng.choices(rng.choice(letters), k=rng.randint(1, 6))) for _ in range(rng.randint(1, 3))
        ]
        data = "".join(words).encode()[:longest]
        strings[data[rng.random() < 0.02 :]] = None
    strings.pop(b"", None)
    found = list(strings)
    return Vocabulary([*found, b"<end>"], end_ids=[len(found)]), found


MOST = 16
"""Bytes of the texts that the reference reads."""


def begins_a_text(gbnf: str, data: bytes) -> bool:
    """Whether some text of the grammar begins with at most `MOST` bytes, by the reference.

    So few bytes reach no count beyond `MOST`, and larger counts are lessened.
    """

    def lessened(found: re.Match[str]) -> str:
        return re.sub(r"\d+", lambda count: str(min(int(count[0]), MOST + 1)), found[0])

    rules = Reader(re.sub(r"\{\d+,?\d*\}", lessened, gbnf), lambda text: []).productions
    return bool(Recogniser(rules, [data], set()).allowed()[0])


def check(source: str | Grammar, n_tokens: int, longest: int, rng: random.Random) -> None:
    """Along random allowed tokens: every mask against a walk of each token's bytes, one token of some masks
    against the reference.
    """
    grammar = source if isinstance(source, Grammar) else Grammar.parse(source)
    vocab, strings = vocabulary(n_tokens, longest)
    state = GrammarState(grammar, vocab)
    for _ in range(4):
        found = set(allowed(state.mask())) - vocab.end_ids
        assert found == {id for id in range(len(strings)) if state.allows_token(id)}, state.tokens
        id = rng.choice(sorted(found) if found and rng.random() < 0.5 else range(len(strings)))
        tokens = [*state.tokens, id]
        data = b"".join(strings[token] for token in tokens)
        if isinstance(source, str) and len(data) <= MOST:
            assert begins_a_text(source, data) == (id in found), tokens
        if not found:
            return
        some = rng.sample(sorted(found), min(8, len(found)))
        state.advance(max(some, key=lambda id: len(strings[id])) if rng.random() < 0.5 else some[0])


@pytest.mark.parametrize(
    "text",
    ["[^x]{5,1000}", "[a-z ]{2,300}", "[a-z ]{2,270}", '"x"? [a-z ]{257} "-"', "[a-z]{0,256} [a-z ]{3,258}"],
)
def test_bounds_beyond_the_longest_token(text: str) -> None:
    for longest in (40, 128, 254, 300):
        check(f"root ::= {text}", 6_000, longest, random.Random(longest))


def test_a_pattern_of_many_characters_in_a_schema() -> None:
    grammar = Grammar.from_json_schema({"type": "string", "pattern": "^[a-z ]{3,280}$"})
    vocab, strings = vocabulary(6_000, 128)
    state = GrammarState(grammar, vocab)
    state.advance(strings.index(b'"'))
    found = set(allowed(state.mask())) - vocab.end_ids
    assert found >= {id for id, data in enumerate(strings) if re.fullmatch(b"[a-z ]{1,128}", data)}
    assert found == {id for id in range(len(strings)) if state.allows_token(id)}


CLASSES = ["[a-z]", "[a-z ]", "[^x]", '[^"\\\\\\x00-\\x1F]', "[0-9]", "[é日a-e]", ".", "[ \\n\\t]"]
OTHERS = ['"-"', '"x"', '" "', '"\\""', '"a"', '", "', "[0-9]", '"é"', '("ab" | "a")', "sub"]
BOUNDS = [0, 1, 2, 3, 5, 8, 20, 24, 25, 60, 126, 129, 254, 255, 256, 257, 258, 300, 511, 1000, 100_000]


def random_grammar(rng: random.Random) -> str:
    """Counted classes in rows, in groups that count, in a rule that calls itself, beside other items."""

    def counted(item: str) -> str:
        least, most = sorted(rng.choices(BOUNDS, k=2))
        return f"{item}{{{least},{'' if rng.random() < 0.15 else max(most, 1)}}}"

    def row(depth: int) -> str:
        items = []
        for _ in range(rng.randint(1, 3)):
            kind = rng.random()
            if kind < 0.55:
                items.append(counted(rng.choice(CLASSES)))
            elif kind < 0.8 or depth == 0:
                items.append(rng.choice(OTHERS) + rng.choice(["", "", "?", "*"]))
            else:
                group = f"({row(depth - 1)})"
                items.append(counted(group) if rng.random() < 0.5 else f"({row(depth - 1)} | {group})")
        return " ".join(items)

    return f'root ::= {row(1)}\nsub ::= "[" {row(0).replace("sub", "root")} "]" | "-" sub? | {row(0)} "!"'


@pytest.mark.parametrize("part", leading(range(10), 4))
def test_random_counted_grammars(part: int) -> None:
    seeds = range(part, N_GRAMMARS, 10)
    beyond = 0
    for seed in seeds:
        rng = random.Random(seed)
        text = random_grammar(rng)
        size = rng.choice([(6_000, 40), (6_000, 128), (6_000, 254), (6_000, 300), (20_000, 128)])
        try:
            check(text, *size, rng)
        except GrammarError as error:  # counts inside counts; any other answer than the right one is a fault
            assert re.search("expected at most .* got more", str(error)), f"{seed}: {text}"
            beyond += 1
        except AssertionError as error:
            raise AssertionError(f"{seed}: {text}") from error
    assert beyond <= max(2, len(seeds) // 20)

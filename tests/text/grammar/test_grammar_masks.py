"""Masks against the recogniser of the reference, on small vocabularies."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from oxillama._kernels.grammar.matcher import Matcher
from oxillama.errors import GrammarError
from oxillama.reference.gbnf import Reader
from oxillama.reference.grammar import Recogniser
from oxillama.text.grammar import Grammar, GrammarState, Vocabulary
from oxillama.text.grammar.counts import within
from oxillama.text.grammar.rules import Alt, Chars, Counted, Dfa, Node, Ref, Repeat, Rules, Seq, Text, Tokens
from oxillama.text.grammar.schema.json_text import spell
from tests.support.automata import allowed
from tests.support.spread import leading

# Tokens that cross rules, cut characters anywhere, share their bytes, are no text, and end the generation.
STRINGS: list[bytes | None] = [
    *(b"a", b"b", b"c", b"ab", b"ba", b"aa", b"abc", b"abcb", b"cab", b"aaaa", b" a", b"1", b"12", b"\n"),
    *("é".encode(), b"\xc3", b"\xa9", b"a\xc3", b"\xa9b", "日".encode(), b"\xe6\x97", b"\xa5", b"\xf0\x9f"),
    *(b"\x99\x82", b"a", b"", None, None, None, None),
]
CONTROL = {26, 27}
END = {28, 29}
VOCABULARY = Vocabulary([s or b"<control>" for s in STRINGS], END, CONTROL | {25})


# As for large vocabularies: slices for every set of characters, few dependents kept.
SETTINGS = {
    "plain": {},
    "slices": {"sliced": 1, "min_loop": 1},
    "few dependents": {"sliced": 1, "min_loop": 1, "max_dependents": 1},
}


def tuned(grammar: Grammar, setting: str) -> GrammarState:
    state = GrammarState(grammar, VOCABULARY)
    state._tables.matcher = Matcher(VOCABULARY.trie, state._tables.states)
    for name, value in SETTINGS[setting].items():
        setattr(state._tables.matcher, name, value)
    return state


NO_TEXT = [id for id, string in enumerate(STRINGS) if not string or id in CONTROL | END]
BYTES = [b"" if id in NO_TEXT else string or b"" for id, string in enumerate(STRINGS)]


def recogniser(grammar: Grammar) -> Recogniser:
    """The reference's, which reads a grammar as the GBNF that it is printed as."""

    def no_tokens(text: str) -> list[int]:
        raise AssertionError(text)

    return Recogniser(Reader(grammar.to_gbnf(), no_tokens).productions, BYTES, END)


def check(grammar: Grammar, choices: list[int]) -> None:
    """Follow a grammar, choosing among the allowed tokens, and compare every mask on the way."""
    states = [tuned(grammar, setting) for setting in SETTINGS]
    state, reference = states[0], recogniser(grammar)
    for choice in (*choices, 0):
        expected = set(np.flatnonzero(reference.allowed()).tolist())
        for setting, other in zip(SETTINGS, states, strict=True):
            assert set(allowed(other.mask())) == expected, (setting, state.tokens)
        assert {id for id in range(len(STRINGS)) if state.allows_token(id)} == expected
        assert state.is_complete == reference.columns[-1].is_complete
        going_on = sorted(expected - END)
        if not going_on:
            break
        refused = next((id for id in range(len(STRINGS)) if id not in expected), None)
        if refused is not None:
            for each in (state, reference):
                with pytest.raises(GrammarError, match=f"token {refused} is not allowed"):
                    each.advance(refused)
        for each in (*states, reference):
            each.advance(going_on[choice % len(going_on)])


CASES = {
    "first alternative is a prefix": 'root ::= "a" | "ab"',
    "left recursion": 'root ::= root "b" | "a"',
    "indirect left recursion": 'root ::= x "b" | "a"\nx ::= root "c" | "b" x',
    "left recursion behind what may be empty": 'root ::= e root "b" | "a"\ne ::= "c"?',
    "left recursion between three": 'root ::= x | "c"\nx ::= y "a" | root "b"\ny ::= x | root',
    "only itself": 'root ::= root | "a"',
    "right recursion": 'root ::= "a" root | "b"',
    "right recursion before what may be empty": 'root ::= "a" root "b"? | "c"',
    "middle": 'root ::= "a" root "b" | ""',
    "exponentially ambiguous": 'root ::= root root | "a" | "b"?',
    "a loop of nothing": 'root ::= ("a"* "b"?)* ("" | "c")*',
    "counted characters": 'root ::= [ab]{3,20} "c"',
    "counted wide characters": 'root ::= [aé日]{2,30} "b"',
    "counted groups": 'root ::= ("ab" | "c" [1]?){2,40}',
    "counted, at least": 'root ::= ("a" "b"?){25,} "c"',
    "counted, twice": 'root ::= (("a" | "b"){17,18} "c"?){0,100}',
    "counted inside recursion": 'root ::= ("(" root ")" | [ab]{1,20}){0,30}',
    "classes": "root ::= [^a-b\\x00-\\x20]* [é日🙂]",
    "any": "root ::= ... .?",
    "a token by its number": 'root ::= <[3]> "c" <[26]> "a"',
    "any but a token": "root ::= (!<[3]>)* <[26]>",
    "a token or its text": 'root ::= (<[3]> | "ab" "a") "c"',
    "an end of generation by its number": 'root ::= "a" (<[28]> | "b")',
    "ends of generation in the middle": 'root ::= "a" <[28]> "b" | "c"',
    "rules that match nothing": 'root ::= "a" none | "b" some?\nnone ::= "c" none\nsome ::= none | "a"',
}


@pytest.mark.parametrize("seed", leading(range(3), 1))
@pytest.mark.parametrize("name", CASES)
def test_masks_are_those_of_the_reference(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    check(Grammar.parse(CASES[name]), rng.integers(0, 100, 6).tolist())


# Automata over most characters, as names that are none of some and texts that hold a word: few characters
# lead elsewhere, "c" is an escape that comes back.
END_OF_TEXT = Text("\n")
TEXTS = {
    "a name that is none of two": Dfa(
        (
            ((0, 9, 4), (11, 96, 4), (97, 97, 1), (98, 98, 4), (99, 99, 5), (100, 0x10FFFF, 4)),
            ((0, 9, 4), (11, 97, 4), (98, 98, 2), (99, 99, 5), (100, 0x10FFFF, 4)),
            ((0, 9, 4), (11, 98, 4), (99, 99, 6), (100, 0x10FFFF, 4)),
            ((0, 9, 4), (11, 98, 4), (99, 99, 5), (100, 0x10FFFF, 4)),
            ((0, 9, 4), (11, 98, 4), (99, 99, 5), (100, 0x10FFFF, 4)),
            ((97, 98, 4),),
            ((97, 97, 3), (98, 98, 4)),
        ),
        frozenset({1, 4}),
    ),
    "a text that holds a word": Dfa(
        (
            ((0, 9, 0), (11, 96, 0), (97, 97, 1), (98, 98, 0), (99, 99, 3), (100, 0x10FFFF, 0)),
            ((0, 9, 0), (11, 96, 0), (97, 97, 1), (98, 98, 2), (99, 99, 3), (100, 0x10FFFF, 0)),
            ((0, 9, 2), (11, 98, 2), (99, 99, 4), (100, 0x10FFFF, 2)),
            ((97, 98, 0),),
            ((97, 98, 2),),
        ),
        frozenset({2}),
    ),
    "a text in which a character is refused after a word": Dfa(
        (
            ((0, 9, 0), (11, 96, 0), (97, 97, 1), (98, 98, 0), (99, 99, 3), (100, 0x10FFFF, 0)),
            ((0, 9, 0), (11, 47, 0), (97, 97, 1), (98, 98, 2), (100, 0xFF, 0)),
            ((97, 97, 2), (0x100, 0x10FFFF, 0)),
            ((97, 98, 0),),
        ),
        frozenset({0, 2}),
    ),
    "a text that is left in another way after its first character": Dfa(
        (
            ((0, 9, 4), (11, 96, 4), (97, 97, 1), (98, 98, 4), (100, 0x10FFFF, 4)),
            ((0, 9, 2), (11, 98, 2), (99, 99, 3), (100, 0x10FFFF, 2)),
            ((0, 9, 1), (11, 98, 1), (99, 99, 3), (100, 0x10FFFF, 1)),
            ((97, 98, 3),),
            ((0, 9, 4), (11, 98, 4), (100, 0x10FFFF, 4)),
        ),
        frozenset({3, 4}),
    ),
}


@pytest.mark.parametrize(
    ("name", "tail"),
    leading(product(TEXTS, [END_OF_TEXT, Seq((END_OF_TEXT, Repeat(Ref("text"), 0, 1))), Seq(())]), 1),
)
def test_masks_of_texts_that_lead_into_a_loop(name: str, tail: Node) -> None:
    word = TEXTS[name]
    rules = {
        "root": Alt((Seq((Ref("text"), tail)), Seq((Text("b"), Ref("text"))))),
        "text": Seq((word, Text("1"))),
    }
    for seed in range(2):
        rng = np.random.default_rng(seed)
        for each in (rules, {"root": word}, {"root": Seq((word, tail)), "text": word}):
            check(Grammar.from_rules(Rules("root", each)), rng.integers(0, 100, 6).tolist())


LETTERS = st.sampled_from("abcé日1 ")
RANGES = st.sampled_from(
    [((97, 99),), ((97, 97), (0xE9, 0xE9)), ((0x80, 0x10FFFF),), ((0, 96), (98, 0x65E5)), ((0xD800, 0xDFFF),)]
)
AUTOMATA = [
    Dfa((((97, 97, 1),), ((98, 98, 0), (0x65E5, 0x65E5, 1))), frozenset({0, 1})),
    Dfa((((97, 99, 1), (0xE9, 0x10FFFF, 2)), ((97, 97, 1),), ((97, 97, 2),)), frozenset({1})),
    Dfa((((97, 99, 0), (0xE9, 0x10FFFF, 1)), ((97, 97, 2),), ((97, 98, 3),), ()), frozenset({0, 3})),
    spell(Dfa((((97, 97, 1), (0x80, 0x10FFFF, 0)), ((92, 98, 0),)), {0, 1})),
]
LENGTHS = st.sampled_from([(0, 2), (0, 3), (0, 30), (2, 4), (3, None), (20, 33)])
DFAS = st.one_of(
    st.sampled_from(AUTOMATA),
    st.builds(lambda dfa, bounds: within(dfa, *bounds), st.sampled_from(AUTOMATA[:3]), LENGTHS),
    LENGTHS.map(lambda bounds: Counted(AUTOMATA[3], 2, *bounds)),
)
IDS = st.sets(st.sampled_from([0, 3, 17, 26, 28]), max_size=2).map(lambda ids: tuple(sorted(ids)))
LEAVES = st.one_of(
    st.text(LETTERS, max_size=3).map(Text),
    RANGES.map(Chars),
    DFAS,
    st.builds(Tokens, IDS),
    st.sampled_from([0, 3, 17, 26, 28]).map(lambda id: Tokens((id,), True)),
    st.sampled_from(["root", "x", "y"]).map(Ref),
)
BOUNDS = st.sampled_from([(0, None), (1, None), (0, 1), (2, 3), (0, 20), (3, 19), (18, None), (2, None)])


def compound(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.one_of(
        st.lists(nodes, max_size=3).map(lambda items: Seq(tuple(items))),
        st.lists(nodes, max_size=3).map(lambda items: Alt(tuple(items))),
        st.tuples(nodes, BOUNDS).map(lambda pair: Repeat(pair[0], *pair[1])),
    )


NODES = st.recursive(LEAVES, compound, max_leaves=6)


@settings(max_examples=150, deadline=None)
@given(NODES, NODES, NODES, st.lists(st.integers(0, 50), max_size=4))
def test_masks_of_random_grammars(root: Node, x: Node, y: Node, choices: list[int]) -> None:
    try:
        grammar = Grammar.from_rules(Rules("root", {"root": root, "x": x, "y": y}))
    except GrammarError as error:
        assert "no text matches the rule root" in str(error)
        return
    check(grammar, choices)


def test_equal_masks_of_two_grammars_are_one_object() -> None:
    one, other = (
        GrammarState(Grammar.parse(text), VOCABULARY) for text in ('root ::= "a" "b"', 'root ::= "a" "c"')
    )
    assert one.mask() is not other.mask()  # "ab" follows in the first one only
    for state in (one, other):
        state.advance(STRINGS.index(b"a"))
    one.advance(STRINGS.index(b"b"))
    other.advance(STRINGS.index(b"c"))
    assert one.mask() is other.mask() and not one.mask().flags.writeable

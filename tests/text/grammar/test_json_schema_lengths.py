"""Bounds of length beside patterns and formats: counted beside the automaton, exact."""

from __future__ import annotations

import itertools
import json
import random
import re

import pytest

from oxillama.errors import GrammarError
from oxillama.text.grammar import Grammar
from oxillama.text.grammar.counts import within
from oxillama.text.grammar.dfa import automaton
from oxillama.text.grammar.regex import parse_regex
from oxillama.text.grammar.rules import NEVER, Counted, Dfa
from tests.text.grammar.test_counted_runs import check

PATTERNS = (
    "(a|%[0-9][0-9])*", "(/(a|%bb)*)*x?", "(a+-)*b{3}", "a*b*c*", "(a{2,5}|b){2,}", "a?(bc)*", "((a*b)*c)*",
    "(aa)*", "(aaa)*|b", "(aaaaa|bbbbbbb)*", "a|bbbb|ccccccc", "a{4}", "(a{3})*b?", "-(a|é)*|/b{2}",
)  # fmt: skip


def strings(longest: int, letters: str) -> list[str]:
    return ["".join(c) for n in range(longest + 1) for c in itertools.product(letters, repeat=n)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_bounds_are_exact(pattern: str) -> None:
    letters = "".join(sorted(set(re.sub(r"[0-9{},()|*+?\[\]]", "", pattern)))) + "0" * ("[0-9]" in pattern)
    longest = 7 if len(letters) < 3 or "ccccccc" in pattern else 5
    texts = strings(longest, letters)
    for least, most in itertools.product(range(longest + 1), (*range(longest + 1), None)):
        schema = {"type": "string", "pattern": f"^({pattern})$", "minLength": least}
        schema |= {} if most is None else {"maxLength": most}
        good = [
            text
            for text in texts
            if re.fullmatch(pattern, text) and least <= len(text) and (most is None or len(text) <= most)
        ]
        dfa = automaton(parse_regex(pattern, search=False))
        if within(dfa, least, most) == NEVER:
            assert not good
            continue
        grammar = Grammar.from_json_schema(schema)
        accepted = [text for text in texts if grammar.matches(json.dumps(text))]
        assert accepted == good, (least, most)


@pytest.mark.parametrize("pattern", ["a", "[^b]a", "^[^b]*aa", "aé|ab"])
@pytest.mark.parametrize("most", range(4))
def test_no_character_is_too_long_however_it_is_written(pattern: str, most: int) -> None:
    schema = {"type": "string", "pattern": pattern, "maxLength": most}
    texts = strings(4, "aé\n\\\x01")
    good = [text for text in texts if re.search(pattern, text) and len(text) <= most]
    if not good:
        with pytest.raises(GrammarError, match="no value meets"):
            Grammar.from_json_schema(schema)
        return
    grammar = Grammar.from_json_schema(schema)
    for raw in (True, False):
        assert [text for text in texts if grammar.matches(json.dumps(text, ensure_ascii=raw))] == good


@pytest.mark.parametrize(
    ("pattern", "least", "most", "counted"),
    [
        ("(ab)*", 0, 1000, True),
        ("(ab)*", 600, 1000, True),
        ("(ab)*", 3, 3, False),  # no length between the bounds: nothing is left
        ("(ab)*", 4, 4, True),  # an automaton counts to 4, and the count beside it to 4
        ("a{2}|b{900}", 3, 1000, True),
        ("a{2}|b*", 3, 100, True),
        ("a{1,9}", 0, None, False),
    ],
)
def test_where_the_count_is(pattern: str, least: int, most: int | None, counted: bool) -> None:
    dfa = automaton(parse_regex(pattern, search=False))
    assert isinstance(within(dfa, least, most), Counted) is counted


def test_the_way_to_the_end_counts_whole_characters() -> None:
    spelled = Dfa((((92, 92, 2),), (), ((117, 117, 1), (118, 118, 3)), ((97, 97, 0),)), frozenset({1}))
    assert spelled.to_the_end(2) == [1, 0, 1, 2]
    assert spelled.to_the_end() == [2, 0, 1, 3]


def test_emails_of_any_shape_within_a_bound() -> None:
    grammar = Grammar.from_json_schema({"type": "string", "format": "email", "maxLength": 60})
    for text in (
        "a@b.c",
        "first.last+tag@mail.example.technology",
        "a" * 52 + "@x.info",
        "a@" + "b" * 55 + ".cd",
        "a@" + ".".join("b" * 29),
        "x@[127.0.0.1]",
    ):
        assert grammar.matches(json.dumps(text)), text
        longer = text + "b" * (61 - len(text)) if "[" not in text else "a" * (61 - len(text)) + text
        assert not grammar.matches(json.dumps(longer)), longer


def test_addresses_that_are_told_apart_have_bounds_too() -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"type": "string", "format": "email"}}
    grammar = Grammar.from_json_schema({**schema, "items": {**schema["items"], "maxLength": 30}})
    assert grammar.matches('["a@b.cd", "b@b.cd", "a@b.ce"]')
    assert not grammar.matches('["a@b.cd", "b@b.cd", "a@b.cd"]')
    assert not grammar.matches(json.dumps(["a@b." + "c" * 27]))


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("https://example.com/a/b?x=1#y", True),
        ("https://example.com/some-repository-with-a-long-name/blob/main/README.md?raw=true", True),
        ("mailto:a@b.c", True),
        ("no uri", False),
        ("http://example.com/" + "a" * 2064, True),
        ("http://example.com/" + "a" * 2065, False),
        ("http://example.com/" + "%aa" * 688, True),
        ("http://example.com/" + "%aa" * 688 + "a", False),
    ],
)
def test_uris_with_a_bound(text: str, good: bool) -> None:
    uri = Grammar.from_json_schema({"type": "string", "format": "uri", "maxLength": 2083, "minLength": 1})
    assert uri.matches(json.dumps(text)) is good


@pytest.mark.parametrize(
    "schema",
    [
        {"format": "email", "maxLength": 20},
        {"format": "email", "maxLength": 200, "minLength": 12},
        {"format": "uri", "maxLength": 30},
        {"pattern": "^[a-z]+(-[a-z]+)*$", "minLength": 3, "maxLength": 9},
        {"pattern": "^[a-z]+(-[a-z]+)*$", "minLength": 120, "maxLength": 180},
        {"pattern": "^[a-z ]*(é|日)[a-z ]*x{5}$", "maxLength": 40},
        {"pattern": "^([a-z ]{3})*$", "maxLength": 31, "minLength": 10},
        {"pattern": "^[^x]*-{20}$", "maxLength": 100},
        {"not": {"enum": ["a", "ab"]}, "maxLength": 12},
        {"minLength": 3, "maxLength": 50},
        {"minLength": 40},
    ],
)
def test_masks_near_a_bound_equal_a_walk_of_each_token(schema: dict) -> None:
    grammar = Grammar.from_json_schema({"type": "string"} | schema)
    for seed in range(2):
        check(grammar, 6_000, (40, 128)[seed % 2], random.Random(seed))

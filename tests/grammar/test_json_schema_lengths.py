"""Bounds of length beside patterns that are too large to count along: never a string that is too long."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxillama.grammar import Grammar
from oxillama.grammar.dfa import language
from oxillama.grammar.regex import parse_regex
from oxillama.grammar.schema.lengths import shortened, span

URI = Grammar.from_json_schema({"type": "string", "format": "uri", "maxLength": 2083, "minLength": 1})


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("https://example.com/a/b?x=1#y", True),
        ("https://example.com/some-repository-with-a-long-name/blob/main/README.md?raw=true", True),
        ("mailto:a@b.c", True),
        ("no uri", False),
        ("http://example.com/" + "a" * 2065, False),
    ],
)
def test_uris_with_a_bound(text: str, good: bool) -> None:
    assert URI.matches(json.dumps(text)) is good


PATTERNS = (
    "(a|%[0-9][0-9])*",
    "(/(a|%bb)*)*x?",
    "(a+-)*b{3}",
    "a*b*c*",
    "(a{2,5}|b){2,}",
    "a?(bc)*",
    "((a*b)*c)*",
)


@pytest.mark.parametrize("pattern", PATTERNS)
@given(most=st.integers(0, 12), data=st.data())
def test_what_is_left_is_short_and_of_the_pattern(pattern: str, most: int, data: st.DataObject) -> None:
    node = parse_regex(pattern, search=False)
    short = shortened(node, most)
    low, high = span(node) or (0, 0)
    assert low <= most or short is None
    if short is None:
        return
    found = span(short)
    assert found is not None and found[1] <= most <= max(high, most)
    text = data.draw(st.from_regex(f"(?:{pattern})\\Z", fullmatch=True).filter(lambda text: len(text) < 30))
    if language(short).accepts(text):
        assert len(text) <= most and re.fullmatch(pattern, text)

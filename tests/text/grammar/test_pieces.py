"""Pieces of grammars that other grammars share: few and small ones are kept."""

from __future__ import annotations

import pytest

from oxillama.text.grammar import program
from oxillama.text.grammar.rules import Text


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_LEAVES", {})


def test_equal_pieces_are_built_once() -> None:
    assert program._leaf(Text("abc")) is program._leaf(Text("abc"))


def test_large_pieces_are_not_kept() -> None:
    n = program.MOST_LEAF_STATES
    small, large = Text("a" * (n // 2)), Text("a" * 2 * n)
    assert program._leaf(small).n_states <= n < program._leaf(large).n_states
    assert [*program._LEAVES] == [small]


def test_those_used_longest_ago_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MOST_LEAVES", 2)
    for text in ("a", "b", "a", "c"):
        program._leaf(Text(text))
    assert [*program._LEAVES] == [Text("a"), Text("c")]

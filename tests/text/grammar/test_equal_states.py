"""States of an automaton that accept the same strings become one, and nothing else changes."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from oxillama.text.grammar.dfa import meet
from oxillama.text.grammar.rules import NEVER, Dfa

Table = list[list[int]]
LETTERS = "ab"


@st.composite
def tables(draw: st.DrawFn) -> tuple[Table, set[int]]:
    """For each of up to six states the next ones by character, -1 for none; and the states that accept."""
    n = draw(st.integers(1, 6))
    row = st.lists(st.integers(-1, n - 1), min_size=2, max_size=2)
    return draw(st.lists(row, min_size=n, max_size=n)), draw(st.sets(st.integers(0, n - 1)))


def accepted(table: Table, accepting: set[int], state: int, length: int) -> frozenset[str]:
    """The strings of at most ``length`` characters that are accepted from a state on."""
    found = {""} if state in accepting else set()
    for char, to in zip(LETTERS, table[state] if length else ()):
        if to >= 0:
            found |= {char + rest for rest in accepted(table, accepting, to, length - 1)}
    return frozenset(found)


@settings(deadline=None)
@given(tables())
def test_states_that_accept_the_same_strings_are_one(given_table: tuple[Table, set[int]]) -> None:
    table, accepting = given_table
    n = len(table)
    edges = [[(ord(char), ord(char), to) for char, to in zip(LETTERS, row) if to >= 0] for row in table]
    found = meet([Dfa(edges, accepting)], [NEVER])

    reached, todo = {0}, [0]
    while todo:
        new = {to for to in table[todo.pop()] if to >= 0} - reached
        reached |= new
        todo += new
    # two of n states that differ do so in a string of fewer than n characters
    kinds = {accepted(table, accepting, state, n) for state in reached} - {frozenset()}
    assert found.n_states == max(1, len(kinds))

    rows = [[-1] * len(LETTERS) for _ in range(found.n_states)]
    for state, edges in enumerate(found.edges):
        for first, last, to in edges:
            for point in range(first, last + 1):
                rows[state][LETTERS.index(chr(point))] = to
    assert accepted(rows, set(found.accepting), 0, 2 * n) == accepted(table, accepting, 0, 2 * n)

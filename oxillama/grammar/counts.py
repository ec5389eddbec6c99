"""Strings of an automaton with bounds of length: the count of characters is carried beside the automaton.

A string so far of n characters, in a state that needs d characters at least to an accepting one, can be
completed within ``most`` characters if n + d is at most ``most``: so an upper bound is exact for every
automaton. A lower bound is exact where every state goes on for ever and the lengths that end it lie close
enough together; for all others it is counted by the automaton's states, up to the bound.
"""

from __future__ import annotations

from oxillama._kernels.grammar.languages import meet
from oxillama.errors import GrammarError
from oxillama.grammar.rules import NEVER, Counted, Dfa, has_characters


def within(dfa: Dfa, least: int, most: int | None) -> Dfa | Counted:
    """The strings of an automaton that have from ``least`` to ``most`` characters.

    Raises
    ------
    GrammarError : the lower bound needs an automaton of too many states.
    """
    if least == 0 and most is None:
        return dfa if dfa.holds_text() else NEVER
    needs = dfa.to_the_end()
    if needs[0] is None or (most is not None and needs[0] > most):
        return NEVER
    if least > needs[0] and not _goes_on(dfa, needs, least, most):
        try:
            return within(meet([dfa], least=least), 0, most)
        except GrammarError as error:
            raise GrammarError(f"minLength: {error}") from None
    if least <= needs[0]:
        least = 0
        if most is None:
            return dfa
    return Counted(dfa, dfa.n_states, least, most)


def _goes_on(dfa: Dfa, needs: list[int | None], least: int, most: int | None) -> bool:
    """Whether every count that is not yet ``least`` can be brought to between ``least`` and ``most``.

    That is so if no state is without a longer way to an end, and a string can always be made longer by fewer
    characters than there are lengths to hit.
    """
    longer: list[int] = []
    edges = dfa.edges
    for state in dfa.accepting:
        ways = [needs[target] for first, last, target in edges[state] if has_characters(first, last)]
        steps = [1 + need for need in ways if need is not None]
        if not steps:
            return False
        longer.append(min(steps))
    return most is None or max(longer) <= most - least + 1

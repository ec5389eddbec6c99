"""Length bounds on an automaton's strings: a character count is carried along with the automaton's state.

A string so far of n characters, in a state whose shortest way to an accepting state has d characters, can be
completed within ``most`` characters if n + d <= ``most``: so an upper bound is exact for every automaton. A
lower bound is exact where every state can be continued without end and the lengths of complete strings lie
close enough together. For other automata, the lower bound is built into the automaton's states.
"""

from __future__ import annotations

from oxillama._kernels.grammar.languages import meet
from oxillama.text.grammar.grammar_text import errors_under
from oxillama.text.grammar.rules import NEVER, Counted, Dfa, has_characters


def within(dfa: Dfa, least: int, most: int | None) -> Dfa | Counted:
    """The strings of an automaton that have between ``least`` and ``most`` characters.

    Raises:
        GrammarError: the lower bound needs an automaton of too many states.
    """
    if least == 0 and most is None:
        return dfa if dfa.holds_text() else NEVER
    needs = dfa.to_the_end()
    if needs[0] is None or (most is not None and needs[0] > most):
        return NEVER
    if least > needs[0] and not _goes_on(dfa, needs, least, most):
        with errors_under("minLength"):
            return within(meet([dfa], least=least), 0, most)
    if least <= needs[0]:
        least = 0
        if most is None:
            return dfa
    return Counted(dfa, dfa.n_states, least, most)


def _goes_on(dfa: Dfa, needs: list[int | None], least: int, most: int | None) -> bool:
    """Whether every string shorter than ``least`` can be continued to a length between ``least`` and
    ``most``.

    This holds if every accepting state has a longer continuation, and the lengthening is never larger than
    the number of allowed lengths.
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

"""Regular expressions to syntax nodes; the language of a node is a set of whole strings.

An unanchored end of a pattern allows any further text in a search (JSON Schema's `pattern`) and no text in
a whole match. Anchors outside of repetitions are resolved; lookaheads at the start become intersections; any
other assertion is compiled to an automaton.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from oxillama.errors import GrammarError
from oxillama.text.grammar.anchors import assertions, pieces
from oxillama.text.grammar.dfa import automaton, meet
from oxillama.text.grammar.expressions import ANYTHING, EMPTY, Assertion, alternatives, sequence
from oxillama.text.grammar.lookaround import Fail, look_around
from oxillama.text.grammar.regex_parser import Parser
from oxillama.text.grammar.rules import Dfa, Node, Seq

MAX_PATTERN = 20_000  # characters
START: Any = Assertion("^")


@lru_cache(maxsize=64)
def parse_regex(pattern: str, search: bool, alone: bool = True, dots: bool | None = None) -> Node:
    """The strings that ``pattern`` matches: somewhere in them if ``search``, else from end to end.

    Args:
        alone: whether the strings are a whole text. If other text may surround them, lookaround and anchors
            that depend on it are errors.
        dots: characters that a dot matches, see `Parser`.

    Raises:
        GrammarError: the pattern is malformed, over a limit, or not regular; with the position.
    """
    if len(pattern) > MAX_PATTERN:
        raise GrammarError(f"regex: at most {MAX_PATTERN} characters are read, this has {len(pattern)}")
    parser = Parser(pattern, dots)
    node = parser.parse()
    if not alone and pieces(node) is None:
        at = next(assertions(node)).at
        raise parser.fail("the text around this one is not known here", at)
    return _strings(node, search, parser.fail)


def _strings(node: Node, search: bool, fail: Fail) -> Node:
    """The strings that an expression matches; the expression may contain assertions."""
    ways = pieces(node)
    if ways is not None:
        around = ANYTHING if search else EMPTY
        return alternatives([way.whole(around, around) for way in ways])
    items: list[Any] = list(node.items) if isinstance(node, Seq) else [node]
    first = next((i for i, one in enumerate(items) if _sign(one) not in ("^", "?=", "?!")), len(items))
    looks = any(one != START for one in items[:first])
    if looks and (not search or START in items[:first]):
        return _from_the_start(items[:first], items[first:], search, fail)
    if search and _sign(items[-1]) == "?=":  # in a search, any text may follow the lookahead's match
        return _strings(sequence([*items[:-1], items[-1].body]), search, fail)
    return look_around(node, search, fail)


def _from_the_start(conditions: list[Any], rest: list[Any], search: bool, fail: Fail) -> Dfa:
    """The strings of ``rest`` that also meet lookaheads at the string's start."""
    whole = sequence([START, *rest]) if search else sequence(rest)
    wanted = [automaton(_strings(whole, search, fail))]
    unwanted: list[Dfa] = []
    for one in conditions:
        if one != START:
            ahead = automaton(_strings(sequence([START, one.body]), True, fail))
            (wanted if one.sign == "?=" else unwanted).append(ahead)
    return meet(wanted, unwanted)


def _sign(one: Any) -> str:
    return one.sign if isinstance(one, Assertion) else ""

"""Regular expressions as nodes of rules, whose language is a set of whole strings.

An unanchored end of a pattern means "anything may stand here" in a search (JSON Schema's `pattern`) and
nothing in a whole match. Anchors outside of repetitions are resolved, and lookaheads from the start are
intersections; whatever else a pattern asserts of the text around a place makes an automaton.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from oxillama.errors import GrammarError
from oxillama.grammar.anchors import assertions, pieces
from oxillama.grammar.dfa import automaton, meet
from oxillama.grammar.expressions import ANYTHING, EMPTY, Assertion, alternatives, sequence
from oxillama.grammar.lookaround import Fail, look_around
from oxillama.grammar.regex_parser import Parser
from oxillama.grammar.rules import Dfa, Node, Seq

MAX_PATTERN = 20_000  # characters
START: Any = Assertion("^")


@lru_cache(maxsize=64)
def parse_regex(pattern: str, search: bool, alone: bool = True, dots: bool | None = None) -> Node:
    """The strings that ``pattern`` matches: somewhere in them if ``search``, else from end to end.

    Parameters
    ----------
    alone : nothing stands around the strings. If something may, what looks at it is refused.
    dots : what dots take, see `Parser`.

    Raises
    ------
    GrammarError : the pattern is malformed, over a limit, or uses what is not regular; with the position.
    """
    if len(pattern) > MAX_PATTERN:
        raise GrammarError(f"regex: at most {MAX_PATTERN} characters are read, this has {len(pattern)}")
    parser = Parser(pattern, dots)
    node = parser.parse()
    if not alone and pieces(node) is None:
        at = next(assertions(node)).at
        raise parser.fail("what stands around this text is not known here", at)
    return _strings(node, search, parser.fail)


def _strings(node: Node, search: bool, fail: Fail) -> Node:
    """The strings that an expression matches, which may hold assertions."""
    ways = pieces(node)
    if ways is not None:
        around = ANYTHING if search else EMPTY
        return alternatives([way.whole(around, around) for way in ways])
    items: list[Any] = list(node.items) if isinstance(node, Seq) else [node]
    first = next((i for i, one in enumerate(items) if _sign(one) not in ("^", "?=", "?!")), len(items))
    looks = any(one != START for one in items[:first])
    if looks and (not search or START in items[:first]):
        return _from_the_start(items[:first], items[first:], search, fail)
    if search and _sign(items[-1]) == "?=":  # whatever follows it may follow the whole
        return _strings(sequence([*items[:-1], items[-1].body]), search, fail)
    return look_around(node, search, fail)


def _from_the_start(conditions: list[Any], rest: list[Any], search: bool, fail: Fail) -> Dfa:
    """What looks ahead from the string's start is a condition on the whole string."""
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

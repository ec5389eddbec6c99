"""Regular expressions as nodes of rules, whose language is a set of whole strings.

An unanchored end of a pattern means "anything may stand here" in a search (JSON Schema's `pattern`) and
nothing in a whole match. Anchors outside of repetitions are resolved; whatever else a pattern asserts of the
text around a place makes an automaton.
"""

from __future__ import annotations

from functools import lru_cache

from oxillama.errors import GrammarError
from oxillama.grammar.anchors import assertions, pieces
from oxillama.grammar.expressions import ANYTHING, EMPTY, alternatives
from oxillama.grammar.lookaround import look_around
from oxillama.grammar.regex_parser import Parser
from oxillama.grammar.rules import Node

MAX_PATTERN = 20_000  # characters


@lru_cache(maxsize=64)
def parse_regex(pattern: str, search: bool, alone: bool = True) -> Node:
    """The strings that ``pattern`` matches: somewhere in them if ``search``, else from end to end.

    Parameters
    ----------
    alone : nothing stands around the strings. If something may, what looks at it is refused.

    Raises
    ------
    GrammarError : the pattern is malformed, over a limit, or uses what is not regular; with the position.
    """
    if len(pattern) > MAX_PATTERN:
        raise GrammarError(f"regex: at most {MAX_PATTERN} characters are read, this has {len(pattern)}")
    parser = Parser(pattern)
    node = parser.parse()
    ways = pieces(node)
    if ways is None and not alone:
        at = next(assertions(node)).at
        raise parser.fail("what stands around this text is not known here", at)
    if ways is None:
        return look_around(node, search, parser.fail)
    around = ANYTHING if search else EMPTY
    return alternatives([way.whole(around, around) for way in ways])

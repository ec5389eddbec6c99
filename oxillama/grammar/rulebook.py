"""Puts a grammar together from parts: whole grammars, and texts that do not contain something."""

from __future__ import annotations

from functools import lru_cache

from oxillama.grammar.dfa import determinise, language
from oxillama.grammar.expressions import ANYTHING, sequence
from oxillama.grammar.regex import parse_regex
from oxillama.grammar.rules import Dfa, Node, Ref, Rules, Text
from oxillama.grammar.schema.writer import renamed, shared


class RuleBook:
    """Rules of a grammar that is made of several. Names are given here, so that no two parts share one."""

    def __init__(self) -> None:
        self._rules: dict[str, Node] = {}
        self._n_parts = 0

    def rule(self, node: Node) -> Ref:
        """What stands for a node wherever it is used: it is then written once."""
        name = f"part-{len(self._rules)}"
        self._rules[name] = node
        return Ref(name)

    def include(self, rules: Rules) -> Ref:
        """What stands for the texts of another grammar."""
        self._n_parts += 1
        names = {name: f"{name}-{self._n_parts}" for name in rules.rules}
        for name, node in rules.rules.items():
            self._rules[names[name]] = renamed(node, names)
        return Ref(names[rules.root])

    def rules(self, root: Node) -> Rules:
        """The grammar with this root; rules with equal bodies are one."""
        return Rules("root", shared({"root": root, **self._rules}))


@lru_cache(maxsize=256)
def texts_without(stops: tuple[str, ...], begins: tuple[str, ...] = (), blank: bool = True) -> Dfa:
    """The texts that hold none of some others, as an automaton over their characters.

    Parameters
    ----------
    stops : texts that it may not contain.
    begins : regular expressions that may not match at its beginning.
    blank : whether it may be empty or nothing but white space.

    Raises
    ------
    GrammarError : the automaton needs too many states.
    """
    absent = [sequence([ANYTHING, Text(stop), ANYTHING]) for stop in stops]
    absent += [sequence([parse_regex(begin, search=False), ANYTHING]) for begin in begins]
    absent += [] if blank else [parse_regex(SPACE + "*", search=False)]
    if not absent:
        return Dfa((((0, 0x10FFFF, 0),),), frozenset({0}))
    return determinise([language(node) for node in absent], lambda verdicts: not any(verdicts))


SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]"
"""A character that Python takes for white space, as a regular expression."""

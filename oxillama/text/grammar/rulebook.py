"""Assembles a grammar from parts: whole grammars, and automata of texts that exclude given substrings."""

from __future__ import annotations

from functools import lru_cache

from oxillama.text.grammar.analysis import renamed
from oxillama.text.grammar.dfa import automaton, meet
from oxillama.text.grammar.expressions import ANYTHING, sequence
from oxillama.text.grammar.regex import parse_regex
from oxillama.text.grammar.rules import Dfa, Node, Ref, Rules, Text


class RuleBook:
    """The rules of a grammar that is assembled from several; makes unique rule names."""

    def __init__(self) -> None:
        self._rules: dict[str, Node] = {}
        self._known: dict[Node, Ref] = {}
        self._deferred: set[str] = set()
        self._places: dict[str, str] = {}
        self._n_names = 0

    def name(self, hint: str = "rule") -> Ref:
        """A new rule name; `define` gives it its node later."""
        self._n_names += 1
        return Ref(f"{hint}-{self._n_names}")

    def define(self, name: Ref, node: Node) -> None:
        """Set the node of a rule name."""
        self._rules[name.name] = node

    def rule(self, node: Node) -> Ref:
        """A reference to a rule for this node; equal nodes share one rule."""
        if node not in self._known:
            self._known[node] = self.name()
            self.define(self._known[node], node)
        return self._known[node]

    def include(self, rules: Rules) -> Ref:
        """Add another grammar's rules under new names; returns a reference to its root."""
        self._n_names += 1
        names = {name: f"{name}-{self._n_names}" for name in rules.rules}
        for name, node in rules.rules.items():
            self._rules[names[name]] = renamed(node, names)
        self._deferred.update(names[name] for name in rules.deferred)
        self._places |= {names[name]: place for name, place in rules.places.items()}
        return Ref(names[rules.root])

    def rules(self, root: Node, name: str = "root") -> Rules:
        """The assembled grammar with this root node, named ``name``."""
        return Rules(name, {name: root, **self._rules}, frozenset(self._deferred), self._places)


@lru_cache(maxsize=256)
def texts_without(stops: tuple[str, ...], begins: tuple[str, ...] = (), blank: bool = True) -> Dfa:
    """The texts that contain none of the given texts, as an automaton over characters.

    Args:
        stops: texts that the text may not contain.
        begins: regular expressions that may not match at the text's beginning.
        blank: whether the text may be empty or white space only.

    Raises:
        GrammarError: the automaton needs too many states.
    """
    absent = [sequence([ANYTHING, Text(stop), ANYTHING]) for stop in stops]
    absent += [sequence([parse_regex(begin, search=False), ANYTHING]) for begin in begins]
    absent += [] if blank else [parse_regex(SPACE + "*", search=False)]
    if not absent:
        return Dfa((((0, 0x10FFFF, 0),),), frozenset({0}))
    return meet([], [automaton(node) for node in absent])


SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]"
"""A regular expression for one character that Python counts as white space."""

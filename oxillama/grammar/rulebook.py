"""Puts a grammar together from parts: whole grammars, and texts that do not contain something."""

from __future__ import annotations

from functools import lru_cache

from oxillama.grammar.analysis import renamed
from oxillama.grammar.dfa import automaton, meet
from oxillama.grammar.expressions import ANYTHING, sequence
from oxillama.grammar.regex import parse_regex
from oxillama.grammar.rules import Dfa, Node, Ref, Rules, Text


class RuleBook:
    """Rules of a grammar that is made of several. Names are given here, so that no two of them share one."""

    def __init__(self) -> None:
        self._rules: dict[str, Node] = {}
        self._known: dict[Node, Ref] = {}
        self._deferred: set[str] = set()
        self._places: dict[str, str] = {}
        self._n_names = 0

    def name(self, hint: str = "rule") -> Ref:
        """A name that is new, for a rule that is defined later."""
        self._n_names += 1
        return Ref(f"{hint}-{self._n_names}")

    def define(self, name: Ref, node: Node) -> None:
        """Give a name its rule."""
        self._rules[name.name] = node

    def rule(self, node: Node) -> Ref:
        """What stands for a node wherever it is used: it is then written once."""
        if node not in self._known:
            self._known[node] = self.name()
            self.define(self._known[node], node)
        return self._known[node]

    def include(self, rules: Rules) -> Ref:
        """What stands for the texts of another grammar."""
        self._n_names += 1
        names = {name: f"{name}-{self._n_names}" for name in rules.rules}
        for name, node in rules.rules.items():
            self._rules[names[name]] = renamed(node, names)
        self._deferred.update(names[name] for name in rules.deferred)
        self._places |= {names[name]: place for name, place in rules.places.items()}
        return Ref(names[rules.root])

    def rules(self, root: Node, name: str = "root") -> Rules:
        """The grammar with this root, and its name."""
        return Rules(name, {name: root, **self._rules}, frozenset(self._deferred), self._places)


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
    return meet([], [automaton(node) for node in absent])


SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]"
"""A character that Python takes for white space, as a regular expression."""

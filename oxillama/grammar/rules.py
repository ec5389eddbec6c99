"""What a grammar is made of, whatever it was written in: GBNF, a regular expression, a JSON schema.

A grammar is a mapping from rule names to nodes and the name of its root. Every front end produces these
nodes, and the automaton reads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LAST_CODE_POINT = 0x10FFFF


@dataclass(frozen=True, slots=True)
class Text:
    """These characters, one after another; the empty text matches the empty string."""

    text: str


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of ranges of code points (first, last), ascending and disjoint; none match none."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """One token of the vocabulary, whatever its text: one of ``ids``, or any but these."""

    ids: tuple[int, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Dfa:
    """A string of a regular language, given as a deterministic automaton over code points. State 0 starts.

    Attributes
    ----------
    edges : for each state its (first, last, target), ascending and disjoint.
    accepting : states in which the string may end.
    """

    edges: tuple[tuple[tuple[int, int, int], ...], ...]
    accepting: frozenset[int]


@dataclass(frozen=True, slots=True)
class Ref:
    """What the rule of this name matches."""

    name: str


@dataclass(frozen=True, slots=True)
class Seq:
    """These one after another; none match the empty string."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """Any one of these; none match nothing."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """``item`` from ``least`` to ``most`` times; None for any number."""

    item: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Member:
    """What may stand at a place of a `Distinct`.

    Attributes
    ----------
    node : what is told apart.
    mark : the number by which it is told apart; None: its text, white space between the tokens of JSON left out.
    rest : what follows it, before the separator.
    by_value : without a mark, JSON texts of equal values are the same.
    """

    node: Node
    mark: int | None = None
    rest: Node | None = None
    by_value: bool = False


@dataclass(frozen=True, slots=True)
class Distinct:
    """One or more members with separators between them, no two of them the same.

    Only what stands between brackets in JSON is followed right: a member begins behind a bracket or a comma, with
    white space between at most. Members must be such that after each beginning of a text there is an end that did
    not come before, or that the beginning of an old text tells that there is none.

    Attributes
    ----------
    places : the members that may stand at the first place, the second, ...; the last are those of all further ones.
    least, most : bounds of their number; None for no upper bound.
    marks : members with all marks below this must be there.
    """

    places: tuple[tuple[Member, ...], ...]
    separator: Node
    least: int = 1
    most: int | None = None
    marks: int = 0


Node = Text | Chars | Tokens | Dfa | Ref | Seq | Alt | Repeat | Distinct


@dataclass(frozen=True, slots=True)
class Rules:
    """A whole grammar.

    Attributes
    ----------
    root : name of the rule that matches the whole text.
    rules : every rule by its name; each `Ref` names one of them.
    """

    root: str
    rules: Mapping[str, Node] = field(default_factory=dict)

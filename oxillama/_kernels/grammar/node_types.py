"""The nodes of grammars: what each rule matches, whatever notation it was written in.

They are plain classes and know nothing of what reads them. The kernels read them, so they are defined here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oxillama._kernels.grammar.dfa import Dfa

LAST_CODE_POINT = 0x10FFFF
SURROGATES = 0xD800, 0xDFFF


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
class Counted:
    """The strings of an automaton that have from ``least`` to ``most`` characters; None for no upper bound.

    A beginning of fewer than ``least`` characters must always have a continuation within the bounds.

    Attributes
    ----------
    whole : an edge into a state below this number completes a character, other edges do not: a character may
        be spelled by several.
    """

    dfa: Dfa
    whole: int
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Ref:
    """What the rule of this name matches."""

    name: str


@dataclass(frozen=True)
class _Items:
    """Computes its hash once: large nodes are looked up many times."""

    __slots__ = ("_hash", "items")
    items: tuple[Node, ...]

    def __hash__(self) -> int:
        found: int | None = getattr(self, "_hash", None)
        if found is None:
            found = hash((type(self), self.items))
            object.__setattr__(self, "_hash", found)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.items,)  # texts have other hashes in another process


class Seq(_Items):
    """These one after another; none match the empty string."""

    __slots__ = ()


class Alt(_Items):
    """Any one of these; none match nothing."""

    __slots__ = ()


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
    by : how. "mark": by the number ``mark``. "text": by its text without the white space between the tokens
        of JSON. "value": a JSON array or object, by its value. "nothing": it may come any number of times and
        is not counted.
    to : the number of the place after it.
    rest : what follows ``node``, before the separator.
    after : how many members must have come before.
    room : it may come only if fewer members than this have come, those whose marks must be there not counted;
        None for no bound.
    """

    node: Node
    by: str
    to: int = 0
    mark: int = 0
    rest: Node | None = None
    after: int = 0
    room: int | None = None


@dataclass(frozen=True, slots=True)
class Distinct:
    """One or more members, no two of them the same.

    Where members are told apart by their texts or values, it stands behind an opening bracket, and separators
    are commas with white space. A member that is told apart by its text is written in one way. Where members
    are told apart by their values, each beginning of one can be continued to infinitely many values.

    Attributes
    ----------
    places : the members that may stand at each place; the first one begins.
    ends : for each place, whether the last member may lead to it.
    separator : what stands between members; None for nothing.
    least, most : bounds of the number of members; None for no upper bound.
    marks : there must be a member with each mark below this.
    needed : nodes that must match something; otherwise the whole matches nothing.
    may_run_out : there may be a place at which all members that may stand there have come.
    """

    places: tuple[tuple[Member, ...], ...]
    ends: tuple[bool, ...]
    separator: Node | None
    least: int = 1
    most: int | None = None
    marks: int = 0
    needed: tuple[Node, ...] = ()
    may_run_out: bool = False


Node = Text | Chars | Tokens | Dfa | Counted | Ref | Seq | Alt | Repeat | Distinct


NEVER = Dfa(((),), ())
"""No string."""


def has_characters(first: int, last: int) -> bool:
    """Whether a range of code points holds any that a text can have: lone surrogates have no UTF-8."""
    return first <= last and not (SURROGATES[0] <= first and last <= SURROGATES[1])

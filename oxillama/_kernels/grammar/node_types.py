"""The nodes of grammars: what each rule matches, in whatever notation it was written.

They are plain classes that know no reader. The kernels read them, so they are defined here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oxillama._kernels.grammar.dfa import Dfa

LAST_CODE_POINT = 0x10FFFF
SURROGATES = 0xD800, 0xDFFF


@dataclass(frozen=True, slots=True)
class Text:
    """These characters in sequence; an empty text matches the empty string."""

    text: str


@dataclass(frozen=True, slots=True)
class Chars:
    """A character of ascending, disjoint ranges of code points (first, last); without ranges, nothing."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """A token of the vocabulary, whatever its text: one of ``ids``, or any other token if ``negated``."""

    ids: tuple[int, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Counted:
    """The strings of an automaton that have ``least`` to ``most`` characters; ``most`` None: no upper bound.

    A prefix of fewer than ``least`` characters must always have a continuation within the bounds.

    Attributes:
        whole: an edge into a state below this number completes a character, others do not: several edges may
            spell one character.
    """

    dfa: Dfa
    whole: int
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Ref:
    """The match of the rule with this name."""

    name: str


@dataclass(frozen=True)
class _Items:
    """Computes its hash once, because large nodes are looked up many times."""

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
    """These items in sequence; no items match the empty string."""

    __slots__ = ()


class Alt(_Items):
    """Any one of these items; no items match nothing."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Repeat:
    """``item`` from ``least`` to ``most`` times; ``most`` None: any number."""

    item: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Member:
    """A member that may occur at a place of a `Distinct`.

    Attributes:
        node: the part that must differ between members.
        by: what must differ. "mark": the number ``mark``. "text": the text, without white space between JSON
            tokens. "value": the value of a JSON array or object. "nothing": the member may be repeated and is
            not counted.
        to: the number of the place after the member.
        rest: what follows ``node``, before the separator.
        after: minimum number of members before this one.
        room: the member is allowed only if fewer members than this have occurred, members with required marks
            not counted; None: no bound.
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
    """At least one member, no two of them the same.

    If members differ by texts or values, the node follows an opening bracket, and separators are commas with
    white space. A member that differs by its text has one spelling. If members differ by values, each prefix
    of a value must have continuations to infinitely many values.

    Attributes:
        places: the members that may occur at each place; place 0 begins.
        ends: for each place, whether the last member may lead to it.
        separator: the node between members; None: nothing.
        least, most: bounds of the number of members; ``most`` None: no upper bound.
        marks: each mark below this must occur.
        needed: nodes that must match something; otherwise the whole matches nothing.
        may_run_out: at some place all allowed members may have occurred already.
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
    """Whether a range has a code point that a text can have: lone surrogates have no UTF-8."""
    return first <= last and not (SURROGATES[0] <= first and last <= SURROGATES[1])

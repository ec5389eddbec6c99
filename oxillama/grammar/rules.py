"""What a grammar is made of, whatever it was written in: GBNF, a regular expression, a JSON schema.

A grammar is a mapping from rule names to nodes and the name of its root. Every front end produces these
nodes, and the automaton reads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from oxillama._kernels.grammar.dfa import Dfa as Dfa

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


Node = Text | Chars | Tokens | Dfa | Ref | Seq | Alt | Repeat


@dataclass(frozen=True, slots=True)
class Rules:
    """A whole grammar.

    Attributes
    ----------
    root : name of the rule that matches the whole text.
    rules : every rule by its name; each `Ref` names one of them, or a part.
    parts : grammars of which only the rules that a text comes to are written, by names that no rule has.
    """

    root: str
    rules: Mapping[str, Node] = field(default_factory=dict)
    parts: Mapping[str, Part] = field(default_factory=dict)


@dataclass(eq=False, frozen=True, slots=True)
class Common:
    """Rules that many grammars have; they refer to each other only.

    Attributes
    ----------
    rules : by their names.
    pieces : what was compiled of them, for all grammars; see `grammar/program.py`.
    """

    rules: Mapping[str, Node]
    pieces: dict[tuple[str, int], Any] = field(default_factory=dict)


class Part(Protocol):
    """A grammar whose rules are written when they are asked for. Its names are its own.

    Every rule that is asked for matches something, and never the empty text.
    """

    @property
    def root(self) -> str:
        """The name of the rule that texts of the part match."""

    @property
    def common(self) -> Common:
        """Rules that others have, too. The part's rules may refer to them."""

    def rules(self, name: str) -> Rules:
        """The rule of a name, which becomes the root, with the rules that belong to it alone.

        Other names in them are those of further rules of the part. Threads may call this at the same time.

        Raises
        ------
        GrammarError : it cannot be written.
        """

    def all_rules(self) -> Rules:
        """The whole grammar, without parts."""

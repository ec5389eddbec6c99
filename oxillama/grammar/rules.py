"""What a grammar is made of, whatever it was written in: GBNF, a regular expression, a JSON schema.

A grammar is a mapping from rule names to nodes and the name of its root. Every front end produces these
nodes, and the automaton reads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from oxillama._kernels.grammar.dfa import Dfa as Dfa
from oxillama._kernels.grammar.node_types import LAST_CODE_POINT as LAST_CODE_POINT
from oxillama._kernels.grammar.node_types import NEVER as NEVER
from oxillama._kernels.grammar.node_types import Alt as Alt
from oxillama._kernels.grammar.node_types import Chars as Chars
from oxillama._kernels.grammar.node_types import Counted as Counted
from oxillama._kernels.grammar.node_types import Distinct as Distinct
from oxillama._kernels.grammar.node_types import Member as Member
from oxillama._kernels.grammar.node_types import Node as Node
from oxillama._kernels.grammar.node_types import Ref as Ref
from oxillama._kernels.grammar.node_types import Repeat as Repeat
from oxillama._kernels.grammar.node_types import Seq as Seq
from oxillama._kernels.grammar.node_types import Text as Text
from oxillama._kernels.grammar.node_types import Tokens as Tokens
from oxillama._kernels.grammar.node_types import has_characters as has_characters


@dataclass(frozen=True, slots=True)
class Rules:
    """A whole grammar.

    Attributes
    ----------
    root : name of the rule that matches the whole text.
    rules : every rule by its name; each `Ref` names one of them, or a part.
    parts : grammars of which only the rules that a text comes to are written, by names that no rule has.
    places : where rules come from, by name, for messages: paths in a schema.
    """

    root: str
    rules: Mapping[str, Node] = field(default_factory=dict)
    parts: Mapping[str, Part] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict, compare=False)


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
    def is_large(self) -> bool:
        """Whether a rule could be over a limit, so that all are built at once."""

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

    def located(self, name: str, reason: str) -> str:
        """Why a text cannot be followed further in the rule of a name, with its place; once is enough."""

    def all_rules(self) -> Rules:
        """The whole grammar, without parts."""

"""What a grammar is made of, whatever it was written in: GBNF, a regular expression, a JSON schema.

A grammar is a mapping from rule names to nodes and the name of its root. Every front end produces these
nodes, and the automaton reads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
    rules : every rule by its name; each `Ref` names one of them.
    deferred : rules that are built when a text first comes to them. None matches the empty text, holds token
        terminals, or calls itself before it has read something.
    places : where rules come from, by name, for messages: paths in a schema.
    analysis : what `analysis.analysis_of` has found.
    """

    root: str
    rules: Mapping[str, Node] = field(default_factory=dict)
    deferred: frozenset[str] = field(default=frozenset(), compare=False)
    places: Mapping[str, str] = field(default_factory=dict, compare=False)
    analysis: Any = field(default=None, init=False, compare=False, repr=False)

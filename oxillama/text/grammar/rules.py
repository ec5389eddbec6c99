"""Syntax nodes of grammars: the common form of GBNF, regular expressions and JSON schemas.

A grammar is a mapping from rule names to nodes, and the name of its root rule. Every front end produces these
nodes, and the compiler of automata takes nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oxillama._kernels.grammar.dfa import Dfa as Dfa
from oxillama._kernels.grammar.node_types import (
    LAST_CODE_POINT as LAST_CODE_POINT,
    NEVER as NEVER,
    Alt as Alt,
    Chars as Chars,
    Counted as Counted,
    Distinct as Distinct,
    Member as Member,
    Node as Node,
    Ref as Ref,
    Repeat as Repeat,
    Seq as Seq,
    Text as Text,
    Tokens as Tokens,
    has_characters as has_characters,
)


@dataclass(frozen=True, slots=True)
class Rules:
    """A whole grammar.

    Attributes:
        root: name of the rule that matches the whole text.
        rules: every rule by its name; each `Ref` names one of them.
        deferred: names of rules that are built when a text first reaches them. Such a rule does not match the
            empty text, has no token terminals, and does not call itself before reading something.
        places: rule name -> origin of the rule (a path in a schema), for messages.
        analysis: the cached result of `analysis.analysis_of`.
    """

    root: str
    rules: Mapping[str, Node] = field(default_factory=dict)
    deferred: frozenset[str] = field(default=frozenset(), compare=False)
    places: Mapping[str, str] = field(default_factory=dict, compare=False)
    analysis: Any = field(default=None, init=False, compare=False, repr=False)

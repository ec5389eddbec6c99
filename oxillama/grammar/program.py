"""The recursive transition network as flat arrays: what the kernel reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from oxillama._kernels.grammar.builder import Builder
from oxillama.grammar.analysis import check, find_calls, nullable_rules
from oxillama.grammar.rules import Rules, Tokens

if TYPE_CHECKING:
    from oxillama.grammar.units import Units

MAX_STATES = 300_000

@dataclass(frozen=True)
class Program:
    """A compiled grammar, without a vocabulary; or a piece of one, see `Units`.

    Attributes
    ----------
    flags, least, most : int32 (states,)
        FINAL: the subnetwork may end here. CONSUMES: has byte or token edges. PURE_FINAL: the end of the
        subnetwork is all that is left. ENDS_*: the subnetwork can end without reading more. ``least`` and
        ``most`` are the bounds of the state's count.
    byte_edges, token_edges, calls, epsilon : int32 (edges, 3)
        (what, op, target): a label, a token set, a subnetwork (its start state, or UNIT plus the number of a
        unit), or nothing.
    *_first : int32 (states + 1,)
        Where a state's edges begin; they end where the next state's begin.
    labels : uint8 (labels, 32)
        The bytes that an edge of this label takes: bit b % 8 of column b // 8 is byte b.
    token_sets : token terminals, by the numbers in ``token_edges``.
    start : the root's start state.
    accepts_empty : whether the empty text matches.
    units : builds the subnetworks that are called by number; None where there are none.
    """

    flags: np.ndarray
    least: np.ndarray
    most: np.ndarray
    byte_edges: np.ndarray
    byte_first: np.ndarray
    token_edges: np.ndarray
    token_first: np.ndarray
    calls: np.ndarray
    calls_first: np.ndarray
    epsilon: np.ndarray
    epsilon_first: np.ndarray
    labels: np.ndarray
    token_sets: tuple[Tokens, ...]
    start: int
    accepts_empty: bool
    units: Units | None = None


def compile_rules(rules: Rules) -> Program:
    """Compile a grammar; GrammarError where the rules are none, match nothing, or are too large."""
    check(rules)
    return piece(rules)


def piece(rules: Rules, units: Units | None = None) -> Program:
    """Compile rules. Names without a rule are those of ``units``, which match something, and never nothing."""
    number = units.number if units is not None else None
    builder = Builder(dict(rules.rules), find_calls(rules), nullable_rules(rules), number, MAX_STATES)
    return Program(**builder.build(rules.root), units=units)

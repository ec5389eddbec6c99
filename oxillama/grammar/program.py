"""The recursive transition network as flat arrays: what the kernel reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from oxillama.grammar.analysis import check, prune
from oxillama.grammar.rtn import Rtn, build_rtn
from oxillama.grammar.rtn_state import ENOUGH, State
from oxillama.grammar.rules import Rules, Tokens

if TYPE_CHECKING:
    from oxillama.grammar.units import Units

UNIT = 1 << 29
FINAL, CONSUMES, PURE_FINAL = 1, 2, 4
ENDS_ALWAYS, ENDS_IF_ENOUGH = 8, 16

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
    rtn = build_rtn(prune(rules), units.number if units is not None else None)
    states, alias = rtn.states, _aliases(rtn.states)
    order, number = _reachable(rtn, alias)
    bits: dict[int, int] = {}
    columns: dict[str, list[tuple[int, int, int]]] = {"byte": [], "token": [], "calls": [], "epsilon": []}
    first: dict[str, list[int]] = {name: [0] for name in columns}
    for q in order:
        state = states[q]
        columns["byte"] += [
            (bits.setdefault(b, len(bits)), op, number[alias[t]]) for b, op, t in state.bytes
        ]
        columns["token"] += [(i, op, number[alias[t]]) for i, op, t in state.tokens]
        for called, op, t in state.calls:
            what = number[rtn.starts[called]] if called >= 0 else UNIT - 1 - called
            columns["calls"].append((what, op, number[alias[t]]))
        columns["epsilon"] += [(0, op, number[alias[t]]) for op, t in state.epsilon]
        for name, edges in columns.items():
            first[name].append(len(edges))
    arrays = {
        name if name in ("calls", "epsilon") else f"{name}_edges": np.array(edges, np.int32).reshape(-1, 3)
        for name, edges in columns.items()
    }
    labels = b"".join([label.to_bytes(32, "little") for label in bits])
    return Program(
        np.array(_flags([states[q] for q in order], alias, number), np.int32),
        np.array([(states[q].count or (0, 0))[0] for q in order], np.int32),
        np.array([(states[q].count or (0, 0))[1] for q in order], np.int32),
        **arrays,
        **{f"{name}_first": np.array(found, np.int32) for name, found in first.items()},
        labels=np.frombuffer(labels, np.uint8).reshape(-1, 32),
        token_sets=tuple(rtn.token_sets),
        start=number[rtn.starts[0]],
        accepts_empty=rtn.accepts_empty,
        units=units,
    )


def _aliases(states: list[State]) -> list[int]:
    """For each state, the one it stands for: itself, unless all it has is one epsilon edge."""
    alias = list(range(len(states)))
    for q, state in enumerate(states):
        plain = len(state.epsilon) == 1 and not state.final and state.count is None
        if plain and not state.bytes and not state.tokens and not state.calls:
            alias[q] = state.epsilon[0][1]
    for q in range(len(states)):
        path: list[int] = []
        while alias[q] != q and len(path) <= len(states):
            path.append(q)
            q = alias[q]
        for passed in path:
            alias[passed] = q
    return alias


def _reachable(rtn: Rtn, alias: list[int]) -> tuple[list[int], dict[int, int]]:
    """The states that the root can come to, and their new numbers."""
    number = {rtn.starts[0]: 0}
    order = [rtn.starts[0]]
    for q in order:
        state = rtn.states[q]
        targets = [t for _, _, t in state.bytes] + [t for _, _, t in state.tokens]
        targets += [t for _, t in state.epsilon]
        for called, _, back in state.calls:
            targets += (rtn.starts[called], back) if called >= 0 else (back,)
        for target in targets:
            target = alias[target]
            if target not in number:
                number[target] = len(order)
                order.append(target)
    return order, number


def _flags(states: list[State], alias: list[int], number: dict[int, int]) -> list[int]:
    sources: list[list[tuple[int, int]]] = [[] for _ in states]  # epsilon edges, reversed
    for q, state in enumerate(states):
        for op, target in state.epsilon:
            sources[number[alias[target]]].append((op, q))
    can_end = [False] * len(states)  # with the count, if there is one, at 0
    todo = [q for q, state in enumerate(states) if state.final]
    ends = [0] * len(states)
    while todo:
        q = todo.pop()
        if can_end[q]:
            continue
        can_end[q] = True
        for op, source in sources[q]:
            count = states[source].count
            ends[source] |= ENDS_IF_ENOUGH if op & ENOUGH else ENDS_ALWAYS
            if not op & ENOUGH or count is None or count[0] == 0:
                todo.append(source)
    goes_on = [False] * len(states)
    todo = [q for q, state in enumerate(states) if state.bytes or state.tokens or state.calls]
    while todo:
        q = todo.pop()
        if not goes_on[q]:
            goes_on[q] = True
            todo += [source for _, source in sources[q]]
    flags = []
    for q, state in enumerate(states):
        flag = ends[q] | (ENDS_ALWAYS | FINAL if state.final else 0)
        flag |= CONSUMES if state.bytes or state.tokens else 0
        flags.append(flag | (PURE_FINAL if can_end[q] and not goes_on[q] else 0))
    return flags

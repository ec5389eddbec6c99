"""The recursive transition network as flat arrays: what the kernel reads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from oxillama.grammar.analysis import check, prune
from oxillama.grammar.rtn import Rtn, build_rtn
from oxillama.grammar.rtn_state import ENOUGH, State
from oxillama.grammar.rules import Rules, Tokens

FINAL, CONSUMES, PURE_FINAL = 1, 2, 4
ENDS_ALWAYS, ENDS_IF_ENOUGH = 8, 16


@dataclass(frozen=True)
class Program:
    """A compiled grammar, without a vocabulary.

    Attributes
    ----------
    flags, least, most : int32 (states,)
        FINAL: the subnetwork may end here. CONSUMES: has byte or token edges. PURE_FINAL: the end of the
        subnetwork is all that is left. ENDS_*: the subnetwork can end without reading more. ``least`` and
        ``most`` are the bounds of the state's count.
    byte_edges, token_edges, calls, epsilon : int32 (edges, 3)
        (what, op, target): a label, a token set, the start state of a subnetwork, or nothing.
    *_first : int32 (states + 1,)
        Where a state's edges begin; they end where the next state's begin.
    labels : uint8 (labels, classes)
        Whether an edge of this label takes a byte of this class.
    class_of : uint8 (256,)
        Bytes that no edge tells apart share a class.
    token_sets : token terminals, by the numbers in ``token_edges``.
    start : the root's start state.
    accepts_empty : whether the empty text matches.
    digest : SHA-256 of all of these; equal programs are the same automaton.
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
    class_of: np.ndarray
    token_sets: tuple[Tokens, ...]
    start: int
    accepts_empty: bool
    digest: bytes


def compile_rules(rules: Rules) -> Program:
    """Compile a grammar; GrammarError where the rules are none, match nothing, or are too large."""
    check(rules)
    rtn = build_rtn(prune(rules))
    return _flatten(rtn)


def _flatten(rtn: Rtn) -> Program:
    states, alias = rtn.states, _aliases(rtn.states)
    order, number = _reachable(rtn, alias)
    bits: dict[int, int] = {}
    columns: dict[str, list[tuple[int, int, int]]] = {"bytes": [], "tokens": [], "calls": [], "epsilon": []}
    first: dict[str, list[int]] = {name: [0] for name in columns}
    for q in order:
        state = states[q]
        columns["bytes"] += [
            (bits.setdefault(b, len(bits)), op, number[alias[t]]) for b, op, t in state.bytes
        ]
        columns["tokens"] += [(i, op, number[alias[t]]) for i, op, t in state.tokens]
        columns["calls"] += [(number[rtn.starts[f]], op, number[alias[t]]) for f, op, t in state.calls]
        columns["epsilon"] += [(0, op, number[alias[t]]) for op, t in state.epsilon]
        for name, edges in columns.items():
            first[name].append(len(edges))
    class_of, labels = _classes(list(bits))
    arrays = {
        "flags": np.array(_flags([states[q] for q in order], alias, number), np.int32),
        "least": np.array([(states[q].count or (0, 0))[0] for q in order], np.int32),
        "most": np.array([(states[q].count or (0, 0))[1] for q in order], np.int32),
        "labels": labels,
        "class_of": class_of,
    }
    for name, edges in columns.items():
        key = {"bytes": "byte_edges", "tokens": "token_edges"}.get(name, name)
        arrays[key] = np.array(edges, np.int32).reshape(-1, 3)
        key = {"bytes": "byte", "tokens": "token"}.get(name, name)
        arrays[f"{key}_first"] = np.array(first[name], np.int32)
    start, sets = number[rtn.starts[0]], tuple(rtn.token_sets)
    digest = hashlib.sha256(repr((start, sets, rtn.accepts_empty)).encode())
    for name in sorted(arrays):
        digest.update(arrays[name].tobytes())
    return Program(
        **arrays,
        token_sets=sets,
        start=start,
        accepts_empty=rtn.accepts_empty,
        digest=digest.digest(),
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
            targets += (rtn.starts[called], back)
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


def _classes(labels: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Class of each byte, and which classes each label (a set of bytes, as bits) takes."""
    classes = [(1 << 256) - 1]
    for label in labels:
        classes = [part for c in classes for part in (c & label, c & ~label) if part]
    class_of = np.zeros(256, np.uint8)
    for i, c in enumerate(classes):
        for byte in range(256):
            if c >> byte & 1:
                class_of[byte] = i
    takes = [[1 if c & label else 0 for c in classes] for label in labels]
    return class_of, np.array(takes, np.uint8).reshape(len(labels), len(classes))

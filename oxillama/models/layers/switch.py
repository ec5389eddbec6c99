"""Low-rank adapters that tokens of the text choose (Granite Switch).

A token may activate an adapter: from it on all rows of the sequence take that adapter, and after several such
tokens the one with the mean of their numbers. The choice is a head of attention, so that it is kept in pages
as keys and values are: keys are +-gain, values are the adapters' numbers, 0 for other tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oxillama.models.page_groups import selector_place
from oxillama.models.spec import Spec
from oxillama.models.weights.grouped import GroupedLinear, grouped_linear
from oxillama.models.weights.linear import Linear, Pass
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step

SLOTS = "adapter_slots"
"""The buffer (n, 1) of each row's adapter: its number from 1 on, 0 for none."""


class AdapterChoice:
    """The choice of an adapter for each row."""

    def __init__(self, spec: Spec) -> None:
        assert spec.switch is not None
        self.switch = spec.switch
        self.group, self.index = selector_place(spec, 0)

    def run(self, tokens: np.ndarray, step: Step) -> np.ndarray:
        """Fills the buffer `SLOTS`; returns the tokens (n,) whose embeddings the rows have."""
        n, switch, kv, work = len(tokens), self.switch, step.kv[self.group], step.work
        given, embedded = work.rows["switch", n, 3], tokens.copy()
        given[:] = 1.0, -switch.gain, 0.0  # query, key, value
        for i, (token, other) in enumerate(zip(switch.activate, switch.substitute)):
            given[tokens == token, 1:] = switch.gain, i + 1
            embedded[tokens == token] = other
        kv.store(self.index, given, 1, 2, step.n_threads)
        slots = work.rows[SLOTS, n, 1]
        kv.attend(self.index, given[:, :1].copy(), 1, 1.0, slots, work.scratch, step.n_threads)
        np.floor(np.clip(slots, 0, len(switch.activate)) + np.float32(0.5), out=slots)
        return embedded


class SwitchedLinear:
    """A linear layer, and B A x of each row's adapter for parts of its rows.

    Args:
        parts: the first row of each part, and the matrices A and B of all adapters.
    """

    def __init__(self, linear: Linear, parts: list[tuple[int, GroupedLinear, GroupedLinear]]) -> None:
        self.linear = linear
        self.switched = parts
        self.sources = linear.sources
        self.rows: int = linear.rows
        self.cols: int = linear.cols

    @property
    def members(self) -> list[Linear]:
        """The linear layer, and the linear layers of the adapters."""
        return [self.linear, *(each for _, a, b in self.switched for each in (*a.members, *b.members))]

    def apply(self, x: np.ndarray, out: np.ndarray, step: Step, accumulate: bool = False) -> None:
        """As `Linear.apply`."""
        self.linear.apply(x, out, step, accumulate)
        slots, alone = step.work.rows[SLOTS, len(x), 1][:, 0], Pass(step.scratch, step.n_threads)
        for slot in np.unique(slots[slots > 0]).astype(int).tolist():
            rows = np.flatnonzero(slots == slot)
            given = x[rows]
            for first, a, b in self.switched:
                low, added = (np.empty((len(rows), each.rows), np.float32) for each in (a, b))
                a.members[slot].apply(given, low, alone)
                b.members[slot].apply(low, added, alone)
                out[rows, first : first + b.rows] += added


def with_switches(spec: Spec, i: int, weights: Weights, layer: Any) -> Any:
    """A layer of attention and a dense block, whose matrices get the adapters of the file."""
    assert spec.switch is not None
    n, rank, sizes, block = len(spec.switch.activate) + 1, spec.switch.rank, spec.layers[i], f"blk.{i}"
    q, k, v = (
        sizes.n_heads * sizes.key_dim, sizes.n_kv_heads * sizes.key_dim, sizes.n_kv_heads * sizes.value_dim
    )  # fmt: skip

    def switched(linear: Linear, parts: list[tuple[str, int]]) -> Any:
        """The linear layer with adapters of parts, (name, rows) each."""
        found, first = [], 0
        for name, rows in parts:
            full = f"{block}.{name}"
            a = grouped_linear(weights, [(full, rank)], linear.cols, n, True, "lora_a")
            found.append((first, a, grouped_linear(weights, [(full, rows)], rank, n, True, "lora_b")))
            first += rows
        return SwitchedLinear(linear, found)

    attention, dense, d = layer.mixer, layer.feed_forward, spec.n_embd
    attention.attn_qkv = switched(attention.attn_qkv, [("attn_q", q), ("attn_k", k), ("attn_v", v)])
    attention.attn_output = switched(attention.attn_output, [("attn_output", d)])
    dense.first = switched(dense.first, [("ffn_gate", sizes.n_ff), ("ffn_up", sizes.n_ff)])
    dense.down = switched(dense.down, [("ffn_down", d)])
    return layer

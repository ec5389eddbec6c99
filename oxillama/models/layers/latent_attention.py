"""Multi-head latent attention (DeepSeek-V2, 2024): the cache holds one short vector per token.

Keys and values of all heads are linear in that vector. So their matrices are absorbed: applied to the queries
and to the attended vectors instead. Attention runs over the compressed vectors, with one key head for all
query heads. The key is [vector | rotated part], the value is the vector. In sparse models a selector chooses
the positions that a row attends to (`selector.py`), for its layer and for later ones without a selector.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.layers.attention import AttentionOptions, attention_options
from oxillama.models.layers.head_norm import HeadNorm, load_head_norm
from oxillama.models.layers.output_gate import OutputGate, load_output_gate
from oxillama.models.layers.selector import PositionSelector
from oxillama.models.page_groups import place_of
from oxillama.models.spec import Spec
from oxillama.models.weights.grouped import GroupedLinear, grouped_linear
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.weights.packer import MatrixPart
from oxillama.models.workspace import Step


class LatentAttention:
    """Latent attention of one layer."""

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        layer, block, latent = spec.layers[i], f"blk.{i}", spec.latent_of(i)
        assert latent is not None
        self.group, self.index = place_of(spec, i)  # the page group, and the layer's index in a page
        self.spec = spec
        self.latent = latent
        self.heads: int = layer.n_heads
        self.scale: float = spec.score_scale if layer.latent is None else 1 / math.sqrt(latent.key_dim)
        self.rope: int | None = layer.rope
        self.scaled_queries: bool = layer.scaled_queries
        self.rope_dim: int = latent.rotated
        self.nope_dim: int = latent.key_dim - self.rope_dim
        self.kernels: Kernels = weights.kernels
        queries = latent.q_rank or self.heads * latent.key_dim
        query_name = "attn_q_a" if latent.q_rank else "attn_q"
        self.first: Linear = weights.linear(
            [(f"{block}.{query_name}", queries), (f"{block}.attn_kv_a_mqa", latent.kv_rank + self.rope_dim)],
            spec.n_embd,
        )
        self.column = queries  # where the compressed keys and values begin in its rows
        self.attn_q_b: Linear | None = None
        normed = [("attn_kv_a_norm", latent.kv_rank, queries)]  # parts of its rows
        if spec.family.qk_norm:
            normed.append(("attn_k_norm", self.rope_dim, queries + latent.kv_rank))
        if latent.q_rank:
            normed.append(("attn_q_a_norm", queries, 0))
            self.attn_q_b = weights.linear(
                [(f"{block}.attn_q_b", self.heads * latent.key_dim)], latent.q_rank
            )
        self.norms: list[HeadNorm] = [
            load_head_norm(spec, weights, f"{block}.{name}.weight", 1, width, column)
            for name, width, column in normed
        ]
        if weights.has(f"{block}.attn_kv_b.weight"):
            shape = (self.heads, self.nope_dim, latent.value_dim, latent.kv_rank)
            self.attn_k_b, self.attn_v_b = split_kv_b(weights, f"{block}.attn_kv_b", *shape)
        else:
            names = [(f"{block}.attn_k_b", latent.kv_rank)]
            self.attn_k_b = grouped_linear(weights, names, self.nope_dim, self.heads)
            names = [(f"{block}.attn_v_b", latent.value_dim)]
            self.attn_v_b = grouped_linear(weights, names, latent.kv_rank, self.heads)
        self.attn_output: Linear = weights.linear(
            [(f"{block}.attn_output", spec.n_embd)], self.heads * latent.value_dim
        )
        self.attn_gate: OutputGate | None = None
        if spec.family.attn_gate:
            self.attn_gate = load_output_gate(spec, i, weights, latent.value_dim)
        sinks = (
            weights.vector(f"{block}.attn_sinks.weight", self.heads) if spec.family.sinks == "yes" else None
        )
        self.options: AttentionOptions = attention_options(spec, layer, sinks)
        self.is_sparse: bool = layer.selected_by is not None
        self.selector: Any = self.new_selector(spec, i, weights) if layer.selected_by == i else None

    def new_selector(self, spec: Spec, i: int, weights: Weights) -> Any:
        """The selector of layer ``i``."""
        return PositionSelector(spec, i, weights)

    def linears(self) -> list[Linear]:
        middle = [self.attn_q_b] if self.attn_q_b else []
        middle += self.selector.linears() if self.selector else []
        gate = [self.attn_gate.matrix] if self.attn_gate else []
        absorbed = [*self.attn_k_b.members, *self.attn_v_b.members]
        return [self.first, *middle, *absorbed, *gate, self.attn_output]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        n, work, n_threads, latent, heads = len(h), step.work, step.n_threads, self.latent, self.heads
        vector, rank = self.kernels.vector, latent.kv_rank
        first = work.rows["qkv", n, self.first.rows]
        self.first.apply(h, first, step)
        for norm in self.norms:
            norm.apply(first, n_threads)
        q = work.rows["queries", n, heads * latent.key_dim]
        if self.attn_q_b is None:
            q[:] = first[:, : self.column]
        else:
            compressed = work.rows["compressed", n, self.column]
            compressed[:] = first[:, : self.column]
            self.attn_q_b.apply(compressed, q, step)
            if self.selector is not None:
                step.chosen = self.selector.run(h, compressed, step)
        if self.rope is not None:
            table, neox = step.tables[self.rope], self.spec.ropes[self.rope].neox
            vector.rope(q, heads, latent.key_dim, table, neox, n_threads, self.nope_dim)
            vector.rope(first, 1, self.rope_dim, table, neox, n_threads, self.column + rank)
        by_head = q.reshape(n, heads, latent.key_dim)
        absorbed = work.rows["absorbed", n, heads * (rank + self.rope_dim)].reshape(n, heads, -1)
        absorbed[:, :, :rank] = self.attn_k_b.each(by_head[:, :, : self.nope_dim], step)
        absorbed[:, :, rank:] = by_head[:, :, self.nope_dim :]
        if self.scaled_queries and step.temperatures is not None:
            absorbed *= step.temperatures[:, :, None]
        kv = step.kv[self.group]
        kv.store(self.index, first, self.column, self.column, n_threads)
        attended = work.rows["attended", n, heads * rank]
        scale, flat = self.scale, absorbed.reshape(n, -1)
        chosen = step.chosen if self.is_sparse else None
        counts = step.counts if chosen is not None else None
        more = self.options
        kv.attend(
            *(self.index, flat, heads, scale, attended, work.scratch, n_threads, more.window, more.chunk),
            causal=more.causal, softcap=more.softcap, sinks=more.sinks, slopes=more.slopes,
            chosen=chosen, counts=counts,
        )  # fmt: skip
        values = work.rows["values", n, heads * latent.value_dim]
        each = self.attn_v_b.each(attended.reshape(n, heads, rank), step)
        values.reshape(n, heads, latent.value_dim)[:] = each
        if self.attn_gate is not None:
            self.attn_gate.apply(h, values, step)
        self.attn_output.apply(values, out, step, accumulate)


def split_kv_b(
    weights: Weights, name: str, heads: int, key_rows: int, value_rows: int, cols: int
) -> tuple[GroupedLinear, GroupedLinear]:
    """Splits the tensor of older files, [keys | values] of each head; the part of the keys is transposed."""
    both = weights.matrix(f"{name}.weight", heads * (key_rows + value_rows), cols)
    both = both.reshape(heads, key_rows + value_rows, cols)
    keys, values = [], []
    for head, part in enumerate(both):
        first = head * (key_rows + value_rows)
        split, last = first + key_rows, first + key_rows + value_rows
        of_keys = MatrixPart(slice(first, split), transposed=True)
        keys.append(weights.linear_from(f"{name}.weight", part[:key_rows].T, of_keys))
        values.append(weights.linear_from(f"{name}.weight", part[key_rows:], MatrixPart(slice(split, last))))
    return GroupedLinear(weights.kernels, keys), GroupedLinear(weights.kernels, values)

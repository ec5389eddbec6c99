"""The attention block: q, k, v projections, norms, rotation, attention over pages, output projection."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.layers.norm import load_qk_norms
from oxillama.models.page_groups import place_of
from oxillama.models.spec import LayerSpec, Spec
from oxillama.models.workspace import Step
from oxillama.weights.linear import Linear
from oxillama.weights.loader import Weights


class Attention:
    """Attention of one layer (Vaswani et al., 2017), with heads that share keys (Ainslie et al., 2023).

    A row of the buffer ``qkv`` holds q's heads, then k's, then v's.
    """

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        layer, block = spec.layers[i], f"blk.{i}"
        q, k = layer.n_heads * spec.key_dim, layer.n_kv_heads * spec.key_dim
        v, attended = layer.n_kv_heads * spec.value_dim, layer.n_heads * spec.value_dim
        parts = [(f"{block}.attn_q", q), (f"{block}.attn_k", k), (f"{block}.attn_v", v)]
        fused = [(f"{block}.attn_qkv", q + k + v)] if weights.has(f"{block}.attn_qkv.weight") else parts
        self.group, self.index = place_of(spec, i)  # of pages, and among the layers of a page
        self.spec = spec
        self.layer = layer
        self.kernels: Kernels = weights.kernels
        apart = not weights.has(f"{block}.attn_qkv.bias")  # a fused matrix may have separate biases
        self.attn_qkv = weights.linear(fused, spec.n_embd, parts if apart else None)
        self.attn_output = weights.linear([(f"{block}.attn_output", spec.n_embd)], attended)
        norms = load_qk_norms(spec, weights, block, layer.n_heads, layer.n_kv_heads)
        after = spec.family.qk_norm == "unit"
        self.norms, self.rotated_norms = ([], norms) if after else (norms, [])  # before and after rotation
        sinks = weights.vector(f"{block}.attn_sinks.weight", layer.n_heads) if spec.family.sinks else None
        self.options = attend_options(spec, layer, sinks)

    def linears(self) -> list[Linear]:
        return [self.attn_qkv, self.attn_output]

    def widths(self) -> dict[str, int]:
        """Floats per row of each buffer."""
        return {"qkv": self.attn_qkv.rows, "attended": self.attn_output.cols}

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        spec, layer, n, work, n_threads = self.spec, self.layer, len(h), step.work, step.n_threads
        heads, kv_heads, dim = layer.n_heads, layer.n_kv_heads, spec.key_dim
        qkv = work.rows("qkv", n, self.attn_qkv.rows)
        self.attn_qkv.apply(h, qkv, step)
        if spec.clamp:
            np.clip(qkv, -spec.clamp, spec.clamp, out=qkv)
        for norm in self.norms:
            norm.apply(qkv, n_threads)
        if layer.rope is not None:
            table, neox = step.tables[layer.rope], spec.ropes[layer.rope].neox
            self.kernels.vector.rope(qkv, heads + kv_heads, dim, table, neox, n_threads)
            for norm in self.rotated_norms:
                norm.apply(qkv, n_threads)
        if layer.scaled_queries and step.temperatures is not None:
            qkv[:, : heads * dim] *= step.temperatures
        attended = work.rows("attended", n, self.attn_output.cols)
        kv = step.kv[self.group]
        kv.store(self.index, qkv, heads * dim, (heads + kv_heads) * dim, n_threads)
        scale = spec.score_scale
        kv.attend(self.index, qkv, heads, scale, attended, work.scratch, n_threads, **self.options)
        self.attn_output.apply(attended, out, step, accumulate)


def attend_options(spec: Spec, layer: LayerSpec, sinks: np.ndarray | None) -> dict[str, Any]:
    """Keyword arguments of the attention kernel for a layer."""
    options: dict[str, Any] = {}
    if layer.window:
        options["window"] = layer.window
    if layer.chunk:
        options["chunk"] = layer.chunk
    if spec.soft_cap:
        options["softcap"] = spec.soft_cap
    if sinks is not None:
        options["sinks"] = sinks
    if spec.alibi_bias:
        options["slopes"] = alibi_slopes(layer.n_heads, spec.alibi_bias)
    if not spec.causal:
        options["causal"] = False
    return options


def alibi_slopes(n_heads: int, max_bias: float) -> np.ndarray:
    """float32 (heads,): decrease of a score per position of distance (Press et al., 2022); for heads that are
    not a power of two as in llama.cpp."""
    n = 1 << (n_heads.bit_length() - 1)
    exponents = [
        -max_bias * (h + 1) / n if h < n else -max_bias * (2 * (h - n) + 1) / (2 * n) for h in range(n_heads)
    ]
    return np.array([exp2(e) for e in exponents], np.float32)


def exp2(x: float) -> float:
    """2^x, correctly rounded: the same bits on every machine."""
    return float(Decimal(2) ** Decimal(x))

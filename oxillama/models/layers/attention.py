"""The attention block: q, k, v projections, norms, rotation, attention over pages, output projection."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama.errors import LoadError
from oxillama.models.layers.norm import load_qk_norms
from oxillama.models.spec import LayerSpec, Spec
from oxillama.models.workspace import Step
from oxillama.weights.linear import Linear
from oxillama.weights.loader import Weights


class Attention:
    """Attention of one layer (Vaswani et al., 2017), with heads that share keys (Ainslie et al., 2023).

    A row of the buffer ``qkv`` holds q's heads, then k's, then v's.

    Attributes
    ----------
    query_rows : rows of the matrix ``attn_q`` for each row of q.
    """

    query_rows = 1

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        layer, block = spec.layers[i], f"blk.{i}"
        q, k = layer.n_heads * spec.key_dim, layer.n_kv_heads * spec.key_dim
        v, attended = layer.n_kv_heads * spec.value_dim, layer.n_heads * spec.value_dim
        first = self.query_rows * q
        parts = [(f"{block}.attn_q", first), (f"{block}.attn_k", k), (f"{block}.attn_v", v)]
        fused = [(f"{block}.attn_qkv", first + k + v)] if weights.has(f"{block}.attn_qkv.weight") else parts
        self.width = q + k + v
        self.index = spec.attending.index(i)  # among the layers of a page
        self.spec = spec
        self.layer = layer
        self.kernels: Kernels = weights.kernels
        apart = not weights.has(f"{block}.attn_qkv.bias")  # a fused matrix may have separate biases
        self.attn_qkv = weights.linear(fused, spec.n_embd, parts if apart else None)
        self.attn_output = weights.linear([(f"{block}.attn_output", spec.n_embd)], attended)
        norms = load_qk_norms(spec, weights, block, layer.n_heads, layer.n_kv_heads)
        last = spec.family.qk_norm_last
        self.norms, self.rotated_norms = ([], norms) if last else (norms, [])  # before and after rotation
        sinks = weights.vector(f"{block}.attn_sinks.weight", layer.n_heads) if spec.family.sinks else None
        self.options = attend_options(spec, layer, sinks)
        # a layer with fewer key heads than the pages have leaves the others empty
        self.shared_heads = spec.n_kv_heads
        self.padded_heads = layer.n_heads // layer.n_kv_heads * self.shared_heads

    def linears(self) -> list[Linear]:
        return [self.attn_qkv, self.attn_output]

    def widths(self) -> dict[str, int]:
        """Floats per row of each buffer."""
        wide = (self.padded_heads + self.shared_heads) * self.spec.key_dim
        found = {"qkv": self.width, "attended": self.attn_output.cols}
        if self.padded_heads != self.layer.n_heads:
            found["wide_qkv"] = wide + self.shared_heads * self.spec.value_dim
            found["wide_attended"] = self.padded_heads * self.spec.value_dim
        return found

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        spec, layer, n, work, n_threads = self.spec, self.layer, len(h), step.work, step.n_threads
        heads, kv_heads, dim = layer.n_heads, layer.n_kv_heads, spec.key_dim
        qkv = self.project(h, step)
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
        if self.padded_heads == heads:
            self._attend(qkv, heads, kv_heads, attended, step)
        else:
            self._attend_wide(qkv, attended, step)
        self.gate(attended, step)
        self.attn_output.apply(attended, out, step, accumulate)

    def project(self, h: np.ndarray, step: Step) -> np.ndarray:
        """(n, q + k + v) for h (n, d)."""
        qkv = step.work.rows("qkv", len(h), self.width)
        self.attn_qkv.apply(h, qkv, step)
        return qkv

    def gate(self, attended: np.ndarray, step: Step) -> None:
        """What is done to the heads' outputs (n, heads * value_dim) before they are projected: nothing."""

    def _attend(self, qkv: np.ndarray, heads: int, kv_heads: int, out: np.ndarray, step: Step) -> None:
        """Stores k and v of the rows, then attends with q; ``kv_heads`` is that of the pages."""
        dim, kv, n_threads = self.spec.key_dim, step.kv, step.n_threads
        kv.store(self.index, qkv, heads * dim, (heads + kv_heads) * dim, n_threads)
        scale = self.spec.score_scale
        kv.attend(self.index, qkv, heads, scale, out, step.work.scratch, n_threads, **self.options)

    def _attend_wide(self, qkv: np.ndarray, out: np.ndarray, step: Step) -> None:
        """`_attend` with heads of zeros after the layer's own."""
        spec, layer, n, work = self.spec, self.layer, len(qkv), step.work
        widths = self.widths()
        wide = work.rows("wide_qkv", n, widths["wide_qkv"])
        wide_out = work.rows("wide_attended", n, widths["wide_attended"])
        wide[:] = 0
        start, column = 0, 0
        for heads, room, dim in (
            (layer.n_heads, self.padded_heads, spec.key_dim),
            (layer.n_kv_heads, self.shared_heads, spec.key_dim),
            (layer.n_kv_heads, self.shared_heads, spec.value_dim),
        ):
            wide[:, column : column + heads * dim] = qkv[:, start : start + heads * dim]
            start += heads * dim
            column += room * dim
        self._attend(wide, self.padded_heads, self.shared_heads, wide_out, step)
        out[:] = wide_out[:, : out.shape[1]]


class GatedAttention(Attention):
    """o = W_o (attention(h) * sigmoid(W_g h)) (Qiu et al., "Gated Attention", 2025).

    The rows of ``attn_q`` are those of a head's query, then those of its gate, head by head.
    """

    query_rows = 2

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        if spec.value_dim != spec.key_dim:
            key = f"{spec.family.name}.attention.value_length"
            raise LoadError(f"{key}: expected {spec.key_dim}, as keys have, got {spec.value_dim}")
        super().__init__(spec, i, weights)

    def widths(self) -> dict[str, int]:
        """Floats per row of each buffer."""
        return super().widths() | {"gated_qkv": self.attn_qkv.rows}

    def project(self, h: np.ndarray, step: Step) -> np.ndarray:
        """(n, q + k + v) for h (n, d); the gates stay in the buffer ``gated_qkv``."""
        n, heads, dim = len(h), self.layer.n_heads, self.spec.key_dim
        both, qkv = step.work.rows("gated_qkv", n, self.attn_qkv.rows), step.work.rows("qkv", n, self.width)
        self.attn_qkv.apply(h, both, step)
        q = both[:, : 2 * heads * dim].reshape(n, heads, 2, dim)[:, :, 0]
        qkv[:, : heads * dim].reshape(n, heads, dim)[:] = q
        qkv[:, heads * dim :] = both[:, 2 * heads * dim :]
        return qkv

    def gate(self, attended: np.ndarray, step: Step) -> None:
        """attended (n, heads * dim) *= the sigmoids of the gates."""
        heads, dim = self.layer.n_heads, self.spec.key_dim
        gates = step.work.rows("gated_qkv", len(attended), self.attn_qkv.rows)
        self.kernels.vector.gate_heads(attended, heads, gates, dim, 2 * dim, "sigmoid", step.n_threads)


def attend_options(spec: Spec, layer: LayerSpec, sinks: np.ndarray | None) -> dict[str, Any]:
    """Keyword arguments of the attention kernel for a layer."""
    options: dict[str, Any] = {}
    if layer.window:
        options["window"] = layer.window
    if layer.chunk:
        options["chunk"] = layer.chunk
    if spec.soft_cap:
        options["softcap"] = spec.soft_cap
    heads = layer.n_heads // layer.n_kv_heads * spec.n_kv_heads if spec.latent is None else layer.n_heads
    if sinks is not None:
        options["sinks"] = np.pad(sinks, (0, heads - len(sinks)))
    if spec.alibi_bias:
        slopes = alibi_slopes(layer.n_heads, spec.alibi_bias)
        options["slopes"] = np.pad(slopes, (0, heads - len(slopes)))
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

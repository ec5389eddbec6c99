"""The attention block: q, k, v projections, norms, rotation, attention over pages, output projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama.errors import LoadError
from oxillama.models.layers.norm import HeadNorm, load_qk_norms
from oxillama.models.page_groups import place_of
from oxillama.models.spec import LayerSpec, Spec
from oxillama.models.workspace import Step
from oxillama.on_use import on_use
from oxillama.weights.linear import Linear
from oxillama.weights.loader import Weights

distance_biases: Callable[..., Any] = on_use("oxillama.models.layers.position_biases:distance_biases")
alibi_slopes: Callable[..., Any] = on_use("oxillama.models.layers.position_biases:alibi_slopes")


class Attention:
    """Attention of one layer (Vaswani et al., 2017), with heads that share keys (Ainslie et al., 2023).

    A row of the buffer ``qkv`` holds q's heads, then k's, then v's.
    """

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        layer, family, block = spec.layers[i], spec.family, f"blk.{i}"
        heads, kv_heads = layer.n_heads, layer.n_kv_heads if layer.kv_from is None else 0
        q, k, v = heads * layer.key_dim, kv_heads * layer.key_dim, kv_heads * layer.value_dim
        self.gated_queries: bool = family.attn_gate == "query"
        first = 2 * q if self.gated_queries else q
        parts = [(f"{block}.attn_q", first), (f"{block}.attn_k", k), (f"{block}.attn_v", v)]
        if layer.kv_from is not None:
            parts = parts[:1]
        elif family.v_is_k and not weights.has(f"{block}.attn_v.weight"):
            parts[2] = parts[1]
        fused = [(f"{block}.attn_qkv", first + k + v)] if weights.has(f"{block}.attn_qkv.weight") else parts
        own = i if layer.kv_from is None else layer.kv_from
        self.group: int
        self.index: int
        self.group, self.index = place_of(spec, own)  # of pages, and among the layers of a page
        self.width: int = q + k + v
        self.spec = spec
        self.layer = layer
        self.kernels: Kernels = weights.kernels
        apart = not weights.has(f"{block}.attn_qkv.bias")  # a fused matrix may have separate biases
        self.attn_qkv: Linear = weights.linear(fused, spec.n_embd, parts if apart else None)
        self.attn_output: Linear = weights.linear(
            [(f"{block}.attn_output", spec.n_embd)], heads * layer.value_dim
        )
        self.attn_gate: Linear | None = self._load_gate(block, weights)
        norms = load_qk_norms(spec, weights, block, layer, kv_heads)
        last = family.qk_norm_last
        self.rotated_norms: list[HeadNorm]
        self.norms: list[HeadNorm]
        self.norms, self.rotated_norms = ([], norms) if last else (norms, [])  # before and after rotation
        if family.v_norm and kv_heads:
            v_norm = HeadNorm(
                self.kernels, False, spec.norm_eps, kv_heads, layer.value_dim, None, column=q + k
            )
            self.norms = [*self.norms, v_norm]
        sinks = f"{block}.attn_sinks.weight"
        has_sinks = family.sinks == "yes" or (family.sinks == "auto" and weights.has(sinks))
        self.options: dict[str, Any] = attend_options(
            spec, layer, weights.vector(sinks, heads) if has_sinks else None
        )
        if family.relative_bias:
            own = weights.has(f"{block}.attn_rel_b.weight")
            name = f"blk.{i if own else 0}.attn_rel_b.weight"
            table = weights.matrix(name, spec.relative_buckets, heads)
            self.options["biases"] = distance_biases(table)
        self.kv_heads = kv_heads

    def _load_gate(self, block: str, weights: Weights) -> Linear | None:
        """The matrix of the gates, None for none."""
        family, name, layer = self.spec.family, f"{block}.attn_gate", self.layer
        if self.gated_queries:
            self._check_gated_queries()
        if family.attn_gate in ("", "query") or (
            family.attn_gate_optional and not weights.has(f"{name}.weight")
        ):
            return None
        width = layer.n_heads * (1 if family.attn_gate == "head" else layer.value_dim)
        return weights.linear([(name, width)], self.spec.n_embd)

    def _check_gated_queries(self) -> None:
        """A gate is as wide as the query beside it, and as the value that it multiplies."""
        layer = self.layer
        if layer.value_dim != layer.key_dim:
            key = f"{self.spec.family.name}.attention.value_length"
            raise LoadError(f"{key}: expected {layer.key_dim}, as keys have, got {layer.value_dim}")

    def linears(self) -> list[Linear]:
        gate = [self.attn_gate] if self.attn_gate else []
        return [self.attn_qkv, *gate, self.attn_output]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        spec, layer, n, work, n_threads = self.spec, self.layer, len(h), step.work, step.n_threads
        heads, kv_heads, dim = layer.n_heads, self.kv_heads, layer.key_dim
        qkv = work.rows["qkv", n, self.width]
        if self.gated_queries:
            self._project_with_gates(h, qkv, step)
        else:
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
        attended = work.rows["attended", n, self.attn_output.cols]
        kv = step.kv[self.group]
        if layer.kv_from is None:
            kv.store(self.index, qkv, heads * dim, (heads + kv_heads) * dim, n_threads)
        scale = spec.score_scale
        kv.attend(self.index, qkv, heads, scale, attended, work.scratch, n_threads, **self.options)
        if self.attn_gate is not None:
            self._gate(self.attn_gate, h, attended, step)
        if self.gated_queries:
            gates = work.rows["gated_qkv", n, self.attn_qkv.rows]
            self.kernels.vector.gate_heads(attended, heads, gates, dim, 2 * dim, "sigmoid", n_threads)
        if spec.value_scale != 1:
            attended *= np.float32(spec.value_scale)
        self.attn_output.apply(attended, out, step, accumulate)

    def _project_with_gates(self, h: np.ndarray, qkv: np.ndarray, step: Step) -> None:
        """qkv (n, q + k + v) of h (n, d); the gates beside the queries stay in the buffer ``gated_qkv``."""
        n, heads, dim = len(h), self.layer.n_heads, self.layer.key_dim
        both = step.work.rows["gated_qkv", n, self.attn_qkv.rows]
        self.attn_qkv.apply(h, both, step)
        by_head = both[:, : 2 * heads * dim].reshape(n, heads, 2, dim)
        qkv[:, : heads * dim].reshape(n, heads, dim)[:] = by_head[:, :, 0]
        qkv[:, heads * dim :] = both[:, 2 * heads * dim :]

    def _gate(self, matrix: Linear, h: np.ndarray, attended: np.ndarray, step: Step) -> None:
        """Multiplies each head, or each element, by the sigmoid of its gate."""
        n = len(h)
        gates = step.work.rows["attn_gate", n, matrix.rows]
        matrix.apply(h, gates, step)
        self.kernels.vector.activate(gates, "sigmoid", gates, step.n_threads)
        by_gate = attended.reshape(n, matrix.rows, -1)
        by_gate *= gates[:, :, None]


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

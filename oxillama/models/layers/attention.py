"""The attention block: q, k, v projections, norms, rotation, attention over pages, output projection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama.base.lazy_import import lazy
from oxillama.models.layers.norm import Norm, load_norm
from oxillama.models.page_groups import place_of
from oxillama.models.spec import LayerSpec, Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step

if TYPE_CHECKING:
    from oxillama.models.layers.head_norm import HeadNorm
    from oxillama.models.layers.output_gate import OutputGate
    from oxillama.models.layers.value_experts import ValueExperts

load_qk_norms: Callable[..., Any] = lazy("oxillama.models.layers.head_norm:load_qk_norms")
load_v_norm: Callable[..., Any] = lazy("oxillama.models.layers.head_norm:load_v_norm")
load_output_gate: Callable[..., Any] = lazy("oxillama.models.layers.output_gate:load_output_gate")
check_query_gates: Callable[..., Any] = lazy("oxillama.models.layers.output_gate:check_query_gates")
load_value_experts: Callable[..., Any] = lazy("oxillama.models.layers.value_experts:ValueExperts")
distance_biases: Callable[..., Any] = lazy("oxillama.models.layers.position_biases:distance_biases")
alibi_slopes: Callable[..., Any] = lazy("oxillama.models.layers.position_biases:alibi_slopes")


@dataclass(frozen=True, repr=False)
class AttentionOptions:
    """A layer's options of the kernel's `PagedBatch.attend`, which explains them.

    Arrays are float32: ``sinks`` and ``slopes`` (heads,), ``biases`` (heads, 2 reach + 1).
    """

    window: int = 0
    chunk: int = 0
    causal: bool = True
    softcap: float = 0.0
    sinks: np.ndarray | None = None
    slopes: np.ndarray | None = None
    biases: np.ndarray | None = None


class Attention:
    """Attention of one layer (Vaswani et al., 2017), with heads that share keys (Ainslie et al., 2023).

    A row of the buffer ``qkv`` holds q's heads, then k's, then v's. A subclass that ``is_sparse`` stores and
    attends itself, with ``attend(h, qkv, attended, step)``.
    """

    is_sparse = False
    attend: Any

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
        self.value_experts: ValueExperts | None = None
        if layer.value_experts:
            self.value_experts, parts = load_value_experts(spec, i, weights, v), parts[:2]
        fused = [(f"{block}.attn_qkv", first + k + v)] if weights.has(f"{block}.attn_qkv.weight") else parts
        own = i if layer.kv_from is None else layer.kv_from
        self.group, self.index = place_of(spec, own)  # the page group, and the layer's index in a page
        self.width: int = q + k + v
        self.spec = spec
        self.layer = layer
        self.kernels: Kernels = weights.kernels
        apart = not weights.has(f"{block}.attn_qkv.bias")  # a fused matrix may have separate biases
        cols = 2 * spec.n_embd if family.joined_input else spec.n_embd
        self.attn_qkv: Linear = weights.linear(fused, cols, parts if apart else None)
        self.attn_output: Linear = weights.linear(
            [(f"{block}.attn_output", spec.n_embd)], heads * layer.value_dim
        )
        self.project: Callable[..., None] | None = None  # instead of `attn_qkv` alone
        if self.gated_queries:
            self.project = self._project_with_gates
        elif self.value_experts is not None:
            self.project = self.value_experts.projected_behind(self.attn_qkv)
        self.attn_gate: OutputGate | None = None
        if self.gated_queries:
            check_query_gates(spec, layer)
        elif family.attn_gate:
            self.attn_gate = load_output_gate(spec, i, weights, layer.value_dim)
        norms = load_qk_norms(spec, weights, block, layer, kv_heads) if family.qk_norm else []
        last = family.qk_norm_last
        self.rotated_norms: list[HeadNorm]
        self.norms: list[HeadNorm]
        self.norms, self.rotated_norms = ([], norms) if last else (norms, [])  # before and after rotation
        if family.v_norm and kv_heads:
            self.norms = [*self.norms, load_v_norm(spec, weights, layer, q + k)]
        name, width = f"{block}.attn_sub_norm", self.attn_output.cols
        self.sub_norm: Norm | None = load_norm(spec, weights, name, width) if family.sub_norms else None
        sinks = f"{block}.attn_sinks.weight"
        has_sinks = family.sinks == "yes" or (family.sinks == "auto" and weights.has(sinks))
        biases = None
        if family.relative_bias:
            own = weights.has(f"{block}.attn_rel_b.weight")
            name = f"blk.{i if own else 0}.attn_rel_b.weight"
            biases = distance_biases(weights.matrix(name, spec.relative_buckets, heads))
        self.options: AttentionOptions = attention_options(
            spec, layer, sinks=weights.vector(sinks, heads) if has_sinks else None, biases=biases
        )
        self.kv_heads = kv_heads

    def linears(self) -> list[Linear]:
        gate = [self.attn_gate.matrix] if self.attn_gate else []
        experts = self.value_experts.linears() if self.value_experts else []
        return [self.attn_qkv, *experts, *gate, self.attn_output]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        spec, layer, n, work, n_threads = self.spec, self.layer, len(h), step.work, step.n_threads
        heads, kv_heads, dim = layer.n_heads, self.kv_heads, layer.key_dim
        qkv = work.rows["qkv", n, self.width]
        if self.project is None:
            self.attn_qkv.apply(h, qkv, step)
        else:
            self.project(h, qkv, step)
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
        if self.is_sparse:
            self.attend(h, qkv, attended, step)
        else:
            kv, use = step.kv[self.group], self.options
            if layer.kv_from is None:
                kv.store(self.index, qkv, heads * dim, (heads + kv_heads) * dim, n_threads)
            kv.attend(
                *(self.index, qkv, heads, spec.score_scale, attended, work.scratch, n_threads),
                *(use.window, use.chunk),
                causal=use.causal, softcap=use.softcap, sinks=use.sinks, slopes=use.slopes, biases=use.biases,
            )  # fmt: skip
        if self.attn_gate is not None:
            self.attn_gate.apply(h, attended, step)
        if self.gated_queries:
            self._gate_by_queries(attended, step)
        if spec.value_scale != 1:
            attended *= np.float32(spec.value_scale)
        if self.sub_norm is not None:
            self.sub_norm.apply(attended, attended, n_threads)
        self.attn_output.apply(attended, out, step, accumulate)

    def _gate_by_queries(self, attended: np.ndarray, step: Step) -> None:
        """Multiplies attended values by the sigmoids of the gates beside the queries."""
        heads, dim = self.layer.n_heads, self.layer.key_dim
        gates = step.work.rows["gated_qkv", len(attended), self.attn_qkv.rows]
        self.kernels.vector.gate_heads(attended, heads, gates, dim, 2 * dim, "sigmoid", step.n_threads)

    def _project_with_gates(self, h: np.ndarray, qkv: np.ndarray, step: Step) -> None:
        """qkv (n, q + k + v) of h (n, d); the gates beside the queries stay in the buffer ``gated_qkv``."""
        n, heads, dim = len(h), self.layer.n_heads, self.layer.key_dim
        both = step.work.rows["gated_qkv", n, self.attn_qkv.rows]
        self.attn_qkv.apply(h, both, step)
        by_head = both[:, : 2 * heads * dim].reshape(n, heads, 2, dim)
        qkv[:, : heads * dim].reshape(n, heads, dim)[:] = by_head[:, :, 0]
        qkv[:, heads * dim :] = both[:, 2 * heads * dim :]


def attention_options(
    spec: Spec, layer: LayerSpec, sinks: np.ndarray | None = None, biases: np.ndarray | None = None
) -> AttentionOptions:
    """The options of the attention of a layer; ``sinks`` and ``biases`` as `AttentionOptions` has them."""
    slopes = alibi_slopes(layer.n_heads, spec.alibi_bias) if spec.alibi_bias else None
    return AttentionOptions(
        layer.window, layer.chunk, spec.causal, spec.soft_cap, sinks=sinks, slopes=slopes, biases=biases
    )

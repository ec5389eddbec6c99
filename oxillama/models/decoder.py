"""The decoder: tokens in, logits out, eleven kernel calls a layer.

Reads like the paper: x = embed(tokens); for each layer x += attend(norm(x)); x += feed(norm(x));
logits = norm(x) W^T. All rows of a ragged batch go through together.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama.batch import Batch
from oxillama.errors import LoadError
from oxillama.models.feed import GatedFeed, InputScaledExperts
from oxillama.models.rope import rope_frequencies
from oxillama.models.spec import Spec
from oxillama.models.workspace import Workspace
from oxillama.tensor import Matrices, Weights


@dataclass(frozen=True)
class Layer:
    """Weights of one block. The matrices that share an input are one `Matrices`."""

    attn_norm: np.ndarray
    attn_qkv: Matrices
    attn_output: Matrices
    ffn_norm: np.ndarray
    ffn: GatedFeed | InputScaledExperts


class Decoder:
    """A loaded model.

    Parameters
    ----------
    spec : its sizes and facts.
    weights : where its tensors come from.

    Raises
    ------
    LoadError : a tensor is missing, has the wrong shape, or a format without kernels; or the rotary
        factors are not above 0.
    """

    def __init__(self, spec: Spec, weights: Weights) -> None:
        self.spec = spec
        self.kernels: Kernels = weights.kernels
        d = spec.n_embd
        self.embedding = weights.embedding("token_embd.weight", spec.n_vocab, d)
        self.layers = [self._layer(i, weights) for i in range(spec.n_layers)]
        self.output_norm = weights.vector("output_norm.weight", d)
        tied = not weights.has("output.weight")
        self.output = weights.linear([("token_embd" if tied else "output", spec.n_vocab)], d)
        factors = (
            weights.vector("rope_freqs.weight", spec.n_rot // 2) if weights.has("rope_freqs.weight") else None
        )
        if factors is not None and not (np.isfinite(factors) & (factors > 0)).all():
            raise LoadError("rope_freqs.weight: needs finite numbers above 0")
        self.frequencies = rope_frequencies(spec.n_rot, spec.rope_base, spec.rope_scale, factors)

    def _layer(self, i: int, weights: Weights) -> Layer:
        spec, block, d = self.spec, f"blk.{i}", self.spec.n_embd
        q, k = spec.n_heads * spec.key_dim, spec.n_kv_heads * spec.key_dim
        v, attended = spec.n_kv_heads * spec.value_dim, spec.n_heads * spec.value_dim
        fused = weights.has(f"{block}.attn_qkv.weight")
        qkv = [("attn_qkv", q + k + v)] if fused else [("attn_q", q), ("attn_k", k), ("attn_v", v)]
        return Layer(
            attn_norm=weights.vector(f"{block}.attn_norm.weight", d),
            attn_qkv=weights.linear([(f"{block}.{name}", rows) for name, rows in qkv], d),
            attn_output=weights.linear([(f"{block}.attn_output", d)], attended),
            ffn_norm=weights.vector(f"{block}.ffn_norm.weight", d),
            ffn=self._experts(block, weights)
            if spec.has_experts(i)
            else self._feed(block, weights, spec.n_ff),
        )

    def _feed(self, block: str, weights: Weights, width: int, ending: str = "") -> GatedFeed:
        d = self.spec.n_embd
        gate_up = [(f"{block}.ffn_gate{ending}", width), (f"{block}.ffn_up{ending}", width)]
        first = weights.linear(gate_up, d)
        return GatedFeed(self.kernels, first, weights.linear([(f"{block}.ffn_down{ending}", d)], width))

    def _experts(self, block: str, weights: Weights) -> InputScaledExperts:
        spec, d, width = self.spec, self.spec.n_embd, self.spec.n_expert_ff
        names = [(f"{block}.ffn_gate_exps", width), (f"{block}.ffn_up_exps", width)]
        gate_up = weights.experts(names, d, spec.n_experts)
        down = weights.experts([(f"{block}.ffn_down_exps", d)], width, spec.n_experts)
        return InputScaledExperts(
            self.kernels,
            weights.linear([(f"{block}.ffn_gate_inp", spec.n_experts)], d),
            [GatedFeed(self.kernels, *pair) for pair in zip(gate_up, down)],
            self._feed(block, weights, width, "_shexp"),
            spec.n_experts_used,
        )

    def matrices(self) -> list[Matrices]:
        """All of them, in the order in which a forward pass takes them."""
        found: list[Matrices] = []
        for layer in self.layers:
            found += [layer.attn_qkv, layer.attn_output, *layer.ffn.linears]
        return [*found, self.output]

    def workspace(self) -> Workspace:
        """Buffers for `forward`, empty yet."""
        return Workspace(self.spec, self.matrices(), max(layer.ffn.width for layer in self.layers))

    def kv_shape(self, kv_type: int, page_size: int) -> Any:
        """The layout of a page that holds this model's keys and values."""
        spec = self.spec
        return self.kernels.attention.KvShape(
            spec.n_layers, spec.n_kv_heads, spec.key_dim, spec.value_dim, kv_type, page_size
        )

    def forward(self, batch: Batch, kv: Any, work: Workspace, n_threads: int) -> np.ndarray:
        """Runs a batch.

        Parameters
        ----------
        batch : the rows.
        kv : the kernels' `PagedBatch` over the same rows; their keys and values are stored in it.
        work : buffers, overwritten.

        Returns
        -------
        float32 (wanted, vocab) : logits of the wanted rows, in fresh memory.
        """
        spec, family, vector, n = self.spec, self.spec.family, self.kernels.vector, len(batch)
        heads, kv_heads, dim = spec.n_heads, spec.n_kv_heads, spec.key_dim
        key_column, value_column = heads * dim, (heads + kv_heads) * dim
        work.reserve(n, kv.scratch_bytes(n_threads))
        x, h = work.rows("x", n, spec.n_embd), work.rows("h", n, spec.n_embd)
        qkv = work.rows("qkv", n, value_column + kv_heads * spec.value_dim)
        attended, scratch = work.rows("attended", n, heads * spec.value_dim), work.scratch
        table = np.empty((n, 2, spec.n_rot // 2), np.float32)
        vector.rope_table(batch.positions, self.frequencies, 1.0, table)
        sharpened = self._temperatures(batch.positions)

        self.embedding.lookup(batch.tokens, x)
        for i, layer in enumerate(self.layers):
            vector.rms_norm(x, layer.attn_norm, spec.norm_eps, h, n_threads)
            layer.attn_qkv.apply(h, qkv, scratch, n_threads)
            if spec.rotates(i):  # q's heads, then k's
                vector.rope(qkv, heads + kv_heads, dim, table, family.rope == "neox", n_threads)
                if family.head_norm:
                    vector.head_norm(qkv, heads + kv_heads, dim, None, spec.norm_eps, n_threads)
            elif sharpened is not None:
                qkv[:, :key_column] *= sharpened
            kv.store(i, qkv, key_column, value_column, n_threads)
            chunk = family.chunk if spec.rotates(i) else 0
            kv.attend(i, qkv, heads, dim**-0.5, attended, scratch, n_threads, 0, chunk)
            layer.attn_output.apply(attended, x, scratch, n_threads, True)
            vector.rms_norm(x, layer.ffn_norm, spec.norm_eps, h, n_threads)
            layer.ffn.add(h, x, work, n_threads)

        rows = x[batch.wanted]
        out = np.empty((len(rows), spec.n_vocab), np.float32)
        if len(rows):
            h = work.rows("h", len(rows), spec.n_embd)
            vector.rms_norm(rows, self.output_norm, spec.norm_eps, h, n_threads)
            self.output.apply(h, out, scratch, n_threads)
        return out

    def _temperatures(self, positions: np.ndarray) -> np.ndarray | None:
        """float32 (n, 1): what layers that do not rotate multiply queries by, or None for 1."""
        a, length = self.spec.family.query_temperature, self.spec.family.chunk
        if not a:
            return None
        # few distinct values, by a correctly rounded logarithm: the same bits on every machine
        steps = (positions + 1) // length + 1
        factors = {int(s): 1.0 + a * float(Decimal(int(s)).ln()) for s in np.unique(steps)}
        return np.array([[factors[int(s)]] for s in steps], np.float32)

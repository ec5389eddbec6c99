"""The decoder: tokens in, logits out, eleven kernel calls a layer.

Reads like the paper: x = embed(tokens); for each layer x += attend(norm(x)); x += feed(norm(x));
logits = norm(x) W^T. All rows of a ragged batch go through together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama.batch import Batch
from oxillama.models.rope import rope_frequencies
from oxillama.models.spec import Spec
from oxillama.tensor import Weights, aligned_empty


@dataclass(frozen=True)
class Layer:
    """Weights of one block. The matrices that share an input are one `Linear`."""

    attn_norm: np.ndarray
    attn_qkv: Any
    attn_output: Any
    ffn_norm: np.ndarray
    ffn_gate_up: Any
    ffn_down: Any


class Decoder:
    """A loaded model.

    Parameters
    ----------
    spec : its sizes and facts.
    weights : where its tensors come from.

    Raises
    ------
    LoadError : a tensor is missing, has the wrong shape, or a format without kernels.
    """

    def __init__(self, spec: Spec, weights: Weights) -> None:
        self.spec = spec
        self.kernels: Kernels = weights.kernels
        d, q, k = spec.n_embd, spec.n_heads * spec.key_dim, spec.n_kv_heads * spec.key_dim
        v = spec.n_kv_heads * spec.value_dim
        self.embedding = weights.embedding("token_embd.weight", spec.n_vocab, d)
        self.layers = [self._layer(f"blk.{i}", weights, d, q, k, v) for i in range(spec.n_layers)]
        self.output_norm = weights.vector("output_norm.weight", d)
        tied = not weights.has("output.weight")
        self.output = weights.linear([("token_embd" if tied else "output", spec.n_vocab)], d)
        factors = (
            weights.vector("rope_freqs.weight", spec.n_rot // 2) if weights.has("rope_freqs.weight") else None
        )
        self.frequencies = rope_frequencies(spec.n_rot, spec.rope_base, spec.rope_scale, factors)

    def _layer(self, block: str, weights: Weights, d: int, q: int, k: int, v: int) -> Layer:
        fused = weights.has(f"{block}.attn_qkv.weight")
        qkv = [("attn_qkv", q + k + v)] if fused else [("attn_q", q), ("attn_k", k), ("attn_v", v)]
        return Layer(
            attn_norm=weights.vector(f"{block}.attn_norm.weight", d),
            attn_qkv=weights.linear([(f"{block}.{name}", rows) for name, rows in qkv], d),
            attn_output=weights.linear(
                [(f"{block}.attn_output", d)], self.spec.n_heads * self.spec.value_dim
            ),
            ffn_norm=weights.vector(f"{block}.ffn_norm.weight", d),
            ffn_gate_up=weights.linear(
                [(f"{block}.ffn_gate", self.spec.n_ff), (f"{block}.ffn_up", self.spec.n_ff)], d
            ),
            ffn_down=weights.linear([(f"{block}.ffn_down", d)], self.spec.n_ff),
        )

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
        spec, vector, n = self.spec, self.kernels.vector, len(batch)
        heads, kv_heads, dim = spec.n_heads, spec.n_kv_heads, spec.key_dim
        key_column, value_column = heads * dim, (heads + kv_heads) * dim
        scale = dim**-0.5
        work.reserve(n, kv.scratch_bytes(n_threads))
        x, h, qkv, attended = work.x[:n], work.h[:n], work.qkv[:n], work.attended[:n]
        gate_up, fed, scratch = work.gate_up[:n], work.fed[:n], work.scratch
        table = np.empty((n, 2, spec.n_rot // 2), np.float32)
        vector.rope_table(batch.positions, self.frequencies, 1.0, table)
        neox = spec.family.rope == "neox"

        self.embedding.lookup(batch.tokens, x)
        for i, layer in enumerate(self.layers):
            vector.rms_norm(x, layer.attn_norm, spec.norm_eps, h, n_threads)
            layer.attn_qkv.apply(h, qkv, scratch, n_threads)
            vector.rope(qkv, heads + kv_heads, dim, table, neox, n_threads)  # q's heads, then k's
            kv.store(i, qkv, key_column, value_column, n_threads)
            kv.attend(i, qkv, heads, scale, attended, scratch, n_threads)
            layer.attn_output.apply(attended, x, scratch, n_threads, True)
            vector.rms_norm(x, layer.ffn_norm, spec.norm_eps, h, n_threads)
            layer.ffn_gate_up.apply(h, gate_up, scratch, n_threads)
            vector.swiglu(gate_up, fed, n_threads)
            layer.ffn_down.apply(fed, x, scratch, n_threads, True)

        rows = x[batch.wanted]
        out = np.empty((len(rows), spec.n_vocab), np.float32)
        if len(rows):
            h = h[: len(rows)]
            vector.rms_norm(rows, self.output_norm, spec.norm_eps, h, n_threads)
            self.output.apply(h, out, scratch, n_threads)
        return out


class Workspace:
    """Buffers of a forward pass, kept between passes and grown when a batch is larger than any before."""

    def __init__(self, model: Decoder) -> None:
        self.spec = model.spec
        self.linears = [model.output]
        for layer in model.layers:
            self.linears += [layer.attn_qkv, layer.attn_output, layer.ffn_gate_up, layer.ffn_down]
        self.n_rows = 0
        self.linear_bytes = 0
        self.scratch = aligned_empty(0)

    def reserve(self, n_rows: int, attention_bytes: int) -> None:
        """Makes room for ``n_rows`` rows and for the attention's scratch."""
        spec = self.spec
        if n_rows > self.n_rows:
            self.n_rows = n_rows
            self.x, self.h = self._rows(spec.n_embd), self._rows(spec.n_embd)
            heads, kv_heads = spec.n_heads, spec.n_kv_heads
            self.qkv = self._rows((heads + kv_heads) * spec.key_dim + kv_heads * spec.value_dim)
            self.attended = self._rows(heads * spec.value_dim)
            self.gate_up, self.fed = self._rows(2 * spec.n_ff), self._rows(spec.n_ff)
            self.linear_bytes = max(linear.scratch_bytes(n_rows) for linear in self.linears)
        needed = max(self.linear_bytes, attention_bytes)
        if needed > self.scratch.nbytes:
            self.scratch = aligned_empty(needed)

    def _rows(self, width: int) -> np.ndarray:
        """float32 (n_rows, width)"""
        return aligned_empty(4 * self.n_rows * width).view(np.float32).reshape(self.n_rows, width)

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
from oxillama.tensor import Weights, aligned_empty


@dataclass(frozen=True)
class Layer:
    """Weights of one block. The matrices that share an input are one `Linear`."""

    attn_norm: np.ndarray
    attn_qkv: Any
    attn_output: Any
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
        d, q, k = spec.n_embd, spec.n_heads * spec.key_dim, spec.n_kv_heads * spec.key_dim
        v = spec.n_kv_heads * spec.value_dim
        self.embedding = weights.embedding("token_embd.weight", spec.n_vocab, d)
        self.layers = [
            self._layer(f"blk.{i}", weights, d, q, k, v, spec.has_experts(i)) for i in range(spec.n_layers)
        ]
        self.output_norm = weights.vector("output_norm.weight", d)
        tied = not weights.has("output.weight")
        self.output = weights.linear([("token_embd" if tied else "output", spec.n_vocab)], d)
        factors = (
            weights.vector("rope_freqs.weight", spec.n_rot // 2) if weights.has("rope_freqs.weight") else None
        )
        if factors is not None and not (np.isfinite(factors) & (factors > 0)).all():
            raise LoadError("rope_freqs.weight: needs finite numbers above 0")
        self.ones = np.ones(spec.key_dim, np.float32)
        self.frequencies = rope_frequencies(spec.n_rot, spec.rope_base, spec.rope_scale, factors)

    def _layer(
        self, block: str, weights: Weights, d: int, q: int, k: int, v: int, expert_layer: bool
    ) -> Layer:
        fused = weights.has(f"{block}.attn_qkv.weight")
        qkv = [("attn_qkv", q + k + v)] if fused else [("attn_q", q), ("attn_k", k), ("attn_v", v)]
        return Layer(
            attn_norm=weights.vector(f"{block}.attn_norm.weight", d),
            attn_qkv=weights.linear([(f"{block}.{name}", rows) for name, rows in qkv], d),
            attn_output=weights.linear(
                [(f"{block}.attn_output", d)], self.spec.n_heads * self.spec.value_dim
            ),
            ffn_norm=weights.vector(f"{block}.ffn_norm.weight", d),
            ffn=self._experts(block, weights) if expert_layer else self._feed(block, weights, self.spec.n_ff),
        )

    def _feed(self, block: str, weights: Weights, width: int, ending: str = "") -> GatedFeed:
        d = self.spec.n_embd
        gate_up = [(f"{block}.ffn_gate{ending}", width), (f"{block}.ffn_up{ending}", width)]
        up = weights.linear(gate_up, d)
        return GatedFeed(self.kernels, up, weights.linear([(f"{block}.ffn_down{ending}", d)], width))

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
                    vector.head_norm(qkv, heads + kv_heads, dim, self.ones, spec.norm_eps, n_threads)
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


class Workspace:
    """Buffers of a forward pass, kept between passes and grown when a batch is larger than any before."""

    def __init__(self, model: Decoder) -> None:
        spec = model.spec
        self.linears = [model.output]
        for layer in model.layers:
            self.linears += [layer.attn_qkv, layer.attn_output, *layer.ffn.linears]
        width = max(layer.ffn.width for layer in model.layers)
        self.widths = {
            "x": spec.n_embd,
            "h": spec.n_embd,
            "qkv": (spec.n_heads + spec.n_kv_heads) * spec.key_dim + spec.n_kv_heads * spec.value_dim,
            "attended": spec.n_heads * spec.value_dim,
            "gate_up": 2 * width,
            "fed": width,
        }
        self.n_rows = 0
        self.linear_bytes = 0
        self.scratch = aligned_empty(0)
        self._buffers: dict[str, np.ndarray] = {}
        self._views: dict[tuple[str, int, int], np.ndarray] = {}

    def reserve(self, n_rows: int, attention_bytes: int) -> None:
        """Makes room for ``n_rows`` rows and for the attention's scratch."""
        if n_rows > self.n_rows:
            self.n_rows = n_rows
            self._views.clear()
            for name, width in self.widths.items():
                self._buffers[name] = aligned_empty(4 * n_rows * width).view(np.float32)
            self.linear_bytes = max(linear.scratch_bytes(n_rows) for linear in self.linears)
        needed = max(self.linear_bytes, attention_bytes)
        if needed > self.scratch.nbytes:
            self.scratch = aligned_empty(needed)

    def rows(self, name: str, n: int, width: int) -> np.ndarray:
        """float32 (n, width): the beginning of a buffer; ``n`` is at most what was reserved."""
        key = (name, n, width)
        if key not in self._views:
            if len(self._views) > 256:
                self._views.clear()
            self._views[key] = self._buffers[name][: n * width].reshape(n, width)
        return self._views[key]

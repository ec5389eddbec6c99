"""Streams of hidden states with gates of low rank (Qwen 3.8).

With the normed streams Z and z, all of them side by side, a block reads the mean over s of Z_s gate_s, where
gate = sigmoid(W_up silu(W_down z / n)), and stream s adds 2 sigmoid(W_inject z / n)_s times its output. There
are no other norms. The streams of a token are a row of the buffer "streams".
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from oxillama._kernels import Kernels
from oxillama.base.lazy_import import lazy
from oxillama.models.layers.head_norm import HeadNorm, load_head_norm
from oxillama.models.layers.hyper_connections import Streams as CopiedStreams, streams_of
from oxillama.models.layers.wrapped import WrappedLayer
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step

load_ngrams: Any = lazy("oxillama.models.layers.ngrams:NgramEmbedding")


class GatedMix:
    """The input of a block, or of the output matrix, and the factors of the block's output.

    Args:
        name: of its tensors, without "_norm", "_down", "_up" and "_inject".
        injects: it has factors.
    """

    def __init__(self, spec: Spec, weights: Weights, name: str, injects: bool) -> None:
        assert spec.connections is not None
        n, d, rank = spec.connections.streams, spec.n_embd, spec.connections.rank
        self.n: int = n
        self.kernels: Kernels = weights.kernels
        self.norm: HeadNorm = load_head_norm(spec, weights, f"{name}_norm.weight", n, d, each=True)
        widths = [(f"{name}_down", rank), *([(f"{name}_inject", n)] if injects else [])]
        self.first: Linear = weights.linear(widths, n * d)
        self.up: Linear = weights.linear([(f"{name}_up", n * d)], rank)

    def linears(self) -> list[Linear]:
        return [self.first, self.up]

    def read(self, streams: np.ndarray, out: np.ndarray, step: Step) -> np.ndarray:
        """out (n, d) = the input of the block; returns float32 (n, streams), the factors of its output."""
        rows, n_threads, vector = len(streams), step.n_threads, self.kernels.vector
        z, gates = (step.work.rows.like(name, streams) for name in ("normed_streams", "stream_gates"))
        z[:] = streams
        self.norm.apply(z, n_threads)
        both = step.work.rows["connection", rows, self.first.rows]
        self.first.apply(z, both, step)
        both *= np.float32(1 / self.n)
        low, factors = (np.ascontiguousarray(x) for x in np.split(both, [self.up.cols], axis=1))
        vector.activate(low, "silu", low, n_threads)
        self.up.apply(low, gates, step)
        vector.gate_heads(z, 1, gates, 0, 0, "sigmoid", n_threads)
        weights = np.full((rows, self.n), 1 / self.n, np.float32)
        vector.mix_streams(z, self.n, weights, out, n_threads)
        vector.activate(factors, "sigmoid", factors, n_threads)
        factors *= np.float32(2)
        return factors


class Streams(CopiedStreams):
    """How the streams begin, as copies of the embeddings, and end: mixed as the input of a block is."""

    def __init__(self, spec: Spec, weights: Weights) -> None:
        super().__init__(spec, weights)
        self.mix: GatedMix | None = GatedMix(spec, weights, "output_hc", False) if spec.is_last else None

    @property
    def end_with(self) -> list[Linear]:
        """The matrices of the end."""
        return self.mix.linears() if self.mix else []

    def end(self, x: np.ndarray, step: Step) -> None:
        """x (n, d) = the mix of the streams."""
        assert self.mix is not None
        self.mix.read(streams_of(step, len(x), self.n * x.shape[1]), x, step)


class GatedLayer(WrappedLayer):
    """A layer over streams: the blocks of an ordinary one, and perhaps embeddings of n-grams before them."""

    def __init__(self, spec: Spec, i: int, weights: Weights, layer: Any) -> None:
        super().__init__(layer)
        assert spec.connections is not None
        self.n: int = spec.connections.streams
        self.mixes: list[GatedMix] = [
            GatedMix(spec, weights, f"blk.{i}.hc_{name}", True) for name in ("attn", "ffn")
        ]
        has_ngrams = spec.ngrams is not None and spec.ngrams.layer == i
        self.ngrams: Any = load_ngrams(spec, i, weights) if has_ngrams else None

    def blocks(self) -> list[Any]:
        """The embeddings of n-grams, and the blocks of the ordinary layer."""
        return [*([self.ngrams] if self.ngrams else []), *super().blocks()]

    def with_blocks(self, wrap: Any) -> Self:
        """A copy whose blocks are what ``wrap`` makes of them."""
        found = super().with_blocks(wrap)
        found.ngrams = self.ngrams and wrap(self.ngrams)
        return found

    def own_linears(self) -> list[Linear]:
        own = self.ngrams.linears() if self.ngrams else []
        return [*own, *(each for mix in self.mixes for each in mix.linears())]

    def run(self, x: np.ndarray, step: Step) -> None:
        """Applies the layer to the streams; x (n, d) is overwritten."""
        n, d = x.shape
        streams, h = streams_of(step, n, self.n * d), step.work.rows["h", n, d]
        if self.ngrams is not None:
            self.ngrams.run(streams, streams, step, True)
        numbers = np.arange(n * self.n, dtype=np.int32)
        for mix, block in zip(self.mixes, self.layer.blocks()):
            factors = mix.read(streams, h, step)
            block.run(h, x, step, False)
            each = np.repeat(x, self.n, axis=0)
            add = mix.kernels.vector.add_rows
            add(streams.reshape(-1, d), numbers, factors.reshape(-1), each, step.n_threads)

"""Streams of hidden states that all blocks read and write: hyper-connections (Zhu et al., 2024).

A block reads a weighted sum of the streams, and each stream adds the block's output times a factor of its
own. Weights and factors are linear in the normed streams:

    c = W rms_norm(all streams) * scale + base
    x = sum_s (sigmoid(c_s) + epsilon) stream_s
    stream_t = sum_s mix_st stream_s + factor_t block(norm(x)).

"mix" is the identity, or an almost doubly stochastic matrix (Xie et al., "mHC", 2025). The streams of a token
are a row of the buffer "streams".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.layers.wrapped import WrappedLayer
from oxillama.models.sizes import Connections
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step


def streams_of(step: Step, n: int, width: int) -> np.ndarray:
    """float32 (n, streams d)."""
    return step.work.rows["streams", n, width]


class Connection:
    """The numbers c of one block, or of the end of the model.

    Args:
        name: of its tensors, without "_fn", "_base" and "_scale".
        parts: how many of the weights of the input, the factors of the output, and the mix it has.
    """

    def __init__(self, spec: Spec, weights: Weights, name: str, parts: int) -> None:
        assert spec.connections is not None
        self.sizes: Connections = spec.connections
        n = self.sizes.streams
        widths = [n, n, n * n][:parts]
        self.kernels: Kernels = weights.kernels
        self.eps: float = spec.norm_eps
        self.matrix: Linear = weights.linear([(f"{name}_fn", sum(widths))], n * spec.n_embd)
        self.base: np.ndarray = weights.vector(f"{name}_base.weight", sum(widths))
        self.scale: np.ndarray = np.repeat(weights.vector(f"{name}_scale.weight", parts), widths)

    def numbers(self, streams: np.ndarray, step: Step) -> np.ndarray:
        """float32 (n, numbers): c for streams (n, streams d)."""
        f = step.work.rows.like("normed_streams", streams)
        self.kernels.vector.rms_norm(streams, None, self.eps, f, step.n_threads)
        c = step.work.rows["connection", len(streams), self.matrix.rows]
        self.matrix.apply(f, c, step)
        c *= self.scale
        c += self.base
        return c

    def shares(self, c: np.ndarray, part: int, step: Step) -> np.ndarray:
        """float32 (n, streams): the sigmoid of one part of c."""
        n = self.sizes.streams
        found = np.ascontiguousarray(c[:, n * part : n * (part + 1)])
        self.kernels.vector.activate(found, "sigmoid", found, step.n_threads)
        return found

    def read(self, streams: np.ndarray, out: np.ndarray, step: Step) -> np.ndarray:
        """out (n, d) = the weighted sum of the streams; returns c."""
        c = self.numbers(streams, step)
        weights = self.shares(c, 0, step)
        weights += np.float32(self.sizes.epsilon)
        self.kernels.vector.mix_streams(streams, self.sizes.streams, weights, out, step.n_threads)
        return c

    def write(self, streams: np.ndarray, c: np.ndarray, y: np.ndarray, step: Step) -> None:
        """Adds a block's output y (n, d) to the streams, which mix."""
        sizes, n = self.sizes, self.sizes.streams
        factors = self.shares(c, 1, step)
        factors *= np.float32(sizes.magnitude)
        if not sizes.rounds:
            factors += np.float32(sizes.epsilon)
            mix = np.tile(np.eye(n, dtype=np.float32).reshape(1, -1), (len(y), 1))
        else:
            mix = np.ascontiguousarray(c[:, 2 * n :])
            self.kernels.vector.balance(mix, n, sizes.epsilon, sizes.rounds, step.n_threads)
            mix = np.ascontiguousarray(mix.reshape(len(y), n, n).transpose(0, 2, 1)).reshape(len(y), -1)
        self.kernels.vector.mix_streams(streams, n, mix, streams, step.n_threads, y, factors)


class Streams:
    """How the streams begin, as copies of the embeddings, and end: as a weighted sum, or as their mean."""

    begin_with: tuple[Linear, ...] = ()

    def __init__(self, spec: Spec, weights: Weights) -> None:
        assert spec.connections is not None
        self.n: int = spec.connections.streams
        self.kernels: Kernels = weights.kernels
        has_head = spec.connections.has_head and spec.is_last
        self.head: Connection | None = Connection(spec, weights, "output_hc", 1) if has_head else None

    @property
    def end_with(self) -> list[Linear]:
        """The matrix of the end, if it has one."""
        return [self.head.matrix] if self.head else []

    def linears(self) -> list[Linear]:
        return self.end_with

    def begin(self, x: np.ndarray, step: Step) -> None:
        """Makes the streams of the embeddings x (n, d)."""
        n, d = x.shape
        streams_of(step, n, self.n * d).reshape(n, self.n, d)[:] = x[:, None]

    def end(self, x: np.ndarray, step: Step) -> None:
        """x (n, d) = the streams' sum."""
        n, d = x.shape
        streams = streams_of(step, n, self.n * d)
        if self.head is not None:
            self.head.read(streams, x, step)
            return
        weights = np.full((n, self.n), 1 / self.n, np.float32)
        self.kernels.vector.mix_streams(streams, self.n, weights, x, step.n_threads)


class ConnectedLayer(WrappedLayer):
    """A layer over streams: the blocks and norms of an ordinary one."""

    def __init__(self, spec: Spec, i: int, weights: Weights, layer: Any) -> None:
        super().__init__(layer)
        assert spec.connections is not None
        parts = 3 if spec.connections.rounds else 2
        self.n: int = spec.connections.streams
        self.connections: list[Connection] = [
            Connection(spec, weights, f"blk.{i}.{name}", parts) for name in ("hc_attn", "hc_ffn")
        ]

    def own_linears(self) -> list[Linear]:
        return [each.matrix for each in self.connections]

    def run(self, x: np.ndarray, step: Step) -> None:
        """Applies the layer to the streams; x (n, d) is overwritten."""
        n, d = x.shape
        layer, streams, h = self.layer, streams_of(step, n, self.n * d), step.work.rows["h", n, d]
        norms = layer.attn_norm, layer.ffn_norm
        for connection, norm, block in zip(self.connections, norms, self.blocks()):
            c = connection.read(streams, h, step)
            block.run(norm.apply(h, h, step.n_threads), x, step, False)
            connection.write(streams, c, x, step)

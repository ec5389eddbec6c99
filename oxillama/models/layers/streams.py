"""Four streams of hidden states, of which one goes through the blocks (AltUp: Baykal et al., 2023; Gemma 3n).

A layer predicts all streams from all, runs its blocks on the first, and corrects each by what became of that.
The first stream is the model's hidden state x (n, d); the others are in the buffer "streams" (n, 3 d).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.layers.norm import Norm, load_norm
from oxillama.models.layers.wrapped import WrappedLayer
from oxillama.models.spec import Spec
from oxillama.models.weights.grouped import grouped_linear
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step

STREAMS = 4


def others(step: Step, n: int, d: int) -> np.ndarray:
    """float32 (n, 3, d): all streams but the first."""
    return step.work.rows["streams", n, (STREAMS - 1) * d].reshape(n, STREAMS - 1, d)


def lengths(x: np.ndarray) -> np.ndarray:
    """float32 (n, 1): lengths of the rows of x (n, d), summed one by one, for the same bits everywhere."""
    return np.sqrt(np.cumsum(x.astype(np.float64) ** 2, axis=1)[:, -1:]).astype(np.float32)


class Streams:
    """How the streams begin, with projections of the embeddings, and end, as the mean of projections.

    A projection is scaled to the length of the first stream's row.
    """

    def __init__(self, spec: Spec, weights: Weights) -> None:
        d, n = spec.n_embd, STREAMS - 1
        self.begin_with: list[Linear] = grouped_linear(weights, [("altup_proj", d)], d, n).members
        self.end_with: list[Linear] = grouped_linear(weights, [("altup_unembd_proj", d)], d, n).members
        self.n_embd = d

    def linears(self) -> list[Linear]:
        return [*self.begin_with, *self.end_with]

    def begin(self, x: np.ndarray, step: Step) -> None:
        """Makes the other streams of the embeddings x (n, d)."""
        streams = others(step, *x.shape)
        for i, matrix in enumerate(self.begin_with):
            streams[:, i] = self._projected(matrix, x, lengths(x), step)

    def end(self, x: np.ndarray, step: Step) -> None:
        """x (n, d) = the mean of it and the projections of the other streams."""
        streams, row = others(step, *x.shape), step.work.rows.like("stream", x)
        target = lengths(x)
        for i, matrix in enumerate(self.end_with):
            row[:] = streams[:, i]
            x += self._projected(matrix, row, target, step)
        x *= np.float32(1 / STREAMS)

    def _projected(self, matrix: Linear, x: np.ndarray, target: np.ndarray, step: Step) -> np.ndarray:
        """float32 (n, d): rows of matrix x, scaled to the lengths ``target`` (n, 1)."""
        y = step.work.rows.like("projected", x)
        matrix.apply(x, y, step)
        found = lengths(y)
        y *= np.where(found > 0, target / np.where(found > 0, found, 1), 0)
        return y


class StreamedLayer(WrappedLayer):
    """A layer over streams: the blocks of an ordinary one, and a low-rank map beside attention (Laurel)."""

    def __init__(self, spec: Spec, i: int, weights: Weights, layer: Any) -> None:
        super().__init__(layer)
        block, d, n = f"blk.{i}", spec.n_embd, STREAMS
        self.kernels: Kernels = weights.kernels
        self.router_norm: Norm = load_norm(spec, weights, f"{block}.altup_router_norm")
        self.router: Linear = weights.linear([(f"{block}.altup_router", n)], d)
        self.predict: Linear = weights.linear([(f"{block}.altup_predict_coef", n * n)], n)
        self.correct: Linear = weights.linear([(f"{block}.altup_correct_coef", n)], n)
        self.correct_scale: np.ndarray = weights.vector(f"{block}.altup_correct_scale.weight", d)
        rank = (*weights.shape(f"{block}.laurel_l.weight"), 0, 0)[1]
        self.down: Linear = weights.linear([(f"{block}.laurel_l", rank)], d)
        self.up: Linear = weights.linear([(f"{block}.laurel_r", d)], rank)
        self.laurel_norm: Norm = load_norm(spec, weights, f"{block}.laurel_post_norm")

    def own_linears(self) -> list[Linear]:
        return [self.router, self.predict, self.down, self.up, self.correct]

    def run(self, x: np.ndarray, step: Step) -> None:
        """Applies the layer to the streams: x (n, d), in place, and the others."""
        n, d, work, layer, n_threads = *x.shape, step.work, self.layer, step.n_threads
        streams = others(step, n, d)
        c = work.rows["coefficients", n, STREAMS * STREAMS]
        self.predict.apply(self._modes(x, step), c, step)
        predicted = work.rows["predicted", n, STREAMS * d].reshape(n, STREAMS, d)
        parts = [x, *(streams[:, i] for i in range(STREAMS - 1))]
        for o, part in enumerate(parts):
            total = c[:, STREAMS * o : STREAMS * o + 1] * x
            for i, other in enumerate(parts[1:], 1):
                total += c[:, STREAMS * o + i : STREAMS * o + i + 1] * other
            predicted[:, o] = part + total
        x[:] = predicted[:, 0]
        self._run_blocks(x, step)
        c = work.rows["coefficients", n, STREAMS]
        self.correct.apply(self._modes(x, step), c, step)
        change = x - predicted[:, 0]
        x[:] = predicted[:, 0] + (1 + c[:, :1]) * change
        for i in range(1, STREAMS):
            streams[:, i - 1] = predicted[:, i] + (1 + c[:, i : i + 1]) * change
        h, y = work.rows["h", n, d], work.rows["y", n, d]
        np.multiply(x, self.correct_scale, out=h)
        layer.layer_input.run(h, y, step, False)
        layer.layer_input_norm.apply(y, y, n_threads)
        streams += y[:, None]

    def _modes(self, x: np.ndarray, step: Step) -> np.ndarray:
        """float32 (n, 4): tanh(W norm(x) / d)."""
        n, d = x.shape
        h = self.router_norm.apply(x, step.work.rows["h", n, d], step.n_threads)
        h *= np.float32(1 / d)
        modes = step.work.rows["modes", n, STREAMS]
        self.router.apply(h, modes, step)
        self.kernels.vector.activate(modes, "tanh", modes, step.n_threads)
        return modes

    def _run_blocks(self, x: np.ndarray, step: Step) -> None:
        """x (n, d) = the layer's two blocks and the low-rank map, applied to x."""
        n, d, work, layer, n_threads = *x.shape, step.work, self.layer, step.n_threads
        h, y = layer.attn_norm.apply(x, work.rows["h", n, d], n_threads), work.rows["y", n, d]
        low, laurel = work.rows["low", n, self.down.rows], work.rows["laurel", n, d]
        self.down.apply(h, low, step)
        self.up.apply(low, laurel, step)
        self.laurel_norm.apply(laurel, laurel, n_threads)
        laurel += h
        layer.mixer.run(h, y, step, False)
        layer.attn_post_norm.add(y, x, n_threads)
        x += laurel
        x *= np.float32(math.sqrt(0.5))
        h = layer.ffn_norm.apply(x, h, n_threads)
        layer.feed_forward.run(h, y, step, False)
        layer.ffn_post_norm.add(y, x, n_threads)

"""A conformer (Gulati et al., 2020) with attention to the last positions, as in Gemma's encoder of sounds."""

from __future__ import annotations

import math

import numpy as np

from oxillama.models.layers.norm import Norm
from oxillama.models.media.blocks import Matrix, Steps, Tools, normed
from oxillama.models.media.facts import AudioFacts
from oxillama.models.media.positions import angles
from oxillama.models.media.spectrum import conformer_frames, conformer_lengths, conformer_pieces
from oxillama.models.rope import log_of, rope_powers

EPS = 1e-6
REACH = 12
"""Positions that a row sees, its own included."""

CAP = 50.0
"""Of the scores."""

TAPS = 5
"""Of the convolution over time."""


class Conformer:
    """Two convolutions over time and frequency, then blocks.

    Attributes:
        width: of its rows.
    """

    def __init__(self, tools: Tools, facts: AudioFacts) -> None:
        self.tools: Tools = tools
        self.n_mels: int = facts.n_mels
        self.convolutions = []
        channels = 1
        for i in (0, 1):
            name = f"a.conv1d.{i}"
            n = (*tools.weights.shape(f"{name}.weight"), 0, 0, 0, 0)[3]
            kernel = tools.unrolled(f"{name}.weight", (3, 3, channels, n))
            self.convolutions.append((kernel, tools.norm(f"{name}.norm", n, "layer", EPS)))
            channels = n
        bins = _halved(_halved(facts.n_mels))
        self.input: Matrix = tools.matrix("a.input_projection", channels * bins, facts.width)
        self.blocks: list[ConformerBlock] = [
            ConformerBlock(tools, facts, f"a.blk.{i}") for i in range(facts.n_blocks)
        ]
        self.output: Matrix = tools.matrix("a.pre_encode.out", facts.width)
        self.width: int = self.output.rows

    def pieces(self, samples: np.ndarray) -> list[np.ndarray]:
        """Spectrograms, float32 (frames, n_mels), of a sound float32 (n,) at 16,000 samples per second."""
        return conformer_pieces(samples, self.n_mels)

    def rows_of(self, n_samples: int) -> list[int]:
        """As `audio.Encoder.rows_of`."""
        return [_halved(_halved(conformer_frames(n))) for n in conformer_lengths(n_samples)]

    def steps(self, mel: np.ndarray) -> Steps[np.ndarray]:
        """float32 (frames / 4, width) of float32 (frames, n_mels)."""
        x = mel[:, :, None]
        for kernel, norm in self.convolutions:
            windows = unrolled_squares(x)
            rows = normed(norm, kernel(windows.reshape(-1, windows.shape[-1])), self.tools.n_threads)
            x = self.tools.activate(rows, "relu").reshape(*windows.shape[:2], -1)
        x = self.input(x.reshape(len(x), -1))
        for block in self.blocks:
            yield
            x = block.run(x)
        return self.output(x)


def _halved(n: int) -> int:
    """Values that a convolution of 3 with steps of 2 makes of n."""
    return (n - 1) // 2 + 1


def unrolled_squares(x: np.ndarray) -> np.ndarray:
    """float32 (t / 2, m / 2, channels * 9): the neighbours of every second value of x (t, m, channels)."""
    t, m, channels = x.shape
    padded = np.zeros((t + 3, m + 3, channels), np.float32)
    padded[1 : t + 1, 1 : m + 1] = x
    parts = [
        padded[i : i + 2 * _halved(t) : 2, j : j + 2 * _halved(m) : 2] for i in range(3) for j in range(3)
    ]
    windows = np.stack(parts, axis=3)
    return windows.reshape(*windows.shape[:2], channels * 9)


class ConformerBlock:
    """Half a feed-forward block, attention, a convolution over time, the other half, and a norm."""

    def __init__(self, tools: Tools, facts: AudioFacts, block: str) -> None:
        self.tools: Tools = tools
        width = facts.width
        self.first: HalfFeedForward = HalfFeedForward(tools, facts, block, "")
        self.attention: RecentAttention = RecentAttention(tools, facts, block)
        self.convolution: Convolution = Convolution(tools, facts, block)
        self.second: HalfFeedForward = HalfFeedForward(tools, facts, block, "_1")
        self.norm: Norm = tools.norm(f"{block}.ln2", width, "rms", EPS)

    def run(self, x: np.ndarray) -> np.ndarray:
        """float32 (n, width) of float32 (n, width)."""
        x = x + self.first.run(x)
        x = x + self.attention.run(x)
        x = x + self.convolution.run(x)
        x = x + self.second.run(x)
        return normed(self.norm, x, self.tools.n_threads)


class HalfFeedForward:
    """0.5 norm(down(silu(up(norm x))))."""

    def __init__(self, tools: Tools, facts: AudioFacts, block: str, ending: str) -> None:
        self.tools = tools
        self.norm: Norm = tools.norm(f"{block}.ffn_norm{ending}", facts.width, "rms", EPS)
        self.up: Matrix = tools.matrix(f"{block}.ffn_up{ending}", facts.width, facts.n_ff)
        self.down: Matrix = tools.matrix(f"{block}.ffn_down{ending}", facts.n_ff, facts.width)
        self.post_norm: Norm = tools.norm(f"{block}.ffn_post_norm{ending}", facts.width, "rms", EPS)

    def run(self, x: np.ndarray) -> np.ndarray:
        up = self.tools.activate(self.up(normed(self.norm, x, self.tools.n_threads)), "silu")
        half: np.ndarray = np.float32(0.5) * normed(self.post_norm, self.down(up), self.tools.n_threads)
        return half


class Convolution:
    """A gate, a causal convolution of each channel over time, a norm and an activation."""

    def __init__(self, tools: Tools, facts: AudioFacts, block: str) -> None:
        self.tools: Tools = tools
        width = facts.width
        self.norm: Norm = tools.norm(f"{block}.conv_norm", width, "rms", EPS)
        self.first: Matrix = tools.matrix(f"{block}.conv_pw1", width, 2 * width)
        self.kernel: np.ndarray = tools.weights.matrix(f"{block}.conv_dw.weight", width, TAPS)
        self.post_norm: Norm = tools.norm(f"{block}.norm_conv", width, "rms", EPS)
        self.last: Matrix = tools.matrix(f"{block}.conv_pw2", width, width)

    def run(self, x: np.ndarray) -> np.ndarray:
        """float32 (n, width) of float32 (n, width)."""
        both = self.first(normed(self.norm, x, self.tools.n_threads))
        half = both.shape[1] // 2
        gates = self.tools.activate(np.ascontiguousarray(both[:, half:]), "sigmoid")
        padded = np.concatenate([np.zeros((TAPS - 1, half), np.float32), both[:, :half] * gates])
        total = np.zeros((len(x), half), np.float32)
        for k in range(TAPS):
            total += padded[k : k + len(x)] * self.kernel[:, k]
        total = self.tools.activate(normed(self.post_norm, total, self.tools.n_threads), "silu")
        return self.last(total)


class RecentAttention:
    """Attention to the last positions, with keys of distances and capped scores.

    The score of a query and a key at distance t is q k + q r_t, with r_t a projection of sines and cosines of
    t. There are few distances, so that sums go over arrays of (distances, rows, heads), in order of columns.
    """

    def __init__(self, tools: Tools, facts: AudioFacts, block: str) -> None:
        self.tools: Tools = tools
        self.heads: int = facts.n_heads
        self.dim: int = facts.head_dim
        width, inner = facts.width, facts.n_heads * facts.head_dim
        self.norm: Norm = tools.norm(f"{block}.attn_pre_norm", width, "rms", EPS)
        self.q, self.k, self.v = (tools.matrix(f"{block}.attn_{name}", width, inner) for name in "qkv")
        self.out: Matrix = tools.matrix(f"{block}.attn_out", inner, width)
        self.post_norm: Norm = tools.norm(f"{block}.attn_post_norm", width, "rms", EPS)
        columns = tools.weights.vector(f"{block}.per_dim_scale.weight", self.dim)
        self.q_scale = columns * np.float32(1 / (math.sqrt(self.dim) * log_of(2)))
        self.k_scale = np.float32(log_of(1 + math.e) / log_of(2))
        self.distances: Matrix = tools.matrix(f"{block}.attn_k_rel", width, inner)
        self.places: np.ndarray = self._places(width)

    def _places(self, width: int) -> np.ndarray:
        """float32 (REACH, width): sines, then cosines, of the distances."""
        half = width // 2
        # exp(-i ln(10000) / (half - 1)) = 10000^(-2 i / (2 half - 2))
        powers = np.append(rope_powers(2 * half - 2, 10000.0), 1e-4) if half > 1 else np.ones(1)
        table = angles(self.tools.weights.kernels, np.arange(REACH, dtype=np.int32), powers)
        return np.concatenate([table[:, 1], table[:, 0]], axis=1)

    def run(self, x: np.ndarray) -> np.ndarray:
        """float32 (n, width) of float32 (n, width)."""
        n, shape = len(x), (len(x), self.heads, self.dim)
        h = normed(self.norm, x, self.tools.n_threads)
        q, k, v = (matrix(h).reshape(shape) for matrix in (self.q, self.k, self.v))
        keys = earlier(k * self.k_scale)
        keys += self.distances(self.places).reshape(REACH, 1, self.heads, self.dim)
        shares = self._shares(self._scores(q * self.q_scale, keys))
        attended = np.zeros(shape, np.float32)
        for share, values in zip(shares, earlier(v), strict=True):
            attended += share[:, :, None] * values
        return normed(self.post_norm, self.out(attended.reshape(n, -1)), self.tools.n_threads)

    def _scores(self, q: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """float32 (REACH, n, heads): capped products."""
        scores = np.zeros(keys.shape[:3], np.float32)
        for j in range(self.dim):
            scores += q[None, :, :, j] * keys[..., j]
        self.tools.weights.kernels.vector.soft_cap(scores, CAP, self.tools.n_threads)
        return scores

    def _shares(self, scores: np.ndarray) -> np.ndarray:
        """The softmax over the distances, float32 (REACH, n, heads); 0 before the first row."""
        seen = np.arange(scores.shape[1])[None, :, None] >= np.arange(REACH)[:, None, None]
        most = np.where(seen, scores, -np.inf).max(axis=0)
        powers = self.tools.activate(scores - most, "exp")
        powers = np.where(seen, powers, np.float32(0))
        total = np.zeros(scores.shape[1:], np.float32)
        for power in powers:  # in order
            total += power
        return powers / total


def earlier(x: np.ndarray) -> np.ndarray:
    """float32 (REACH, n, ...): the rows of x (n, ...) at each distance before a row, zeros where none is."""
    found = np.zeros((REACH, *x.shape), np.float32)
    for t in range(min(REACH, len(x))):
        found[t, t:] = x[: len(x) - t]
    return found

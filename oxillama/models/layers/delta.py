"""Mixers with the gated delta rule: Qwen3-Next and Qwen 3.5's, and Kimi's delta attention.

A head's state is a matrix S, key channels by value channels. A token with key k, value v, query q, strength
beta and decay g first decays it, then corrects what it holds for k, then reads it for q:

    S = g S;  S = S + k (beta (v - S^T k))^T;  o = S^T q / sqrt(d).

q, k and v are outputs of a short causal convolution and SiLU; q and k have length 1.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from oxillama.models.layers.head_norm import HeadNorm, load_head_norm
from oxillama.models.layers.recurrent import RecurrentBlock, padded
from oxillama.models.layers.ssm import CausalConv1d, load_causal_conv1d
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step


class DeltaRule:
    """The part between the projections: convolution, lengths, recurrence, the norm of the heads' outputs.

    Args:
        block: prefix of the layer's tensor names.
        conv: of q, k and v.
        a: float32 (decays,), below 0: one for each head, or one for each key channel of each head.
    """

    def __init__(self, spec: Spec, block: str, weights: Weights, conv: CausalConv1d, a: np.ndarray) -> None:
        sizes, kernels, eps = spec.recurrent, weights.kernels, spec.norm_eps
        assert sizes is not None
        keys, heads, dim = sizes.groups, sizes.heads, sizes.n  # heads of q and k, heads of v, channels
        self.kernels = kernels
        self.heads = heads
        self.interleaved: bool = sizes.interleaved
        self.conv = conv
        self.a = a
        self.least: np.float32 = np.float32(sizes.least_decay)
        self.dt_bias: np.ndarray = weights.vector(f"{block}.ssm_dt.bias", len(a))
        self.inner: int = heads * dim
        self.channels: int = (2 * keys + heads) * dim
        # x / sqrt(sum(x^2) + eps), and 1 / sqrt(dim) more for q, as norms by the mean of squares
        lengths = np.repeat(np.array([1 / dim, dim**-0.5], np.float32), keys * dim).reshape(-1, dim)
        self.lengths: HeadNorm = HeadNorm(
            kernels, False, (sizes.unit_eps or eps) / dim, 2 * keys, dim, lengths
        )
        self.norm: HeadNorm = load_head_norm(spec, weights, f"{block}.ssm_norm.weight", heads, dim)
        self.state_floats: Any = conv.floats + heads * padded(dim) * dim
        self.record_floats: Any = conv.record_floats + (keys + heads) * dim + heads + len(a)

    def run(
        self, block: RecurrentBlock, x: np.ndarray, steps: np.ndarray, beta: np.ndarray, step: Step
    ) -> np.ndarray:
        """The heads' outputs, normed.

        Args:
            block: the layer whose state and record are used.
            x: float32 (n, width), the projections of q, k and v first.
            steps: float32 (n, decays); a decay is exp(softplus(steps + dt_bias) * a), or, with a least
                logarithm, exp(least * sigmoid((steps + dt_bias) * |a|)).
            beta: float32 (n, heads), before its sigmoid; overwritten.

        Returns:
            float32 (n, heads * dim): a buffer.
        """
        n, work, n_threads, decays = len(x), step.work, step.n_threads, len(self.a)
        qkv, y = work.rows["ssm_x", n, self.channels], work.rows["ssm_y", n, self.inner]
        dt, decay = work.rows["ssm_dt", n, decays], work.rows["ssm_decay", n, decays]
        self.conv.run(block, x, 0, True, qkv, step)
        self.lengths.apply(qkv, n_threads)
        if self.least:
            np.add(steps, self.dt_bias, out=decay)
            decay *= self.a
            self.kernels.vector.activate(decay, "sigmoid", decay, n_threads)
            decay *= self.least
            self.kernels.vector.activate(decay, "exp", decay, n_threads)
        else:
            self.kernels.recurrent.head_steps(steps, 0, self.dt_bias, self.a, dt, decay, n_threads)
        self.kernels.vector.activate(beta, "sigmoid", beta, n_threads)
        at, record = block.offset + self.conv.floats, block.record + self.conv.record_floats
        args = step.recurrent, at, record, self.heads, self.interleaved, qkv, decay, beta, y
        self.kernels.delta.delta_scan(*args, n_threads)
        self.norm.apply(y, n_threads)
        return y


class GatedDelta(RecurrentBlock):
    """Gated delta net (Yang et al., "Gated Delta Networks", 2024): one decay for each head.

    The normed outputs are multiplied by SiLU(z), or by sigmoid(z). beta, the decay's step and z are
    projections of the input. Older files have q, k, v and z of each head of keys side by side, and beta
    beside the step.
    """

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        sizes, block, d = spec.recurrent, f"blk.{i}", spec.n_embd
        assert sizes is not None
        keys, heads, dim, inner = sizes.groups, sizes.heads, sizes.n, sizes.inner
        channels = (2 * keys + heads) * dim
        self.keys: int = keys
        self.dim: int = dim
        self.by_key: bool = weights.has(f"{block}.ssm_in.weight")
        names = [(f"{block}.attn_qkv", channels), (f"{block}.attn_gate", inner)]
        if self.by_key:
            names = [(f"{block}.ssm_in", channels + inner)]
        if weights.has(f"{block}.ssm_ba.weight"):
            names.append((f"{block}.ssm_ba", 2 * heads))
            columns = np.arange(2 * heads).reshape(keys, 2, -1).transpose(1, 0, 2).reshape(2, -1)
        else:
            names += [(f"{block}.ssm_beta", heads), (f"{block}.ssm_alpha", heads)]
            columns = np.arange(2 * heads).reshape(2, -1)
        self.betas: np.ndarray
        self.alphas: np.ndarray
        self.betas, self.alphas = channels + inner + columns
        self.first: Linear = weights.linear(names, d)
        conv = load_causal_conv1d(weights, f"{block}.ssm_conv1d", channels, sizes.taps, "no")
        self.rule: DeltaRule = DeltaRule(spec, block, weights, conv, weights.vector(f"{block}.ssm_a", heads))
        self.ssm_out: Linear = weights.linear([(f"{block}.ssm_out", d)], inner)
        self.gate: str = sizes.gate
        self.state_floats: int = self.rule.state_floats
        self.record_floats: int = self.rule.record_floats

    def linears(self) -> list[Linear]:
        return [self.first, self.ssm_out]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        rule, work = self.rule, step.work
        x = work.rows["ssm_in", len(h), self.first.rows]
        self.first.apply(h, x, step)
        beta, steps = np.take(x, self.betas, axis=1), np.take(x, self.alphas, axis=1)
        if self.by_key:
            x = self._parted(x, step)
        y = rule.run(self, x, steps, beta, step)
        rule.kernels.vector.gate_heads(y, 1, x, rule.channels, 0, self.gate, step.n_threads)
        self.ssm_out.apply(y, out, step, accumulate)

    def _parted(self, x: np.ndarray, step: Step) -> np.ndarray:
        """(n, q + k + v + z) of rows that hold these parts for one head of keys after the other."""
        n, dim, shared = len(x), self.dim, self.rule.heads // self.keys * self.dim
        parts = step.work.rows["ssm_parts", n, self.rule.channels + self.rule.inner]
        given = x[:, : parts.shape[1]].reshape(n, self.keys, -1)
        begins = np.cumsum([0, dim, dim, shared, shared]).tolist()
        for first, last in pairwise(begins):
            columns = slice(self.keys * first, self.keys * last)
            parts[:, columns].reshape(n, self.keys, -1)[:] = given[:, :, first:last]
        return parts


class KimiDelta(RecurrentBlock):
    """Kimi's delta attention (Kimi Team, "Kimi Linear", 2025): a decay for each key channel of each head.

    The normed outputs are multiplied by sigmoid(W_g h). W_g and the matrix of the steps have low rank, or are
    whole, in the form of the file.
    """

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        sizes, block, d = spec.recurrent, f"blk.{i}", spec.n_embd
        assert sizes is not None
        heads, dim, inner = sizes.heads, sizes.n, sizes.inner
        names = [(f"{block}.attn_{part}", inner) for part in "qkv"]
        low: list[str] = []  # matrices that a projection of low rank goes through; "" for a whole one
        for part in "fg":
            has_low = weights.has(f"{block}.ssm_{part}_b.weight")
            whole = "" if weights.has(f"{block}.ssm_{part}.weight") else "_a"
            names.append((f"{block}.ssm_{part}{whole}", dim if has_low else inner))
            low.append(f"{block}.ssm_{part}_b" if has_low else "")
        self.columns: list[int] = [width for _, width in names[3:]]
        self.first: Linear = weights.linear([*names, (f"{block}.ssm_beta", heads)], d)
        self.steps, self.gates = (weights.linear([(name, inner)], dim) if name else None for name in low)
        shape = (sizes.taps, 1, inner, 1)
        taps = [weights.array(f"{block}.ssm_conv1d_{part}.weight", shape) for part in "qkv"]
        conv = CausalConv1d(weights.kernels, np.concatenate([weight.reshape(inner, -1) for weight in taps]))
        flat = weights.shape(f"{block}.ssm_a") == (heads,)
        a = weights.array(f"{block}.ssm_a", (heads,) if flat else (1, heads, 1, 1)).reshape(heads)
        a = np.abs(a) if sizes.least_decay else a
        self.rule: DeltaRule = DeltaRule(spec, block, weights, conv, np.repeat(a, dim))
        self.attn_output: Linear = weights.linear([(f"{block}.attn_output", d)], inner)
        self.state_floats: int = self.rule.state_floats
        self.record_floats: int = self.rule.record_floats

    def linears(self) -> list[Linear]:
        wide = [each for each in (self.steps, self.gates) if each is not None]
        return [self.first, *wide, self.attn_output]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        rule, work, n = self.rule, step.work, len(h)
        x, wide = work.rows["ssm_in", n, self.first.rows], work.rows["ssm_steps", n, rule.inner]
        self.first.apply(h, x, step)
        low, gate, beta = np.split(x[:, rule.channels :], np.cumsum(self.columns), axis=1)
        self._widen(self.steps, low, wide, step)
        y = rule.run(self, x, wide, np.ascontiguousarray(beta), step)
        self._widen(self.gates, gate, wide, step)
        rule.kernels.vector.gate_heads(y, 1, wide, 0, 0, "sigmoid", step.n_threads)
        self.attn_output.apply(y, out, step, accumulate)

    def _widen(self, matrix: Linear | None, low: np.ndarray, out: np.ndarray, step: Step) -> None:
        """out (n, inner) = the matrix times low (n, rank), or low itself."""
        if matrix is None:
            out[:] = low
        else:
            matrix.apply(np.ascontiguousarray(low), out, step)

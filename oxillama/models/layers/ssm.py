"""State-space mixers: Mamba, Mamba-2 and LFM2's short convolution."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.layers.attention import Attention
from oxillama.models.layers.head_norm import HeadNorm, load_head_norm
from oxillama.models.layers.recurrent import RecurrentBlock, in_blocks, padded
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step


class CausalConv1d:
    """Causal convolution of each channel. Its state is the last taps - 1 inputs, its record is one input.

    Args:
        kernels: the target that computes.
        weight: float32 (channels, taps), the newest tap last.
        bias: float32 (channels,), or None.
    """

    def __init__(self, kernels: Kernels, weight: np.ndarray, bias: np.ndarray | None = None) -> None:
        self.kernels = kernels
        self.weight: np.ndarray = np.ascontiguousarray(weight.T)
        self.bias = bias
        channels, taps = weight.shape
        self.floats: Any = (taps - 1) * channels
        self.record_floats = channels

    def run(
        self, block: RecurrentBlock, x: np.ndarray, column: int, silu: bool, out: np.ndarray, step: Step
    ) -> None:
        """out (n, channels) of x (n, width) from ``column`` on; first in the block's state and record."""
        args = block.offset, block.record, x, column, self.weight, self.bias, silu, out
        self.kernels.recurrent.causal_conv1d(step.recurrent, *args, step.n_threads)


def load_causal_conv1d(weights: Weights, name: str, channels: int, taps: int, bias: str) -> CausalConv1d:
    """The convolution called ``name``. ``bias`` says whether it has one: "yes", "no", or "auto"."""
    has_bias = bias == "yes" or (bias == "auto" and weights.has(f"{name}.bias"))
    weight = weights.array(f"{name}.weight", (taps, channels))
    added = weights.vector(f"{name}.bias", channels) if has_bias else None
    return CausalConv1d(weights.kernels, weight, added)


class Mamba(RecurrentBlock):
    """Selective state space (Gu and Dao, "Mamba", 2023); in Jamba with norms of dt, B and C."""

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        sizes, block, d = spec.recurrent, f"blk.{i}", spec.n_embd
        assert sizes is not None
        inner, rank, n = sizes.inner, sizes.heads, sizes.n
        self.inner: int = inner
        self.rank: int = rank
        self.n: int = n
        self.kernels: Kernels = weights.kernels
        self.conv: CausalConv1d = load_causal_conv1d(weights, f"{block}.ssm_conv1d", inner, sizes.taps, "yes")
        self.a: np.ndarray = in_blocks(weights.array(f"{block}.ssm_a", (n, inner)))
        self.d: np.ndarray = weights.vector(f"{block}.ssm_d", inner)
        weights.vector(f"{block}.ssm_dt.bias", inner)  # required; `linear` below loads it as optional
        self.ssm_in: Linear = weights.linear([(f"{block}.ssm_in", 2 * inner)], d)
        self.ssm_x: Linear = weights.linear([(f"{block}.ssm_x", rank + 2 * n)], inner)
        self.ssm_dt: Linear = weights.linear([(f"{block}.ssm_dt", inner)], rank)
        self.ssm_out: Linear = weights.linear([(f"{block}.ssm_out", d)], inner)
        self.norms: list[Any] = []
        if sizes.norms:
            for name, width, column in (("dt", rank, 0), ("b", n, rank), ("c", n, rank + n)):
                full = f"{block}.ssm_{name}_norm.weight"
                weight = weights.vector(full, width) if sizes.norms == "learned" else None
                norm = HeadNorm(self.kernels, False, spec.norm_eps, 1, width, weight, None, column)
                self.norms.append(norm)
        self.state_floats: int = self.conv.floats + padded(inner) * n
        self.record_floats: int = self.conv.record_floats + 2 * inner + n

    def linears(self) -> list[Linear]:
        return [self.ssm_in, self.ssm_x, self.ssm_dt, self.ssm_out]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        n, work, n_threads = len(h), step.work, step.n_threads
        inner, rank = self.inner, self.rank
        xz, x = work.rows["ssm_in", n, 2 * inner], work.rows["ssm_x", n, inner]
        self.ssm_in.apply(h, xz, step)
        self.conv.run(self, xz, 0, True, x, step)
        dbc = work.rows["ssm_dbc", n, rank + 2 * self.n]
        self.ssm_x.apply(x, dbc, step)
        for norm in self.norms:
            norm.apply(dbc, n_threads)
        low, dt, y = (
            work.rows["ssm_low", n, rank],
            work.rows["ssm_dt", n, inner],
            work.rows["ssm_y", n, inner],
        )
        low[:] = dbc[:, :rank]
        self.ssm_dt.apply(low, dt, step)
        at, record, b = self.offset + self.conv.floats, self.record + self.conv.record_floats, rank
        args = step.recurrent, at, record, x, dt, self.a, self.d, dbc, b, b + self.n, xz, inner, y
        self.kernels.recurrent.selective_scan(*args, n_threads)
        self.ssm_out.apply(y, out, step, accumulate)


class Mamba2(RecurrentBlock):
    """State space with one decay for each head (Dao and Gu, "Transformers are SSMs", 2024)."""

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        sizes, block, d = spec.recurrent, f"blk.{i}", spec.n_embd
        assert sizes is not None
        inner, heads, groups, n = sizes.inner, sizes.heads, sizes.groups, sizes.n
        self.inner: int = inner
        self.heads: int = heads
        self.groups: int = groups
        self.n: int = n
        self.channels: int = inner + 2 * groups * n
        self.kernels: Kernels = weights.kernels
        bias = "auto" if spec.family.mixer != spec.family.recurrent_mixer else "yes"
        self.conv: CausalConv1d = load_causal_conv1d(
            weights, f"{block}.ssm_conv1d", self.channels, sizes.taps, bias
        )
        self.dt_bias: np.ndarray = weights.vector(f"{block}.ssm_dt.bias", heads)
        self.a: np.ndarray = weights.array(f"{block}.ssm_a", (1, heads)).reshape(heads)
        self.d: np.ndarray = weights.array(f"{block}.ssm_d", (1, heads)).reshape(heads)
        self.norm: HeadNorm | None = self._load_norm(spec, block, weights)
        self.ssm_in: Linear = weights.linear([(f"{block}.ssm_in", inner + self.channels + heads)], d)
        self.ssm_out: Linear = weights.linear([(f"{block}.ssm_out", d)], inner)
        self.state_floats: int = self.conv.floats + heads * padded(inner // heads) * n
        self.record_floats: int = self.conv.record_floats + inner + groups * n + 2 * heads

    def _load_norm(self, spec: Spec, block: str, weights: Weights) -> HeadNorm | None:
        """The norm of each group's gated outputs."""
        width = self.inner // self.groups
        weight = weights.array(f"{block}.ssm_norm.weight", (width, self.groups)).reshape(self.groups, -1)
        return HeadNorm(self.kernels, False, spec.norm_eps, self.groups, width, weight)

    def linears(self) -> list[Linear]:
        return [self.ssm_in, self.ssm_out]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        n, work, n_threads = len(h), step.work, step.n_threads
        inner, heads = self.inner, self.heads
        zxbcdt, xbc = work.rows["ssm_in", n, self.ssm_in.rows], work.rows["ssm_x", n, self.channels]
        dt, decay = work.rows["ssm_dt", n, heads], work.rows["ssm_decay", n, heads]
        y = work.rows["ssm_y", n, inner]
        self.ssm_in.apply(h, zxbcdt, step)
        self.conv.run(self, zxbcdt, inner, True, xbc, step)
        kernel = self.kernels.recurrent
        kernel.head_steps(zxbcdt, inner + self.channels, self.dt_bias, self.a, dt, decay, n_threads)
        at, record = self.offset + self.conv.floats, self.record + self.conv.record_floats
        args = step.recurrent, at, record, heads, self.groups, self.n, xbc, dt, decay, self.d, zxbcdt, 0, y
        kernel.head_scan(*args, n_threads)
        if self.norm is not None:
            self.norm.apply(y, n_threads)
        self.ssm_out.apply(y, out, step, accumulate)


class AttentionBesideMamba2(Mamba2):
    """The sum of attention and Mamba-2 for the same input (Falcon-LLM Team, "Falcon-H1", 2025)."""

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        super().__init__(spec, i, weights)
        self.attention: Attention = Attention(spec, i, weights)

    def _load_norm(self, spec: Spec, block: str, weights: Weights) -> HeadNorm | None:
        """The norm, or None if the file has no weights for the norm."""
        there = weights.has(f"{block}.ssm_norm.weight")
        return super()._load_norm(spec, block, weights) if there else None

    def linears(self) -> list[Linear]:
        return [*self.attention.linears(), *super().linears()]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        self.attention.run(h, out, step, accumulate)
        super().run(h, out, step, True)


class PlamoMamba(RecurrentBlock):
    """PLaMo 2's state space (Preferred Networks, 2025): the scan of Mamba-2, whose steps, B and C come
    from the convolved input as in Mamba, and are normed. Gate and input are beside each other, head by head.
    """

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        sizes, block, d = spec.recurrent, f"blk.{i}", spec.n_embd
        assert sizes is not None
        inner, heads, n, rank = sizes.inner, sizes.heads, sizes.n, sizes.ranks["dt"]
        self.inner: int = inner
        self.heads: int = heads
        self.n: int = n
        self.rank: int = rank
        self.kernels: Kernels = weights.kernels
        self.conv: CausalConv1d = load_causal_conv1d(weights, f"{block}.ssm_conv1d", inner, sizes.taps, "no")
        weights.vector(f"{block}.ssm_dt.bias", heads)  # required; `linear` below loads it as optional
        self.no_bias: np.ndarray = np.zeros(heads, np.float32)
        self.a: np.ndarray = weights.vector(f"{block}.ssm_a", heads)
        self.d: np.ndarray = weights.vector(f"{block}.ssm_d", heads)
        self.ssm_in: Linear = weights.linear([(f"{block}.ssm_in", 2 * inner)], d)
        self.ssm_x: Linear = weights.linear([(f"{block}.ssm_x", 2 * n + rank)], inner)
        self.ssm_dt: Linear = weights.linear([(f"{block}.ssm_dt", heads)], rank)
        self.ssm_out: Linear = weights.linear([(f"{block}.ssm_out", d)], inner)
        self.norms: list[HeadNorm] = [
            load_head_norm(spec, weights, f"{block}.ssm_{name}_norm", 1, width, column)
            for name, width, column in (("b", n, 0), ("c", n, n), ("dt", rank, 2 * n))
        ]
        self.state_floats: int = self.conv.floats + heads * padded(inner // heads) * n
        self.record_floats: int = self.conv.record_floats + inner + n + 2 * heads

    def linears(self) -> list[Linear]:
        return [self.ssm_in, self.ssm_x, self.ssm_dt, self.ssm_out]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        rows, work, n_threads, kernel = len(h), step.work, step.n_threads, self.kernels.recurrent
        inner, heads, n = self.inner, self.heads, self.n
        zx, parts = work.rows["ssm_in", rows, 2 * inner], work.rows["ssm_parts", rows, 2 * inner]
        self.ssm_in.apply(h, zx, step)
        parts.reshape(rows, 2, heads, -1)[:] = zx.reshape(rows, heads, 2, -1).transpose(
            0, 2, 1, 3
        )  # z, then x
        x, y = work.rows["ssm_x", rows, inner], work.rows["ssm_y", rows, inner]
        self.conv.run(self, parts, inner, True, x, step)
        bcdt, xbc = work.rows["ssm_dbc", rows, self.ssm_x.rows], work.rows["ssm_xbc", rows, inner + 2 * n]
        self.ssm_x.apply(x, bcdt, step)
        for norm in self.norms:
            norm.apply(bcdt, n_threads)
        xbc[:, :inner], xbc[:, inner:] = x, bcdt[:, : 2 * n]
        low = work.rows["ssm_low", rows, heads]
        self.ssm_dt.apply(np.ascontiguousarray(bcdt[:, 2 * n :]), low, step)
        dt, decay = work.rows["ssm_dt", rows, heads], work.rows["ssm_decay", rows, heads]
        kernel.head_steps(low, 0, self.no_bias, self.a, dt, decay, n_threads)
        at, record = self.offset + self.conv.floats, self.record + self.conv.record_floats
        args = step.recurrent, at, record, heads, 1, n, xbc, dt, decay, self.d, parts, 0, y
        kernel.head_scan(*args, n_threads)
        self.ssm_out.apply(y, out, step, accumulate)


class ShortConv(RecurrentBlock):
    """LFM2's gated convolution over a few tokens: c * conv(b * x), with b, c and x from one matrix.

    The convolution is causal; in an encoder it is centred.
    """

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        block, d = f"blk.{i}.shortconv", spec.n_embd
        assert spec.recurrent is not None
        self.causal: bool = spec.causal
        self.conv: CausalConv1d = load_causal_conv1d(weights, f"{block}.conv", d, spec.recurrent.taps, "no")
        self.in_proj: Linear = weights.linear([(f"{block}.in_proj", 3 * d)], d)
        self.out_proj: Linear = weights.linear([(f"{block}.out_proj", d)], d)
        self.state_floats: int = self.conv.floats
        self.record_floats: int = self.conv.record_floats

    def linears(self) -> list[Linear]:
        return [self.in_proj, self.out_proj]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        n, d, work = len(h), self.out_proj.rows, step.work
        bcx, bx, y = work.rows["ssm_in", n, 3 * d], work.rows["ssm_x", n, d], work.rows["ssm_y", n, d]
        self.in_proj.apply(h, bcx, step)
        np.multiply(bcx[:, :d], bcx[:, 2 * d :], out=bx)
        if self.causal:
            self.conv.run(self, bx, 0, False, y, step)
        else:
            self._run_centred(bx, y, step)
        y *= bcx[:, d : 2 * d]
        self.out_proj.apply(y, out, step, accumulate)

    def _run_centred(self, x: np.ndarray, out: np.ndarray, step: Step) -> None:
        """out (n, d) = the centred convolution of x (n, d), whose sequences are complete."""
        taps, starts = self.conv.weight, step.batch.row_start
        reach = len(taps) // 2
        out[:] = 0
        for first, last in pairwise(starts.tolist()):
            wide = np.pad(x[first:last], ((reach, reach), (0, 0)))
            for shift, weight in enumerate(taps):
                out[first:last] += wide[shift : shift + last - first] * weight

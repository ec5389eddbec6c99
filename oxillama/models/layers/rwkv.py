"""RWKV's two blocks: a time mix, whose state is a matrix for each head, and a channel mix.

The input of both is a mix of each token with the token before it (token shift), channel by channel.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.layers.head_norm import HeadNorm
from oxillama.models.layers.recurrent import RecurrentBlock, padded
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step

GROUP_EPS = 64e-5
DECAY = -0.606531  # -e^-0.5


class LowRank:
    """second(activation(first x)) + bias; activation and bias are optional. The matrices are called ``name``
    with "1" and "2" behind it."""

    def __init__(
        self, weights: Weights, name: str, d: int, rank: int, activation: str, bias: np.ndarray | None = None
    ) -> None:
        self.kernels: Kernels = weights.kernels
        self.first: Linear = weights.linear([(f"{name}1", rank)], d)
        self.second: Linear = weights.linear([(f"{name}2", d)], rank)
        self.activation = activation
        self.bias = bias

    def run(self, x: np.ndarray, step: Step) -> np.ndarray:
        """float32 (n, second.rows) for x (n, first.cols)."""
        low = np.empty((len(x), self.first.rows), np.float32)
        out = np.empty((len(x), self.second.rows), np.float32)
        self.first.apply(x, low, step)
        if self.activation:
            self.kernels.vector.activate(low, self.activation, low, step.n_threads)
        self.second.apply(low, out, step)
        if self.bias is not None:
            out += self.bias
        return out


class TimeMix(RecurrentBlock):
    """The parts that versions 6 and 7 share.

    Attributes:
        recorded: inputs of the heads' matrices that a record holds, beside the token's.
    """

    recorded = 3

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        assert spec.recurrent is not None
        block, d = f"blk.{i}", spec.n_embd
        self.d: int = d
        self.heads: int = spec.recurrent.heads
        self.first: bool = i == 0
        self.kernels: Kernels = weights.kernels
        self.kv_heads: int = spec.recurrent.groups
        of_kv = self.kv_heads * (d // self.heads)
        self.matrices: dict[str, Linear] = {
            name: weights.linear([(f"{block}.time_mix_{name}", of_kv if name in ("key", "value") else d)], d)
            for name in ("receptance", "key", "value", "output")
        }
        names = [f"{block}.time_mix_ln.{part}" for part in ("weight", "bias")]
        self.norm: HeadNorm | None = None
        if spec.recurrent.norms != "auto" or all(map(weights.has, names)):
            weight, bias = (weights.vector(name, d).reshape(self.heads, -1) for name in names)
            self.norm = HeadNorm(self.kernels, True, GROUP_EPS, self.heads, d // self.heads, weight, bias)
        dim = d // self.heads
        self.state_floats: int = padded(d) + self.heads * padded(dim) * dim
        self.memory: int = padded(d)  # offset of the heads' matrices, after the last token
        self.record_floats: int = (1 + self.recorded) * d

    def linears(self) -> list[Linear]:
        return list(self.matrices.values())

    def project(self, name: str, x: np.ndarray, step: Step) -> np.ndarray:
        """float32 (n, d): x times one of the matrices; heads of fewer keys and values are repeated."""
        out = step.work.rows[name, len(x), self.matrices[name].rows]
        self.matrices[name].apply(np.ascontiguousarray(x), out, step)
        if out.shape[1] < self.d:
            by_head = out.reshape(len(x), self.kv_heads, -1)
            out = by_head.repeat(self.heads // self.kv_heads, axis=1).reshape(len(x), self.d)
        return out

    def activate(self, name: str, x: np.ndarray, step: Step) -> np.ndarray:
        self.kernels.vector.activate(x, name, x, step.n_threads)
        return x

    def shift(self, h: np.ndarray, step: Step) -> np.ndarray:
        """float32 (n, d): the previous row minus each row."""
        before = step.work.rows.like("shifted", h)
        self.kernels.recurrent.shift(step.recurrent, self.offset, self.record, h, before)
        before -= h
        return before


class TimeMix6(TimeMix):
    """Version 6: mix and decay depend on the token (Peng et al., "Eagle and Finch", 2024)."""

    has_bonus = True

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        super().__init__(spec, i, weights)
        assert spec.recurrent is not None
        block, d, heads = f"blk.{i}.time_mix", spec.n_embd, self.heads
        mix, decay = spec.recurrent.ranks["mix"], spec.recurrent.ranks["decay"]
        self.lerp_x: np.ndarray = weights.array(f"{block}_lerp_x.weight", (d, 1, 1)).reshape(d)
        fused = f"{block}_lerp_fused.weight"
        if weights.has(fused) or not weights.has(f"{block}_lerp_w.weight"):
            self.lerps: np.ndarray = weights.array(fused, (d, 1, 1, 5)).reshape(5, d)
        else:  # older files have a tensor for each
            parts = [weights.array(f"{block}_lerp_{c}.weight", (d, 1, 1)).reshape(d) for c in "wkvrg"]
            self.lerps = np.array(parts)
        self.w1: Linear = weights.linear([(f"{block}_w1", 5 * mix)], d)
        name = f"{block}_w2.weight"
        self.w2: list[Linear] = [weights.linear_from(name, part) for part in weights.array(name, (mix, d, 5))]
        bias = weights.vector(f"{block}_decay.weight", d)
        self.decay: LowRank = LowRank(weights, f"{block}_decay_w", d, decay, "tanh", bias)
        if self.has_bonus:
            self.u: np.ndarray = weights.array(f"{block}_first.weight", (d // heads, heads)).reshape(d)
        self.matrices["gate"] = weights.linear([(f"{block}_gate", d)], d)

    def linears(self) -> list[Linear]:
        return [*super().linears(), self.w1, *self.w2, self.decay.first, self.decay.second]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        work, n_threads = step.work, step.n_threads
        more = self.shift(h, step)
        low = np.empty((len(h), self.w1.rows), np.float32)
        self.w1.apply(h + more * self.lerp_x, low, step)
        parts = np.split(self.activate("tanh", low, step), 5, axis=1)

        def mixed(which: int) -> np.ndarray:
            share = work.rows.like("mixed", h)
            self.w2[which].apply(np.ascontiguousarray(parts[which]), share, step)
            share += self.lerps[which]
            share *= more
            share += h
            return share

        w = self.decay.run(mixed(0), step)
        w = self.activate("exp", -self.activate("exp", w, step), step)
        k, v = self.project("key", mixed(1), step), self.project("value", mixed(2), step)
        r, gate = self.project("receptance", mixed(3), step), self.project("gate", mixed(4), step)
        y = work.rows.like("wkv", h)
        self.attend(r, w, k, v, y, step)
        if self.norm is not None:
            self.norm.apply(y, n_threads)
        y *= self.activate("silu" if self.has_bonus else "sigmoid", gate, step)
        self.matrices["output"].apply(y, out, step, accumulate)

    def attend(
        self, r: np.ndarray, w: np.ndarray, k: np.ndarray, v: np.ndarray, y: np.ndarray, step: Step
    ) -> None:
        """y (n, d) of the heads' r, decays, keys and values, all (n, d)."""
        at, record = self.offset + self.memory, self.record + self.d
        args = step.recurrent, at, record, self.heads, r, w, k, v, y, step.n_threads
        self.kernels.recurrent.wkv(*args, u=self.u)


class GatedTimeMix6(TimeMix6):
    """Version 6 as linear attention in place of Qwen's ("QRWKV6", 2024): y = S r with the token's own key and
    value in S, keys times 1 - w, no norm of the heads, and sigmoid gates."""

    has_bonus = False
    recorded = 5

    def attend(
        self, r: np.ndarray, w: np.ndarray, k: np.ndarray, v: np.ndarray, y: np.ndarray, step: Step
    ) -> None:
        """See `TimeMix6.attend`. It is version 7's recurrence, which erases nothing here."""
        k = k * (np.float32(1) - w)
        r = r * np.float32(1 / math.sqrt(self.d // self.heads))
        at, record, none = self.offset + self.memory, self.record + self.d, np.zeros_like(r)
        args = step.recurrent, at, record, self.heads, r, w, k, v, y, step.n_threads
        self.kernels.recurrent.wkv(*args, a=none, b=none)


class TimeMix7(TimeMix):
    """Version 7: tokens also erase parts of the state (Peng et al., "RWKV-7 Goose", 2025).

    The first layer's values are mixed into the values of later layers.
    """

    recorded = 5

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        super().__init__(spec, i, weights)
        assert spec.recurrent is not None
        block, d, ranks = f"blk.{i}.time_mix", spec.n_embd, dict(spec.recurrent.ranks)
        if i == 0:  # the first layer has no earlier value to mix in, but files have its tensors
            ranks["v"] = ranks["a"]
        gated = bool(ranks["g"])
        if spec.recurrent.norms == "auto":
            gated = weights.has(f"{block}_g1.weight")
        name = f"{block}_lerp_fused.weight"
        rows = 6 if gated or (spec.recurrent.norms and weights.shape(name)[-1:] == (6,)) else 5
        self.lerps: np.ndarray = weights.array(name, (d, 1, 1, rows)).reshape(-1, d)
        made = {}
        for name in ("w", "a", "v"):
            if i == 0 and name == "v" and not weights.has(f"{block}_v1.weight"):
                continue
            bias = weights.vector(f"{block}_{name}0.weight", d)
            activation = "tanh" if name == "w" else ""
            made[name] = LowRank(weights, f"{block}_{name}", d, ranks[name], activation, bias)
        if gated:
            made["g"] = LowRank(weights, f"{block}_g", d, ranks["g"], "sigmoid")
        self.low: dict[str, LowRank] = made
        self.k_k, self.k_a = (weights.vector(f"{block}_{name}.weight", d) for name in ("k_k", "k_a"))
        self.r_k: np.ndarray = weights.vector(f"{block}_r_k.weight", d)

    def linears(self) -> list[Linear]:
        return [*super().linears(), *(m for low in self.low.values() for m in (low.first, low.second))]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        work, n_threads, kernel = step.work, step.n_threads, self.kernels.recurrent
        more = self.shift(h, step)

        def mixed(which: int) -> np.ndarray:
            share = work.rows.like("mixed", h)
            np.multiply(more, self.lerps[which], out=share)
            share += h
            return share

        r = self.project("receptance", mixed(0), step)
        w = self.activate("sigmoid", self.low["w"].run(mixed(1), step), step)
        w *= np.float32(DECAY)
        self.activate("exp", w, step)
        k = self.project("key", mixed(2), step)
        x = mixed(3)
        v, first = self.project("value", x, step), work.rows.like("first_value", h)
        if self.first:
            first[:] = v
        else:
            v += (first - v) * self.activate("sigmoid", self.low["v"].run(x, step), step)
        a = self.activate("sigmoid", self.low["a"].run(mixed(4), step), step)
        unit = k * self.k_k
        kernel.unit_heads(unit, self.heads, 1e-12)
        ka = k * self.k_a
        k += a * ka - ka
        y = work.rows.like("wkv", h)
        at, record = self.offset + self.memory, self.record + self.d
        args = step.recurrent, at, record, self.heads, r, w, k, v, y, n_threads
        kernel.wkv(*args, a=-unit, b=unit * a)
        if self.norm is not None:
            self.norm.apply(y, n_threads)
        kernel.add_bonus(r, k, self.r_k, v, self.heads, y)
        if "g" in self.low:
            y *= self.low["g"].run(mixed(5), step)
        self.matrices["output"].apply(y, out, step, accumulate)


class ChannelMix(RecurrentBlock):
    """value(relu(key x)^2), times the sigmoid of a receptance in version 6."""

    def __init__(self, spec: Spec, i: int, weights: Weights, gated: bool) -> None:
        block, d, width = f"blk.{i}.channel_mix", spec.n_embd, spec.layers[i].n_ff
        self.kernels: Kernels = weights.kernels
        self.d = self.state_floats = self.record_floats = d
        self.lerp_k: np.ndarray = weights.array(f"{block}_lerp_k.weight", (d, 1, 1)).reshape(d)
        self.key: Linear = weights.linear([(f"{block}_key", width)], d)
        self.value: Linear = weights.linear([(f"{block}_value", d)], width)
        self.receptance: Linear | None = None
        if gated:
            self.lerp_r: np.ndarray = weights.array(f"{block}_lerp_r.weight", (d, 1, 1)).reshape(d)
            self.receptance = weights.linear([(f"{block}_receptance", d)], d)

    def linears(self) -> list[Linear]:
        return [self.key, self.value, *([self.receptance] if self.receptance else [])]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        n, work, n_threads = len(h), step.work, step.n_threads
        more, hidden = work.rows.like("shifted", h), work.rows["gate_up", n, self.key.rows]
        self.kernels.recurrent.shift(step.recurrent, self.offset, self.record, h, more)
        more -= h
        self.key.apply(h + more * self.lerp_k, hidden, step)
        self.kernels.vector.activate(hidden, "relu_squared", hidden, n_threads)
        if self.receptance is None:
            self.value.apply(hidden, out, step, accumulate)
            return
        r, y = work.rows.like("receptance", h), work.rows.like("wkv", h)
        self.receptance.apply(h + more * self.lerp_r, r, step)
        self.kernels.vector.activate(r, "sigmoid", r, n_threads)
        self.value.apply(hidden, y, step)
        y *= r
        if accumulate:
            out += y
        else:
            out[:] = y


ChannelMix6: partial[ChannelMix] = partial(ChannelMix, gated=True)
ChannelMix7: partial[ChannelMix] = partial(ChannelMix, gated=False)

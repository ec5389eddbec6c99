"""Linear attention with one constant decay for each head (Qin et al., "Lightning Attention-2", 2024;
MiniMax-01, 2025).

S = exp(-s) S + k v^T, o = S^T q, where s is 2^(-8 (h + 1) / heads) times a factor that falls from layer to
layer.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.layers.norm import Norm
from oxillama.models.layers.recurrent import RecurrentBlock, padded
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Linear
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Step


def decays(heads: int, i: int, n_layers: int) -> np.ndarray:
    """float32 (heads,): exp(-s) of layer ``i``, in decimal arithmetic: the same bits on every machine."""
    factor = 1 - Decimal(i) / max(1, n_layers - 1) + Decimal("1e-5")
    slopes = [Decimal(2) ** (Decimal(-8 * (h + 1)) / heads) for h in range(heads)]
    return np.array([float((-slope * factor).exp()) for slope in slopes], np.float32)


class LightningAttention(RecurrentBlock):
    """out = W_o (rms_norm(o) sigmoid(W_g h)), with q, k and v = SiLU(W h), head by head."""

    def __init__(self, spec: Spec, i: int, weights: Weights) -> None:
        block, heads, dim, d = f"blk.{i}", spec.layers[i].n_heads, spec.key_dim, spec.n_embd
        self.heads = heads
        self.inner: int = heads * dim
        self.kernels: Kernels = weights.kernels
        names = [(f"{block}.attn_qkv", 3 * self.inner), (f"{block}.attn_gate", self.inner)]
        self.first: Linear = weights.linear(names, d)
        self.decays: np.ndarray = np.repeat(decays(heads, i, spec.n_layers), dim)
        weight = weights.vector(f"{block}.attn_norm_2.weight", self.inner)
        self.norm: Norm = Norm(self.kernels, False, spec.norm_eps, weight, None)
        self.attn_output: Linear = weights.linear([(f"{block}.attn_output", d)], self.inner)
        self.state_floats: int = heads * padded(dim) * dim
        self.record_floats: int = 5 * self.inner

    def linears(self) -> list[Linear]:
        return [self.first, self.attn_output]

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        """out (n, d) = the block's output for h (n, d), or out + that."""
        n, work, n_threads, inner = len(h), step.work, step.n_threads, self.inner
        x, y = work.rows["ssm_in", n, self.first.rows], work.rows["wkv", n, inner]
        self.first.apply(h, x, step)
        by_head = x[:, : 3 * inner].reshape(n, self.heads, 3, -1)
        qkv = np.ascontiguousarray(by_head.transpose(2, 0, 1, 3)).reshape(3, n, inner)
        self.kernels.vector.activate(qkv, "silu", qkv, n_threads)
        q, k, v = qkv
        w, none = np.broadcast_to(self.decays, (n, inner)).copy(), np.zeros((n, inner), np.float32)
        args = step.recurrent, self.offset, self.record, self.heads, q, w, k, v, y, n_threads
        self.kernels.recurrent.wkv(*args, a=none, b=none)  # version 7's recurrence, which erases nothing here
        self.norm.apply(y, y, n_threads)
        self.kernels.vector.gate_heads(y, 1, x, 3 * inner, 0, "sigmoid", n_threads)
        self.attn_output.apply(y, out, step, accumulate)

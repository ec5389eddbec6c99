"""Reference of the decoder: a Llama forward pass in float64, as the papers write it.

Touvron et al., "LLaMA" (2023): RMS norms before each block (Zhang and Sennrich, 2019), rotary embedding
(Su et al., 2021), grouped queries (Ainslie et al., 2023), gated SiLU (Shazeer, 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tests.references import vector
from tests.references.attention import attend


@dataclass(frozen=True)
class Sizes:
    """What the reference needs to know besides the weights."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    key_dim: int
    value_dim: int
    n_rot: int
    neox: bool
    rope_base: float = 10000.0
    rope_scale: float = 1.0
    eps: float = 1e-5


See = Callable[[str, np.ndarray], np.ndarray]
"""What the matrix of this name sees of the activations it is multiplied with."""


def forward(
    sizes: Sizes, weights: Mapping[str, np.ndarray], tokens: list[int], see: See = lambda name, x: x
) -> np.ndarray:
    """Logits after each token, float64 (n, vocab). ``weights`` have GGUF names and are float64."""
    n = len(tokens)
    factors = weights.get("rope_freqs.weight")
    turns = vector.frequencies(sizes.n_rot, sizes.rope_base, sizes.rope_scale, factors)
    angles = (np.arange(n)[:, None] * turns).astype(np.float64)

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return see(f"{name}.weight", x) @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        return vector.rms_norm(x, weights[f"{name}.weight"], sizes.eps).astype(np.float64)

    x = weights["token_embd.weight"][tokens]
    for i in range(sizes.n_layers):
        blk = f"blk.{i}"
        h = norm(f"{blk}.attn_norm", x)
        if f"{blk}.attn_qkv.weight" in weights:
            widths = np.cumsum([sizes.n_heads * sizes.key_dim, sizes.n_kv_heads * sizes.key_dim])
            q, k, v = np.split(linear(f"{blk}.attn_qkv", h), widths, axis=1)
        else:
            q, k, v = (linear(f"{blk}.attn_{c}", h) for c in "qkv")
        q = vector.rope(q.reshape(n, sizes.n_heads, -1), angles, sizes.neox)
        k = vector.rope(k.reshape(n, sizes.n_kv_heads, -1), angles, sizes.neox)
        attended = attend(q, k, v.reshape(n, sizes.n_kv_heads, -1), sizes.key_dim**-0.5)
        x = x + linear(f"{blk}.attn_output", attended.reshape(n, -1))
        h = norm(f"{blk}.ffn_norm", x)
        fed = vector.silu(linear(f"{blk}.ffn_gate", h)) * linear(f"{blk}.ffn_up", h)
        x = x + linear(f"{blk}.ffn_down", fed.astype(np.float64))
    last = "output" if "output.weight" in weights else "token_embd"
    return linear(last, norm("output_norm", x))

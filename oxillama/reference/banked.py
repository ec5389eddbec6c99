"""Residual attention: blocks read weighted sums of banked hidden states and the present one (Kimi K3)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oxillama.reference.connections import mixed
from oxillama.reference.floats import exp, total
from oxillama.reference.rows import norm
from oxillama.reference.source import Source

Block = Callable[[int, np.ndarray, np.ndarray | None], np.ndarray]


def mix(source: Source, name: str, bank: list[np.ndarray], x: np.ndarray, eps: float) -> np.ndarray:
    """The sum of the bank and x (n, d), weighted by softmax(w norm(state)); x itself for an empty bank."""
    if not bank:
        return x
    states = [*bank, x]
    scores = np.stack([source.linear(name, norm(state, eps)) for state in states])
    shares = exp(scores - scores.max(axis=0))
    weights = (shares / total(shares))[:, :, 0].T
    return mixed(np.stack(states, axis=1), weights[:, None])[:, 0]


def banked_layers(source: Source, x: np.ndarray, eps: float, mixer: Block, feed_forward: Block) -> np.ndarray:
    """The hidden state after all layers; before every ``attn_res.block_size``-th one the state is banked, and
    begins anew with the output of attention."""
    period: int = source.key("attn_res.block_size")
    bank: list[np.ndarray] = []
    source.ignore("blk.0.attn_res_score.")
    for i in range(source.n_layers):
        block = f"blk.{i}"
        h = mix(source, f"{block}.attn_res_score", bank, x, eps)
        h = norm(h, eps, source.vector(f"{block}.attn_norm.weight"))
        onto: np.ndarray | None = x
        if i % period == 0:
            bank.append(x)
            onto = None
        x = mixer(i, h, onto)
        h = mix(source, f"{block}.ffn_res_score", bank, x, eps)
        x = feed_forward(i, norm(h, eps, source.vector(f"{block}.ffn_norm.weight")), x)
    return mix(source, "output_res_score", bank, x, eps)

"""Reference of the choice of experts, in float64."""

from __future__ import annotations

import numpy as np


def route(
    logits: np.ndarray,
    k: int,
    gating: str = "softmax",
    *,
    bias: np.ndarray | None = None,
    groups: int = 1,
    kept: int = 1,
    normalize: bool = False,
    scale: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Experts (n, k), ascending, and their weights (n, k)."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    probability = powers / powers.sum(axis=1, keepdims=True)
    if gating == "sigmoid":
        probability = 1 / (1 + np.exp(-logits))
    score = probability if bias is None else probability + bias
    if groups > 1:
        by_group = score.reshape(len(logits), groups, -1)
        best = np.sort(by_group, axis=2)[:, :, -2:].sum(axis=2)
        losers = np.argsort(-best, axis=1, kind="stable")[:, kept:]
        by_group = by_group.copy()
        np.put_along_axis(by_group, losers[:, :, None], -np.inf, axis=1)
        score = by_group.reshape(logits.shape)
    chosen = np.sort(np.argsort(-score, axis=1, kind="stable")[:, :k], axis=1)
    weights = np.take_along_axis(probability, chosen, axis=1)
    if gating == "chosen":
        weights = np.exp(np.take_along_axis(logits, chosen, axis=1))
        weights = weights / weights.sum(axis=1, keepdims=True)
    if normalize:
        weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), 6.103515625e-5)
    return chosen, weights * scale

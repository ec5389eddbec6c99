"""Twin of the sampler: the distribution a token is drawn from, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxillama.sampling.params import SamplerConfig


def distribution(logits: np.ndarray, config: SamplerConfig, history: Sequence[int] = ()) -> np.ndarray:
    """Probability of every token: penalty, top-k, top-p, min-p, temperature."""
    x = logits.astype(np.float64)
    window = config.repetition_window
    recent = set(history if window < 0 else list(history)[len(history) - min(window, len(history)) :])
    for token in recent:
        x[token] *= 1 / config.repetition_penalty if x[token] > 0 else config.repetition_penalty
    order = sorted((i for i in range(len(x)) if x[i] > -np.inf), key=lambda i: (-x[i], i))
    if config.temperature == 0:
        order = order[:1]
    order = order[: config.top_k or None]
    p = _softmax(x[order])
    order = order[: int(np.searchsorted(np.cumsum(p), config.top_p)) + 1]
    p = _softmax(x[order])
    order = [token for token, chance in zip(order, p, strict=True) if chance >= config.min_p * p[0]]
    out = np.zeros(len(x))
    out[order] = _softmax(x[order] / (config.temperature or 1))
    return out


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max())
    return powers / powers.sum()

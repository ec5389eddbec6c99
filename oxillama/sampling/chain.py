"""Chooses a token from logits: penalties, top-k, top-p, min-p, temperature, draw, in that order.

The order is llama.cpp's. Candidates are kept in descending order of their logits (equals by id), so
every cut is a shorter prefix, and the draw sums in one order on every machine.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from oxillama._kernels import Kernels, sampling
from oxillama.errors import SamplingError
from oxillama.sampling.params import SamplerConfig
from oxillama.sampling.random import Xorshift64


class Sampler:
    """Sampling state of one sequence.

    Parameters
    ----------
    config : the options.
    kernels : the target whose `softmax` is used; all give the same bits.
    seed : for a config without one; None draws one from the system.

    Attributes
    ----------
    seed : the seed in use, so that a run can be repeated.
    random : the generator; its state may be saved and restored.
    """

    def __init__(self, config: SamplerConfig, kernels: Kernels, seed: int | None = None) -> None:
        self.config = config
        self.kernels = kernels
        chosen = config.seed if config.seed is not None else seed
        self.seed = int.from_bytes(os.urandom(8), "little") if chosen is None else chosen
        self.random = Xorshift64(self.seed)

    def sample(self, logits: np.ndarray, history: Sequence[int]) -> int:
        """The next token.

        Parameters
        ----------
        logits : float32 (vocab,); not changed.
        history : the tokens so far, prompt included.

        Raises
        ------
        SamplingError : a logit is NaN or +inf, or every one is -inf.
        """
        config = self.config
        logits = self._penalized(logits, history)
        keep = 1 if config.temperature == 0 else config.top_k or len(logits)
        ids = np.empty(min(keep, len(logits)), np.int32)
        n = sampling.top_k(logits, len(ids), ids)
        if n < 0 or (n > 0 and logits[ids[0]] == np.inf):
            raise SamplingError("logits: hold a NaN or +inf")
        if n == 0:
            raise SamplingError("logits: every token is masked")
        if config.temperature == 0:
            return int(ids[0])
        ids = ids[:n]
        values = logits[ids]
        if config.top_p < 1:
            values = values[: sampling.count_below(self._softmax(values), config.top_p)]
        if config.min_p > 0:
            p = self._softmax(values)
            values = values[: int(np.count_nonzero(p >= np.float32(config.min_p) * p[0]))]
        p = self._softmax(tempered(values, config.temperature))
        return int(ids[sampling.draw(p, self.random.uniform())])

    def _softmax(self, values: np.ndarray) -> np.ndarray:
        out = np.empty_like(values)
        self.kernels.vector.softmax(values, out)
        return out

    def _penalized(self, logits: np.ndarray, history: Sequence[int]) -> np.ndarray:
        """The logits with recent tokens held down; a copy where anything changes."""
        config = self.config
        if config.repetition_penalty == 1 or config.repetition_window == 0:
            return logits
        recent = history if config.repetition_window < 0 else history[-config.repetition_window :]
        ids = np.unique(np.asarray(recent, np.int64))
        logits = logits.copy()
        values = logits[ids]
        penalty = np.float32(config.repetition_penalty)
        logits[ids] = np.where(values > 0, values / penalty, values * penalty)
        return logits


def tempered(values: np.ndarray, temperature: float) -> np.ndarray:
    """Logits, highest first, as distances from the highest over the temperature, however small it is."""
    with np.errstate(over="ignore"):  # to -inf, which is never drawn
        below: np.ndarray = (values - values[0]).astype(np.float64) / temperature
        return below.astype(np.float32)

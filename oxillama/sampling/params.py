"""How tokens are chosen: the options, checked when they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from oxillama.errors import ConfigError

MAX = 3.4e38  # the largest float32


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """Sampling options. The defaults are those of llama.cpp's command line.

    Attributes
    ----------
    temperature : divides the logits; 0 picks the highest one. [0, inf)
    top_k : keep this many of the highest; 0 keeps all. [0, inf)
    top_p : keep the fewest whose probabilities sum to this (Holtzman et al., 2020). (0, 1]
    min_p : keep those with at least this times the highest probability (Nguyen et al., 2024). [0, 1]
    repetition_penalty : divides positive logits of recent tokens, multiplies negative ones, once
        per distinct token (Keskar et al., CTRL, 2019). (0, inf)
    repetition_window : how many of the last tokens count as recent; -1 for all. [-1, inf)
    seed : of the random numbers; None takes the engine's, or a new one. [0, 2^64)

    Raises
    ------
    ConfigError : a value is outside its range; the message names the field and the range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    repetition_window: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        above_zero = math.nextafter(0.0, 1.0)
        self._check("temperature", (0.0, MAX), "0 or more")
        self._check("top_k", (0, 2**31), "0 or more")
        self._check("top_p", (above_zero, 1.0), "above 0, at most 1")
        self._check("min_p", (0.0, 1.0), "0 to 1")
        self._check("repetition_penalty", (above_zero, MAX), "above 0")
        self._check("repetition_window", (-1, 2**31), "-1 or more")
        if self.seed is not None:
            self._check("seed", (0, 2**64 - 1), "0 to 2^64 - 1")

    def _check(self, name: str, bounds: tuple[float, float], wanted: str) -> None:
        """Raises ConfigError unless the field is a number within ``bounds``, an integer where they are."""
        value = getattr(self, name)
        kinds = (int,) if isinstance(bounds[0], int) else (int, float)
        good = isinstance(value, kinds) and not isinstance(value, bool)
        if not (good and bounds[0] <= value <= bounds[1]):
            raise ConfigError(f"{name}: needs {wanted}, got {value!r}")

    @classmethod
    def greedy(cls) -> SamplerConfig:
        """Always the highest logit; among equals the lowest id."""
        return cls(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)

"""Converts sampling arguments of `Llama` to a `SamplerConfig`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oxillama.base.config import SamplerConfig, checks
from oxillama.compat.llama_cpp.llama_cpp import LLAMA_DEFAULT_SEED
from oxillama.compat.llama_cpp.llama_grammar import LlamaGrammar
from oxillama.compat.llama_cpp.processors import LogitsProcessor, PenaltyStage, ProcessorStage
from oxillama.errors import ConfigError

ALL: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
"""Cuts that keep every token."""

CUTS = ("top_k", "typical_p", "top_p", "min_p")
"""The cuts in llama-cpp-python's order; the temperature follows them."""

LEAST = 1e-9
"""A share that only the top token reaches, for a ``top_p`` or ``typical_p`` of 0."""


@dataclass(frozen=True)
class Sampling:
    """The sampling arguments of `Llama.generate`, `Llama.sample` and completions, with their defaults.

    Raises:
        ConfigError: ``tfs_z`` is not 1, or ``penalize_nl`` is False: llama.cpp has no such samplers any more.
    """

    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    temp: float = 0.80
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    tfs_z: float = 1.0
    mirostat_mode: int = 0
    mirostat_eta: float = 0.1
    mirostat_tau: float = 5.0
    penalize_nl: bool = True
    logits_processor: Sequence[LogitsProcessor] | None = None
    grammar: LlamaGrammar | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tfs_z != 1.0:
            raise ConfigError(f"tfs_z: expected 1, for there is no such sampler, got {self.tfs_z:g}")
        if not self.penalize_nl:
            raise ConfigError("penalize_nl: expected True, for penalties know no exceptions, got False")
        if self.mirostat_mode not in (0, 1, 2):
            raise checks.refuse("mirostat_mode", "0, 1 or 2", self.mirostat_mode)
        if self.grammar is not None and not isinstance(self.grammar, LlamaGrammar):
            raise checks.refuse("grammar", "a LlamaGrammar", self.grammar)

    def config(self, n_prompt: int, window: int, n_vocab: int, seed: int | None) -> SamplerConfig:
        """The sampler's options.

        Args:
            n_prompt: number of tokens before the text; penalties ignore them.
            window: number of generated tokens that penalties count; negative: all.
            n_vocab: size of the vocabulary.
            seed: seed of the random numbers; None: a random one.

        Raises ConfigError for a value out of range.
        """
        stages: list[Callable[..., Any] | str] = []
        if self.logits_processor:
            stages.append(ProcessorStage(self.logits_processor, n_vocab))
        penalties = (float(self.repeat_penalty), float(self.frequency_penalty), float(self.presence_penalty))
        if penalties != (1.0, 0.0, 0.0) and window != 0:
            stages.append(PenaltyStage(n_prompt, window, *penalties))
        fields: dict[str, Any] = self._choice()
        if self.grammar is not None:
            fields["grammar"] = self.grammar.rules
        if self.logit_bias:
            fields["logit_bias"] = {int(token): float(bias) for token, bias in self.logit_bias.items()}
        if stages:
            fields["order"] = (*stages, *CUTS, "temperature")
        return SamplerConfig(seed=seed, **fields)

    def _choice(self) -> dict[str, Any]:
        """The fields for cuts and temperature. Mirostat replaces both; below 0 there is neither."""
        if self.temp < 0:
            return {**ALL, "temperature": 1.0}
        if self.temp == 0:
            return {**ALL, "temperature": 0.0}
        if self.mirostat_mode:
            mirostat = {"mirostat_eta": self.mirostat_eta, "mirostat_tau": self.mirostat_tau}
            return {**ALL, "temperature": 1.0, "mirostat": self.mirostat_mode, **mirostat}
        return {
            "temperature": self.temp,
            "top_k": max(self.top_k, 0),
            "top_p": min(max(self.top_p, LEAST), 1.0),
            "min_p": min(max(self.min_p, 0.0), 1.0),
            "typical_p": min(max(self.typical_p, LEAST), 1.0),
        }


def seed_of(number: int) -> int | None:
    """The engine's seed for a seed of llama.cpp; None, a random seed, for llama.cpp's default."""
    number &= 0xFFFFFFFFFFFFFFFF
    return None if number in (LLAMA_DEFAULT_SEED, 0xFFFFFFFFFFFFFFFF) else number

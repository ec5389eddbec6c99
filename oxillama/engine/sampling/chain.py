"""The pipeline that chooses tokens: stages in order, of which `Sampler` is the state for one sequence.

Bans, biases and the grammar come first, then the stages in `SamplerConfig.order`, then one draw. Runs of
stages that are kernels are programs for `_kernels/sampling/sampling.pyx`; stages of the user's own are called
between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama._kernels import Kernels, best
from oxillama.base.config import checks
from oxillama.base.config.sampler import STAGES, SamplerConfig
from oxillama.base.lazy_import import lazy
from oxillama.errors import ConfigError
from oxillama.text.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from oxillama.engine.sampling.protocols import SamplerStage

Native = tuple[str, tuple[float, ...], tuple[np.ndarray, ...]]
"""A stage of `sampling.Program`: its name, numbers and arrays."""


def masking_stages(config: SamplerConfig, banned: Collection[int]) -> list[Native]:
    """The stages before all others: banned tokens and biases, allowed tokens, the grammar."""
    stages: list[Native] = []
    if banned or config.logit_bias:
        biases = {**config.logit_bias, **dict.fromkeys(banned, -np.inf)}
        ids, values = np.array(list(biases), np.int32), np.array(list(biases.values()), np.float32)
        stages.append(("bias", (), (ids, values)))
    if config.allowed_tokens is not None:
        stages.append(("allow", (), (np.unique(np.array(config.allowed_tokens, np.int32)),)))
    return [*stages, ("mask", (), ())]


def ordered_stages(config: SamplerConfig, breakers: Any) -> list[Native | SamplerStage]:
    """The stages of `SamplerConfig.order` that do something, and mirostat after them."""
    only_kernels = not any(callable(stage) for stage in config.order)
    stages: list[Native | SamplerStage] = []
    for stage in config.order:
        if not isinstance(stage, str):
            stages.append(stage)
            continue
        row = STAGES[stage]
        is_idle = config.is_greedy and only_kernels and row.keeps_highest
        if row.is_cut and (config.mirostat or is_idle):
            continue
        numbers = numbers_of(stage, config)
        if numbers is not None:
            stages.append((stage, numbers, breakers if stage == "dry" else ()))
    if config.mirostat:
        stages.append(("mirostat" if config.mirostat == 1 else "mirostat_v2", (), ()))
    return stages


def numbers_of(stage: str, config: SamplerConfig) -> tuple[float, ...] | None:
    """The numbers the kernel of a stage takes, or None if the stage is off."""
    row = STAGES[stage]
    numbers = tuple(getattr(config, name) for name in (*row.off, *row.others))
    is_off = numbers[: len(row.off)] == tuple(row.off.values()) or (row.has_window and numbers[-1] == 0)
    return None if is_off else numbers


def history_window(config: SamplerConfig) -> int:
    """How many of the latest tokens the stages look at; -1 for all."""
    if any(callable(stage) for stage in config.order):
        return -1
    found = [numbers_of(name, config) for name, row in STAGES.items() if row.has_window]
    windows = [int(numbers[-1]) for numbers in found if numbers]
    return -1 if -1 in windows else max(windows, default=0)


breaker_tables: Callable[..., Any] = lazy("oxillama.engine.sampling.breakers:breaker_tables")


class SamplerChain:
    """Stages in order; shared by all sequences that are sampled alike.

    Attributes:
        config: the options it was made from.
        steps: programs of kernels, and `SamplerStage` callables.
        early_steps: that take their place while fewer than ``config.min_tokens`` tokens were generated.
        last_steps: that take their place where a grammar allows nothing but an end of generation.
        ends: ids of the tokens that end a generation.
        window: how many of the latest tokens the stages look at; -1 for all.
        has_callables: whether a stage is the user's own, which may raise anything and have a state of its
            own.
        takes_highest: whether it does nothing but take the highest logit, of those that a grammar allows.
    """

    def __init__(self, config: SamplerConfig, kernels: Kernels, eog: Collection[int], breakers: Any) -> None:
        if (config.ignore_eos or config.min_tokens) and not eog:
            name = "ignore_eos" if config.ignore_eos else "min_tokens"
            raise ConfigError(f"{name}: expected a tokenizer that names tokens ending a generation, got none")
        self.config: SamplerConfig = config
        self.kernels = kernels
        stages = ordered_stages(config, breakers)
        self.ends: frozenset[int] = frozenset(eog)
        banned = set(config.banned_tokens)
        self.last_steps: list[Any] = self._compiled([*masking_stages(config, banned), *stages])
        self.early_steps: list[Any] = self._compiled([*masking_stages(config, banned | self.ends), *stages])
        self.steps: list[Any] = self.early_steps if config.ignore_eos else self.last_steps
        banned |= self.ends if config.ignore_eos else set()
        named = [*banned, *config.logit_bias, *(config.allowed_tokens or ())]
        self.largest_token: Any | int = max(named, default=-1)
        self.window: int = history_window(config)
        self.min_tokens: int = config.min_tokens
        self.is_greedy: bool = config.is_greedy
        self.draws_chance: bool = bool(config.xtc_probability)
        self.has_callables: bool = any(callable(stage) for stage in config.order)
        self.takes_highest: bool = (
            config.is_greedy
            and not (named or config.min_tokens or config.allowed_tokens is not None)
            and all(isinstance(stage, tuple) and stage[0] == "temperature" for stage in stages)
        )

    @classmethod
    def from_config(
        cls,
        config: SamplerConfig,
        kernels: Kernels | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> SamplerChain:
        """The chain of a configuration.

        Args:
            kernels: the target to run on; all give the same tokens. None takes the best.
            tokenizer: for DRY's breakers that are texts, and what ends a generation: min_tokens, ignore_eos.

        Raises:
            ConfigError: an option needs a tokenizer, which is missing.
        """
        checks.instance("config", config, SamplerConfig)
        if kernels is not None:
            checks.instance("kernels", kernels, Kernels)
        breakers = breaker_tables(config.dry_sequence_breakers, tokenizer) if config.dry_multiplier else None
        return cls(config, kernels or best(), tokenizer.eog_ids if tokenizer else (), breakers)

    def steps_at(self, n_generated: int, mask: np.ndarray | None) -> list[Any]:
        """The steps for the token after ``n_generated``; ``mask``, of a grammar, has a bit for each token."""
        steps = self.early_steps if n_generated < self.min_tokens else self.steps
        if mask is None or steps is self.last_steps or self._goes_on(mask):
            return steps
        return self.last_steps

    def _goes_on(self, mask: np.ndarray) -> bool:
        """Whether a grammar allows another token than an end of generation."""
        left = mask.copy()
        for id in self.ends:
            left[id // 32] &= ~np.uint32(1 << id % 32)
        return bool(left.any())

    def check_vocabulary(self, vocab: int) -> None:
        """Raises ConfigError if an option names a token that is not in the vocabulary."""
        if self.largest_token >= vocab:
            raise ConfigError(
                "banned_tokens, allowed_tokens and logit_bias: "
                f"expected token ids below {vocab}, got {self.largest_token}"
            )

    def _compiled(self, stages: Iterable[Native | SamplerStage]) -> list[Any]:
        """Compiles neighbouring kernels to one program."""
        steps: list[Any] = []
        natives: list[Native] = []
        for stage in stages:
            if isinstance(stage, tuple):
                natives.append(stage)
                continue
            steps += [self.kernels.sampling.Program(natives)] if natives else []
            steps.append(stage)
            natives = []
        return [*steps, self.kernels.sampling.Program(natives)] if natives or not steps else steps

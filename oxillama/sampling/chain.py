"""The pipeline that chooses tokens: stages in order, of which `Sampler` is the state for one sequence.

Bans, biases and the grammar come first, then the stages in `SamplerConfig.order`, then one draw. Runs of
stages that are kernels are programs for `_kernels/sampling/sampling.pyx`; stages of the user's own are called
between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from oxillama._kernels import Kernels, best
from oxillama.config import checks
from oxillama.config.sampler import SamplerConfig
from oxillama.errors import ConfigError
from oxillama.on_use import on_use
from oxillama.sampling.protocols import SamplerStage
from oxillama.sampling.stages import Native, history_window, masking_stages, ordered_stages
from oxillama.tokenizer.bridge import TokenizerBridge

breaker_tables = on_use("oxillama.sampling.breakers:breaker_tables")


class SamplerChain:
    """Stages in order; shared by all sequences that are sampled alike.

    Attributes
    ----------
    config : the options it was made from.
    steps : programs of kernels, and `SamplerStage` callables.
    early_steps : that take their place while fewer than ``config.min_tokens`` tokens were generated.
    program, early_program : the only step of either, if it is a program; None otherwise.
    window : how many of the latest tokens the stages look at; -1 for all.
    has_callables : whether a stage is the user's own, which may raise anything and have a state of its own.
    takes_highest : whether it does nothing but take the highest logit, of those that a grammar allows.
    """

    def __init__(self, config: SamplerConfig, kernels: Kernels, eog: Collection[int], breakers: Any) -> None:
        if (config.ignore_eos or config.min_tokens) and not eog:
            name = "ignore_eos" if config.ignore_eos else "min_tokens"
            raise ConfigError(f"{name}: expected a tokenizer that names tokens ending a generation, got none")
        self.config = config
        self.kernels = kernels
        stages = ordered_stages(config, breakers)
        banned = set(config.banned_tokens) | (set(eog) if config.ignore_eos else set())
        self.steps = self._compiled([*masking_stages(config, banned), *stages])
        self.early_steps = self._compiled([*masking_stages(config, banned | set(eog)), *stages])
        named = [*banned, *config.logit_bias, *(config.allowed_tokens or ())]
        self.largest_token = max(named, default=-1)
        self.window = history_window(config)
        self.min_tokens = config.min_tokens
        self.program, self.early_program = self._only(self.steps), self._only(self.early_steps)
        self.is_greedy, self.draws_chance = config.is_greedy, bool(config.xtc_probability)
        self.has_callables = any(callable(stage) for stage in config.order)
        self.takes_highest = (
            config.is_greedy
            and not (named or config.min_tokens or config.allowed_tokens is not None)
            and all(isinstance(stage, tuple) and stage[0] == "temperature" for stage in stages)
        )

    @classmethod
    def from_config(
        cls,
        config: SamplerConfig,
        kernels: Kernels | None = None,
        tokenizer: TokenizerBridge | None = None,
    ) -> SamplerChain:
        """The chain of a configuration.

        Parameters
        ----------
        kernels : the target to run on; all give the same tokens. None takes the best.
        tokenizer : for DRY's breakers that are texts, and what ends a generation: min_tokens, ignore_eos.

        Raises
        ------
        ConfigError : an option needs a tokenizer, and there is none.
        """
        checks.instance("config", config, SamplerConfig)
        if kernels is not None:
            checks.instance("kernels", kernels, Kernels)
        breakers = breaker_tables(config.dry_sequence_breakers, tokenizer) if config.dry_multiplier else None
        return cls(config, kernels or best(), tokenizer.eog_ids if tokenizer else (), breakers)

    def steps_at(self, n_generated: int) -> list[Any]:
        """The steps for the token after ``n_generated``."""
        return self.early_steps if n_generated < self.config.min_tokens else self.steps

    def _only(self, steps: list[Any]) -> Any:
        """The one step, if it is a program of kernels; None otherwise."""
        is_one = len(steps) == 1 and isinstance(steps[0], self.kernels.sampling.Program)
        return steps[0] if is_one else None

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

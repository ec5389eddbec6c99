"""The pipeline that chooses tokens: stages in order, of which `Sampler` is the state for one sequence.

Bans, biases and the grammar come first, then the stages in `SamplerConfig.order`, then one draw. Runs of
stages that are kernels are programs for `_kernels/sampling/sampling.pyx`; stages of the user's own are called
between. A program runs in a workspace, of which each thread has some.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from oxillama._kernels import Kernels, best
from oxillama.config import checks
from oxillama.config.sampler import CUTS, SamplerConfig
from oxillama.errors import ConfigError, SamplingError
from oxillama.on_use import on_use
from oxillama.sampling.protocols import SamplerStage
from oxillama.tokenizer.bridge import TokenizerBridge

GOOD, BAD_LOGIT, ALL_MASKED, BAD_HISTORY = range(4)
"""Statuses of `sampling.pyx`."""

_kept = threading.local()


def workspaces(kernels: Kernels, vocab: int, n: int = 1) -> list[Any]:
    """The calling thread's first n workspaces; it keeps those of one vocabulary."""
    if getattr(_kept, "key", None) != (kernels.target, vocab):
        _kept.key, _kept.workspaces = (kernels.target, vocab), []
    kept: list[Any] = _kept.workspaces
    while len(kept) < n:
        kept.append(kernels.sampling.Workspace(vocab))
    return kept[:n]


@contextmanager
def set_aside() -> Iterator[None]:
    """A context in which the calling thread uses other workspaces: a stage in Python may sample, too."""
    key, kept = _kept.key, _kept.workspaces
    del _kept.key
    try:
        yield
    finally:
        _kept.key, _kept.workspaces = key, kept


F32 = np.dtype(np.float32)


def is_row(logits: Any) -> bool:
    """Whether something is C-contiguous float32 (vocab,) already, and not empty."""
    return (
        type(logits) is np.ndarray
        and logits.dtype is F32
        and logits.ndim == 1
        and logits.size > 0
        and logits.flags.c_contiguous
    )


def as_logits(logits: np.ndarray) -> np.ndarray:
    """C-contiguous float32 (vocab,). Raises SamplingError unless there is one row of numbers."""
    try:
        if getattr(logits, "dtype", None) != np.float32:
            with np.errstate(over="ignore"):  # inf is refused
                logits = np.asarray(logits, np.float32)
        logits = np.asarray(logits, order="C")
    except (ValueError, OverflowError, TypeError) as error:
        raise SamplingError(f"logits: expected one row of numbers: {error}") from error
    if logits.ndim != 1 or len(logits) == 0:
        raise SamplingError(f"logits: expected one row of numbers, got shape {logits.shape}")
    return logits


def error_of(status: int, vocab: int) -> SamplingError:
    """The error of a status that is not GOOD."""
    if status == BAD_LOGIT:
        return SamplingError("logits: hold a NaN or +inf")
    if status == ALL_MASKED:
        return SamplingError("logits: every token is masked")
    return SamplingError(f"history: holds a token that is not in the vocabulary of {vocab}")


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
        keeps_highest = stage in CUTS and stage not in ("typical_p", "xtc")
        if (config.mirostat and stage in CUTS) or (config.is_greedy and only_kernels and keeps_highest):
            continue
        numbers = numbers_of(stage, config)
        if numbers is not None:
            stages.append((stage, numbers, breakers if stage == "dry" else ()))
    if config.mirostat:
        stages.append(("mirostat" if config.mirostat == 1 else "mirostat_v2", (), ()))
    return stages


def numbers_of(stage: str, config: SamplerConfig) -> tuple[float, ...] | None:
    """The numbers the kernel of a stage takes, or None if the stage is off."""
    if stage == "penalties":
        penalties = (config.repetition_penalty, config.frequency_penalty, config.presence_penalty)
        off = penalties == (1, 0, 0) or config.repetition_window == 0
        return None if off else (*penalties, config.repetition_window)
    if stage == "dry":
        off = config.dry_multiplier == 0 or config.dry_range == 0
        numbers = (config.dry_multiplier, config.dry_base, config.dry_allowed_length, config.dry_range)
        return None if off else numbers
    if stage == "xtc":
        return (config.xtc_probability, config.xtc_threshold) if config.xtc_probability else None
    if stage == "temperature":
        off = config.temperature == 1 and config.dynatemp_range == 0
        return None if off else (config.temperature, config.dynatemp_range, config.dynatemp_exponent)
    number = getattr(config, stage)
    return None if number == (1 if stage in ("top_p", "typical_p") else 0) else (number,)


def history_window(config: SamplerConfig) -> int:
    """How many of the latest tokens the stages look at; -1 for all."""
    if any(callable(stage) for stage in config.order):
        return -1
    windows = [config.repetition_window] if numbers_of("penalties", config) else []
    windows += [config.dry_range] if numbers_of("dry", config) else []
    return -1 if -1 in windows else max(windows, default=0)


def call_stage(stage: Callable[..., Any], workspace: Any, history: np.ndarray) -> int:
    """Applies a stage of the user's own to the candidates; the kernel's status."""
    ids, logits = workspace.candidates()
    with set_aside():
        changed = stage(ids.copy(), logits, history)
    changed = logits if changed is None else np.asarray(changed, np.float32, order="C")
    if changed.shape != ids.shape:
        raise SamplingError(f"stage {stage!r}: expected {len(ids)} logits, got shape {changed.shape}")
    status: int = workspace.replace(ids, changed)
    return status


breaker_tables: Callable[..., Any] = on_use("oxillama.sampling.breakers:breaker_tables")


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
        self.steps: list[Any] = self._compiled([*masking_stages(config, banned), *stages])
        self.early_steps: list[Any] = self._compiled([*masking_stages(config, banned | set(eog)), *stages])
        named = [*banned, *config.logit_bias, *(config.allowed_tokens or ())]
        self.largest_token: Any | int = max(named, default=-1)
        self.window: int = history_window(config)
        self.min_tokens: int = config.min_tokens
        self.program: Any = self._only(self.steps)
        self.early_program: Any = self._only(self.early_steps)
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

"""From options to stages: kernels with their numbers and arrays, and callables of the user's."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from oxillama.config.sampler import CUTS, SamplerConfig
from oxillama.errors import SamplingError
from oxillama.sampling.protocols import SamplerStage
from oxillama.sampling.workspaces import set_aside

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

"""Engines as jobs have them: the same texts each time, and no row refused for want of a place to wait."""

from __future__ import annotations

from dataclasses import replace

from oxillama.config import EngineConfig
from oxillama.config.checks import NO_DECODE_WAIT

SEED = 0
"""Of rows that have none, where nobody says another one."""

MOST_WAITING = 1 << 20
"""More requests than a window of rows can have."""


def for_jobs(config: EngineConfig) -> EngineConfig:
    """The same, with a seed, a queue that holds every request of the rows that run at a time, and prompts in
    whole chunks: nobody reads a row before its end."""
    seed = SEED if config.seed is None and config.sampler.seed is None else config.seed
    scheduler = replace(config.scheduler, max_waiting=MOST_WAITING)
    if scheduler.max_decode_wait_ms is None:
        scheduler = replace(scheduler, max_decode_wait_ms=NO_DECODE_WAIT)
    return replace(config, seed=seed, scheduler=scheduler)


def window_of(config: EngineConfig) -> int:
    """Rows that run at a time: twice what the engine admits, so that the next ones are always there."""
    return 2 * config.scheduler.max_sequences

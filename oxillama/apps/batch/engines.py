"""Engine options for jobs: a fixed seed, and a queue that never refuses a row."""

from __future__ import annotations

from dataclasses import replace

from oxillama.base.config import EngineConfig
from oxillama.base.config.checks import NO_DECODE_WAIT

SEED = 0
"""The seed of rows without one, if no option sets another."""

MOST_WAITING = 1 << 20
"""The length of the request queue: more than a window of rows can fill."""


def for_jobs(config: EngineConfig) -> EngineConfig:
    """The options for a job: a seed, a queue for all requests of the running rows, and prompts in whole
    chunks, since nobody reads a row before its end."""
    seed = SEED if config.seed is None and config.sampler.seed is None else config.seed
    scheduler = replace(config.scheduler, max_waiting=MOST_WAITING)
    if scheduler.max_decode_wait_ms is None:
        scheduler = replace(scheduler, max_decode_wait_ms=NO_DECODE_WAIT)
    return replace(config, seed=seed, scheduler=scheduler)


def window_of(config: EngineConfig) -> int:
    """Rows that run at a time: twice the number of sequences, so that the engine never waits for rows."""
    return 2 * config.scheduler.max_sequences

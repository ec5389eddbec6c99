"""Comparing engines fairly: they take turns, and each round gives one ratio.

Engines run A B A B ... in short turns, so other load on the machine affects both. The median of the ratios
within the rounds is reported: it varies far less than the ratio of two medians taken minutes apart. The order
is fixed: with A B B A an engine would sometimes find its own weights in the caches, sometimes the other's. A
pause before each turn lets the other engine's threads stop spinning.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from oxillama.apps.bench.report import Samples

T = TypeVar("T")
Subjects = Mapping[str, Callable[[], Mapping[str, float]]]
"""What takes turns, by name: each is called without arguments and returns its samples by metric."""

SETTLE_SECONDS = 0.05
"""Pause before a turn: longer than idle OpenMP threads spin."""


def alternate(
    subjects: Subjects, *, rounds: int = 10, warmup: int = 1, sleep: Callable[[float], None] = time.sleep
) -> Samples:
    """Let each subject take a turn per round; the results of ``warmup`` rounds are thrown away."""
    samples: Samples = {name: {} for name in subjects}
    for round_ in range(warmup + rounds):
        for name, run in subjects.items():
            gc.collect()
            sleep(SETTLE_SECONDS)
            turn = run()
            if round_ >= warmup:
                for metric, value in turn.items():
                    samples[name].setdefault(metric, []).append(value)
    return samples


def in_new_process(work: Callable[..., T], *arguments: object) -> T:
    """What a function of a module returns in a new Python."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(work, *arguments).result()


@dataclass(frozen=True)
class CpuTime:
    """Seconds of core time since the machine started: of all cores, the busy part, and this process's."""

    total: float
    busy: float
    own: float

    @classmethod
    def now(cls, stat: Path = Path("/proc/stat")) -> CpuTime | None:
        """The counters now, ended child processes included; None where the system does not tell."""
        if not stat.exists():
            return None
        ticks = [int(word) for word in stat.read_text().split("\n")[0].split()[1:9]]
        second = os.sysconf("SC_CLK_TCK")
        idle = ticks[3] + ticks[4]  # idle and waiting for a disk; time stolen by other guests is busy
        own = sum(os.times()[:4])
        return cls(sum(ticks) / second, (sum(ticks) - idle) / second, own)


def others_share(before: CpuTime | None, after: CpuTime | None) -> float | None:
    """Share of the machine's core time between two moments that went to other processes, 0 to 1."""
    if before is None or after is None or after.total <= before.total:
        return None
    others = (after.busy - before.busy) - (after.own - before.own)
    return min(1.0, max(0.0, others / (after.total - before.total)))

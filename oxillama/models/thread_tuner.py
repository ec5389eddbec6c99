"""How many threads a forward pass uses: fewer where another process holds a core.

A thread that is not running holds its chunk of rows for a whole time slice, and everybody waits for it,
several times a layer; then fewer threads are faster. Whether they are is measured, layer by layer: now and
then, and at once when a layer takes much longer than the ones before, a few layers run with another number of
threads, and the faster number stays. No bit depends on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TRIAL = 6
"""Layers that are run with another number of threads before it is judged."""
SOONEST, LATEST = 64, 2048
"""Layers between two trials, fewest and most; it doubles with each that changes nothing."""
SLOW = 2.0
"""A layer that takes so many times the usual calls for a trial."""
GAIN = 0.9
"""Another number of threads stays if it takes at most this share of the time."""


class ThreadTuner:
    """Counts, times and chooses, for batches of each size by itself: what is best for one token, which waits
    for the memory, says nothing about a prompt.

    Parameters
    ----------
    most : threads to use at most.
    clock : seconds.

    Attributes
    ----------
    n_threads : that the layer under way uses, or the last one.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.most = most
        self.n_threads = most
        self._clock = clock
        self._sizes: dict[int, Size] = {}

    @contextmanager
    def layer(self, rows: int) -> Iterator[int]:
        """Around one layer over so many rows; gives the threads it is to use."""
        if self.most == 1:
            yield 1
            return
        size = self._sizes.setdefault(rows.bit_length(), Size(self.most))
        self.n_threads = size.n_threads
        start = self._clock()
        yield self.n_threads
        size.took(self._clock() - start, rows)


class Size:
    """What is known about batches of about one size: from 2^n to 2^(n + 1) - 1 rows."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.n_threads = most  # for the next layer
        self.steady = most  # what is used between trials
        self.usual: list[float] = []  # seconds of the last layers with that
        self.trial: list[float] = []
        self.since = 0  # layers since the last trial
        self.interval = SOONEST
        self.trials = -1
        self.rows = 0  # of the layers in `usual`

    def took(self, seconds: float, rows: int) -> None:
        """A layer with `n_threads` took so long."""
        if rows != self.rows:  # other work: what was measured before says nothing about it
            self.rows, self.usual, self.trial = rows, [], []
            self.n_threads = self.steady
        elif self.n_threads != self.steady:
            self.trial.append(seconds)
            if len(self.trial) == TRIAL:
                self.judge()
        else:
            slow = len(self.usual) == TRIAL and seconds > SLOW * min(self.usual)
            self.usual = [*self.usual[1 - TRIAL :], seconds]
            self.since += 1
            due = self.since >= self.interval or (slow and self.since > TRIAL)
            if due and len(self.usual) == TRIAL:
                self.n_threads, self.since = self.other(), 0

    def other(self) -> int:
        """The number to try: in turn one more, one fewer, and half, for when several cores are held."""
        n = self.steady
        numbers = sorted({m for m in (n + 1, n - 1, n // 2) if 1 <= m <= self.most}, reverse=True)
        self.trials += 1
        return numbers[self.trials % len(numbers)]

    def judge(self) -> None:
        """Keeps the faster number."""
        if sum(self.trial) < GAIN * sum(self.usual):
            self.steady, self.interval, self.usual = self.n_threads, SOONEST, []
        else:
            self.interval = min(2 * self.interval, LATEST)
        self.n_threads, self.trial = self.steady, []

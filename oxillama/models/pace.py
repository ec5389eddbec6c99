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

TRIAL = 4
"""Layers that are run with another number of threads before it is judged."""
SOONEST, LATEST = 64, 2048
"""Layers between two trials, fewest and most; it doubles with each that changes nothing."""
SLOW = 2.0
"""A layer that takes so many times the usual calls for a trial."""
GAIN = 0.95
"""Another number of threads stays if it takes at most this share of the time."""


class Pace:
    """Counts, times and chooses.

    Parameters
    ----------
    most : threads to use at most.
    clock : seconds.

    Attributes
    ----------
    n_threads : that the next layer uses.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.most = most
        self.n_threads = most
        self._clock = clock
        self._steady = most  # what is used between trials
        self._usual: list[float] = []  # seconds of the last layers with that
        self._trial: list[float] = []
        self._since = 0  # layers since the last trial
        self._interval = SOONEST
        self._trials = -1
        self._rows = 0  # of the layers in `_usual`

    @contextmanager
    def layer(self, rows: int) -> Iterator[int]:
        """Around one layer over so many rows; gives the threads it is to use."""
        start = self._clock()
        yield self.n_threads
        if self.most > 1:
            self._took(self._clock() - start, rows)

    def _took(self, seconds: float, rows: int) -> None:
        if rows != self._rows:  # other work: what was measured before says nothing about it
            self._rows, self._usual, self._trial = rows, [], []
            self.n_threads = self._steady
            return
        if self.n_threads != self._steady:
            self._trial.append(seconds)
            if len(self._trial) == TRIAL:
                self._judge()
            return
        slow = len(self._usual) == TRIAL and seconds > SLOW * min(self._usual)
        self._usual = [*self._usual[1 - TRIAL :], seconds]
        self._since += 1
        if len(self._usual) == TRIAL and (self._since >= self._interval or (slow and self._since > TRIAL)):
            self.n_threads = self._other()
            self._since = 0

    def _other(self) -> int:
        """The number to try: in turn one more, one fewer, and half, for when several cores are held."""
        n = self._steady
        numbers = sorted({m for m in (n + 1, n - 1, n // 2) if 1 <= m <= self.most}, reverse=True)
        self._trials += 1
        return numbers[self._trials % len(numbers)]

    def _judge(self) -> None:
        if sum(self._trial) < GAIN * sum(self._usual):
            self._steady, self._interval, self._usual = self.n_threads, SOONEST, []
        else:
            self._interval = min(2 * self._interval, LATEST)
        self.n_threads, self._trial = self._steady, []

"""Chooses the number of threads of a forward pass: fewer where another process occupies a core.

If the system suspends a thread, all others wait for its chunk of rows until its next time slice, several
times a layer. Fewer threads are faster then. The tuner measures every layer. From time to time, and when a
layer takes much longer than usual, it runs a few layers with another number of threads and keeps the faster
one. Layers of a model may differ, so each is compared with its own time in earlier passes. Results do not
depend on the number of threads.

Threads that share a processor also wait for each other, even if another processor is idle. The tuner moves
them apart (decision 42).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from oxillama._kernels.machine import team
from oxillama.models.workspace import Threads

TRIAL = 6
"""Layers of a trial: a run with another number of threads."""
SOONEST, LATEST = 64, 2048
"""Minimum and maximum layers between two trials; the interval doubles after a trial that changes nothing."""
SLOW = 2.0
"""The second layer of the last `TRIAL` that is slower than the fastest by this factor starts a trial."""
GAIN = 0.9
"""A trial's number of threads is kept if its time is below this share of the usual time."""
KINDS = 8
"""Numbers of rows of one size whose usual times are known at a time."""
PASSES = 4
"""Last passes whose shortest time of a layer is its unit: keys to attend to make some layers ever slower."""

LONG = 1e-4
"""Seconds of a layer after which its threads may have shared a processor: waiting threads spin for longer."""
PATIENCE = 256
"""Maximum number of long layers between two checks of the processors, after threads were moved repeatedly."""


class ThreadTuner(Threads):
    """Measures layers and chooses their number of threads.

    Batches of different sizes are tuned separately: one token is limited by memory, a prompt by arithmetic.

    Args:
        max_threads: maximum number of threads.
        clock: the time in seconds.
        spread: moves so many threads to processors of their own; returns how many were moved.
    """

    def __init__(
        self,
        max_threads: int,
        clock: Callable[[], float] = time.perf_counter,
        spread: Callable[[int], int] = team.spread,
    ) -> None:
        super().__init__(max_threads)
        self._clock = clock
        self._spread = spread
        self._unseen, self._patience = 0, 1  # long layers since the last look, until the next one
        self._sizes: dict[int, SizeTuner] = {}
        # the running layer: its rows, its number, its tuner, the time it began
        self._rows, self._layer = 0, 0
        self._size = SizeTuner(max_threads)
        self._start = 0.0

    def begin(self, rows: int, layer: int) -> int:
        self._rows, self._layer = rows, layer
        bits = rows.bit_length()
        size = self._sizes.get(bits)
        if size is None:
            size = self._sizes[bits] = SizeTuner(self.max_threads)
        self._size = size
        self.n_threads: int = size.threads(rows, layer)
        self._start = self._clock()
        return self.n_threads

    def end(self) -> None:
        seconds = self._clock() - self._start
        if self.n_threads > 1 and seconds > LONG and self._has_moved_threads():
            self._size.forget(self._rows, self.n_threads)
        else:
            self._size.took(seconds, self._rows, self._layer, self.n_threads)

    def _has_moved_threads(self) -> bool:
        """Moves threads apart that share a processor. If they meet there again, another process occupies one
        of the processors, and the interval between checks grows."""
        self._unseen += 1
        if self._unseen < self._patience:
            return False
        moved, self._unseen = self._spread(self.n_threads) > 0, 0
        # up by factors and down by ones: on a busy machine about every second look finds threads together
        self._patience = min(4 * self._patience, PATIENCE) if moved else max(self._patience - 1, 1)
        return moved


class SizeTuner:
    """Measurements of batches of 2^n to 2^(n + 1) - 1 rows.

    A layer's time is measured in units of its own: its shortest time in the last `PASSES` passes of the same
    number of rows. It is compared with layers of this number of rows. Batches may change their number from
    pass to pass, as the rows of appended and drafted tokens do, so a trial continues across them.
    """

    def __init__(self, max_threads: int) -> None:
        self.max_threads = max_threads
        self.n_threads: int = max_threads  # threads for the next layer, once its usual time is known
        self.steady: int = max_threads  # between trials
        self.seconds: dict[int, dict[int, list[float]]] = {}  # of each layer's last passes, by rows
        self.usual: dict[int, list[float]] = {}  # times of the last layers with `steady` threads, by rows
        self.trial: list[float] = []
        self.expected: list[float] = []  # usual times of the layers in `trial`
        self.since: int = 0  # layers since the last trial
        self.interval: int = SOONEST
        self.trials: int = -1

    def threads(self, rows: int, layer: int) -> int:
        """The number of threads of the next layer: a trial's number only where its time can be compared."""
        is_known = len(self.usual.get(rows, ())) == TRIAL and layer in self.seconds[rows]
        return self.n_threads if is_known else self.steady

    def took(self, seconds: float, rows: int, layer: int, n_threads: int) -> None:
        """Records the time of a layer with so many threads."""
        if n_threads != self.steady:
            self.trial.append(seconds / unit(self.seconds[rows][layer]))
            self.expected.append(typical(self.usual[rows]))
            if len(self.trial) == TRIAL:
                self.judge()
            return
        layers = self.seconds.setdefault(rows, {})
        layers[layer] = passes = [*layers.get(layer, ())[-PASSES + 1 :], seconds]
        time, known = seconds / unit(passes), self.usual.pop(rows, [])
        self.usual[rows] = known = [*known[-TRIAL + 1 :], time]
        if len(self.usual) > KINDS:
            self.forget(next(iter(self.usual)), self.steady)
        self.since += 1
        slow = time > SLOW * min(known) and len(slow_ones(known)) > 1
        due = self.since >= self.interval or (slow and self.since > TRIAL)
        if due and self.n_threads == self.steady and len(known) == TRIAL:
            self.n_threads, self.since = self.other(), 0
            self.usual, self.seconds = {rows: known}, {rows: layers}  # the others may be from long ago

    def forget(self, rows: int, n_threads: int) -> None:
        """Forgets the times of the last layers with so many threads: the next ones will be faster."""
        if n_threads == self.steady:
            self.usual.pop(rows, None)
            self.seconds.pop(rows, None)
        else:
            self.trial, self.expected = [], []

    def other(self) -> int:
        """The number to try next: in turn one more, one fewer, and half."""
        n = self.steady
        numbers = sorted({m for m in (n + 1, n - 1, n // 2) if 1 <= m <= self.max_threads}, reverse=True)
        self.trials += 1
        return numbers[self.trials % len(numbers)]

    def judge(self) -> None:
        """Ends a trial: keeps the faster number."""
        if sum(self.trial) < GAIN * sum(self.expected):
            self.steady, self.interval, self.usual = self.n_threads, SOONEST, {}
        else:
            self.interval = min(2 * self.interval, LATEST)
        self.n_threads, self.trial, self.expected = self.steady, [], []


def unit(passes: list[float]) -> float:
    """The seconds of a layer's time 1; never 0, which a coarse clock may show."""
    return max(min(passes), 1e-9)


def slow_ones(times: list[float]) -> list[float]:
    """The slow ones of some layers' times."""
    least = SLOW * min(times)
    return [seconds for seconds in times if seconds > least]


def typical(times: list[float]) -> float:
    """The mean of some layers' times. A single slow one is left out: any thread is disturbed at times."""
    slow = slow_ones(times)
    return (sum(times) - slow[0]) / (len(times) - 1) if len(slow) == 1 else sum(times) / len(times)

"""Kernels alone beside what the machine can do at best: a streaming read, multiply-adds from registers.

Both take turns: memory that is fast or slow for some seconds is so for both, and what is reported are the
medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from benchmarks import runs
from benchmarks.timing import Subjects
from oxillama._kernels import best, load
from oxillama._kernels.machine import team
from oxillama.apps.bench.report import Metric, Row, Summary, align, round_ratios, spread
from oxillama.apps.doctor.measure import seconds
from oxillama.errors import ConfigError

PEAK_ROUNDS = 200_000  # about 10 ms
MANY = 512
BANDWIDTH = Metric("1 token", "GB/s", higher_is_better=True)


def rate(n: int) -> Metric:
    """The rate of products with so many tokens."""
    return Metric(f"{n} tokens", "GMAC/s", higher_is_better=True)


def add_arguments(parser: argparse.ArgumentParser, megabytes: str) -> None:
    """The options of all commands that measure kernels alone; ``megabytes`` says what there are 96 of."""
    parser.add_argument("--target", help="instruction set (default: the one the package would pick)")
    runs.add_threads(parser)
    runs.add_option(parser, "--megabytes", 96.0, megabytes, type=float)
    runs.add_arguments(parser)


def timed(wake: Callable[[], object], work: Callable[[], object]) -> dict[str, float]:
    """A turn that reports its seconds, once the threads are awake: a halted core can take a millisecond."""
    wake()
    return {"s": seconds(work)}


class Rooflines:
    """The kernels of one target, in turns with the machine's best.

    Args:
        sizes: names of the arguments that are sizes; ConfigError for one that is not from 1 to a million.
    """

    def __init__(self, args: argparse.Namespace, *sizes: str) -> None:
        for name in sizes:
            if not 0 < getattr(args, name) < 1e6:
                option = name.replace("_", "-")
                raise ConfigError(f"--{option}: expected at least 1, got {getattr(args, name)}")
        self.kernels, self.threads = load(args.target) if args.target else best(), args.threads
        self.whole = runs.Run(args, "threads", *sizes, target=self.kernels.target)

    def beside_read(self, name: str, work: Callable[[], object], n_bytes: float, memory: np.ndarray) -> Row:
        """GB/s of work that moves so many bytes, and of reading memory."""
        read = partial(self.kernels.roofline.read_bytes, memory, self.threads)
        sizes = {"kernel": n_bytes, "read": float(memory.nbytes)}
        return self._row(name, BANDWIDTH, {"kernel": work, "read": read}, sizes)

    def beside_peak(self, name: str, work: Callable[[], object], products: float) -> Row:
        """Billions of multiply-adds a second of work that has so many, and from registers."""
        peak = partial(self.kernels.roofline.float_products, PEAK_ROUNDS, self.threads)
        return self._row(
            name, rate(MANY), {"kernel": work, "peak": peak}, {"kernel": products, "peak": peak()}
        )

    def _row(
        self, name: str, metric: Metric, works: dict[str, Callable[[], object]], sizes: dict[str, float]
    ) -> Row:
        def wake() -> None:
            """Some milliseconds of work for all threads, on processors of their own."""
            self.kernels.roofline.float_products(PEAK_ROUNDS // 4, self.threads)
            team.spread(self.threads)

        turns: Subjects = {who: partial(timed, wake, work) for who, work in works.items()}
        taken = self.whole.alternate(turns)
        return Row(name, metric, {who: [sizes[who] / s / 1e9 for s in taken[who]["s"]] for who in works})

    def finish(self, head: Sequence[str], found: Iterable[tuple[Sequence[str], Sequence[Row]]]) -> int:
        """Prints a line for each case: its names, and the rates and shares of decoding and of prefill."""
        lines = [[*head, "read, GB/s", "decode, GB/s", "share of the read"]]
        lines[0] += ["peak, GMAC/s", "prefill, GMAC/s", "share of the peak"]
        results: list[Row] = []
        for names, rows in found:
            results += rows
            lines.append([*names, *(cell for row in rows for cell in cells(row))])
        return self.whole.finish(results, align(lines))


def cells(row: Row) -> list[str]:
    """Roofline, rate, and the median of the rounds' shares."""
    reached, bound = row.samples.values()
    return [*(f"{Summary.of(values).median:.1f}" for values in (bound, reached)), share(row)]


def share(row: Row) -> str:
    """The median of the rounds' shares."""
    return spread(Summary.of(round_ratios(*row.samples.values())), 2)

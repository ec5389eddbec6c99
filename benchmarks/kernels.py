"""Speed of `Linear` alone beside what the machine can do: every format, on one target.

The matrix is larger than any cache, as a model's are. Each round takes a plain streaming read of the same
bytes by the same threads, the products with 1, 2, 4, 8, 16, 32 and 512 tokens, and the peak rate of the
multipliers, one after another: memory that is fast or slow for some seconds is so for all of them, and what
is reported are the medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks import runs
from benchmarks.random_blocks import random_rows
from benchmarks.timing import alternate
from oxillama._kernels import Kernels, best, load, pack
from oxillama._kernels.machine import team
from oxillama._kernels.memory import aligned_empty
from oxillama.apps.bench.report import Metric, Row, Summary, align, round_ratios, spread
from oxillama.base.formats import IN_MEMORY, LAYOUTS, ROUNDED
from oxillama.errors import ConfigError

COLS = 4096
SOME_ROWS = 256  # this many random rows, again and again
FEW = (2, 4, 8)  # bound by the memory, at best
SOME = (16, 32)  # bound by the multipliers, at best
MANY = 512
PEAK_ROUNDS = 200_000  # about 10 ms

BANDWIDTH = Metric("1 token", "GB/s", higher_is_better=True)


def rate(n: int) -> Metric:
    """The rate of products with so many tokens."""
    return Metric(f"{n} tokens", "GMAC/s", higher_is_better=True)


RATE = rate(MANY)


def seconds(n: int) -> Metric:
    """The time of one product with so many tokens."""
    return Metric(f"{n} tokens", "s", higher_is_better=False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runnable = [name for name, fmt in IN_MEMORY.items() if fmt.layout]
    parser.add_argument("--format", choices=runnable, action="append", help="repeatable; default: all")
    parser.add_argument("--target", help="instruction set (default: the one the package would pick)")
    runs.add_threads(parser)
    parser.add_argument(
        "--megabytes", type=float, default=96.0, help="size of the matrix (default: %(default)s)"
    )
    runs.add_arguments(parser)
    parser.set_defaults(runnable=runnable)


def run(args: argparse.Namespace) -> int:
    """Prints a line per format: shares of the roofline, and what more tokens cost."""
    if not 0 < args.megabytes < 1e6:
        raise ConfigError(f"--megabytes: expected a number above 0, got {args.megabytes}")
    kernels = load(args.target) if args.target else best()
    options = {"target": kernels.target, "threads": args.threads, "megabytes": args.megabytes}
    whole = runs.Run("kernels", args, options)
    results: list[Row] = []
    lines = [["format", "read, GB/s", "1 token, GB/s", "share of the read"]]
    lines[0] += [f"{n} tokens / 1" for n in FEW] + [f"{n} tokens, share of the peak" for n in SOME]
    lines[0] += ["peak, GMAC/s", f"{MANY} tokens, GMAC/s", "share of the peak"]
    for name in args.format or args.runnable:
        found = measure(kernels, name, args.threads, args.rounds, args.megabytes, args.warmup)
        results += found
        lines.append([name, *cells(found)])
    return whole.finish(results, align(lines))


def measure(
    kernels: Kernels, name: str, threads: int, rounds: int, megabytes: float, warmup: int = 1
) -> list[Row]:
    """Samples of one format, each beside its roofline."""
    fmt = IN_MEMORY[name]
    layout = LAYOUTS[fmt.layout or ""]
    data, rows = matrix(name, megabytes)
    linear = kernels.linear.Linear([(layout.id, rows, data)], COLS)
    x = np.random.default_rng(1).standard_normal((MANY, COLS)).astype(np.float32)
    out = np.empty((MANY, rows), np.float32)
    scratch = aligned_empty(linear.scratch_bytes(MANY))
    roofline = kernels.roofline
    products = roofline.float_products if layout.activation == "f32" else roofline.integer_products

    def turn(work: Callable[[], Any]) -> Callable[[], dict[str, float]]:
        return timed(lambda: products(PEAK_ROUNDS // 4, threads), work)

    times = alternate(
        {
            "read": turn(lambda: roofline.read_bytes(data, threads)),
            **{
                str(n): turn(lambda n=n: linear.apply(x[:n], out[:n], scratch, threads))  # type: ignore[misc]
                for n in (1, *FEW, *SOME, MANY)
            },
            "peak": turn(lambda: products(PEAK_ROUNDS, threads)),
        },
        rounds=rounds,
        warmup=warmup,
    )
    taken = {subject: samples["s"] for subject, samples in times.items()}
    peak = products(PEAK_ROUNDS, threads)

    def per_second(work: float, subject: str) -> list[float]:
        return [work / s / 1e9 for s in taken[subject]]

    return [
        Row(
            name, BANDWIDTH, {"kernel": per_second(data.nbytes, "1"), "read": per_second(data.nbytes, "read")}
        ),
        *(Row(name, seconds(n), {"kernel": taken[str(n)], "1 token": taken["1"]}) for n in FEW),
        *(
            Row(
                name,
                rate(n),
                {"kernel": per_second(n * rows * COLS, str(n)), "peak": per_second(peak, "peak")},
            )
            for n in (*SOME, MANY)
        ),
    ]


def matrix(name: str, megabytes: float) -> tuple[np.ndarray, int]:
    """Packed random rows of at least so many megabytes, and how many rows they are."""
    fmt = IN_MEMORY[name]
    some = aligned_empty(pack.packed_bytes(fmt.id, SOME_ROWS, COLS))
    stored = "F32" if fmt in ROUNDED.values() else name
    blocks = random_rows(stored, SOME_ROWS, COLS, COLS**-0.5, np.random.default_rng(0)).reshape(-1)
    pack.pack(fmt.id, blocks, SOME_ROWS, COLS, some)
    times = max(1, round(megabytes * 1e6 / some.nbytes))
    data = aligned_empty(times * some.nbytes)
    data.reshape(times, -1)[:] = some
    return data, times * SOME_ROWS


def waking(kernels: Kernels, threads: int) -> Callable[[], Any]:
    """A function that gives so many threads some milliseconds of work, on processors of their own."""

    def wake() -> None:
        kernels.roofline.float_products(PEAK_ROUNDS // 4, threads)
        team.spread(threads)

    return wake


def timed(wake: Callable[[], Any], work: Callable[[], Any]) -> Callable[[], dict[str, float]]:
    """A turn that reports its seconds, once the threads are awake: a halted core can take a millisecond."""

    def turn() -> dict[str, float]:
        wake()
        start = time.perf_counter()
        work()
        return {"s": time.perf_counter() - start}

    return turn


def cells(found: Sequence[Row]) -> list[str]:
    """The columns of one format."""
    bandwidth, few, some, many = found[0], found[1 : 1 + len(FEW)], found[1 + len(FEW) : -1], found[-1]

    def ratio(row: Row) -> str:
        return spread(Summary.of(round_ratios(*row.samples.values())), 2)

    def medians(row: Row) -> list[str]:
        return [f"{Summary.of(values).median:.0f}" for values in reversed(row.samples.values())]

    return [*medians(bandwidth), ratio(bandwidth), *map(ratio, [*few, *some]), *medians(many), ratio(many)]

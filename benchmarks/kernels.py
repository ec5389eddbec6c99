"""Speed of `Linear` alone beside what the machine can do: every format, on one target.

The matrix is larger than any cache, as a model's are. Each round takes a plain streaming read of the same
bytes by the same threads, the products with 1, 2, 4, 8, 16, 32 and 512 tokens, and the peak rate of the
multipliers, one after another: memory that is fast or slow for some seconds is so for all of them, and what
is reported are the medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from benchmarks import roofline, runs
from benchmarks.random_blocks import random_rows
from benchmarks.roofline import BANDWIDTH, MANY, PEAK_ROUNDS, rate, share
from oxillama._kernels import Kernels, best, load, pack
from oxillama._kernels.memory import aligned_empty
from oxillama.apps.bench.report import Metric, Row, Summary, align
from oxillama.base.formats import IN_MEMORY, LAYOUTS, ROUNDED
from oxillama.errors import ConfigError

COLS = 4096
SOME_ROWS = 256  # this many random rows, again and again
FEW = (2, 4, 8)  # bound by the memory, at best
SOME = (16, 32)  # bound by the multipliers, at best


def seconds(n: int) -> Metric:
    """The time of one product with so many tokens."""
    return Metric(f"{n} tokens", "s", higher_is_better=False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runnable = [name for name, fmt in IN_MEMORY.items() if fmt.layout]
    parser.add_argument("--format", choices=runnable, action="append", help="repeatable; default: all")
    roofline.add_arguments(parser, "size of the matrix")
    parser.set_defaults(runnable=runnable)


def run(args: argparse.Namespace) -> int:
    """Prints a line per format: shares of the roofline, and what more tokens cost."""
    if not 0 < args.megabytes < 1e6:
        raise ConfigError(f"--megabytes: expected a number above 0, got {args.megabytes}")
    kernels = load(args.target) if args.target else best()
    whole = runs.Run(args, "target", "threads", "megabytes", target=kernels.target)
    results: list[Row] = []
    lines = [["format", "read, GB/s", "1 token, GB/s", "share of the read"]]
    lines[0] += [f"{n} tokens / 1" for n in FEW] + [f"{n} tokens, share of the peak" for n in SOME]
    lines[0] += ["peak, GMAC/s", f"{MANY} tokens, GMAC/s", "share of the peak"]
    for name in args.format or args.runnable:
        found = measure(whole, kernels, name, args.threads, args.megabytes)
        results += found
        lines.append([name, *cells(found)])
    return whole.finish(results, align(lines))


def measure(whole: runs.Run, kernels: Kernels, name: str, threads: int, megabytes: float) -> list[Row]:
    """Samples of one format, each beside its roofline."""
    fmt = IN_MEMORY[name]
    layout = LAYOUTS[fmt.layout or ""]
    data, rows = matrix(name, megabytes)
    linear = kernels.linear.Linear([(layout.id, rows, data)], COLS)
    x = np.random.default_rng(1).standard_normal((MANY, COLS)).astype(np.float32)
    out = np.empty((MANY, rows), np.float32)
    scratch = aligned_empty(linear.scratch_bytes(MANY))
    rates = kernels.roofline
    products = rates.float_products if layout.activation == "f32" else rates.integer_products
    works: dict[str, Callable[[], object]] = {"read": partial(rates.read_bytes, data, threads)}
    for n in (1, *FEW, *SOME, MANY):
        works[str(n)] = partial(linear.apply, x[:n], out[:n], scratch, threads)
    works["peak"] = partial(products, PEAK_ROUNDS, threads)
    wake = partial(products, PEAK_ROUNDS // 4, threads)
    turns = {subject: partial(roofline.timed, wake, work) for subject, work in works.items()}
    taken = {subject: samples["s"] for subject, samples in whole.alternate(turns).items()}

    def per_second(size: float, subject: str) -> list[float]:
        return [size / s / 1e9 for s in taken[subject]]

    peak = per_second(products(PEAK_ROUNDS, threads), "peak")
    read = {"kernel": per_second(data.nbytes, "1"), "read": per_second(data.nbytes, "read")}
    found = [Row(name, BANDWIDTH, read)]
    found += [Row(name, seconds(n), {"kernel": taken[str(n)], "1 token": taken["1"]}) for n in FEW]
    for n in (*SOME, MANY):
        found.append(Row(name, rate(n), {"kernel": per_second(n * rows * COLS, str(n)), "peak": peak}))
    return found


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


def cells(found: Sequence[Row]) -> list[str]:
    """The columns of one format."""
    bandwidth, few, some, many = found[0], found[1 : 1 + len(FEW)], found[1 + len(FEW) : -1], found[-1]

    def medians(row: Row) -> list[str]:
        return [f"{Summary.of(values).median:.0f}" for values in reversed(row.samples.values())]

    return [*medians(bandwidth), share(bandwidth), *map(share, [*few, *some]), *medians(many), share(many)]

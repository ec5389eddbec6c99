"""Speed of `Linear` alone: every format, for some numbers of tokens, on one target and one thread.

The matrix stays in the core's own cache, so this is the speed of the arithmetic and not of the memory.
Of many short runs the fastest counts: what others on the machine do can only slow a run down.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from benchmarks.random_blocks import random_rows
from benchmarks.timing import align
from oxillama._kernels import Kernels, best, load, pack
from oxillama.errors import ConfigError
from oxillama.formats import FORMATS, LAYOUTS
from oxillama.tensor import aligned_empty

ROWS, COLS = 256, 2048
TOKENS = (1, 2, 4, 8, 256)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runnable = [name for name, fmt in FORMATS.items() if fmt.layout]
    parser.add_argument("--format", choices=runnable, action="append", help="repeatable; default: all")
    parser.add_argument("--target", help="instruction set (default: the one the package would pick)")
    parser.add_argument("--seconds", type=float, default=0.25, help="per figure (default: %(default)s)")
    parser.set_defaults(runnable=runnable)


def run(args: argparse.Namespace) -> int:
    """Prints billions of multiply-adds a second, a line per format."""
    if not args.seconds > 0:
        raise ConfigError(f"--seconds: expected a number above 0, got {args.seconds}")
    kernels = load(args.target) if args.target else best()
    lines = [["format", *(f"{n} token{'s' * (n > 1)}" for n in TOKENS)]]
    for name in args.format or args.runnable:
        speeds = [speed(kernels, name, n, args.seconds) for n in TOKENS]
        lines.append([name, *(f"{value:.0f}" for value in speeds)])
    print(f"target {kernels.target}, one thread, {ROWS} x {COLS}: billions of multiply-adds a second")
    print(align(lines))
    return 0


def speed(kernels: Kernels, name: str, n: int, seconds: float) -> float:
    """Billions of multiply-adds a second of the fastest run."""
    fmt = FORMATS[name]
    blocks = random_rows(name, ROWS, COLS, COLS**-0.5, np.random.default_rng(0)).reshape(-1)
    data = aligned_empty(pack.packed_bytes(fmt.id, ROWS, COLS))
    pack.pack(fmt.id, blocks, ROWS, COLS, data)
    linear = kernels.linear.Linear([(LAYOUTS[fmt.layout or ""].id, ROWS, data)], COLS)
    x = np.random.default_rng(1).standard_normal((n, COLS)).astype(np.float32)
    out, scratch = np.empty((n, ROWS), np.float32), aligned_empty(linear.scratch_bytes(n))
    turns = max(1, 64 // n)
    fastest, end = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(turns):
            linear.apply(x, out, scratch, 1)
        fastest = min(fastest, (time.perf_counter() - start) / turns)
    return ROWS * COLS * n / fastest / 1e9

"""The gated delta rule alone, beside what the machine can do at best: decoding and prefill.

Decoding reads and writes every layer's state for one token, so its roofline is a streaming read of as many
bytes by as many threads. There are as many layers as it takes for the states to be in no cache. Prefill
multiplies four times for each number of the state and token (decay, what the key recalls, the change, the
output), so its roofline is the rate of float multiply-adds from registers. Each round measures both.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks import runs
from benchmarks.attention import cells, rates
from benchmarks.kernels import BANDWIDTH, PEAK_ROUNDS, RATE, timed, waking
from oxillama._kernels import Kernels, best, load
from oxillama._kernels.memory import aligned_empty
from oxillama._kernels.recurrent.state_batch import StateBatch
from oxillama.apps.bench.report import Row, align
from oxillama.errors import ConfigError

PRODUCTS = 4
"""Multiplications for each number of the state and token."""


@dataclass(frozen=True)
class Shape:
    """Heads of keys and of values, their channels, and whether each channel of a key has its own decay."""

    keys: int
    heads: int
    dim: int
    by_channel: bool = False

    @property
    def state_floats(self) -> int:
        return self.heads * self.dim * self.dim


SHAPES = {
    "Qwen 3.5 0.8B": Shape(16, 16, 128),
    "Qwen 3.5 4B": Shape(16, 32, 128),
    "Kimi Linear": Shape(32, 32, 128, by_channel=True),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", choices=SHAPES, action="append", help="repeatable; default: all")
    parser.add_argument("--target", help="instruction set (default: the one the package would pick)")
    runs.add_threads(parser)
    parser.add_argument(
        "--prompt", type=int, default=512, help="tokens of the prefill (default: %(default)s)"
    )
    parser.add_argument(
        "--megabytes", type=float, default=96.0, help="states that are read (default: %(default)s)"
    )
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Prints a line per shape: rates, and shares of the rooflines."""
    for name in ("prompt", "megabytes"):
        if not 0 < getattr(args, name) < 1e6:
            raise ConfigError(f"--{name}: expected at least 1, got {getattr(args, name)}")
    kernels = load(args.target) if args.target else best()
    options = {name: getattr(args, name) for name in ("threads", "prompt", "megabytes")}
    options["target"] = kernels.target
    whole = runs.Run("delta", args, options)
    lines = [["shape", "read, GB/s", "decode, GB/s", "share of the read"]]
    lines[0] += ["peak, GMAC/s", "prefill, GMAC/s", "share of the peak"]
    results: list[Row] = []
    for name in args.shape or SHAPES:
        found = [decode(kernels, name, args), prefill(kernels, name, args)]
        results += found
        lines.append([name, *(cell for row in found for cell in cells(row))])
    return whole.finish(results, align(lines))


def scanning(
    kernels: Kernels, shape: Shape, memory: np.ndarray, rows: int, threads: int
) -> Callable[[], None]:
    """Scans so many random rows into float32 (layers, state_floats), the states of all layers."""
    rng, inner = np.random.default_rng(0), shape.heads * shape.dim
    decays = inner if shape.by_channel else shape.heads
    width = 2 * shape.keys * shape.dim + inner
    qkv = (rng.standard_normal((rows, width)) * shape.dim**-0.5).astype(np.float32)
    decay = rng.uniform(0.9, 1, (rows, decays)).astype(np.float32)
    beta = rng.random((rows, shape.heads)).astype(np.float32)
    out = np.empty((rows, inner), np.float32)
    starts, settled, record = np.int32([0, rows]), np.int32([rows]), width + shape.heads + decays
    layers = [
        StateBatch([state], [state], starts, len(state), [()], [()], settled, record) for state in memory
    ]

    def scan() -> None:
        for states in layers:
            kernels.delta.delta_scan(states, 0, 0, shape.heads, False, qkv, decay, beta, out, threads)

    return scan


def states_of(shape: Shape, layers: int) -> np.ndarray:
    """float32 (layers, state_floats) of zeros."""
    memory = aligned_empty(4 * layers * shape.state_floats).view(np.float32).reshape(layers, -1)
    memory[:] = 0
    return memory


def decode(kernels: Kernels, name: str, args: argparse.Namespace) -> Row:
    """GB/s of states that one token reads and writes in all layers; of plain reading."""
    shape = SHAPES[name]
    memory = states_of(shape, max(1, round(args.megabytes * 1e6 / (4 * shape.state_floats))))
    raw, wake = memory.reshape(-1).view(np.uint8), waking(kernels, args.threads)
    turns = {
        "kernel": timed(wake, scanning(kernels, shape, memory, 1, args.threads)),
        "read": timed(wake, lambda: kernels.roofline.read_bytes(raw, args.threads)),
    }
    return rates(name, BANDWIDTH, turns, {"kernel": 2.0 * raw.nbytes, "read": float(raw.nbytes)}, args)


def prefill(kernels: Kernels, name: str, args: argparse.Namespace) -> Row:
    """Billions of multiplications a second when one layer scans a whole prompt, and from registers."""
    shape = SHAPES[name]
    memory, wake = states_of(shape, 1), waking(kernels, args.threads)
    turns = {
        "kernel": timed(wake, scanning(kernels, shape, memory, args.prompt, args.threads)),
        "peak": timed(wake, lambda: kernels.roofline.float_products(PEAK_ROUNDS, args.threads)),
    }
    products = float(PRODUCTS * args.prompt * shape.state_floats)
    peak = kernels.roofline.float_products(PEAK_ROUNDS, args.threads)
    return rates(name, RATE, turns, {"kernel": products, "peak": peak}, args)

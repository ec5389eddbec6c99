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

from benchmarks import roofline, runs
from oxillama._kernels import Kernels
from oxillama._kernels.memory import aligned_empty
from oxillama._kernels.recurrent.state_batch import StateBatch
from oxillama.apps.bench.report import Row

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
    runs.add_option(parser, "--prompt", 512, "tokens of the prefill", type=int)
    roofline.add_arguments(parser, "states that are read")


def run(args: argparse.Namespace) -> int:
    """Prints a line per shape: rates, and shares of the rooflines."""
    rooflines = roofline.Rooflines(args, "prompt", "megabytes")
    names = args.shape or SHAPES
    found = [([name], [decode(rooflines, name, args), prefill(rooflines, name, args)]) for name in names]
    return rooflines.finish(["shape"], found)


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


def decode(rooflines: roofline.Rooflines, name: str, args: argparse.Namespace) -> Row:
    """GB/s of states that one token reads and writes in all layers; of plain reading."""
    shape = SHAPES[name]
    memory = states_of(shape, max(1, round(args.megabytes * 1e6 / (4 * shape.state_floats))))
    work = scanning(rooflines.kernels, shape, memory, 1, args.threads)
    return rooflines.beside_read(name, work, 2.0 * memory.nbytes, memory.reshape(-1).view(np.uint8))


def prefill(rooflines: roofline.Rooflines, name: str, args: argparse.Namespace) -> Row:
    """Billions of multiplications a second when one layer scans a whole prompt, and from registers."""
    shape = SHAPES[name]
    work = scanning(rooflines.kernels, shape, states_of(shape, 1), args.prompt, args.threads)
    return rooflines.beside_peak(name, work, float(PRODUCTS * args.prompt * shape.state_floats))

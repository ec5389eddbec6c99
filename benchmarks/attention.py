"""Attention alone, beside what the machine can do at best: decoding at a long context, and prefill.

Decoding reads all keys and values for one token, so its roofline is a streaming read of the same pages by as
many threads. There are as many layers as it takes for the pages to be in no cache. Prefill multiplies, so its
roofline is the rate of float multiply-adds from registers. Each round measures both.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import roofline, runs
from oxillama._kernels import Kernels
from oxillama._kernels.attention.page_table import PageTable
from oxillama._kernels.memory import aligned_empty
from oxillama.apps.bench.report import Row
from oxillama.base.formats import KV_PAIRS, KV_TYPES


@dataclass(frozen=True)
class Shape:
    """Heads of a model."""

    n_heads: int
    kv_heads: int
    head_dim: int


SHAPES = {"1.1B": Shape(32, 4, 64), "8B": Shape(32, 8, 128)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", choices=SHAPES, action="append", help="repeatable; default: all")
    what = "repeatable; default: all"
    parser.add_argument("--kv-type", choices=KV_PAIRS, metavar="TYPE", action="append", help=what)
    runs.add_option(parser, "--context", 8192, "positions when decoding", type=int)
    runs.add_option(parser, "--prompt", 2048, "tokens of the prefill", type=int)
    runs.add_option(parser, "--page-size", 16, type=int)
    roofline.add_arguments(parser, "pages that are read")


def run(args: argparse.Namespace) -> int:
    """Prints a line per shape and KV type: rates, and shares of the rooflines."""
    rooflines = roofline.Rooflines(args, "context", "prompt", "page_size", "megabytes")
    cases = [(shape, kv) for shape in args.shape or SHAPES for kv in args.kv_type or KV_TYPES]
    found = [(case, [decode(rooflines, *case, args), prefill(rooflines, *case, args)]) for case in cases]
    return rooflines.finish(["shape", "KV"], found)


class Pages:
    """One sequence's keys and values in all layers: random, stored by the kernel itself."""

    def __init__(
        self, kernels: Kernels, shape: Shape, kv_type: str, n_layers: int, length: int, page_size: int
    ):
        self.shape, self.n_layers, self.length = shape, n_layers, length
        self.attention = kernels.attention
        kv_heads, dim = shape.kv_heads, shape.head_dim
        self.kv_shape = self.attention.KvShape(n_layers, kv_heads, dim, dim, *types_of(kv_type), page_size)
        n_pages = -(-length // page_size)
        page_bytes = -(-self.kv_shape.page_bytes // 64) * 64
        self.memory = aligned_empty(-(-n_pages * page_bytes // 256) * 256)
        self.pages = PageTable(self.kv_shape.page_bytes)
        self.pages.put(0, self.memory[: n_pages * page_bytes].reshape(n_pages, page_bytes))
        self.tables = np.arange(n_pages, dtype=np.int32)[None]
        kv = np.random.default_rng(0).standard_normal((length, 2 * kv_heads * dim)).astype(np.float32)
        whole = self.rows(length)
        for layer in range(n_layers):
            whole.store(layer, kv, 0, kv_heads * dim, 1)

    def rows(self, n: int) -> Any:
        """`PagedBatch` of the last n positions."""
        spans, first = np.array([0, n], np.int32), np.array([self.length - n], np.int32)
        return self.attention.PagedBatch(self.kv_shape, self.pages, self.tables, spans, first)

    def attending(self, n: int, threads: int) -> Callable[[], None]:
        """A function that lets the last n positions attend, in every layer."""
        heads, dim, batch = self.shape.n_heads, self.shape.head_dim, self.rows(n)
        q = np.random.default_rng(1).standard_normal((n, heads * dim)).astype(np.float32)
        out, scratch = np.empty_like(q), aligned_empty(batch.scratch_bytes(threads))

        def attend() -> None:
            for layer in range(self.n_layers):
                batch.attend(layer, q, heads, dim**-0.5, out, scratch, threads)

        return attend


def types_of(kv_type: str) -> tuple[int, int]:
    """Layout ids of keys and of values."""
    keys, values = KV_PAIRS[kv_type]
    return KV_TYPES[keys], KV_TYPES[values]


def decode(rooflines: roofline.Rooflines, name: str, kv_type: str, args: argparse.Namespace) -> Row:
    """GB/s of keys and values that one token's attention reads at the end of a context; of plain reading."""
    kernels, shape = rooflines.kernels, SHAPES[name]
    dims = shape.kv_heads, shape.head_dim, shape.head_dim
    one = kernels.attention.KvShape(1, *dims, *types_of(kv_type), args.page_size)
    n_layers = max(1, round(args.megabytes * 1e6 / (one.page_bytes * args.context / args.page_size)))
    pages = Pages(kernels, shape, kv_type, n_layers, args.context, args.page_size)
    work, n_bytes = pages.attending(1, args.threads), float(pages.memory.nbytes)
    return rooflines.beside_read(f"{name} {kv_type}", work, n_bytes, pages.memory)


def prefill(rooflines: roofline.Rooflines, name: str, kv_type: str, args: argparse.Namespace) -> Row:
    """Billions of multiply-adds a second when a whole prompt attends, and from registers."""
    shape = SHAPES[name]
    pages = Pages(rooflines.kernels, shape, kv_type, 1, args.prompt, args.page_size)
    products = args.prompt * (args.prompt + 1) / 2 * shape.n_heads * 2 * shape.head_dim
    return rooflines.beside_peak(f"{name} {kv_type}", pages.attending(args.prompt, args.threads), products)

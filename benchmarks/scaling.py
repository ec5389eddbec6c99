"""What a decode step and a prefill chunk cost, and how both scale with cores: predicted beside measured.

One thread gives the times of the parts, and the number of parallel regions and of bytes are counted. Together
with the cost of a region and the bandwidth of the memory they predict tokens/s for any number of threads
(docs/scaling-cores.md). Every number of threads that this machine has is measured too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import runs
from oxillama import InferenceEngine
from oxillama._kernels import best, load
from oxillama._kernels.machine import team
from oxillama._kernels.openmp_thread import in_openmp_thread
from oxillama.apps.bench.kernel_calls import PRODUCTS, KernelCalls, Product, counted_kernels
from oxillama.apps.bench.report import Metric, Row, align
from oxillama.apps.bench.run import fixed_tokens
from oxillama.apps.doctor.machine import read_machine
from oxillama.apps.doctor.measure import Rates, buffer_bytes, measure_rates, seconds, thread_counts
from oxillama.errors import ConfigError
from oxillama.models.thread_tuner import ThreadTuner

T = TypeVar("T")
DECODE = Metric("decode", "tokens/s", higher_is_better=True)
PREFILL = Metric("prefill", "tokens/s", higher_is_better=True)
LARGER = (1, 2, 4, 8, 16, 32, 64, 128)
PAUSE = 20e-6
"""Seconds between two regions, about those between two kernels of a decode step."""

COUNTER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
static long regions;
long ox_regions(void) { return regions; }
void GOMP_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags) {
    static void (*enter)(void (*)(void *), void *, unsigned, unsigned);
    if (!enter) *(void **)&enter = dlsym(RTLD_NEXT, "GOMP_parallel");
    if (threads != 1) regions++;
    enter(work, data, threads, flags);
}
"""
"""Counts the parallel regions of several threads that code compiled by gcc enters. Preloaded."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="GGUF file")
    runs.add_threads(parser)
    runs.add_option(parser, "--prompt", 128, "tokens")
    runs.add_option(parser, "--new", 16, "tokens decoded")
    what = "GB/s of a socket's memory in the predictions (default: as measured here)"
    parser.add_argument("--bandwidth", type=float, help=what)
    runs.add_option(parser, "--cores", 64, "cores of a socket in the predictions")
    what = "us that each thread beyond the second adds to a region; measured where there are more than two "
    what += "(default: 0.1, an assumption)"
    parser.add_argument("--more-thread", type=float, default=0.1, metavar="US", help=what)
    what = "how much more a thread of another socket adds to a region's cost (default: 3, an assumption)"
    parser.add_argument("--between-sockets", type=float, default=3.0, metavar="FACTOR", help=what)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)  # the child that counts
    runs.add_arguments(parser, rounds=5)


@dataclass(frozen=True)
class Pass:
    """Medians of one kind of pass.

    Attributes:
        outside, products, others: seconds outside kernels, in products with weights, and in other kernels.
        shapes: the products.
    """

    outside: float
    products: float
    others: float
    shapes: tuple[Product, ...]

    @property
    def seconds(self) -> float:
        return self.outside + self.products + self.others


@dataclass(frozen=True)
class Parameters:
    """What the formula takes beside the pass with one thread.

    Attributes:
        reads: bytes/s that 1, 2, ... threads read, as measured.
        bandwidth: bytes/s of a socket's memory, for other numbers of threads.
        share: of those that products reach; that of one thread's decode steps is taken for any number.
        cores: of a socket.
        pair: seconds of a parallel region of two threads.
        thread: seconds that each further thread adds.
        between_sockets: factor of ``thread`` for threads of other sockets.
    """

    reads: Mapping[int, float]
    bandwidth: float
    share: float
    cores: int
    pair: float
    thread: float
    between_sockets: float

    def sockets(self, threads: int) -> int:
        return -(-threads // self.cores)

    def memory(self, threads: int) -> float:
        """bytes/s that so many threads read; the weights lie in all sockets alike."""
        alike = min(threads * self.reads[1], self.sockets(threads) * self.bandwidth)
        return self.reads.get(threads, alike)

    def region_seconds(self, threads: int) -> float:
        near = min(threads, self.cores)
        return self.pair + self.thread * (near - 2 + self.between_sockets * (threads - near))


def predict(one: Pass, regions: int, threads: int, facts: Parameters, *, others_scale: bool) -> float:
    """Seconds of a pass with so many threads, from the same pass with one.

    A product takes as long as the thread with the most panels, and at least as long as its read. A pass
    without parallel regions is too small for more than one thread.
    """
    if threads == 1 or not regions:
        return one.seconds
    n_bytes = sum(shape.bytes for shape in one.shapes)
    products = 0.0
    for shape in one.shapes:
        alone = one.products * shape.bytes / n_bytes
        largest = -(-shape.panels // threads) / shape.panels
        products += max(alone * largest, shape.bytes / (facts.share * facts.memory(threads)))
    others = one.others / threads if others_scale else one.others
    return one.outside + others + products + regions * facts.region_seconds(threads)


def run(args: argparse.Namespace) -> int:
    """Prints the parts of a step, and predicted beside measured tokens/s."""
    whole = runs.Run(args, "model", "threads", "prompt", "new", model=args.model.stem)
    if args.count:
        print(json.dumps(count_here(args)))
        return 0
    regions = count_regions(args) if args.threads > 1 else {"decode": 0, "prefill": 0}
    counts = thread_counts(args.threads)
    costs = {n: in_openmp_thread(partial(region_costs, n, args.rounds)) for n in counts}
    passes, rates = measure(args, counts)
    decode, prefill = passes[1]
    paused = [costs[n][1] for n in counts]
    facts = Parameters(
        {found.threads: found.read for found in rates},
        args.bandwidth * 1e9 if args.bandwidth else max(found.read for found in rates),
        min(1.0, sum(shape.bytes for shape in decode.shapes) / decode.products / rates[0].read),
        args.cores,
        paused[min(1, len(counts) - 1)],
        (paused[-1] - paused[1]) / (counts[-1] - 2) if counts[-1] > 2 else 1e-6 * args.more_thread,
        args.between_sockets,
    )
    results = [
        Row(f"{whole.model}, {n} threads", metric, {"oxillama": [tokens / found.seconds]})
        for n in counts
        for metric, tokens, found in zip((DECODE, PREFILL), (1, args.prompt), passes[n])
    ]
    lines = [["threads", "decode, tokens/s", "predicted", "prefill, tokens/s", "predicted"]]
    for n in sorted({*LARGER, *counts}):
        line = [str(n)]
        for kind, tokens in (("decode", 1), ("prefill", args.prompt)):
            i = ("decode", "prefill").index(kind)
            one = (decode, prefill)[i]
            predicted = predict(one, regions[kind], n, facts, others_scale=kind == "prefill")
            line.append(f"{tokens / passes[n][i].seconds:.1f}" if n in passes else "")
            line.append(f"{tokens / predicted:.1f}")
        lines.append(line)
    return whole.finish(results, "\n\n".join([*parts(passes, regions, rates, costs), align(lines)]))


def parts(
    passes: Mapping[int, tuple[Pass, Pass]],
    regions: Mapping[str, int],
    rates: Sequence[Rates],
    costs: Mapping[int, tuple[float, float]],
) -> list[str]:
    """Tables of the parts of a pass, of regions, and of the machine's rates."""
    lines = [
        ["pass", "threads", "regions", "weights, MB", "products, ms", "other kernels, ms", "outside, ms"]
    ]
    for i, kind in enumerate(("decode", "prefill")):
        for n, found in passes.items():
            n_bytes = sum(shape.bytes for shape in found[i].shapes) / 1e6
            times = (found[i].products, found[i].others, found[i].outside)
            counted = str(regions[kind] if n > 1 else 0)
            lines.append([kind, str(n), counted, f"{n_bytes:.0f}", *(f"{1e3 * t:.2f}" for t in times)])
    head = ["threads", "read, GB/s", "int8, GMAC/s", "a region, us", f"after {1e6 * PAUSE:.0f} us alone, us"]
    speeds = [
        [str(n), f"{r.read / 1e9:.1f}", f"{r.products / 1e9:.1f}", *(f"{1e6 * t:.2f}" for t in costs[n])]
        for n, r in zip(costs, rates)
    ]
    return [align(lines), align([head, *speeds])]


def region_costs(threads: int, rounds: int, n: int = 500) -> tuple[float, float]:
    """Seconds of an empty parallel region: one after another, and each after `PAUSE` on one thread."""
    empty = partial(best().roofline.float_products, 0, threads)
    best().roofline.integer_products(20_000, threads)
    team.spread(threads)

    def paused() -> float:
        taken = 0.0
        for _ in range(n):
            start = time.perf_counter()
            while time.perf_counter() - start < PAUSE:
                pass
            taken += seconds(empty)
        return taken / n

    def at_once() -> float:
        return seconds(lambda: [empty() for _ in range(n)]) / n

    return (
        statistics.median(at_once() for _ in range(rounds)),
        statistics.median(paused() for _ in range(rounds)),
    )


def measure(
    args: argparse.Namespace, counts: Sequence[int]
) -> tuple[dict[int, tuple[Pass, Pass]], list[Rates]]:
    """The medians of a decode step and of a prefill for each number of threads, and the machine's rates.

    The numbers take turns in one engine, so a machine that is slow for some seconds is so for all of them.
    """
    steps: dict[int, list[Pass]] = {n: [] for n in counts}
    prompts: dict[int, list[Pass]] = {n: [] for n in counts}
    rates: dict[int, list[Rates]] = {n: [] for n in counts}
    n_bytes, size = buffer_bytes(read_machine()), args.prompt + args.new
    with (
        counted_kernels() as calls,
        InferenceEngine.from_gguf(args.model, num_threads=max(counts), context_size=size) as engine,
    ):
        runner = engine.model.runner
        for i in range(args.warmup + args.rounds):
            for n in counts:
                runner.tuner = ThreadTuner(n)
                prompt, *new = each_pass(engine, args, partial(timed, calls))
                found, _ = measure_rates(load(best().target), [n], n_bytes, 3)
                if i >= args.warmup:
                    prompts[n].append(prompt)
                    steps[n] += new
                    rates[n] += found
    parts = ("outside", "products", "others")
    passes = {n: (typical(steps[n], *parts), typical(prompts[n], *parts)) for n in counts}
    return passes, [typical(rates[n], "read", "products", "float_products") for n in counts]


def each_pass(engine: Any, args: argparse.Namespace, told: Callable[[Callable[[], object]], T]) -> list[T]:
    """What is told of a prefill, and of each decode step behind it."""
    with engine.session() as session:
        n_vocab = len(session.prefill([1]))
    with engine.session() as session:
        works = [partial(session.prefill, fixed_tokens(args.prompt, n_vocab))]
        works += [partial(session.forward, token) for token in fixed_tokens(args.new, n_vocab)]
        return [told(work) for work in works]


def timed(calls: KernelCalls, work: Callable[[], object]) -> Pass:
    """One pass of an engine whose kernels are counted."""
    calls.clear()
    taken = seconds(work) - calls.added
    products = calls.of(PRODUCTS)
    return Pass(taken - calls.in_kernels, products, calls.in_kernels - products, tuple(calls.products))


def typical(found: Sequence[Pass] | Sequence[Rates], *names: str) -> Any:
    """The last of some measurements of one kind, with the medians of all in fields of these names."""
    return replace(
        found[-1], **{name: statistics.median(getattr(each, name) for each in found) for name in names}
    )


def count_regions(args: argparse.Namespace) -> dict[str, int]:
    """Parallel regions of a decode step and of a prefill, counted in a process of its own.

    Raises ConfigError without a C compiler, and where the kernels do not use gcc's OpenMP.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise ConfigError("scaling: expected a C compiler (cc, or the one that CC names), got none")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "regions.c"), Path(folder, "regions.so")
        source.write_text(COUNTER)
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-fopenmp", "-Wl,--no-as-needed", source, "-o", library, "-ldl"],
            check=True,
        )
        command = [sys.executable, "-m", "benchmarks", "scaling", args.model, "--count"]
        command += ["--threads", str(args.threads), "--prompt", str(args.prompt), "--new", str(args.new)]
        done = subprocess.run(
            [str(word) for word in command],
            env={**os.environ, "LD_PRELOAD": str(library)},
            stdout=subprocess.PIPE,
            check=True,
        )
    found: dict[str, int] = json.loads(done.stdout)
    if not found["prefill"]:
        raise ConfigError(
            "scaling: expected kernels compiled with gcc's OpenMP, whose regions can be counted"
        )
    return found


def count_here(args: argparse.Namespace) -> dict[str, int]:
    """The most regions of a pass: of one with all threads; `COUNTER` is preloaded."""
    import ctypes

    regions = ctypes.CDLL(None).ox_regions
    regions.restype = ctypes.c_long

    def counted(work: Callable[[], object]) -> int:
        before = regions()
        work()
        return int(regions() - before)

    size = args.prompt + args.new
    with InferenceEngine.from_gguf(args.model, num_threads=args.threads, context_size=size) as engine:
        found = [each_pass(engine, args, counted) for _ in range(3)]
    return {"decode": max(max(steps) for _, *steps in found), "prefill": max(prompt for prompt, *_ in found)}

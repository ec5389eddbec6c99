"""Decoding under a budget, beside what the storage and the memory allow.

The parts: ``cold`` empties the system's cache of the file before each token, so all that does not stay comes
from the storage; beside it stands what its speed allows, measured in turns. ``warm`` leaves the file in
the system's cache, beside copies of as many bytes. ``fits`` compares a budget that holds everything with
none. ``peak`` is the resident memory of a process at its highest, less that before the model was opened.

What is allowed for a token is the longer of two times: reading the bytes that do not stay, and a token of the
model that is wholly in memory.
"""

from __future__ import annotations

import argparse
import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import runs
from benchmarks.timing import Subjects, alternate, in_new_process
from oxillama.apps.bench.report import Metric, Row, rows
from oxillama.apps.bench.run import fixed_tokens
from oxillama.apps.doctor.measure import seconds
from oxillama.compat.engine import InferenceEngine
from oxillama.errors import ConfigError

PARTS = ("cold", "warm", "fits", "peak")
DECODE = Metric("decode", "tok/s", higher_is_better=True)
PEAK = Metric("peak memory", "MB", higher_is_better=False)
PROMPT, CONTEXT = 16, 512
READ_BYTES = 4 << 20
"""Bytes of one read of the storage."""
READERS = 2
"""Threads that read the storage, as many as the pager has."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    runs.add_model(parser)
    runs.add_option(parser, "--share", 0.5, "of the matrices in memory", type=float)
    runs.add_option(parser, "--packed", "off", "off, auto or make, as in EngineConfig", type=str)
    what = "cached or direct, as offload_access of EngineConfig"
    runs.add_option(parser, "--access", "cached", what, type=str)
    runs.add_option(parser, "--new", 8, "tokens of a turn")
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    unknown = [part for part in args.parts if part not in PARTS]
    if unknown:
        raise ConfigError(f"parts: expected some of {', '.join(PARTS)}, got {unknown[0]}")
    if not 0 < args.share < 1:
        raise ConfigError(f"--share: expected a number above 0 and below 1, got {args.share}")
    whole = runs.Run(args, "threads", "new", "share", "packed", "access")
    bench = Bench(whole, args)
    return whole.finish([row for part in args.parts for row in getattr(bench, part)()])


class Bench:
    """The parts; each returns its rows."""

    def __init__(self, whole: runs.Run, args: argparse.Namespace) -> None:
        self.whole, self.args = whole, args
        with self.engine(1 << 60) as engine:
            pager = engine.layer_pager()
            assert pager is not None
            self.total = pager.total_bytes
        self.budget = int(args.share * self.total)

    def engine(self, budget: int | None) -> InferenceEngine:
        """An engine that keeps its whole budget.

        Without a budget its matrices are in memory: a mapped file would stay in the system's cache.
        """
        return InferenceEngine.from_gguf(
            self.args.model,
            num_threads=self.args.threads,
            context_size=CONTEXT,
            prefix_cache_bytes=0,
            packed="off" if budget is None else self.args.packed,
            offload_budget=budget,
            offload_probe=False,
            **({} if budget is None else {"offload_access": self.args.access}),
        )

    def cold(self) -> list[Row]:
        """Decoding with an empty cache, and what the storage allows."""
        with self.engine(None) as resident, self.engine(self.budget) as engine:
            path = self.file(engine)
            offsets = np.random.default_rng(0).permutation(max(1, path.stat().st_size // READ_BYTES))

            def storage() -> dict[str, float]:
                forget(path)
                n_bytes = streamed_bytes(engine)
                n_reads = max(1, n_bytes * self.args.new // READ_BYTES)
                chosen = [int(offsets[i % len(offsets)]) * READ_BYTES for i in range(n_reads)]
                taken = read_seconds(path, chosen) / (n_reads * READ_BYTES) * self.stored(n_bytes, path)
                return {DECODE.name: 1 / max(taken, 1 / decode(resident, self.args.new)[DECODE.name])}

            subjects = {
                "cold": lambda: decode(engine, self.args.new, lambda: forget(path)),
                "storage": storage,
            }
            return self.measured("cold", subjects)

    def warm(self) -> list[Row]:
        """Decoding with the file in the cache, and what copying the bytes allows."""
        with self.engine(None) as resident, self.engine(self.budget) as engine:
            n_bytes = streamed_bytes(engine)
            data, copy = np.ones(n_bytes, np.uint8), np.zeros(n_bytes, np.uint8)

            def memory() -> dict[str, float]:
                taken = seconds(partial(np.copyto, copy, data))
                return {DECODE.name: 1 / max(taken, 1 / decode(resident, self.args.new)[DECODE.name])}

            subjects = {"warm": lambda: decode(engine, self.args.new), "memory": memory}
            return self.measured("warm", subjects)

    def fits(self) -> list[Row]:
        """A budget that holds everything, and none."""
        with self.engine(self.total) as engine, self.engine(None) as plain:
            subjects = {
                "budget": lambda: decode(engine, self.args.new),
                "none": lambda: decode(plain, self.args.new),
            }
            return self.measured("fits", subjects)

    def peak(self) -> list[Row]:
        """The memory of processes."""
        subjects = {
            "budget": lambda: {PEAK.name: self.peak_of(self.budget)},
            "none": lambda: {PEAK.name: self.peak_of(None)},
        }
        samples = alternate(subjects, rounds=min(3, self.whole.rounds), warmup=0)
        print(f"budget: {self.budget / 1e6:.1f} MB of {self.total / 1e6:.1f}")
        return rows(self.args.model.stem, samples, (PEAK,))

    def peak_of(self, budget: int | None) -> float:
        """MB of resident memory that a process of its own takes more than before it opened the model."""
        return in_new_process(taken_here, self.args.model, budget, self.args.threads, self.args.packed)

    def measured(self, part: str, subjects: Subjects) -> list[Row]:
        return self.whole.rows(subjects, (DECODE,), f"{self.whole.model} {part}")

    def file(self, engine: InferenceEngine) -> Path:
        """The file that the matrices are read from."""
        from oxillama.engine.features.packed_files import packed_path

        packed = packed_path(self.args.model, engine.config)
        return packed if self.args.packed != "off" and packed.exists() else self.args.model

    def stored(self, n_bytes: int, path: Path) -> float:
        """Bytes in the file of so many bytes of panels."""
        return n_bytes if path != self.args.model else n_bytes * self._stored_share()

    def _stored_share(self) -> float:
        from oxillama.gguf.model_file import ModelFile

        with ModelFile.open(self.args.model) as file:
            in_file = sum(t.nbytes for t in file.tensors.values() if len(t.shape) > 1)
            table = file.tensors.get("token_embd.weight")
            own = "output.weight" in file.tensors and table is not None
            return (in_file - (table.nbytes if own and table else 0)) / self.total


def streamed_bytes(engine: InferenceEngine) -> int:
    """Bytes of panels that a token reads."""
    pager = engine.layer_pager()
    assert pager is not None
    with engine.session() as session:
        session.prefill(fixed_tokens(PROMPT, engine.model.spec.n_vocab))
        session.forward(1)
        before = pager.read_bytes
        session.forward(1)
        return pager.read_bytes - before


def decode(
    engine: InferenceEngine, n_tokens: int, before: Callable[[], object] = lambda: None
) -> dict[str, float]:
    """Tokens a second, without the time of what is called before each."""
    with engine.session() as session:
        session.prefill(fixed_tokens(PROMPT, engine.model.spec.n_vocab))
        taken = 0.0
        for token in range(n_tokens):
            before()
            taken += seconds(partial(session.forward, token))
    return {DECODE.name: n_tokens / taken}


def forget(path: Path) -> None:
    """Empties the system's cache of a file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def read_seconds(path: Path, offsets: Sequence[int]) -> float:
    """Seconds of reads of `READ_BYTES` past the system's cache."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def read(mine: Sequence[int]) -> None:
        buffer = mmap.mmap(-1, READ_BYTES)
        for offset in mine:
            os.preadv(fd, [buffer], offset)

    try:
        with ThreadPoolExecutor(READERS) as executor:
            parts = [offsets[i::READERS] for i in range(READERS)]
            return seconds(lambda: list(executor.map(read, parts)))
    finally:
        os.close(fd)


def resident_bytes(name: str) -> int:
    """A number of /proc/self/status: "VmRSS", "VmHWM"."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(words[1]) << 10 for words in lines if words[0] == f"{name}:")


def taken_here(model: Path, budget: int | None, threads: int, packed: str) -> float:
    """Runs a model in this process; the MB that it took."""
    before = resident_bytes("VmRSS")
    options: dict[str, Any] = {"num_threads": threads, "packed": packed, "prefix_cache_bytes": 0}
    with InferenceEngine.from_gguf(
        model, context_size=CONTEXT, offload_budget=budget, offload_probe=False, **options
    ) as engine:
        decode(engine, 4)
    return (resident_bytes("VmHWM") - before) / 1e6

"""A server under load: many clients at once, a share of whom go away, and what must hold all the time.

Each client asks for one text after another, as a stream or whole, of OpenAI's path or llama-server's, with
prompts that share beginnings, and little memory for keys and values: requests are preempted and prefixes
evicted. Texts that are read to their end have to be those that an engine gives alone. In the end no request
runs, no page is lost, and the memory of the process has stayed the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import runs
from benchmarks.server import serving
from benchmarks.server_peer import request_of
from oxillama import SchedulerConfig, demo
from oxillama.compat.engine import InferenceEngine

WORDS = ["the", "toad", "a boat", "Mia", "said", "and then", "she", "saw", "who lived", "by", "old", "fox"]
BEGINNINGS = ["", "Once upon a time ", "Mia and the Golden Drum\n\nThis is the story of Mia. "]
PATHS = ("/v1/completions", "/completion")
JOBS = 200  # different requests
GONE = 0.2  # share of the requests whose client goes away
GROWTH = 16 << 20  # bytes that a process may grow by after the first third


@dataclass(frozen=True)
class Job:
    """A request, and the text that it has to bring."""

    body: dict[str, Any]
    text: str


@dataclass
class Found:
    """What came of a run.

    Attributes:
        seen: requests by what became of them: "read", "gone", "wrong", "refused".
        wrong: the first texts that differ.
        sizes: resident bytes, each second.
        left: requests that run, or wait, when all clients have ended.
        lost: pages that nobody holds any more.
    """

    seen: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    left: int = 0
    lost: int = 0

    @property
    def growth(self) -> int:
        """Bytes by which the process has grown after the first third."""
        return self.sizes[-1] - self.sizes[len(self.sizes) // 3] if self.sizes else 0

    @property
    def is_good(self) -> bool:
        faults = self.seen["wrong"] + self.seen["refused"] + self.left + self.lost
        return faults == 0 and self.growth <= GROWTH


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=demo.STORY, help="GGUF file (default: the demo's)")
    runs.add_option(parser, "--clients", 64)
    runs.add_option(parser, "--seconds", 60)
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> int:
    """`server-load`: prints what came of the requests; 1 if anything is wrong."""
    runs.check_models([args.model])
    jobs = make_jobs(args.model, JOBS, args.seed)
    end = time.monotonic() + args.seconds
    begun = time.perf_counter()
    found = load(args.model, jobs, args.clients, lambda n: time.monotonic() < end, args.seed)
    seconds = time.perf_counter() - begun
    n = sum(found.seen.values())
    print(f"{n} requests of {args.clients} clients in {seconds:.0f} s: {dict(found.seen)}")
    print(f"{found.left} requests left, {found.lost} pages lost, grown by {found.growth / 2**20:.1f} MB")
    for text in found.wrong:
        print(text)
    return int(not found.is_good)


def make_jobs(model: Path, n: int, seed: int) -> list[Job]:
    """Requests with the texts that an engine gives alone, without a prefix cache and in one thread."""
    rng, jobs = random.Random(seed), []
    alone = InferenceEngine.from_gguf(model, prefix_cache_bytes=0, page_size=64, num_threads=1)
    for _ in range(n):
        prompt = rng.choice(BEGINNINGS) * rng.choice([1, 1, 3])
        prompt += " ".join(rng.choices(WORDS, k=rng.randrange(1, 30)))
        options = {
            "temperature": rng.choice([0.0, 0.8, 1.5]),
            "seed": rng.randrange(1000),
            "max_tokens": rng.randrange(1, 40),
        }
        text = alone.generate(prompt, **options)
        jobs.append(Job({"prompt": prompt, **options, "stream": rng.random() < 0.7}, text))
    return jobs


def load(model: Path, jobs: list[Job], clients: int, goes_on: Callable[[int], bool], seed: int = 0) -> Found:
    """Has clients ask a server for texts.

    Args:
        goes_on: whether a client sends one more request, from the number sent so far.
    """
    probe = InferenceEngine.from_gguf(model)
    probe.logits("a")
    stride = probe.model.pool.page_stride
    engine = InferenceEngine.from_gguf(
        model,
        kv_memory_limit=120 * stride,
        prefix_cache_bytes=40 * stride,
        scheduler=SchedulerConfig(max_sequences=32, max_waiting=256),
    )
    with engine, serving(engine) as (port, _):
        found = asyncio.run(Clients(port, jobs, random.Random(seed), goes_on).run(clients))
        settle(engine, found)
    return found


def settle(engine: InferenceEngine, found: Found) -> None:
    """Waits until what was cancelled has ended, and counts what is left."""
    model = engine.model

    def busy() -> int:
        return int(model.call(lambda: len(model.scheduler.running) + len(model.scheduler.waiting)))

    deadline = time.monotonic() + 10
    while busy() and time.monotonic() < deadline:
        time.sleep(0.01)
    found.left = busy()
    engine.model.check_integrity()
    model.call(model.prefix_cache.clear)
    found.lost = model.pool.n_used


class Clients:
    """The clients of a server, in one event loop."""

    def __init__(
        self, port: int, jobs: list[Job], rng: random.Random, goes_on: Callable[[int], bool]
    ) -> None:
        self.port, self.jobs, self.rng, self.goes_on = port, jobs, rng, goes_on
        self.found = Found()
        self._n_sent = 0

    async def run(self, n: int) -> Found:
        watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.gather(*(self._client() for _ in range(n)))
        finally:
            watching.cancel()
        self.found.sizes.append(resident())
        return self.found

    async def _watch(self) -> None:
        while True:
            self.found.sizes.append(resident())
            await asyncio.sleep(1)

    async def _client(self) -> None:
        while self.goes_on(self._n_sent):
            self._n_sent += 1
            job, path = self.rng.choice(self.jobs), self.rng.choice(PATHS)
            leaves = self.rng.randrange(0, 6) if self.rng.random() < GONE else None
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                self.found.seen[await self._ask(reader, writer, path, job, leaves)] += 1
            finally:
                writer.close()

    async def _ask(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        path: str,
        job: Job,
        leaves: int | None,
    ) -> str:
        """Sends a request; what became of it. A client that leaves does so after so many lines."""
        writer.write(request_of(path, json.dumps(job.body)))
        if leaves == 0:
            await asyncio.sleep(self.rng.random() / 50)
            return "gone"
        status = (await reader.readline()).split()
        if status[1] != b"200":
            self._note(f"{status} {path} {job.body}: {await reader.read(2000)!r}")
            return "refused"
        text = ""
        async for line in lines(reader):
            if leaves is not None:
                leaves -= 1
                if leaves == 0:
                    return "gone"
            text += text_of(line)
        if text != job.text:
            self._note(f"{path} {job.body}: expected {job.text!r}, got {text!r}")
            return "wrong"
        return "read"

    def _note(self, text: str) -> None:
        if len(self.found.wrong) < 5:
            self.found.wrong.append(text)


async def lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The lines of an answer that may hold text: the data of events, or the whole JSON."""
    async for line in reader:
        if line.startswith((b"data: {", b"{")):
            yield line.removeprefix(b"data: ")


def text_of(line: bytes) -> str:
    """The text in a part of an answer of either path."""
    part = json.loads(line)
    if "choices" in part:
        return "".join(choice["text"] for choice in part["choices"])
    return str(part["content"])


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

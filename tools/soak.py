"""Serves thousands of short random requests and looks for leaks, hangs and wrong text.

    python tools/soak.py [MODEL.gguf] [--requests 10000]

Requests come in bursts through `AsyncEngine`; a tenth are aborted at some token, some readers are slow,
prompts share beginnings, memory is so short that requests are preempted and prefixes evicted. A sample of
the texts is compared with those of an engine that runs one request at a time. Exits with 1 if a text
differs, a page is lost, or the process has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from pathlib import Path

from oxillama import AsyncEngine, QueueFull, SamplerConfig, SchedulerConfig, demo
from oxillama.compat.engine import InferenceEngine

WORDS = ["the", "toad", "a boat", "Mia", "said", "and then", "she", "saw", "who lived", "by", "old", "fox"]
Job = tuple[str, SamplerConfig, int]


def job(rng: random.Random) -> Job:
    """A prompt that may begin like others, a sampler with a seed, a length."""
    shared = rng.choice(["", "Once upon a time ", "Mia and the Golden Drum\n\nThis is the story of Mia. "])
    prompt = shared * rng.choice([1, 1, 3]) + " ".join(rng.choices(WORDS, k=rng.randrange(1, 30)))
    temperature = rng.choice([0.0, 0.8, 1.5])
    return prompt, SamplerConfig(temperature=temperature, seed=rng.randrange(1000)), rng.randrange(1, 24)


def resident() -> int:
    """Bytes of memory the process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


class Soak:
    """One run; what happened to the requests is counted in ``seen``."""

    def __init__(self, model: Path, n: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.n = n
        self.seen: Counter[str] = Counter()
        self.sampled: list[tuple[Job, str]] = []
        probe = InferenceEngine.from_gguf(model)
        probe.logits("a")
        pool = probe.model.pool
        states = pool.recurrent_states
        stride, state = pool.page_stride, 0 if states is None else states.slot_bytes
        self.alone = InferenceEngine.from_gguf(model, prefix_cache_bytes=0, page_size=64, num_threads=1)
        self.engine = InferenceEngine.from_gguf(
            model,
            kv_memory_limit=60 * stride + 30 * state,
            prefix_cache_bytes=40 * stride + 20 * state,
            scheduler=SchedulerConfig(max_sequences=24, max_waiting=64),
        )

    async def one(self, engine: AsyncEngine) -> None:
        rng = self.rng
        wanted = prompt, sampler, max_tokens = job(rng)
        aborted = rng.random() < 0.1
        slow = rng.random() < 0.1
        while True:
            try:
                generation = engine.stream(
                    prompt, sampler=sampler, max_tokens=max_tokens, priority=rng.randrange(2), window=4
                )
                break
            except QueueFull:
                self.seen["refused"] += 1
                await asyncio.sleep(0.01)
        n = rng.randrange(0, 8) if aborted else max_tokens
        async for _ in generation:
            n -= 1
            if n < 0:
                await generation.aclose()
                self.seen["aborted"] += 1
                return
            if slow:
                await asyncio.sleep(0.002)
        self.seen[generation.finish_reason or "?"] += 1
        if rng.random() < 0.05:
            self.sampled.append((wanted, generation.text))

    async def run(self) -> list[int]:
        """Resident memory after each tenth of the requests."""
        sizes, at_once = [], asyncio.Semaphore(100)

        async def bounded(engine: AsyncEngine) -> None:
            async with at_once:
                await self.one(engine)

        async with AsyncEngine(self.engine) as engine:
            for part in range(10):
                await asyncio.gather(*(bounded(engine) for _ in range(self.n // 10)))
                self.engine.model.check_integrity()
                sizes.append(resident())
                print(f"{(part + 1) * self.n // 10} requests, {sizes[-1] / 2**20:.1f} MB", flush=True)
        return sizes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, default=demo.STORY)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    soak = Soak(args.model, args.requests, args.seed)
    begun = time.perf_counter()
    sizes = asyncio.run(soak.run())
    seconds = time.perf_counter() - begun
    wrong = [
        wanted
        for wanted, text in soak.sampled
        if soak.alone.generate(wanted[0], sampler=wanted[1], max_tokens=wanted[2]) != text
    ]
    now = soak.engine.metrics_snapshot()
    model = soak.engine.model
    model.call(model.prefix_cache.clear)
    lost = model.pool.n_used + soak.engine.metrics_snapshot().kv_states_used
    growth = (sizes[-1] - sizes[1]) / 2**20
    print(f"{args.requests} requests in {seconds:.0f} s: {dict(soak.seen)}")
    print(f"{now.preemptions} preemptions, {now.prefix_hits} prefix hits, {now.steps} steps")
    print(f"{len(soak.sampled)} texts compared, {len(wrong)} differ")
    print(f"{lost} pages or states lost; grown {growth:.1f} MB")
    return int(bool(wrong) or lost > 0 or growth > 16)  # buffers grow to the largest batch there was


if __name__ == "__main__":
    sys.exit(main())

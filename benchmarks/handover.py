"""What the engine thread costs a single stream, and how long others wait for their turn.

Four ways to the same greedy tokens take turns: passes and sampling by hand in the engine thread, the engine's
loop without a reader (`generate`), and a reader that takes each piece, in a loop and in asyncio. Then jobs of
20 threads, beside streams that never pause, give the longest wait and what a step takes.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from functools import partial

from benchmarks import runs
from oxillama import InferenceEngine, SamplerConfig
from oxillama.apps.bench.report import Metric
from oxillama.apps.doctor.measure import seconds
from oxillama.engine.sampling.sampler import Sampler
from oxillama.engine.sequence import Sequence

PROMPT = "Once upon a time"
TOKEN = (Metric("token", "us", False), Metric("thread over by hand", "us a token", False))
TURN = (Metric("worst wait", "ms", False), Metric("worst wait / step", "", False))
N_THREADS = 20
JOBS = 10  # jobs of each thread


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs.add_model(parser)
    runs.add_option(parser, "--new", 200, "tokens decoded")
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Microseconds of a token each way, and the waits."""
    whole = runs.Run(args, "threads", "new")
    engine = InferenceEngine.from_gguf(args.model, num_threads=args.threads)
    greedy = SamplerConfig(temperature=0, top_k=0, top_p=1, min_p=0, ignore_eos=True)
    ways = {
        "by hand": lambda: by_hand(engine, greedy, args.new),
        "generate": lambda: engine.generate(PROMPT, sampler=greedy, max_tokens=args.new),
        "stream": lambda: list(engine.stream(PROMPT, sampler=greedy, max_tokens=args.new)),
        "async for": lambda: asyncio.run(read(engine, greedy, args.new)),
    }
    round_of: dict[str, float] = {}

    def turn(name: str) -> dict[str, float]:
        round_of[name] = seconds(ways[name]) / args.new * 1e6
        return {"token": round_of[name], "thread over by hand": round_of[name] - round_of["by hand"]}

    found = whole.rows({name: partial(turn, name) for name in ways}, TOKEN)
    jobs = {f"{N_THREADS} threads": partial(worst_wait, engine, greedy)}
    return whole.finish([*found, *whole.rows(jobs, TURN)])


def by_hand(engine: InferenceEngine, config: SamplerConfig, n_tokens: int) -> None:
    """A prompt and so many tokens with nothing but the runner and the sampler, in the engine thread."""
    model = engine.model
    sequence = Sequence(model.pool, engine.tokenizer.encode(PROMPT), checkpoints=0)
    sampler = Sampler(config, model.kernels, tokenizer=model.tokenizer)

    def generate() -> None:
        for _ in range(n_tokens):
            logits = model.runner.forward([(sequence, sequence.pending)])[0]
            sequence.tokens.append(sampler.sample(logits[: model.tokenizer.n_vocab], sequence.tokens))
        sequence.release()

    model.call(generate)


async def read(engine: InferenceEngine, config: SamplerConfig, n_tokens: int) -> None:
    """The stream, read in asyncio."""
    async for _ in engine.stream(PROMPT, sampler=config, max_tokens=n_tokens):
        pass


def worst_wait(engine: InferenceEngine, config: SamplerConfig) -> dict[str, float]:
    """The longest that a job of any of 20 threads took beside four streams that never pause."""
    most = engine.context_size - len(engine.tokenizer.encode(PROMPT)) - 1
    streams = engine.stream_batch([PROMPT] * 4, sampler=config, max_tokens=most, window=None)
    waits: list[float] = []

    def work() -> None:
        for _ in range(JOBS):
            waits.append(seconds(partial(engine.model.call, lambda: None)))

    before, start = engine.metrics.steps, time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(N_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    step = (time.perf_counter() - start) / max(1, engine.metrics.steps - before)
    for stream in streams:
        stream.close()
    return {"worst wait": max(waits) * 1e3, "worst wait / step": max(waits) / step}

"""What metrics, the log of requests and a trace cost: the same greedy tokens with nothing told, with what is
always told, and with a trace, in turns.

The time of the processor is that of the engine's thread, which other processes disturb less than that of the
clock; with more than one thread it leaves out the others of OpenMP.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks import runs
from oxillama import InferenceEngine, SamplerConfig
from oxillama.apps.bench.report import Metric
from oxillama.engine.loop import Observers

PROMPT = "Once upon a time"
TOKEN = (
    Metric("token", "us", False),
    Metric("more than untold", "%", False),
    Metric("engine's thread", "us of the processor a token", False),
    Metric("processor, more than untold", "%", False),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs.add_model(parser)
    runs.add_option(parser, "--new", 200, "tokens decoded of each stream")
    runs.add_option(parser, "--streams", 1, "streams at a time")
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Microseconds of a token each way."""
    whole = runs.Run(args, "threads", "new", "streams")
    with tempfile.TemporaryDirectory() as folder:
        plain = InferenceEngine.from_gguf(args.model, num_threads=args.threads)
        traced = InferenceEngine.from_gguf(
            args.model, num_threads=args.threads, trace=Path(folder, "trace.json")
        )
        told, none = plain.model.loop.observers, Observers([])
        ways = {"untold": (plain, none), "metrics and log": (plain, told), "trace too": (traced, None)}
        round_of: dict[str, tuple[float, float]] = {}

        def turn(name: str) -> dict[str, float]:
            engine, observers = ways[name]
            if observers is not None:
                engine.model.call(partial(setattr, engine.model.loop, "observers", observers))
            began, busy = time.perf_counter(), engine.model.call(time.thread_time)
            generate(engine, args.streams, args.new)
            busy = engine.model.call(time.thread_time) - busy
            wall, busy = ((time.perf_counter() - began) / args.new * 1e6, busy / args.new * 1e6)
            round_of[name] = wall, busy
            base = round_of["untold"]
            return {
                "token": wall,
                "more than untold": (wall / base[0] - 1) * 100,
                "engine's thread": busy,
                "processor, more than untold": (busy / base[1] - 1) * 100,
            }

        found = whole.rows({name: partial(turn, name) for name in ways}, TOKEN)
        traced.close()
    return whole.finish(found)


def generate(engine: InferenceEngine, n_streams: int, n_tokens: int) -> None:
    """Generates ``n_streams`` greedy texts of ``n_tokens`` tokens."""
    greedy = SamplerConfig(temperature=0, top_k=0, top_p=1, min_p=0, ignore_eos=True)
    prompts = [f"{PROMPT} {n}" for n in range(n_streams)]
    engine.generate_batch(prompts, sampler=greedy, max_tokens=n_tokens)

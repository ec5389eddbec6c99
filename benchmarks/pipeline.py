"""What a pipeline's stages cost: the same cores as one process, and as two stages of a core each.

Both decode the same greedy texts in turns. The first stage is an actor of Ray, pinned to a core of its own;
the last one is this process, whose engine thread is pinned to another. Both stages share one memory, which
those of two machines would not. Then one text at a time runs in the stages and on one core: the difference
is the way to the first stage and back, two hops.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import runs
from oxillama import InferenceEngine
from oxillama.apps.bench.report import Metric, Row
from oxillama.apps.bench.run import fixed_tokens
from oxillama.apps.doctor.measure import seconds
from oxillama.errors import ConfigError

GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
PROMPT = 16  # tokens of each text's prompt
HOPS = Metric("1 sequence, two hops", "us a token", False)


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", type=Path, required=True, help="GGUF file")
    runs.add_option(command, "--sequences", [8, 32], nargs="+", metavar="N")
    runs.add_option(command, "--new", 16, "tokens of each")
    what = "first layer of the second stage (default: balanced)"
    command.add_argument("--border", type=runs.positive, help=what)
    runs.add_arguments(command)


def run(args: argparse.Namespace) -> int:
    """`pipeline`: tokens a second as one process and as two stages, and what the hops cost."""
    from oxillama.apps.ray.pipeline import PipelineEngine

    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise ConfigError("cores: expected at least 2, for two stages, got 1")
    whole = runs.Run(args, "sequences", "new", "border")
    kind: dict[str, Any] = {"context_size": 512, "prefix_cache_bytes": 0, "progress": lambda *_: None}
    borders = None if args.border is None else [args.border]
    two = PipelineEngine.from_gguf(args.model, num_threads=1, cpus=[cores[1:2]], borders=borders, **kind)
    one = InferenceEngine.from_gguf(args.model, num_threads=2, **kind)
    alone = InferenceEngine.from_gguf(args.model, num_threads=1, **kind)
    for engine, used in ((two, cores[:1]), (one, cores[:2]), (alone, cores[:1])):
        pin(engine, used)
    found: list[Row] = []
    for n in args.sequences:
        speed = Metric(f"{n} sequences", "tok/s", True)
        subjects = {
            "two stages": partial(speed_of, two, n, args.new, speed.name),
            "one process": partial(speed_of, one, n, args.new, speed.name),
        }
        found += whole.rows(subjects, (speed,))
    found += whole.rows({"two stages": partial(hop_time, two, alone, args.new)}, (HOPS,))
    for engine in (two, one, alone):
        engine.close()
    return whole.finish(found)


def pin(engine: InferenceEngine, cores: Sequence[int]) -> None:
    """Has the engine's thread, and those that it starts, run on these cores only."""
    engine.model.call(lambda: os.sched_setaffinity(0, cores))


def speed_of(engine: InferenceEngine, n: int, n_tokens: int, name: str) -> dict[str, float]:
    """Tokens a second of ``n`` texts, from the first token of the last of them on."""
    return {name: n / seconds_per_token(engine, n, n_tokens)}


def seconds_per_token(engine: InferenceEngine, n: int, n_tokens: int) -> float:
    """Seconds in which ``n`` texts get a token each: those of long texts, less those of short ones."""
    spans = []
    for tokens in (2, 2 + n_tokens):
        prompts = [[1 + i, *fixed_tokens(PROMPT - 1, engine.model.spec.n_vocab)] for i in range(n)]
        spans.append(seconds(partial(engine.generate_batch, prompts, max_tokens=tokens, **GREEDY)))
    return (spans[1] - spans[0]) / n_tokens


def hop_time(two: InferenceEngine, alone: InferenceEngine, n_tokens: int) -> dict[str, float]:
    """Microseconds by which a token takes longer in the stages than on one core."""
    return {HOPS.name: 1e6 * (seconds_per_token(two, 1, n_tokens) - seconds_per_token(alone, 1, n_tokens))}

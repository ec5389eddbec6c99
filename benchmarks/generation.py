"""What a grammar costs a whole generation: constrained and free ones take turns in one process.

Both decode as many tokens after the same prompt with the same sampler. Every round compiles its grammar
anew, so no mask is known from the round before.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks import runs
from benchmarks.grammar_texts import JSON
from benchmarks.timing import alternate
from oxillama import InferenceEngine, SamplerConfig
from oxillama.apps.bench.report import Metric, rows
from oxillama.errors import ConfigError
from oxillama.text.grammar import Grammar

PROMPT = "A list of animals, as JSON:\n"
METRICS = (Metric("decode", "ms a token", False), Metric("whole", "ms a token", False))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `generation`."""
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    runs.add_threads(parser)
    parser.add_argument("--new", type=int, default=32, help="tokens decoded (default: %(default)s)")
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Milliseconds of a token, constrained and free: of a step, and of the call with all it does."""
    if args.new < 2:
        raise ConfigError(f"--new: expected at least 2, got {args.new}")
    runs.check_models([args.model])
    conditions = {"threads": args.threads, "new": args.new}
    whole = runs.Run("generation", args, conditions)
    engine = InferenceEngine.from_gguf(args.model, num_threads=args.threads)
    samples = alternate(
        {
            "JSON grammar": lambda: turn(engine, constrained(args.new), args.new),
            "free": lambda: turn(engine, SamplerConfig(seed=1, min_tokens=args.new), args.new),
        },
        rounds=args.rounds,
        warmup=args.warmup,
    )
    return whole.finish(rows(args.model.stem, samples, METRICS))


def constrained(n_tokens: int) -> SamplerConfig:
    """A JSON array; blanks may follow, so that its end does not end the text."""
    grammar = Grammar.parse(JSON.replace("ws value ws", "array ws", 1))
    return SamplerConfig(seed=1, min_tokens=n_tokens, grammar=grammar)


def turn(engine: InferenceEngine, sampler: SamplerConfig, n_tokens: int) -> dict[str, float]:
    """One generation."""
    start = time.perf_counter()
    completion = engine.stream(PROMPT, sampler=sampler, max_tokens=n_tokens).result()
    whole = time.perf_counter() - start
    assert len(completion.tokens) == n_tokens
    return {"decode": completion.timings.decode / (n_tokens - 1) * 1e3, "whole": whole / n_tokens * 1e3}

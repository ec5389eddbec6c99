"""What a grammar costs a whole generation: constrained and free ones take turns in one process.

Both decode as many tokens after the same prompt with the same sampler. Every round compiles its grammar
anew, so no mask is known from the round before.
"""

from __future__ import annotations

import argparse
import time

from benchmarks import runs
from benchmarks.grammar_texts import JSON
from oxillama import InferenceEngine, SamplerConfig
from oxillama.apps.bench.report import Metric
from oxillama.errors import ConfigError
from oxillama.text.grammar import Grammar

PROMPT = "A list of animals, as JSON:\n"
METRICS = (Metric("decode", "ms a token", False), Metric("whole", "ms a token", False))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs.add_model(parser)
    runs.add_option(parser, "--new", 32, "tokens decoded", type=int)
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Milliseconds of a token, constrained and free: of a step, and of the call with all it does."""
    if args.new < 2:
        raise ConfigError(f"--new: expected at least 2, got {args.new}")
    whole = runs.Run(args, "threads", "new")
    engine = InferenceEngine.from_gguf(args.model, num_threads=args.threads)
    subjects = {
        "JSON grammar": lambda: turn(engine, constrained(args.new), args.new),
        "free": lambda: turn(engine, SamplerConfig(seed=1, min_tokens=args.new), args.new),
    }
    return whole.finish(whole.rows(subjects, METRICS))


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

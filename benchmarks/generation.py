"""What a grammar costs a whole generation: constrained and free ones take turns in one process.

Both decode as many tokens after the same prompt with the same sampler. Every round compiles its grammar
anew, so no mask is known from the round before.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.grammar_texts import JSON
from benchmarks.timing import Metric, Row, alternate, table
from oxillama import InferenceEngine, SamplerConfig
from oxillama.config import available_cpus
from oxillama.errors import ConfigError, ModelFileError
from oxillama.grammar import Grammar

PROMPT = "A list of animals, as JSON:\n"
METRICS = (Metric("decode", "ms a token", False), Metric("whole", "ms a token", False))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--threads", type=int, default=available_cpus(), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=10, help="turns of either (default: %(default)s)")
    parser.add_argument("--new", type=int, default=32, help="tokens decoded (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Prints milliseconds of a token, constrained and free: of a step, and of the call with all it does."""
    if args.rounds < 1 or args.new < 2:
        raise ConfigError(f"--rounds, --new: expected at least 1 and 2, got {args.rounds} and {args.new}")
    if not args.model.is_file():
        raise ModelFileError(f"{args.model}: expected a GGUF model, found no such file")
    engine = InferenceEngine.from_gguf(args.model, num_threads=args.threads)
    samples = alternate(
        {
            "JSON grammar": lambda: turn(engine, constrained(args.new), args.new),
            "free": lambda: turn(engine, SamplerConfig(seed=1, min_tokens=args.new), args.new),
        },
        rounds=args.rounds,
    )
    print(f"{args.new} tokens, {args.threads} threads, {args.rounds} rounds; median [quartiles]")
    name = args.model.stem
    print(table([Row(name, metric, {e: s[metric.name] for e, s in samples.items()}) for metric in METRICS]))
    return 0


def constrained(n_tokens: int) -> SamplerConfig:
    """A JSON array; blanks may follow, so that its end does not end the text."""
    grammar = Grammar.parse(JSON.replace("ws value ws", "array ws", 1))
    return SamplerConfig(seed=1, min_tokens=n_tokens, grammar=grammar)


def turn(engine: InferenceEngine, sampler: SamplerConfig, n_tokens: int) -> dict[str, float]:
    """One generation."""
    start = time.perf_counter()
    engine.generate(PROMPT, sampler=sampler, max_tokens=n_tokens)
    whole = time.perf_counter() - start
    generation = engine.last
    assert generation is not None and len(generation.tokens) == n_tokens
    return {"decode": generation.decode_seconds / (n_tokens - 1) * 1e3, "whole": whole / n_tokens * 1e3}

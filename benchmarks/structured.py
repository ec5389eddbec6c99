"""Structured generation: an object of ten properties with jump-forward, without it, and free text, in turns.

The grammar is compiled, and its masks are found, by a generation before; each round takes another seed.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import runs
from benchmarks.timing import alternate
from oxillama import InferenceEngine
from oxillama.apps.bench.report import Metric, Row, rows

METRIC = Metric("whole", "tokens/s", True)
KINDS: tuple[dict[str, Any], ...] = (
    {"type": "string", "maxLength": 8},
    {"type": "integer", "minimum": 0, "maximum": 99},
    {"enum": ["red", "green", "blue"]},
    {"type": "boolean"},
)
PROPERTIES = {f"{word}_of_the_animal": KINDS[i % 4] for i, word in enumerate((
    "name", "age", "colour", "friendly", "home", "weight", "mood", "hungry", "food", "height",
))}  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": PROPERTIES,
    "required": list(PROPERTIES),
    "additionalProperties": False,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `structured`."""
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--new", type=runs.positive, default=128, help="free tokens (default: %(default)s)")
    runs.add_threads(parser)
    runs.add_arguments(parser, rounds=5)


def run(args: argparse.Namespace) -> int:
    """Tokens a second of each kind of generation."""
    runs.check_models([args.model])
    whole = runs.Run("structured", args, {"threads": args.threads, "new": args.new})
    with InferenceEngine.from_gguf(args.model, num_threads=args.threads, prefix_cache_bytes=0) as engine:
        ways: dict[str, dict[str, Any]] = {
            "jump-forward": {"json_schema": SCHEMA, "jump_forward": True},
            "sampled": {"json_schema": SCHEMA},
            "free": {"max_tokens": args.new, "ignore_eos": True},
        }
        seeds = {name: itertools.count() for name in ways}
        samples = alternate(
            {name: lambda name=name: speed(engine, seeds[name], ways[name]) for name in ways},  # type: ignore[misc]
            rounds=args.rounds,
            warmup=args.warmup,
        )
    found: list[Row] = []
    for pair in (("jump-forward", "free"), ("sampled", "free"), ("jump-forward", "sampled")):
        found += rows(args.model.stem, {name: samples[name] for name in pair}, (METRIC,))
    return whole.finish(found)


def speed(engine: InferenceEngine, seeds: Iterator[int], fields: dict[str, Any]) -> dict[str, float]:
    """Tokens a second of one generation."""
    start = time.perf_counter()
    found = engine.stream("A small animal:", seed=next(seeds), **{"max_tokens": 1024, **fields}).result()
    return {METRIC.name: len(found.tokens) / (time.perf_counter() - start)}

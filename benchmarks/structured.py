"""Structured generation: an object of ten properties with jump-forward, without it, and free text, in turns.

The grammar is compiled, and its masks are found, by a generation before; each round takes another seed.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks import runs
from benchmarks.grammar_texts import closed_object
from oxillama import InferenceEngine
from oxillama.apps.bench.report import Metric

METRIC = Metric("whole", "tokens/s", True)
KINDS: tuple[dict[str, Any], ...] = (
    {"type": "string", "maxLength": 8},
    {"type": "integer", "minimum": 0, "maximum": 99},
    {"enum": ["red", "green", "blue"]},
    {"type": "boolean"},
)
SCHEMA = closed_object({f"{word}_of_the_animal": KINDS[i % 4] for i, word in enumerate((
    "name", "age", "colour", "friendly", "home", "weight", "mood", "hungry", "food", "height",
))})  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs.add_model(parser)
    runs.add_option(parser, "--new", 128, "free tokens")
    runs.add_arguments(parser, rounds=5)


def run(args: argparse.Namespace) -> int:
    """Tokens a second of each kind of generation."""
    whole = runs.Run(args, "threads", "new")
    with InferenceEngine.from_gguf(args.model, num_threads=args.threads, prefix_cache_bytes=0) as engine:
        ways: dict[str, dict[str, Any]] = {
            "jump-forward": {"json_schema": SCHEMA, "jump_forward": True},
            "sampled": {"json_schema": SCHEMA},
            "free": {"max_tokens": args.new, "ignore_eos": True},
        }
        subjects = {name: partial(speed, engine, itertools.count(), way) for name, way in ways.items()}
        samples = whole.alternate(subjects)
    pairs = (("jump-forward", "free"), ("sampled", "free"), ("jump-forward", "sampled"))
    return whole.finish(whole.pairs(samples, METRIC, *pairs))


def speed(engine: InferenceEngine, seeds: Iterator[int], fields: dict[str, Any]) -> dict[str, float]:
    """Tokens a second of one generation."""
    start = time.perf_counter()
    found = engine.stream("A small animal:", seed=next(seeds), **{"max_tokens": 1024, **fields}).result()
    return {METRIC.name: len(found.tokens) / (time.perf_counter() - start)}

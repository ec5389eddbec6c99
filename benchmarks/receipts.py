"""What receipts cost: generating with and without one, and verifying, take turns in one process.

The fingerprint of the model is computed before, once, as in an engine that runs for long.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks import runs
from benchmarks.timing import alternate
from oxillama import InferenceEngine, Receipt
from oxillama.bench.report import Metric, Row, rows

PROMPT_TOKENS = 16
METRIC = Metric("whole", "ms a token", False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `receipts`."""
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--new", type=runs.positive, default=256, help="tokens (default: %(default)s)")
    runs.add_threads(parser)
    runs.add_arguments(parser, rounds=5)


def run(args: argparse.Namespace) -> int:
    """Milliseconds of a token: generated with a receipt, without one, and verified."""
    runs.check_models([args.model])
    whole = runs.Run("receipts", args, {"threads": args.threads, "new": args.new})
    with InferenceEngine.from_gguf(args.model, num_threads=args.threads, prefix_cache_bytes=0) as engine:
        receipt = generate(engine, args.new, receipt=True)
        assert receipt is not None
        samples = alternate(
            {
                "generated with one": lambda: per_token(engine, args.new, receipt=True),
                "generated": lambda: per_token(engine, args.new, receipt=False),
                "verified": lambda: verified(engine, receipt),
            },
            rounds=args.rounds,
            warmup=args.warmup,
        )
    pairs = (("generated with one", "generated"), ("generated", "verified"))
    found: list[Row] = []
    for pair in pairs:
        found += rows(args.model.stem, {name: samples[name] for name in pair}, (METRIC,))
    return whole.finish(found)


def generate(engine: InferenceEngine, n: int, *, receipt: bool) -> Receipt | None:
    """A text of ``n`` tokens; its receipt."""
    prompt = list(range(100, 100 + PROMPT_TOKENS))
    completion = engine.stream(prompt, receipt=receipt, max_tokens=n, seed=1, ignore_eos=True).result()
    assert len(completion.tokens) == n
    return completion.receipt


def per_token(engine: InferenceEngine, n: int, *, receipt: bool) -> dict[str, float]:
    """Milliseconds of a token of one generation."""
    start = time.perf_counter()
    generate(engine, n, receipt=receipt)
    return {METRIC.name: (time.perf_counter() - start) / n * 1e3}


def verified(engine: InferenceEngine, receipt: Receipt) -> dict[str, float]:
    """Milliseconds of a token of one verification."""
    start = time.perf_counter()
    assert engine.verify(receipt)
    return {METRIC.name: (time.perf_counter() - start) / len(receipt.tokens) * 1e3}

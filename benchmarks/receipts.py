"""What receipts cost: generating with and without one, and verifying, take turns in one process.

The fingerprint of the model is computed before, once, as in an engine that runs for long.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks import runs
from benchmarks.timing import alternate
from oxillama import InferenceEngine, Receipt, verify_batch
from oxillama.apps.bench.report import Metric, Row, rows

PROMPT_TOKENS = 16
METRIC = Metric("whole", "ms a token", False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `receipts`."""
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument(
        "--texts",
        type=runs.positive,
        default=1,
        help="generated and verified together (default: %(default)s)",
    )
    parser.add_argument("--new", type=runs.positive, default=256, help="tokens (default: %(default)s)")
    runs.add_threads(parser)
    runs.add_arguments(parser, rounds=5)


def run(args: argparse.Namespace) -> int:
    """Milliseconds of a token: generated with a receipt, without one, and verified."""
    runs.check_models([args.model])
    whole = runs.Run("receipts", args, {"threads": args.threads, "new": args.new, "texts": args.texts})
    with InferenceEngine.from_gguf(args.model, num_threads=args.threads, prefix_cache_bytes=0) as engine:
        receipts = generate(engine, args.texts, args.new, receipt=True)
        samples = alternate(
            {
                "generated with one": lambda: per_token(engine, args.texts, args.new, receipt=True),
                "generated": lambda: per_token(engine, args.texts, args.new, receipt=False),
                "verified": lambda: verified(engine, receipts),
            },
            rounds=args.rounds,
            warmup=args.warmup,
        )
    pairs = (("generated with one", "generated"), ("generated", "verified"))
    found: list[Row] = []
    for pair in pairs:
        found += rows(args.model.stem, {name: samples[name] for name in pair}, (METRIC,))
    return whole.finish(found)


def generate(engine: InferenceEngine, n_texts: int, n: int, *, receipt: bool) -> list[Receipt | None]:
    """Texts of ``n`` tokens, generated together; their receipts."""
    n_prompt = min(PROMPT_TOKENS, engine.context_size - n)
    prompts = [list(range(100 + i, 100 + i + n_prompt)) for i in range(n_texts)]
    texts = engine.stream_batch(prompts, receipt=receipt, max_tokens=n, seed=1, ignore_eos=True)
    completions = [text.result() for text in texts]
    assert all(len(completion.tokens) == n for completion in completions)
    return [completion.receipt for completion in completions]


def per_token(engine: InferenceEngine, n_texts: int, n: int, *, receipt: bool) -> dict[str, float]:
    """Milliseconds of a token of one generation."""
    start = time.perf_counter()
    generate(engine, n_texts, n, receipt=receipt)
    return {METRIC.name: (time.perf_counter() - start) / (n_texts * n) * 1e3}


def verified(engine: InferenceEngine, receipts: list[Receipt | None]) -> dict[str, float]:
    """Milliseconds of a token of one verification, from the JSON of the receipts on."""
    made = [receipt for receipt in receipts if receipt is not None]
    texts = [receipt.to_json() for receipt in made]
    start = time.perf_counter()
    assert all(verify_batch(engine, texts))
    return {METRIC.name: (time.perf_counter() - start) / sum(len(r.tokens) for r in made) * 1e3}

"""What receipts cost: generating with and without one, and verifying, take turns in one process.

The fingerprint of the model is computed before, once, as in an engine that runs for long.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

from benchmarks import runs
from oxillama import InferenceEngine, Receipt, verify_batch
from oxillama.apps.bench.report import Metric
from oxillama.apps.doctor.measure import seconds

PROMPT_TOKENS = 16
METRIC = Metric("whole", "ms a token", False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs.add_model(parser)
    runs.add_option(parser, "--texts", 1, "generated and verified together")
    runs.add_option(parser, "--new", 256, "tokens")
    runs.add_arguments(parser, rounds=5)


def run(args: argparse.Namespace) -> int:
    """Milliseconds of a token: generated with a receipt, without one, and verified."""
    whole = runs.Run(args, "threads", "new", "texts")
    with InferenceEngine.from_gguf(args.model, num_threads=args.threads, prefix_cache_bytes=0) as engine:
        receipts = generate(engine, args.texts, args.new, receipt=True)
        subjects = {
            "generated with one": partial(per_token, engine, args.texts, args.new, receipt=True),
            "generated": partial(per_token, engine, args.texts, args.new, receipt=False),
            "verified": partial(verified, engine, receipts),
        }
        samples = whole.alternate(subjects)
    pairs = (("generated with one", "generated"), ("generated", "verified"))
    return whole.finish(whole.pairs(samples, METRIC, *pairs))


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
    work = partial(generate, engine, n_texts, n, receipt=receipt)
    return {METRIC.name: seconds(work) / (n_texts * n) * 1e3}


def verified(engine: InferenceEngine, receipts: list[Receipt | None]) -> dict[str, float]:
    """Milliseconds of a token of one verification, from the JSON of the receipts on."""
    made = [receipt for receipt in receipts if receipt is not None]
    texts = [receipt.to_json() for receipt in made]
    start = time.perf_counter()
    assert all(verify_batch(engine, texts))
    return {METRIC.name: (time.perf_counter() - start) / sum(len(r.tokens) for r in made) * 1e3}

"""What the types of keys and values cost: perplexity of a text, divergence from keys and values in f32.

Each type reads the same windows of the text. Perplexity is that of the second half of each window, as
llama-perplexity counts it; the divergence is KL(f32 || type), in nats, of the same positions.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import runs
from oxillama import InferenceEngine, demo
from oxillama.bench.report import Metric, Row, align
from oxillama.formats import KV_TYPES

PAIRS = ("f16:q8_0", "q8_0:f16", "q8_0:q5_1", "q8_0:q4_0", "q4_0:q8_0")
PERPLEXITY = Metric("perplexity", "", False)
DIVERGENCE = Metric("KL from f32", "nats", False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `kv-types`."""
    parser.add_argument("--model", type=Path, default=demo.STORY, help="GGUF file (default: the demo model)")
    parser.add_argument("--text", type=Path, default=demo.HELDOUT, help="text file (default: the demo's)")
    runs.add_threads(parser)
    parser.add_argument(
        "--window", type=runs.positive, default=512, help="tokens of a window (default: %(default)s)"
    )
    parser.add_argument(
        "--windows", type=runs.positive, default=8, help="windows that are read (default: %(default)s)"
    )
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Prints a line for each type, f32 first."""
    runs.check_models([args.model])
    whole = runs.Run("kv-types", args, {name: getattr(args, name) for name in ("window", "windows")})
    lines, found, exact = [["type", "bytes a token", "perplexity", "KL from f32"]], [], None
    for kv_type in (*KV_TYPES, *PAIRS):
        with InferenceEngine.from_gguf(args.model, num_threads=args.threads, kv_type=kv_type) as engine:
            pool = engine.model.pool
            logs = read(engine, args.text.read_text(), args.window, args.windows)
            n_bytes = sum(group.page_bytes // group.page_size for group in pool.groups)
        exact = logs if exact is None else exact
        perplexity = float(np.exp(-np.mean([score for _, score in logs])))
        divergence = float(np.mean([np.sum(np.exp(p) * (p - q)) for (p, _), (q, _) in zip(exact, logs)]))
        lines.append([kv_type, f"{n_bytes:,}", f"{perplexity:.4f}", f"{divergence:.2e}"])
        values = {PERPLEXITY: perplexity, DIVERGENCE: divergence}
        found += [Row(kv_type, metric, {"oxillama": [value]}) for metric, value in values.items()]
    print(align(lines))
    return whole.finish(found)


def read(engine: Any, text: str, window: int, n_windows: int) -> list[tuple[np.ndarray, float]]:
    """Log-probabilities float64 (vocab,), and that of the token that follows, behind each position of the
    second halves."""
    tokens = engine.tokenizer.encode(text)
    found = []
    for start in range(0, min(len(tokens) - window, window * n_windows) + 1, window):
        part = tokens[start : start + window]
        with engine.session() as session:
            logits = session.logits(part).astype(np.float64)
        for at in range(window // 2, window - 1):
            row = logits[at] - np.logaddexp.reduce(logits[at])
            found.append((row, float(row[part[at + 1]])))
    return found

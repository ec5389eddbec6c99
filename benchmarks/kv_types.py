"""What the types of keys and values cost: perplexity of a text, divergence from keys and values in f32.

Each type reads the same windows of the text (`oxillama.apps.evaluation.windows`); the divergence is
KL(f32 || type), in nats, of the same positions.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from benchmarks import runs
from oxillama import InferenceEngine, demo
from oxillama.apps.bench.report import Metric, Row, align
from oxillama.apps.evaluation.comparison import compare
from oxillama.base.formats import KV_TYPES

PAIRS = ("f16:q8_0", "q8_0:f16", "q8_0:q5_1", "q8_0:q4_0", "q4_0:q8_0")
PERPLEXITY = Metric("perplexity", "", False)
DIVERGENCE = Metric("KL from f32", "nats", False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=demo.STORY, help="GGUF file (default: the demo model)")
    parser.add_argument("--text", type=Path, default=demo.HELDOUT, help="text file (default: the demo's)")
    runs.add_threads(parser)
    runs.add_option(parser, "--window", 512, "tokens of a window")
    runs.add_option(parser, "--windows", 8, "windows that are read")
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Prints a line for each type, f32 first."""
    whole = runs.Run(args, "window", "windows")
    lines, found = [["type", "bytes a token", "perplexity", "KL from f32"]], []
    text, size = args.text.read_text(), {"window": args.window, "windows": args.windows}
    open_engine = partial(InferenceEngine.from_gguf, args.model, num_threads=args.threads)
    with open_engine(kv_type="f32") as exact:
        for kv_type in (*KV_TYPES, *PAIRS):
            with open_engine(kv_type=kv_type) as engine:
                compared = compare(exact, engine, text, **size)
                pool = engine.model.pool
                n_bytes = sum(group.page_bytes // group.page_size for group in pool.groups)
            perplexity, divergence = compared.other.value, float(compared.divergences.mean())
            lines.append([kv_type, f"{n_bytes:,}", f"{perplexity:.4f}", f"{divergence:.2e}"])
            values = {PERPLEXITY: perplexity, DIVERGENCE: divergence}
            found += [Row(kv_type, metric, {"oxillama": [value]}) for metric, value in values.items()]
    print(align(lines))
    return whole.finish(found)

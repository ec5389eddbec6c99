"""What LoRA adapters cost while decoding: none, one, and one for each of eight sequences take turns.

The adapters are random, of one rank on every matrix of every layer. The speed depends on their shapes alone.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import runs
from benchmarks.make_model import gguf_package
from oxillama import InferenceEngine, SamplerConfig
from oxillama.apps.bench.report import Metric
from oxillama.gguf.model_file import ModelFile

METRICS = (Metric("decode", "ms a step", False),)
SEQUENCES = 8


def write_adapter(model: Path, path: Path, rank: int, *, seed: int = 0) -> None:
    """Writes a random F16 adapter for every matrix in the layers of a model."""
    gguf, rng = gguf_package(), np.random.default_rng(seed)
    with ModelFile.open(model) as file:
        writer = gguf.GGUFWriter(path, file.get("general.architecture", str))
        writer.add_type("adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", float(rank))
        for name, info in file.tensors.items():
            if not name.startswith("blk.") or not name.endswith(".weight") or len(info.shape) < 2:
                continue
            cols, n_rows, *experts = info.shape
            for part, shape in (("a", (*experts, rank, cols)), ("b", (*experts, n_rows, rank))):
                values = rng.normal(0, 0.01, shape).astype(np.float16)
                writer.add_tensor(f"{name}.lora_{part}", values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs.add_model(parser)
    runs.add_option(parser, "--rank", 16)
    runs.add_option(parser, "--new", 24, "tokens decoded")
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Milliseconds of a step: one sequence with and without an adapter, eight with none, one, eight."""
    whole = runs.Run(args, "threads", "new", "rank")
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{i}.gguf" for i in range(SEQUENCES)]
        for seed, path in enumerate(paths):
            write_adapter(args.model, path, args.rank, seed=seed)
        engine = InferenceEngine.from_gguf(args.model, num_threads=args.threads, prefix_cache_bytes=0)
        adapters: dict[str, list[list[Path]]] = {
            "1, none": [[]],
            "1, adapted": [[paths[0]]],
            f"{SEQUENCES}, none": [[]] * SEQUENCES,
            f"{SEQUENCES}, one adapter": [[paths[0]]] * SEQUENCES,
            f"{SEQUENCES}, an adapter each": [[path] for path in paths],
        }
        subjects = {name: partial(decode, engine, args.new, each) for name, each in adapters.items()}
        found = whole.rows(subjects, METRICS)
    return whole.finish(found)


def decode(engine: InferenceEngine, n_tokens: int, adapters: list[list[Path]]) -> dict[str, float]:
    """Milliseconds of a step of as many sequences as there are lists of adapters."""
    sampler = SamplerConfig(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, ignore_eos=True)
    started = [
        engine.stream([1, *range(300, 316)], sampler=sampler, max_tokens=n_tokens, adapters=a, window=None)
        for a in adapters
    ]
    seconds = [generation.result().timings.decode for generation in started]
    return {"decode": float(np.median(seconds)) / (n_tokens - 1) * 1e3}

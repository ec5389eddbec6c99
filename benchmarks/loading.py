"""Load time and memory of whole models: each load in a process of its own, engines taking turns.

The file is read once before, so that all loads find it in the page cache. A process loads the model,
runs one token, then a prompt and a few single tokens, and reports its times and its peak of resident
memory. The last metric is that peak minus the sizes of the file and of the KV cache.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import runs
from benchmarks.peers import ENGINES
from oxillama.apps.bench.report import Metric, Row
from oxillama.apps.bench.run import fixed_tokens
from oxillama.errors import LoadError
from oxillama.gguf.model_file import ModelFile

METRICS = (
    Metric("load", "s", higher_is_better=False),
    Metric("load to first token", "s", higher_is_better=False),
    Metric("peak memory", "MB", higher_is_better=False),
    Metric("peak memory - file - KV", "MB", higher_is_better=False),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs.add_engine_arguments(parser, new=8)
    runs.add_option(parser, "--prompt", 512, "tokens")
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Prints load times and memory of each model."""
    engines = runs.engines(args)
    whole = runs.Run(args, "threads", "prompt", "new", engines=engines)
    results: list[Row] = []
    for model in args.model:
        with ModelFile.open(model) as file:
            unavoidable = file.file_size + kv_bytes(model, args.prompt + args.new)
        warm_page_cache(model)
        how = model, args.threads, args.prompt, args.new
        turns = {name: partial(turn, unavoidable, name, *how) for name in engines}
        results += whole.rows(turns, METRICS, model.stem)
    return whole.finish(results)


def turn(unavoidable: int, *how: Any) -> dict[str, float]:
    """What a load in a fresh process took, by the names of `METRICS`; raises LoadError when it fails."""
    found = in_fresh_process(*how)
    peak = found["peak_rss"]
    values = (found["load"], found["first_token"], peak / 1e6, (peak - unavoidable) / 1e6)
    return dict(zip((metric.name for metric in METRICS), values, strict=True))


def in_fresh_process(engine: str, model: Path, threads: int, prompt: int, new: int) -> dict[str, Any]:
    """What `load_once` reports when it is run in a new Python."""
    arguments = [engine, str(model), str(threads), str(prompt), str(new)]
    command = [sys.executable, "-m", "benchmarks.loading", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise LoadError(f"{model}: {engine} failed to load it in a process of its own: {last}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def load_once(engine: str, model: Path, threads: int, prompt: int, new: int) -> dict[str, float]:
    """Load and use the model in this process; seconds, and the peak of resident memory in bytes."""
    runner = ENGINES[engine](model, threads, prompt + new)
    runner.load()
    runner.prefill(fixed_tokens(prompt, runner.n_vocab))
    runner.decode(new)
    return {
        "load": runner.load_seconds,
        "first_token": runner.first_token_seconds,
        "peak_rss": runner.peak_rss,
    }


def kv_bytes(model: Path, context: int) -> int:
    """Bytes of float16 keys and values of ``context`` tokens, from the model's metadata."""
    try:
        with ModelFile.open(model) as file:
            return _kv_bytes(file.metadata, context)
    except KeyError as error:
        raise LoadError(
            f"{model}: expected the key {error} for the size of the KV cache, got none"
        ) from error


def _kv_bytes(metadata: Mapping[str, Any], context: int) -> int:
    arch = metadata["general.architecture"]
    heads = metadata[f"{arch}.attention.head_count"]
    kv_heads = metadata.get(f"{arch}.attention.head_count_kv", heads)
    head_dim = metadata[f"{arch}.embedding_length"] // int(np.max(heads))
    key_dim = metadata.get(f"{arch}.attention.key_length", head_dim)
    value_dim = metadata.get(f"{arch}.attention.value_length", head_dim)
    layers = metadata[f"{arch}.block_count"]
    return int(np.broadcast_to(kv_heads, layers).sum()) * int(key_dim + value_dim) * context * 2


def warm_page_cache(model: Path) -> None:
    """Read the whole file once."""
    with open(model, "rb", buffering=0) as file:
        buffer = bytearray(1 << 22)
        while file.readinto(buffer):
            pass


if __name__ == "__main__":
    name, path, *numbers = sys.argv[1:]
    print(json.dumps(load_once(name, Path(path), *map(int, numbers))))

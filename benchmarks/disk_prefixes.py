"""What a prefix cache on the disk saves: the first token of a prompt in a process that has just begun.

Each turn is a process of its own. It loads the model, packs all weights, and then answers the prompt.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import runs
from benchmarks.timing import in_new_process
from oxillama import InferenceEngine
from oxillama.apps.bench.report import Metric

METRIC = Metric("first token", "ms", False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs.add_model(parser)
    runs.add_option(parser, "--prompt", 1000, "tokens of the prompt")
    runs.add_arguments(parser, rounds=5, warmup=0)


def run(args: argparse.Namespace) -> int:
    """Milliseconds to the first token: without a folder, with an empty one, with one that has the prompt."""
    whole = runs.Run(args, "threads", "prompt")
    with tempfile.TemporaryDirectory() as folder:
        filled = Path(folder, "filled")
        expected = in_new_process(first_answer, args.model, filled, args.threads, args.prompt)[2]
        n_turns = 0

        def first_token(kind: str) -> dict[str, float]:
            nonlocal n_turns
            n_turns += 1
            where = {"from the disk": filled, "written": Path(folder, str(n_turns)), "run": None}[kind]
            given = args.model, where, args.threads, args.prompt
            milliseconds, n_known, tokens = in_new_process(first_answer, *given)
            assert tokens == expected and (n_known > 0) == (kind == "from the disk")
            return {METRIC.name: milliseconds}

        kinds = ("from the disk", "written", "run")
        samples = whole.alternate({kind: partial(first_token, kind) for kind in kinds})
        held = sum(file.stat().st_size for file in filled.iterdir())
    print(f"{held / 1e6:.1f} MB in the folder")
    return whole.finish(whole.pairs(samples, METRIC, ("from the disk", "run"), ("written", "run")))


def first_answer(model: Path, folder: Path | None, threads: int, n: int) -> tuple[float, int, list[int]]:
    """Milliseconds to the first token in this process, tokens that were not run, and the token."""
    context: dict[str, Any] = {"num_threads": threads, "context_size": n + 64, "prefix_cache_dir": folder}
    with InferenceEngine.from_gguf(model, progress=lambda *tensor: None, **context) as engine:
        prompt = [100 + i * 7 % (engine.model.spec.n_vocab - 100) for i in range(n)]
        begun = time.perf_counter()
        done = engine.stream(prompt, temperature=0, max_tokens=1).result()
        return 1e3 * (time.perf_counter() - begun), done.usage.cached_tokens, done.tokens

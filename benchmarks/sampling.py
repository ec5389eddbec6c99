"""Time to choose a token: the default chain, every stage alone, and many sequences at once.

Engines take turns. A turn is some choices from logits of one vocabulary; each starts from the model's logits,
so both engines copy them first (llama.cpp as an array of its candidates). A stage alone is it and the draw.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import runs
from oxillama.apps.bench.report import Metric, Row
from oxillama.base.config.sampler import SamplerConfig
from oxillama.engine.sampling.batch import sample_batch
from oxillama.engine.sampling.sampler import Sampler

PLAIN: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
HISTORY = 4096  # tokens that penalties and DRY look at
CHOICES = 20  # a turn
METRIC = Metric("a token", "us", higher_is_better=False)
Samplers = list[tuple[Any, ...]]
"""llama.cpp's samplers: the ends of the names of the functions that make them, and what these take."""

DRAW = ("dist", 1)
CASES: dict[str, tuple[dict[str, Any], Samplers | None]] = {
    "default chain": (
        {},
        [
            *(
                ("penalties", 2**17, 64, 1.0, 0.0, 0.0),
                ("top_k", 40),
                ("typical", 1.0, 0),
                ("top_p", 0.95, 0),
            ),
            *(("min_p", 0.05, 0), ("xtc", 0.0, 0.1, 0, 1), ("temp_ext", 0.8, 0.0, 1.0), DRAW),
        ],
    ),
    "greedy": ({"temperature": 0.0}, [("greedy",)]),
    "no stage": (PLAIN, [DRAW]),
    "top_k 40": (PLAIN | {"top_k": 40}, [("top_k", 40), DRAW]),
    "top_k 1000": (PLAIN | {"top_k": 1000}, [("top_k", 1000), DRAW]),
    "top_p 0.95": (PLAIN | {"top_p": 0.95}, [("top_p", 0.95, 0), DRAW]),
    "min_p 0.05": (PLAIN | {"min_p": 0.05}, [("min_p", 0.05, 0), DRAW]),
    "typical_p 0.5": (PLAIN | {"typical_p": 0.5}, [("typical", 0.5, 0), DRAW]),
    "top_n_sigma 1": (PLAIN | {"top_n_sigma": 1.0}, [("top_n_sigma", 1.0), DRAW]),
    "top_a 0.2": (PLAIN | {"top_a": 0.2}, None),
    "epsilon_cutoff 3e-4": (PLAIN | {"epsilon_cutoff": 3e-4}, None),
    "eta_cutoff 3e-4": (PLAIN | {"eta_cutoff": 3e-4}, None),
    "XTC": (PLAIN | {"xtc_probability": 1.0}, [("xtc", 1.0, 0.1, 0, 1), DRAW]),
    "temperature 0.7": (PLAIN | {"temperature": 0.7}, [("temp", 0.7), DRAW]),
    "dynamic temperature": (PLAIN | {"dynatemp_range": 0.5}, [("temp_ext", 1.0, 0.5, 1.0), DRAW]),
    "mirostat 1": (PLAIN | {"mirostat": 1}, [("mirostat", 2**17, 1, 5.0, 0.1, 100)]),
    "mirostat 2": (PLAIN | {"mirostat": 2}, [("mirostat_v2", 1, 5.0, 0.1)]),
    "penalties over 4,096": (
        PLAIN | {"repetition_penalty": 1.1, "repetition_window": HISTORY},
        [("penalties", 2**17, HISTORY, 1.1, 0.0, 0.0), DRAW],
    ),
    "DRY over 4,096": (
        PLAIN | {"dry_multiplier": 0.8, "dry_sequence_breakers": ()},
        [("dry", None, 0.8, 1.75, 2, HISTORY, None, 0), DRAW],
    ),
}
"""What is measured: options, and llama.cpp's samplers for them (None if it has no such stage)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peer", choices=["llama.cpp"], help="an engine to compare with")
    runs.add_option(parser, "--vocab", 131_072)
    what = "of deviation 3; -1 to 1"
    parser.add_argument("--logits", choices=["normal", "uniform"], default="normal", help=what)
    parser.add_argument("--case", choices=list(CASES), action="append", help="repeatable; default: all")
    runs.add_option(parser, "--sequences", 32, "of the batch")
    runs.add_threads(parser)
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Prints microseconds per token, a line per case, then those of a batch."""
    engines = ["oxillama", *([args.peer] if args.peer else [])]
    whole = runs.Run(args, "vocab", "logits", "sequences", "threads", engines=engines)
    results = [row for name in args.case or CASES for row in measure(whole, name, args)]
    results.sort(key=lambda row: len(row.samples), reverse=True)  # rows without a peer come last
    return whole.finish([*results, *batch(whole, args)])


def make_logits(args: argparse.Namespace, n: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    if args.logits == "normal":
        return (3 * rng.standard_normal((n, args.vocab))).astype(np.float32)
    return rng.uniform(-1, 1, (n, args.vocab)).astype(np.float32)


def measure(whole: runs.Run, name: str, args: argparse.Namespace) -> list[Row]:
    """The samples of one case."""
    options, samplers = CASES[name]
    logits = make_logits(args, 1)[0]
    history = np.random.default_rng(1).integers(0, min(args.vocab, 1000), HISTORY, np.int32)
    sampler = Sampler(SamplerConfig(**options, seed=1))
    sampler.feed(history)
    subjects = {"oxillama": timed(lambda: sampler.sample(logits))}
    if args.peer and samplers is not None:
        subjects[args.peer] = timed(llama_cpp_choice(samplers, logits, history))
    return whole.rows(subjects, [METRIC], name)


def timed(choose: Callable[[], object], tokens: int = 1) -> Callable[[], dict[str, float]]:
    """A turn of `alternate`."""

    def turn() -> dict[str, float]:
        choose()
        start = time.perf_counter()
        for _ in range(CHOICES):
            choose()
        return {METRIC.name: (time.perf_counter() - start) / CHOICES / tokens * 1e6}

    return turn


def llama_cpp_choice(samplers: Samplers, logits: np.ndarray, history: np.ndarray) -> Callable[[], object]:
    """One choice by llama.cpp's samplers, through its C API."""
    import llama_cpp as api

    record = np.zeros(len(logits), np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)]))
    record["id"], record["logit"] = np.arange(len(logits)), logits
    data = (api.llama_token_data * len(logits))()
    chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
    for name, *arguments in samplers:
        api.llama_sampler_chain_add(chain, getattr(api, f"llama_sampler_init_{name}")(*arguments))
    for token in history.tolist():
        api.llama_sampler_accept(chain, token)

    def choose() -> object:
        ctypes.memmove(data, record.ctypes.data, record.nbytes)
        array = api.llama_token_data_array(data, len(logits), -1, False)
        api.llama_sampler_apply(chain, ctypes.byref(array))
        return array.data[array.selected].id

    return choose


def batch(whole: runs.Run, args: argparse.Namespace) -> list[Row]:
    """A token of the default chain for each of many sequences, one after another and together."""
    logits = make_logits(args, args.sequences)
    samplers = [Sampler(SamplerConfig(seed=i)) for i in range(args.sequences)]

    def together(n_threads: int) -> Callable[[], dict[str, float]]:
        return timed(lambda: sample_batch(samplers, logits, n_threads=n_threads), args.sequences)

    subjects = {f"{args.threads} threads": together(args.threads), "1 thread": together(1)}
    return whole.rows(subjects, [METRIC], f"{args.sequences} sequences")

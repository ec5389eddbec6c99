"""Prefill and decode speed of whole models, engines taking turns in one process.

A turn prefills a prompt into an empty context and then decodes tokens behind it, so that decoding is
measured at the depth of the prompt. Every engine runs the same tokens. The cosine between the engines' logits
after the prompt is reported too, as a check that both compute the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks import runs
from benchmarks.peers import loaded
from benchmarks.runner import Runner
from benchmarks.timing import alternate
from oxillama.apps.bench.report import Metric, Row, rows
from oxillama.apps.bench.run import fixed_tokens
from oxillama.errors import ConfigError

PREFILL = Metric("prefill", "tok/s", higher_is_better=True)
DECODE = Metric("decode", "tok/s", higher_is_better=True)
MIXED = ((200, 1500), (20, 200))
"""The least and the most tokens of a prompt of a mixed job, and of new ones behind it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `end-to-end`."""
    runs.add_engine_arguments(parser, new=32)
    runs.add_option(parser, "--prompt", 512, "tokens")
    what = "N prompts at once: new tokens a second of a batch job"
    parser.add_argument("--job", type=runs.positive, default=0, metavar="N", help=what)
    what = "of --job: prompts of 200 to 1,500 tokens, and 20 to 200 new ones behind them"
    parser.add_argument("--mixed", action="store_true", help=what)
    what = "of the engine's keys and values (default: f16)"
    parser.add_argument("--kv-type", default="f16", metavar="TYPE", help=what)
    parser.add_argument("--peer-kv-type", default="f16", metavar="TYPE", help="of the peer's")
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the speeds of each model, and how alike the engines' logits are."""
    if args.mixed and not args.job:
        raise ConfigError("--mixed: expected --job N, whose prompts it makes")
    engines = runs.engines(args)
    whole = runs.Run(args, "threads", "prompt", "new", engines=engines)
    sizes = {name: getattr(args, name) for name in ("threads", "prompt", "new", "job", "mixed")}
    sizes["kv_types"] = (args.kv_type, args.peer_kv_type)[: len(engines)]
    results: list[Row] = []
    for model in args.model:
        found, alike = measure(model, engines, rounds=args.rounds, warmup=args.warmup, **sizes)
        results += found
        if alike is not None:
            print(f"{model.stem}: cosine of the engines' logits after the prompt: {alike:.5f}")
    return whole.finish(results)


def measure(
    model: Path,
    engines: Sequence[str],
    *,
    threads: int,
    rounds: int = 10,
    warmup: int = 1,
    prompt: int = 512,
    new: int = 32,
    job: int = 0,
    mixed: bool = False,
    kv_types: Sequence[str] = (),
) -> tuple[list[Row], float | None]:
    """Speeds of each engine on one model, and the cosine of the angle between two engines' logits.

    The cosine is None for a single engine. With ``job`` a turn is that many prompts of random tokens, run at
    once, and ``new`` tokens behind each; the speed is that of new tokens. ``mixed`` prompts have the lengths
    of `MIXED`. ``kv_types`` are those of the engines, f16 where there is none. Raises what `Runner.load`
    raises, and ConfigError for an engine that runs one sequence, or does not have the type.
    """
    lengths, counts = MIXED if mixed else ((prompt, prompt), (new, new))
    with loaded(engines, model, threads, lengths[1] + counts[1] + 1, kv_types) as runners:
        if job:
            what = " + ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in (lengths, counts))
            metric = Metric(f"{job} prompts of {what}", "new tok/s", higher_is_better=True)
            turns = {runner.name: jobs(runner, metric, job, lengths, counts) for runner in runners}
            return rows(model.stem, alternate(turns, rounds=rounds, warmup=warmup), (metric,)), None
        samples = alternate(
            {runner.name: turn(runner, prompt, new) for runner in runners}, rounds=rounds, warmup=warmup
        )
        return rows(model.stem, samples, (PREFILL, DECODE)), agreement(runners)


def turn(runner: Runner, prompt: int, new: int) -> Callable[[], dict[str, float]]:
    """One engine's turn: prefill, then decode, both in tokens per second."""
    tokens = fixed_tokens(prompt, runner.n_vocab)

    def run() -> dict[str, float]:
        return {
            PREFILL.name: len(tokens) / runner.prefill(tokens),
            DECODE.name: new / runner.decode(new),
        }

    return run


def jobs(
    runner: Runner, metric: Metric, n: int, lengths: tuple[int, int], counts: tuple[int, int]
) -> Callable[[], dict[str, float]]:
    """One engine's turn of ``n`` prompts at once; each turn has other prompts, the same for every engine.

    ``lengths`` and ``counts`` : the least and the most tokens of a prompt, and new ones behind it.
    """
    random = np.random.default_rng(0)

    def run() -> dict[str, float]:
        lens, new = (random.integers(low, high + 1, n).tolist() for low, high in (lengths, counts))
        prompts = [random.integers(3, runner.n_vocab, length).tolist() for length in lens]
        return {metric.name: sum(new) / runner.job(prompts, new)}

    return run


def agreement(runners: Sequence[Runner]) -> float | None:
    """Cosine of the angle between two engines' logits of the prompt's last token, None if one has none."""
    if len(runners) < 2 or not all(runner.appends for runner in runners[:2]):
        return None
    a, b = (np.asarray(runner.logits, np.float64) for runner in runners[:2])
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))

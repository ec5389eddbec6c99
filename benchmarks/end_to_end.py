"""Prefill and decode speed of whole models, engines taking turns in one process.

A turn prefills a prompt into an empty context and then decodes tokens behind it, so that decoding is
measured at the depth of the prompt. Every engine runs the same tokens. The cosine between the engines' logits
after the prompt is reported too, as a check that both compute the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from benchmarks import runs
from benchmarks.peers import loaded
from benchmarks.runner import Runner
from oxillama.apps.bench.report import Metric, Row
from oxillama.apps.bench.run import fixed_tokens
from oxillama.errors import ConfigError

PREFILL = Metric("prefill", "tok/s", higher_is_better=True)
DECODE = Metric("decode", "tok/s", higher_is_better=True)
MIXED = ((200, 1500), (20, 200))
"""The least and the most tokens of a prompt of a mixed job, and of new ones behind it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    """Prints the speeds of each model, and how alike the engines' logits are.

    With --job a turn is that many prompts of random tokens, run at once, and new tokens behind each; the
    speed is that of new tokens. Prompts with --mixed have the lengths of `MIXED`. Raises what `Runner.load`
    raises, and ConfigError for an engine that runs one sequence, or does not have a type of keys and values.
    """
    if args.mixed and not args.job:
        raise ConfigError("--mixed: expected --job N, whose prompts it makes")
    engines = runs.engines(args)
    whole = runs.Run(args, "threads", "prompt", "new", engines=engines)
    lengths, counts = MIXED if args.mixed else ((args.prompt, args.prompt), (args.new, args.new))
    context, kv_types = lengths[1] + counts[1] + 1, (args.kv_type, args.peer_kv_type)
    results: list[Row] = []
    for model in args.model:
        with loaded(engines, model, args.threads, context, kv_types) as runners:
            if args.job:
                what = " + ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in (lengths, counts))
                metric = Metric(f"{args.job} prompts of {what}", "new tok/s", higher_is_better=True)
                jobs = {each.name: job(each, metric, args.job, lengths, counts) for each in runners}
                results += whole.rows(jobs, (metric,), model.stem)
                continue
            turns = {each.name: partial(turn, each, args.prompt, args.new) for each in runners}
            results += whole.rows(turns, (PREFILL, DECODE), model.stem)
            alike = agreement(runners)
        if alike is not None:
            print(f"{model.stem}: cosine of the engines' logits after the prompt: {alike:.5f}")
    return whole.finish(results)


def turn(runner: Runner, prompt: int, new: int) -> dict[str, float]:
    """One engine's turn: prefill, then decode, both in tokens per second."""
    tokens = fixed_tokens(prompt, runner.n_vocab)
    return {PREFILL.name: len(tokens) / runner.prefill(tokens), DECODE.name: new / runner.decode(new)}


def job(
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

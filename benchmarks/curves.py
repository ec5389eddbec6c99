"""Cost against size: speeds along the context, the number of sequences, and the size of the model.

A turn goes once through the longest context: at each wanted length it stops, states the speed of the prompt
so far, and decodes some tokens there. The first model is taken through all contexts and batches, the others
only through the shortest context, for the curve against their parameters.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import plot, runs, serving
from benchmarks.peers import ENGINES, LlamaCpp, loaded
from benchmarks.runner import Runner
from oxillama.apps.bench.report import Metric, Row, rows
from oxillama.apps.bench.run import fixed_tokens
from oxillama.errors import ConfigError
from oxillama.gguf.model_file import ModelFile

CONTEXTS = [512, 1024, 2048, 4096, 8192, 16384]
BATCHES = [1, 2, 4, 8, 16, 32, 64]
SHORT_CONTEXTS = [128, 512, 1024]
SHORT_BATCHES = [1, 4, 16]

Points = list[tuple[float, Row]]
"""Rows by what they are plotted against."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs.add_engine_arguments(parser, new=16)
    counts: dict[str, Any] = {"type": runs.positive, "nargs": "*", "metavar": "N"}
    parser.add_argument("--context", help=f"tokens; default: {CONTEXTS}", **counts)
    parser.add_argument("--batch", help=f"sequences; default: {BATCHES}", **counts)
    parser.add_argument("--short", action="store_true", help=f"defaults: {SHORT_CONTEXTS}, {SHORT_BATCHES}")
    what = "draw the curves: .svg, or with matplotlib .png"
    parser.add_argument("--plot", type=Path, metavar="FILE", help=what)
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """`curves`: prints a row per point, and draws them."""
    if args.context is None:
        args.context = SHORT_CONTEXTS if args.short else CONTEXTS
    if args.batch is None:
        args.batch = SHORT_BATCHES if args.short else BATCHES
    engines = runs.engines(args)
    if not args.context and not args.batch:
        raise ConfigError("--context, --batch: expected sizes, got none of either")
    unable = [name for name in engines if not ENGINES[name].appends]
    if unable:
        raise ConfigError(f"--engine: expected engines that append to a context, got {unable[0]}")
    if args.plot is not None:
        plot.check(args.plot)
    whole = runs.Run(args, "threads", "new", "context", "batch", engines=engines)
    along = context_curve(args.model[0], whole, sorted(set(args.context)), args) if args.context else []
    together = batch_curve(args.model[0], whole, sorted(set(args.batch)), args) if args.batch else []
    sizes: Points = []
    if args.context and len(args.model) > 1:
        shortest = min(args.context)
        sizes = [(parameters(args.model[0]), row) for at, row in along if at == shortest]
        for model in args.model[1:]:
            sizes += [(parameters(model), row) for _, row in context_curve(model, whole, [shortest], args)]
    known = {id(row) for _, row in along}
    results = [row for _, row in [*along, *together]] + [row for _, row in sizes if id(row) not in known]
    if args.plot is not None:
        plot.write(args.plot, charts(along, together, sizes))
    return whole.finish(results)


def context_curve(model: Path, whole: runs.Run, contexts: Sequence[int], args: argparse.Namespace) -> Points:
    """Speed of prompts as long as each context, and of decoding behind them."""
    with loaded(whole.engines, model, args.threads, contexts[-1] + args.new) as runners:
        samples = whole.alternate(
            {each.name: partial(context_turn, each, contexts, args.new) for each in runners}
        )
    found: Points = []
    for kind in ("prefill", "decode"):
        for at in contexts:
            metric = Metric(f"{kind}, context {at}", "tok/s", higher_is_better=True)
            found += [(at, row) for row in rows(model.stem, samples, [metric])]
    return found


def context_turn(runner: Runner, contexts: Sequence[int], new: int) -> dict[str, float]:
    """One pass through all contexts; what was decoded at one counts as context of the next."""
    found = {}
    runner.clear()
    held, prompt, spent = 0, 0, 0.0
    for at in contexts:
        more = fixed_tokens(max(1, at - held), runner.n_vocab)
        spent += runner.extend(more)
        prompt += len(more)
        found[f"prefill, context {at}"] = prompt / spent
        found[f"decode, context {at}"] = new / runner.decode(new)
        held += len(more) + new
    return found


def batch_curve(model: Path, whole: runs.Run, batches: Sequence[int], args: argparse.Namespace) -> Points:
    """Tokens per second of so many sequences decoding together, as in `serving`."""
    most = (serving.PROMPT + args.new + 1) * batches[-1]
    peer = None
    if LlamaCpp.name in whole.engines:
        peer = serving.BatchedLlamaCpp(model, args.threads, max(512, most))
        peer.load()
    engine = serving.make_engine(model, args.threads, max(512, serving.PROMPT + args.new + 1))
    try:
        return [
            (n, row)
            for n in batches
            for row in serving.measure_decoding(whole, engine, peer, n, args.new, model.stem)
        ]
    finally:
        if peer is not None:
            peer.close()


def parameters(model: Path) -> float:
    """Weights in the file."""
    with ModelFile.open(model) as file:
        return float(sum(tensor.n_elements for tensor in file.tensors.values()))


def charts(along: Points, together: Points, sizes: Points) -> list[plot.Chart]:
    """A chart for each quantity that was measured."""
    found = []
    for kind in ("prefill", "decode"):
        some = [(x, row) for x, row in along if row.metric.name.startswith(kind)]
        if some:
            found.append(chart(f"{kind}: {some[0][1].model}", "context, tokens", some))
    if together:
        found.append(chart(f"decoding together: {together[0][1].model}", "sequences", together))
    for kind in ("prefill", "decode"):
        some = [(x, row) for x, row in sizes if row.metric.name.startswith(kind)]
        if some:
            found.append(chart(some[0][1].metric.name, "parameters", some))
    return found


def chart(title: str, x_name: str, points: Points) -> plot.Chart:
    """One line per engine."""
    each = ((engine, x, samples) for x, row in points for engine, samples in row.samples.items())
    return plot.Chart.of(title, x_name, each)

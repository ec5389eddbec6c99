"""Command line of the benchmarks: `python -m benchmarks COMMAND ...` from a checkout."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import (
    attention,
    end_to_end,
    generation,
    grammar,
    kernels,
    loading,
    make_model,
    quantizers,
    sampling,
    serving,
)
from benchmarks.peers import ENGINES
from benchmarks.timing import CpuTime, Row, compare, others_share, read_report, report, table, write_report
from oxillama.benchmark import describe_machine
from oxillama.config import available_cpus
from oxillama.errors import ConfigError, ModelFileError, OxiLlamaError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0, or 2 after one line on stderr when it cannot be run as asked."""
    args = parser().parse_args(argv)
    try:
        status: int = args.run(args)
    except (OxiLlamaError, OSError) as error:
        print(f"benchmarks: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return status


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    speed = commands.add_parser("end-to-end", help="prefill and decode speed of models, engines alternating")
    _add_common(speed, new=32)
    speed.set_defaults(run=run_end_to_end, command="end-to-end")

    load = commands.add_parser("load", help="load time and peak memory, each load in a fresh process")
    _add_common(load, new=8)
    load.set_defaults(run=run_load, command="load")

    alone = commands.add_parser("kernels", help="speed of the matrix products alone, by format and tokens")
    kernels.add_arguments(alone)
    alone.set_defaults(run=kernels.run)

    masks = commands.add_parser("grammar", help="compiling grammars and finding the tokens they allow")
    grammar.add_arguments(masks)
    masks.set_defaults(run=grammar.run)

    bound = commands.add_parser("generation", help="what a grammar costs a whole generation")
    generation.add_arguments(bound)
    bound.set_defaults(run=generation.run)

    attending = commands.add_parser(
        "attention", help="attention alone, decoding and prefill, beside a roofline"
    )
    attention.add_arguments(attending)
    attending.set_defaults(run=attention.run)
    both = commands.add_parser("quantizers", help="quantizers' errors and perplexities, beside llama.cpp's")
    quantizers.add_arguments(both)
    both.set_defaults(run=quantizers.run)
    choosing = commands.add_parser(
        "sampling", help="time to choose a token, by stage, and for many sequences"
    )
    sampling.add_arguments(choosing)
    choosing.set_defaults(run=sampling.run)
    many = commands.add_parser("serving", help="many requests at once: batches, prefixes, long prompts")
    serving.add_arguments(many)
    many.set_defaults(run=serving.run)

    make = commands.add_parser("make-model", help="write a GGUF of random weights in a real shape")
    make_model.add_arguments(make)
    make.set_defaults(run=make_model.run)
    return top


def _add_common(command: argparse.ArgumentParser, new: int) -> None:
    command.add_argument("--model", type=Path, action="append", required=True, help="GGUF file; repeatable")
    command.add_argument("--engine", choices=ENGINES, default="oxillama", help="default: %(default)s")
    command.add_argument("--peer", choices=ENGINES, help="a second engine to compare with")
    command.add_argument("--threads", type=_positive, default=available_cpus(), help="default: %(default)s")
    command.add_argument("--rounds", type=_positive, default=10, help="turns per engine (default: 10)")
    command.add_argument("--warmup", type=_natural, default=1, help="turns thrown away (default: 1)")
    command.add_argument("--prompt", type=_positive, default=512, help="tokens (default: 512)")
    command.add_argument("--new", type=_positive, default=new, help="tokens decoded (default: %(default)s)")
    command.add_argument("--json", type=Path, metavar="FILE", help="write all samples to FILE")
    command.add_argument("--compare", type=Path, metavar="OLD.json", help="compare with an earlier --json")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {text}")
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected at least 0, got {text}")
    return value


def run_end_to_end(args: argparse.Namespace) -> int:
    """`end-to-end`: see `benchmarks.end_to_end`."""
    old = _prepare(args)
    results: list[Row] = []
    for model in args.model:
        found, agreement = end_to_end.measure(model, _engines(args), **_measured(args))
        results += found
        if agreement is not None:
            print(f"{model.stem}: cosine of the engines' logits after the prompt: {agreement:.5f}")
    return _finish(args, results, old)


def run_load(args: argparse.Namespace) -> int:
    """`load`: see `benchmarks.loading`."""
    old = _prepare(args)
    results: list[Row] = []
    for model in args.model:
        results += loading.measure(model, _engines(args), **_measured(args))
    return _finish(args, results, old)


def _engines(args: argparse.Namespace) -> list[str]:
    return [args.engine] if args.peer is None else [args.engine, args.peer]


def _measured(args: argparse.Namespace) -> dict[str, int]:
    return {name: getattr(args, name) for name in ("threads", "rounds", "warmup", "prompt", "new")}


def _prepare(args: argparse.Namespace) -> dict[str, Any] | None:
    """Find out before minutes of measuring what would fail after them; returns the report to compare.

    Also notes in ``args.cpu_time`` where the clocks of the cores stood.
    """
    if args.peer == args.engine:
        raise ConfigError(f"--peer: expected another engine than --engine, got {args.peer} twice")
    for model in args.model:
        if not model.is_file():
            raise ModelFileError(f"{model}: expected a GGUF model, found no such file")
    if args.json is not None and not args.json.absolute().parent.is_dir():
        raise ConfigError(f"--json: expected a file in an existing folder, got {args.json}")
    args.cpu_time = CpuTime.now()
    if args.compare is None:
        return None
    conditions = {name: getattr(args, name) for name in ("threads", "prompt", "new")}
    return read_report(args.compare, args.command, conditions)


def _finish(args: argparse.Namespace, results: list[Row], old: dict[str, Any] | None) -> int:
    machine = describe_machine()
    others = others_share(args.cpu_time, CpuTime.now())
    machine["others_share"] = others
    machine["engines"] = {name: ENGINES[name](Path(), 1, 1).version() for name in _engines(args)}
    content = report(args.command, _measured(args), machine, results)
    print(f"{machine['cpu']}, {args.threads} of {machine['available_cores']} cores; ", end="")
    print(", ".join(f"{name} {version}" for name, version in machine["engines"].items()))
    print(f"{args.prompt} + {args.new} tokens, {args.rounds} rounds; median [quartiles]", end="")
    print("" if others is None else f"; other processes took {others:.0%} of the cores' time")
    print(table(results))
    if old is not None:
        print(f"\nagainst {args.compare} of {old.get('time')}, {old.get('machine', {}).get('cpu')}:")
        print(compare(old, content))
    if args.json is not None:
        write_report(args.json, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())

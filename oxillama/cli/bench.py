"""``bench``: how fast a model runs here; `oxillama.benchmark` measures."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oxillama.cli import options
from oxillama.cli.console import check_writable, print_rows, printable, write_json


def add_commands(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="measure a model's speed",
        description="Measures prefill and decode in tokens per second: median, quartiles and extremes.",
        allow_abbrev=False,
    )
    bench.add_argument("model", metavar="MODEL", help="GGUF file (of a split one: the first)")
    for name, default, meaning in (
        ("--prompt", 512, "tokens of the prompt"),
        ("--new", 32, "tokens decoded after it"),
        ("--rounds", 10, "measurements of each"),
    ):
        meaning = f"{meaning} (default: {default})"
        bench.add_argument(name, metavar="N", type=int, default=default, help=meaning)
    options.add_named_options(bench, ("num_threads", "quantize"))
    bench.add_argument("--json", metavar="FILE", type=Path, help="write the result and the machine here too")
    bench.set_defaults(command=run_bench)


def run_bench(args: argparse.Namespace) -> int:
    from oxillama.benchmark import bench_model, describe_machine

    if args.json is not None:
        check_writable(args.json)
    speed = bench_model(
        args.model,
        prompt_tokens=args.prompt,
        new_tokens=args.new,
        num_threads=args.num_threads,
        quantize=args.quantize,
        rounds=args.rounds,
    )
    load, threads = f"loaded in {speed.load_seconds:.2f} s", f"{speed.num_threads} threads"
    print(printable(f"{speed.model}: {load}, {threads}, {args.rounds} rounds"))
    rows: list[tuple[str, ...]] = [("tokens/s", "median", "low", "high", "min", "max")]
    for name, n, s in (
        ("prefill", speed.prompt_tokens, speed.prefill),
        ("decode", speed.new_tokens, speed.decode),
    ):
        rows.append((f"{name} {n}", *(f"{value:.1f}" for value in (s.median, s.low, s.high, s.min, s.max))))
    print_rows(rows, right=range(1, 6))
    if args.json is not None:
        write_json(args.json, {"speed": asdict(speed), "machine": describe_machine()})
    return 0

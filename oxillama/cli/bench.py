"""``bench``: how fast a model runs here; `oxillama.bench.benchmark` measures."""

from __future__ import annotations

import argparse
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
        ("--warmup", 1, "rounds before them, thrown away"),
    ):
        meaning = f"{meaning} (default: {default})"
        bench.add_argument(name, metavar="N", type=int, default=default, help=meaning)
    options.add_named_options(bench, ("num_threads", "quantize"))
    bench.add_argument("--json", metavar="FILE", type=Path, help="write all samples and the machine here too")
    bench.add_argument("--compare", metavar="OLD.json", type=Path, help="compare with an earlier --json")
    bench.set_defaults(command=run_bench)


def run_bench(args: argparse.Namespace) -> int:
    from oxillama.bench.benchmark import Summary, bench_model, describe_machine
    from oxillama.bench.measurements import Metric, Row, compare, machine_text, read_report, report
    from oxillama.config.engine import available_cpus

    if args.json is not None:
        check_writable(args.json)
    threads = available_cpus() if args.num_threads is None else args.num_threads
    conditions = {"prompt": args.prompt, "new": args.new, "threads": threads, "quantize": args.quantize}
    old = None if args.compare is None else read_report(args.compare, "bench", conditions)
    speed = bench_model(
        args.model,
        prompt_tokens=args.prompt,
        new_tokens=args.new,
        num_threads=threads,
        quantize=args.quantize,
        rounds=args.rounds,
        warmup=args.warmup,
    )
    load = f"loaded in {speed.load_seconds:.2f} s"
    print(printable(f"{speed.model}: {load}, {speed.num_threads} threads, {args.rounds} rounds"))
    rows: list[tuple[str, ...]] = [("tokens/s", "median", "low", "high", "min", "max")]
    results = []
    for name, n, samples in (
        ("prefill", speed.prompt_tokens, speed.prefill_samples),
        ("decode", speed.new_tokens, speed.decode_samples),
    ):
        s = Summary.of(samples)
        rows.append((f"{name} {n}", *(f"{value:.1f}" for value in (s.median, s.low, s.high, s.min, s.max))))
        metric = Metric(name, "tok/s", higher_is_better=True)
        results.append(Row(Path(speed.model).stem, metric, {"oxillama": list(samples)}))
    print_rows(rows, right=range(1, 6))
    machine = describe_machine()
    print(printable(machine_text(machine).replace("\n", "; ")))
    measured = {"rounds": args.rounds, "warmup": args.warmup, "load_seconds": speed.load_seconds}
    content = report("bench", conditions | measured, machine, results)
    if old is not None:
        print(compare(old, content))
    if args.json is not None:
        write_json(args.json, content)
    return 0

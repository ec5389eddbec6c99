"""``bench``: measures how fast a model runs on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from oxillama import EngineConfig
from oxillama.apps.cli import options
from oxillama.apps.cli.console import check_writable, print_rows, printable
from oxillama.apps.cli.models import add_model, model_path
from oxillama.apps.cli.progress import count_bar, shows_bars


def add_commands(commands: Any) -> None:
    bench = options.add_command(
        commands,
        "bench",
        help="measure a model's speed",
        description="Measures prefill and decode in tokens per second: median, quartiles and extremes.",
        examples="""\
  oxillama bench model.gguf
  oxillama bench model.gguf --threads 4 --json four.json
  oxillama bench model.gguf --threads 8 --compare four.json
""",
    )
    add_model(bench)
    for flag, name, default, meaning in (
        ("--prompt", "prompt_tokens", 512, "tokens of the prompt"),
        ("--new", "new_tokens", 32, "tokens decoded after the prompt"),
        ("--rounds", "rounds", 10, "measurements of each"),
        ("--warmup", "warmup", 1, "rounds before the first measurement"),
    ):
        meaning = f"{meaning} (default: {default})"
        bench.add_argument(flag, dest=name, metavar="N", type=options.integer, default=default, help=meaning)
    options.add_engine_options(bench)
    bench.add_argument("--json", metavar="FILE", type=Path, help="write all samples and the machine here too")
    bench.add_argument(
        "--compare", metavar="OLD.json", type=Path, help="compare with an earlier --json of the same lengths"
    )
    bench.set_defaults(command=run_bench)


def run_bench(args: argparse.Namespace) -> int:
    from oxillama.apps.bench.machine import describe_machine, machine_text
    from oxillama.apps.bench.report import Metric, Row, Summary, compare, read_report, report, write_report
    from oxillama.apps.bench.run import bench_model
    from oxillama.base.config.engine import available_cpus

    if args.json is not None:
        check_writable("--json", args.json)
    config = options.given(args, EngineConfig)
    threads = config.get("num_threads", available_cpus())
    others = {name: value for name, value in config.items() if name not in ("num_threads", "quantize")}
    lengths = {"prompt": args.prompt_tokens, "new": args.new_tokens}
    settings = {"threads": threads, "quantize": args.quantize, "config": others or None}
    old = None if args.compare is None else read_report(args.compare, "bench", lengths)
    with count_bar(shows_bars(args), "measuring", " rounds") as progress:
        speed = bench_model(
            model_path(args.model, args),
            prompt_tokens=args.prompt_tokens,
            new_tokens=args.new_tokens,
            rounds=args.rounds,
            warmup=args.warmup,
            progress=progress,
            **config,
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
    content = report("bench", lengths | settings | measured, machine, results)
    if old is not None:
        for line in compare(old, content).split("\n"):
            print(printable(line))
        for name, now in settings.items():
            before = old["options"].get(name)  # reports of earlier versions have no "config"
            if before != now:
                print(printable(f"{name}: {_shown(before)} before, {_shown(now)} now"))
    if args.json is not None:
        write_report(args.json, content)
    return 0


def _shown(setting: Any) -> str:
    """``kv_type=q8_0 page_size=32`` for the options of a config, "default" for none."""
    if isinstance(setting, dict):
        return " ".join(f"{name}={value}" for name, value in setting.items())
    return "default" if setting is None else str(setting)

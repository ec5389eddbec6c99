"""A busy core: the share of the speed that an engine keeps while another process spins on one of the cores.

A turn measures an engine on the quiet machine, then starts the spinning process and measures again. Decoding
stops after some seconds: an engine whose threads wait in spinning barriers can take seconds for a token.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import runs
from benchmarks.peers import ENGINES, Runner
from benchmarks.timing import alternate
from oxillama.apps.bench.report import Metric, Row, rows
from oxillama.apps.bench.run import fixed_tokens
from oxillama.errors import ConfigError

SPIN = """
import os, sys
parent = int(sys.argv[1])
while os.getppid() == parent:  # ends with the benchmark, even if that is killed
    for _ in range(1_000_000):
        pass
"""
SETTLE = 0.2  # seconds until the process spins and the scheduler has noticed

METRICS = [
    Metric(f"{kind}, {state}", unit, higher_is_better=True)
    for kind in ("prefill", "decode")
    for state, unit in (("quiet", "tok/s"), ("busy", "tok/s"), ("share kept", "%"))
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `busy`."""
    runs.add_engine_arguments(parser)
    parser.add_argument("--prompt", type=runs.positive, default=512, help="tokens (default: %(default)s)")
    parser.add_argument("--new", type=runs.positive, default=48, help="tokens decoded (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="most to decode in one go (default: %(default)s)"
    )
    parser.add_argument("--spinning", type=runs.positive, default=1, help="processes (default: %(default)s)")
    parser.add_argument("--pin", action="store_true", help="keep each of them on one core")
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """`busy`: quiet and busy speeds of each engine, and the share kept."""
    engines = runs.engines(args)
    runs.check_models(args.model)
    if not args.seconds > 0:
        raise ConfigError(f"--seconds: expected a number above 0, got {args.seconds}")
    if args.pin and not hasattr(os, "sched_setaffinity"):
        raise ConfigError("--pin: this system does not keep processes on a core")
    names = ("threads", "prompt", "new", "seconds", "spinning", "pin")
    whole = runs.Run("busy", args, {name: getattr(args, name) for name in names}, engines)
    results: list[Row] = []
    for model in args.model:
        results += measure(model, engines, args)
    return whole.finish(results)


def measure(model: Path, engines: Sequence[str], args: argparse.Namespace) -> list[Row]:
    """Rows of one model."""
    with ExitStack() as stack:
        turns = {}
        for name in engines:
            runner = ENGINES[name](model, args.threads, args.prompt + args.new)
            stack.callback(runner.close)
            runner.load()
            turns[name] = turn(runner, args)
        return rows(model.stem, alternate(turns, rounds=args.rounds, warmup=args.warmup), METRICS)


def turn(runner: Runner, args: argparse.Namespace) -> Callable[[], dict[str, float]]:
    """Speeds on the quiet machine, on the busy one, and their ratios in percent."""

    def both() -> dict[str, float]:
        quiet = speeds(runner, args.prompt, args.new, args.seconds)
        with spinning(args.spinning, pin=args.pin):
            busy = speeds(runner, args.prompt, args.new, args.seconds)
        found = {}
        for kind in ("prefill", "decode"):
            found[f"{kind}, quiet"], found[f"{kind}, busy"] = quiet[kind], busy[kind]
            found[f"{kind}, share kept"] = 100 * busy[kind] / quiet[kind]
        return found

    return both


def speeds(runner: Runner, prompt: int, new: int, seconds: float) -> dict[str, float]:
    """Tokens per second of a prompt and of what is decoded behind it, up to ``seconds`` of it."""
    prefill = prompt / runner.prefill(fixed_tokens(prompt, runner.n_vocab))
    if not runner.appends:
        return {"prefill": prefill, "decode": new / runner.decode(new)}
    count, spent = 0, 0.0
    while count < new and spent < seconds:
        spent += runner.decode(1)
        count += 1
    return {"prefill": prefill, "decode": count / spent}


@contextmanager
def spinning(count: int, *, pin: bool) -> Iterator[list[int]]:
    """So many processes, by id, that do nothing but run, each on its own core if ``pin``."""
    processes = []
    try:
        for i in range(count):
            process = subprocess.Popen([sys.executable, "-S", "-c", SPIN, str(os.getpid())])
            processes.append(process)
            if pin:
                cores = sorted(os.sched_getaffinity(0))
                os.sched_setaffinity(process.pid, {cores[i % len(cores)]})
        time.sleep(SETTLE)
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()

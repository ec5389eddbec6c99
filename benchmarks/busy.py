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
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks import runs
from benchmarks.peers import loaded
from benchmarks.runner import Runner
from oxillama.apps.bench.report import Metric, Row
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
    runs.add_engine_arguments(parser, new=48)
    runs.add_option(parser, "--prompt", 512, "tokens")
    runs.add_option(parser, "--seconds", 10.0, "most to decode in one go", type=float)
    runs.add_option(parser, "--spinning", 1, "processes")
    parser.add_argument("--pin", action="store_true", help="keep each of them on one core")
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """`busy`: quiet and busy speeds of each engine, and the share kept."""
    engines = runs.engines(args)
    if not args.seconds > 0:
        raise ConfigError(f"--seconds: expected a number above 0, got {args.seconds}")
    if args.pin and not hasattr(os, "sched_setaffinity"):
        raise ConfigError("--pin: this system does not keep processes on a core")
    names = ("threads", "prompt", "new", "seconds", "spinning", "pin")
    whole = runs.Run(args, *names, engines=engines)
    results: list[Row] = []
    for model in args.model:
        with loaded(engines, model, args.threads, args.prompt + args.new) as runners:
            turns = {runner.name: partial(turn, runner, args) for runner in runners}
            results += whole.rows(turns, METRICS, model.stem)
    return whole.finish(results)


def turn(runner: Runner, args: argparse.Namespace) -> dict[str, float]:
    """Speeds on the quiet machine, on the busy one, and their ratios in percent."""
    quiet = speeds(runner, args.prompt, args.new, args.seconds)
    with spinning(args.spinning, pin=args.pin):
        busy = speeds(runner, args.prompt, args.new, args.seconds)
    found = {}
    for kind in ("prefill", "decode"):
        found[f"{kind}, quiet"], found[f"{kind}, busy"] = quiet[kind], busy[kind]
        found[f"{kind}, share kept"] = 100 * busy[kind] / quiet[kind]
    return found


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
    """The ids of ``count`` processes that do nothing but run, each on its own core if ``pin``."""
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

"""How early a new process has its first token, and what memory several processes on one model take.

Each process is a new Python that imports its engine and nothing of the benchmarks, loads the model, runs a
short prompt and chooses one token. The model's files are read once before, so that all processes find them in
the page cache. Memory is the proportional set size: a page that n processes share counts 1/n for each.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks import runs
from benchmarks.loading import warm_page_cache
from oxillama.apps.bench.report import Metric
from oxillama.engine.features.packed_files import pack_model
from oxillama.errors import ConfigError, LoadError

METRICS = (
    Metric("import", "s", higher_is_better=False),
    Metric("load to first token", "s", higher_is_better=False),
    Metric("process to first token", "s", higher_is_better=False),
    Metric("memory of all processes", "MB", higher_is_better=False),
    Metric("memory of one more process", "MB", higher_is_better=False),
)

TOKENS = [1, 300, 1204, 77, 4000]
"""The prompt."""

BEGIN = """
import json, sys, time
model, threads, tokens = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
start = time.monotonic()
"""

END = """
at = time.monotonic()
print(json.dumps({"imported": imported - start, "first": at - imported, "at": at}), flush=True)
sys.stdin.readline()
"""

OXILLAMA = """
from oxillama import InferenceEngine
imported = time.monotonic()
engine = InferenceEngine.from_gguf(model, num_threads=threads, packed=%r)
next(iter(engine.stream(tokens, max_tokens=2, temperature=0, ignore_eos=True)))
"""

LLAMA_CPP = """
import ctypes
import llama_cpp as api
imported = time.monotonic()
silent = api.llama_log_callback(lambda level, text, data: None)
api.llama_log_set(silent, ctypes.c_void_p(0))
api.llama_backend_init()
params = api.llama_model_default_params()
params.n_gpu_layers = 0
loaded = api.llama_model_load_from_file(model.encode(), params)
options = api.llama_context_default_params()
options.n_ctx, options.n_threads, options.n_threads_batch = 512, threads, threads
context = api.llama_init_from_model(loaded, options)
n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(loaded))
prompt = (api.llama_token * len(tokens))(*tokens)
assert api.llama_decode(context, api.llama_batch_get_one(prompt, len(tokens))) == 0
logits = api.llama_get_logits_ith(context, -1)
token = max(range(n_vocab), key=logits.__getitem__)
"""

ENGINES = {
    "oxillama": OXILLAMA % "off",
    "oxillama-packed": OXILLAMA % "auto",
    "llama.cpp": LLAMA_CPP,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs.add_model(parser)
    parser.add_argument("--engine", choices=ENGINES, default="oxillama-packed", help="default: %(default)s")
    parser.add_argument("--peer", choices=ENGINES, help="a second engine to compare with")
    runs.add_option(parser, "--processes", 4, "processes at a time")
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    engines = runs.engines(args)
    if not Path("/proc/self/smaps_rollup").exists():
        raise ConfigError("start: expected a system with /proc/PID/smaps_rollup, which tells shared memory")
    packages = [name.removesuffix("-packed") for name in engines]
    whole = runs.Run(args, "threads", "processes", engines=packages)
    if "oxillama-packed" in engines:
        warm_page_cache(pack_model(args.model))
    warm_page_cache(args.model)
    subjects = {name: partial(turn, name, args.model, args.threads, args.processes) for name in engines}
    return whole.finish(whole.rows(subjects, METRICS))


def turn(engine: str, model: Path, threads: int, processes: int) -> dict[str, float]:
    """Starts processes one after the other; times of the first, and the memory of all.

    Raises LoadError if one of them fails.
    """
    started: list[subprocess.Popen[str]] = []
    try:
        begin = time.monotonic()
        found = json.loads(start(started, engine, model, threads))
        first = memory(started)
        for _ in range(processes - 1):
            start(started, engine, model, threads)
        values = {
            "import": found["imported"],
            "load to first token": found["first"],
            "process to first token": found["at"] - begin,
            "memory of all processes": memory(started),
        }
        if processes > 1:
            more = (values["memory of all processes"] - first) / (processes - 1)
            values["memory of one more process"] = more
        return values
    finally:
        for process in started:
            process.communicate("\n")


def start(started: list[subprocess.Popen[str]], engine: str, model: Path, threads: int) -> str:
    """Starts one more process and waits for its first token: the line that it prints."""
    command = [sys.executable, "-c", BEGIN + ENGINES[engine] + END]
    process = subprocess.Popen(
        [*command, str(model), str(threads), json.dumps(TOKENS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    started.append(process)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise LoadError(f"{model}: {engine} failed to start in a process of its own")
    return line


def memory(processes: list[subprocess.Popen[str]]) -> float:
    """The proportional set size of all processes, in MB."""
    total = 0
    for process in processes:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        found = re.search(r"^Pss:\s+(\d+) kB$", text, re.MULTILINE)
        assert found is not None
        total += int(found[1])
    return total * 1024 / 1e6

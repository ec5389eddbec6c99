"""A server with many clients: beside the library, beside a long prompt, and its waits against its throughput.

Prompts are token ids, texts are greedy and of a fixed length, and the clients are one process
(`http_clients`). A peer is a llama-server, which reads the same bodies.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import plot, server_peer
from benchmarks.http_clients import Body, Clients, Turn, clients
from benchmarks.timing import alternate
from oxillama.bench.report import Metric, Row, Summary, rows
from oxillama.gguf.model_file import ModelFile

PROMPT = 16  # tokens of a stream's prompt
STREAMS = 4  # beside long prompts
NO_LIMIT = 1e9  # milliseconds
PEER = "llama-server"


@dataclass(frozen=True)
class Served:
    """A server in a process of its own."""

    port: int
    pid: int

    def loop_seconds(self) -> float:
        """Processor time of its main thread, which has the event loop; nan where the system does not tell."""
        file = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat")
        return int(file.read_text().split()[0]) / 1e9 if file.exists() else float("nan")


@contextmanager
def served(model: Path, threads: int, context: int | None = None, *more: str) -> Iterator[Served]:
    """A server in a process of its own, with more options."""
    command = [sys.executable, "-m", "oxillama", "serve", str(model), "--port", "0", "-t", str(threads)]
    command += [*(["-c", str(context)] if context else []), *more]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    drain = threading.Thread(target=process.stderr.read, daemon=True)
    try:
        text = ""
        while not (ready := re.search(r"is ready at http://127\.0\.0\.1:(\d+)", text)):
            line = process.stderr.readline()
            assert line, f"the server has ended: {text}"
            text += line
        drain.start()
        yield Served(int(ready[1]), process.pid)
    finally:
        process.kill()
        process.wait()
        if drain.ident is not None:
            drain.join()
        process.stderr.close()


def body_of(prompt: Sequence[int], new: int, **more: Any) -> Body:
    """A request for a stream of ``new`` tokens."""
    how = {"temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    return {"prompt": list(prompt), "max_tokens": new, **how, **more}


def random_prompt(length: int, n_vocab: int) -> list[int]:
    """A prompt that shares nothing with others."""
    tokens: list[int] = np.random.default_rng().integers(300, n_vocab, length).tolist()
    return tokens


# --- beside the library -------------------------------------------------------------------------------


def beside_library(engine: Any, args: argparse.Namespace) -> list[Row]:
    """Tokens/s of streams over HTTP beside `generate_batch` of the same prompts; the processor time of a
    token in the server's event loop and in the clients."""
    found: list[Row] = []
    with served(args.model, args.threads) as server, clients() as readers:
        for n in args.clients:
            turns = {
                "server": partial(over_http, server, readers, n, args.new, engine.model.spec.n_vocab),
                "library": partial(in_process, engine, n, args.new),
            }
            samples = alternate(turns, rounds=args.rounds, warmup=args.warmup)
            for metric in BESIDE_LIBRARY:
                has = {name: each for name, each in samples.items() if metric.name in each}
                row = Metric(f"{n} clients, {metric.name}", metric.unit, metric.higher_is_better)
                renamed = {name: {row.name: each[metric.name]} for name, each in has.items()}
                found += rows(args.model.stem, renamed, [row])
    return found


BESIDE_LIBRARY = (
    Metric("all", "tok/s", True),
    Metric("event loop", "us a token", False),
    Metric("reading", "us a token", False),
)


def over_http(server: Served, readers: Clients, n: int, new: int, n_vocab: int) -> dict[str, float]:
    """One turn of the server, by the names of `BESIDE_LIBRARY`."""
    bodies = [body_of(random_prompt(PROMPT, n_vocab), new) for _ in range(n)]
    spent = server.loop_seconds()
    turn = readers.read(server.port, bodies)
    spent = server.loop_seconds() - spent
    n_tokens = sum(stream.n_tokens for stream in turn.streams)
    assert n_tokens == n * new, f"expected {n * new} tokens, got {n_tokens}"
    values = n_tokens / turn.seconds, 1e6 * spent / n_tokens, 1e6 * turn.cpu_seconds / n_tokens
    return dict(zip((metric.name for metric in BESIDE_LIBRARY), values, strict=True))


def in_process(engine: Any, n: int, new: int) -> dict[str, float]:
    """One turn of the library."""
    prompts = [random_prompt(PROMPT, engine.model.spec.n_vocab) for _ in range(n)]
    start = time.perf_counter()
    engine.generate_batch(prompts, max_tokens=new, ignore_eos=True, temperature=0)
    return {BESIDE_LIBRARY[0].name: n * new / (time.perf_counter() - start)}


# --- long prompts beside streams ----------------------------------------------------------------------


def mixed(
    readers: Clients, port: int, n_vocab: int, length: int, n_prompts: int, **options: Any
) -> dict[str, float]:
    """Prompts one after another beside four streams.

    Parameters
    ----------
    options : of the streams.

    Returns
    -------
    dict : the seconds and tokens/s of the prompts, tokens/s of the streams, and their gaps in ms.
    """
    beside = [body_of(random_prompt(PROMPT, n_vocab), 100_000, **options) for _ in range(STREAMS)]
    prompts = [body_of(random_prompt(length, n_vocab), 1) for _ in range(n_prompts)]
    turn = readers.read(port, prompts, beside)
    return figures(turn, length * n_prompts)


def figures(turn: Turn, n_prompt: int) -> dict[str, float]:
    """What `mixed` returns, by the names of `MIXED`."""
    gaps = [gap for stream in turn.beside for gap in np.diff([0.0, *stream.times, turn.seconds])]
    values = (
        turn.seconds,
        n_prompt / turn.seconds,
        sum(stream.n_tokens for stream in turn.beside) / turn.seconds,
        *(1e3 * float(np.quantile(gaps, q)) for q in (0.5, 0.99, 1)),
    )
    return dict(zip((metric.name for metric in MIXED), values, strict=True))


MIXED = (
    Metric("prompts", "s", False),
    Metric("prompts' tokens", "tok/s", True),
    Metric("streams' tokens", "tok/s", True),
    Metric("gap, median", "ms", False),
    Metric("gap, 99%", "ms", False),
    Metric("gap, worst", "ms", False),
)


def peer(args: argparse.Namespace, context: int, *more: str) -> AbstractContextManager[int]:
    """A llama-server with room for all streams, though the model may know shorter contexts; its port."""
    with ModelFile.open(args.model) as file:
        key = f"{file.metadata['general.architecture']}.context_length=int:{context}"
    how = args.model, args.threads, STREAMS + 1, context
    return server_peer.llama_server(args.peer, *how, "--override-kv", key, *more)


def beside_prompt(args: argparse.Namespace, n_vocab: int) -> list[Row]:
    """Four streams beside one long prompt; the peer's too."""
    context = args.http_long + 2048
    with ExitStack() as stack:
        ports = {"oxillama": stack.enter_context(served(args.model, args.threads, context)).port}
        if isinstance(args.peer, Path):
            ports[PEER] = stack.enter_context(peer(args, context))
        readers = stack.enter_context(clients())
        turns = {
            name: partial(mixed, readers, port, n_vocab, args.http_long, 1) for name, port in ports.items()
        }
        samples = alternate(turns, rounds=args.rounds, warmup=args.warmup)
    return rows(f"{args.model.stem}, {STREAMS} streams beside {args.http_long}", samples, MIXED)


def waits(args: argparse.Namespace, n_vocab: int) -> list[Row]:
    """The same beside prompts that come one after another, for each limit of the wait in turn, and for a peer
    with each size of its batch; drawn if a plot is asked for."""
    context = 8 * args.mixed_prompt
    with ExitStack() as stack:
        port = stack.enter_context(served(args.model, args.threads, context)).port
        readers = stack.enter_context(clients())
        run = partial(mixed, readers, n_vocab=n_vocab, length=args.mixed_prompt, n_prompts=MIXED_PROMPTS)
        turns: dict[str, Callable[[], dict[str, float]]] = {}
        for limit in args.waits:
            name = "no limit" if limit >= NO_LIMIT else f"{limit:g} ms"
            turns[name] = partial(run, port=port, max_decode_wait_ms=limit)
        samples = alternate(turns, rounds=args.rounds, warmup=args.warmup)
        if isinstance(args.peer, Path):
            for size in args.peer_batches:
                with peer(args, context, "-b", str(size), "-ub", str(size)) as other:
                    turns = {f"{PEER} -b {size}": partial(run, port=other)}
                    samples |= alternate(turns, rounds=args.rounds, warmup=args.warmup)
    if args.plot is not None:
        plot.write(args.plot, charts(samples))
    return rows(f"{args.model.stem}, {STREAMS} streams beside {args.mixed_prompt}", samples, MIXED)


MIXED_PROMPTS = 2  # one after another


def charts(samples: Mapping[str, Mapping[str, Sequence[float]]]) -> list[plot.Chart]:
    """Tokens/s of the prompts, and of the streams, against the worst gap of the streams."""
    found = []
    for metric in MIXED[1:3]:
        series: dict[str, list[tuple[float, Summary]]] = {"oxillama": [], PEER: []}
        for name, values in samples.items():
            gap = Summary.of(values[MIXED[-1].name]).median
            engine = PEER if name.startswith(PEER) else "oxillama"
            series[engine].append((gap, Summary.of(values[metric.name])))
        points = {name: sorted(line, key=lambda point: point[0]) for name, line in series.items() if line}
        found.append(
            plot.Chart(f"{metric.name}, tokens / s", "worst gap of a stream, ms", "tokens / s", points)
        )
    return found

"""A server with many clients: beside the library, beside a long prompt, and its waits against its throughput.

Prompts are token ids, texts are greedy and of a fixed length, and the clients are one process
(`http_clients`). Peers are llama-server and vLLM's server, which read the same bodies, and our own with
``compute="w8a8"``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import plot
from benchmarks.http_clients import Body, Clients, Turn, clients
from benchmarks.peers import LlamaCpp
from benchmarks.runs import Run
from benchmarks.server_peer import Served, llama_server, served
from benchmarks.vllm import Vllm, vllm_server
from oxillama.apps.bench.report import Metric, Row, Summary, rows
from oxillama.apps.doctor.measure import seconds
from oxillama.gguf.model_file import ModelFile

PROMPT = 16  # tokens of a stream's prompt
STREAMS = 4  # beside long prompts
NO_LIMIT = 1e9  # milliseconds
OURS, W8A8, LLAMA = "oxillama", "oxillama-w8a8", "llama-server"
COMPUTE = {OURS: "int8", W8A8: "w8a8"}


def body_of(prompt: Sequence[int], new: int, **more: Any) -> Body:
    """A request for a stream of ``new`` tokens."""
    how = {"temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    return {"prompt": list(prompt), "max_tokens": new, **how, **more}


def random_prompt(length: int, n_vocab: int) -> list[int]:
    """A prompt that shares nothing with others."""
    tokens: list[int] = np.random.default_rng().integers(300, n_vocab, length).tolist()
    return tokens


# --- beside the library -------------------------------------------------------------------------------


def beside_library(whole: Run, engine: Any, args: argparse.Namespace) -> list[Row]:
    """Tokens/s of streams over HTTP beside `generate_batch` of the same prompts; the processor time of a
    token in the server's event loop and in the clients."""
    found: list[Row] = []
    with served(args.model, args.threads) as server, clients() as readers:
        for n in args.clients:
            turns = {
                "server": partial(over_http, server, readers, n, args.new, engine.model.spec.n_vocab),
                "library": partial(in_process, engine, n, args.new),
            }
            samples = whole.alternate(turns)
            for metric in BESIDE_LIBRARY:
                has = {name: each[metric.name] for name, each in samples.items() if metric.name in each}
                found.append(Row(whole.model, replace(metric, name=f"{n} clients, {metric.name}"), has))
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
    generate = partial(engine.generate_batch, prompts, max_tokens=new, ignore_eos=True, temperature=0)
    return {BESIDE_LIBRARY[0].name: n * new / seconds(generate)}


# --- long prompts beside streams ----------------------------------------------------------------------


def mixed(
    readers: Clients, port: int, n_vocab: int, length: int, n_prompts: int, context: int, **options: Any
) -> dict[str, float]:
    """Prompts one after another beside four streams.

    Args:
        context: that all servers have; a stream may fill it.
        options: of the streams.

    Returns:
        dict: the seconds and tokens/s of the prompts, tokens/s of the streams, and their gaps in ms.
    """
    beside = [body_of(random_prompt(PROMPT, n_vocab), context - PROMPT, **options) for _ in range(STREAMS)]
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


def http_peers(args: argparse.Namespace) -> list[str]:
    """The names of the servers to compare with."""
    return [LLAMA if isinstance(peer, Path) else peer for peer in args.peer if peer != LlamaCpp.name]


def started(
    name: str, args: argparse.Namespace, context: int, batch: int | None = None
) -> AbstractContextManager[Served]:
    """A server by its name, with room for all streams, though the model may know shorter contexts.

    ``batch`` is the most tokens of a peer's step; None for its default.
    """
    how = args.model, args.threads, STREAMS + 1, context
    if name in COMPUTE:
        return served(args.model, args.threads, context, "--compute", COMPUTE[name])
    if name == Vllm.name:
        more = ["--max-num-batched-tokens", str(batch)] if batch else []
        return vllm_server(*how, args.vllm_preload, *more)
    (path,) = (peer for peer in args.peer if isinstance(peer, Path))
    with ModelFile.open(args.model) as file:
        key = f"{file.metadata['general.architecture']}.context_length=int:{context}"
    more = ["-b", str(batch), "-ub", str(batch)] if batch else []
    return llama_server(path, *how, "--override-kv", key, *more)


def beside_prompt(whole: Run, args: argparse.Namespace, n_vocab: int) -> list[Row]:
    """Four streams beside one long prompt; the peers' too."""
    context = args.http_long + 2048
    with ExitStack() as stack:
        names = [OURS, *http_peers(args)]
        ports = {name: stack.enter_context(started(name, args, context)).port for name in names}
        readers = stack.enter_context(clients())
        turns = {
            name: partial(mixed, readers, port, n_vocab, args.http_long, 1, context)
            for name, port in ports.items()
        }
        return whole.rows(turns, MIXED, f"{whole.model}, {STREAMS} streams beside {args.http_long}")


def waits(whole: Run, args: argparse.Namespace, n_vocab: int) -> list[Row]:
    """The same beside prompts that come one after another, for each limit of the wait in turn, and for a peer
    with each size of its batch; drawn if a plot is asked for."""
    context = 8 * args.mixed_prompt
    samples: dict[str, Any] = {}
    with clients() as readers:
        what = {"length": args.mixed_prompt, "n_prompts": MIXED_PROMPTS, "context": context}
        run = partial(mixed, readers, n_vocab=n_vocab, **what)
        limits = {
            "no limit" if most >= NO_LIMIT else f"{most:g} ms": {"max_decode_wait_ms": most}
            for most in args.waits
        }
        for name in (OURS, *http_peers(args)):
            for batch in (None,) if name in COMPUTE else args.peer_batches:
                with started(name, args, context, batch) as server:
                    turns = {
                        f"{name} {what}": partial(run, port=server.port, **how)
                        for what, how in (limits if batch is None else {str(batch): {}}).items()
                    }
                    samples |= whole.alternate(turns)
    if args.plot is not None:
        plot.write(args.plot, charts(samples))
    return rows(f"{whole.model}, {STREAMS} streams beside {args.mixed_prompt}", samples, MIXED)


MIXED_PROMPTS = 2  # prompts that follow one another


def charts(samples: Mapping[str, Mapping[str, Sequence[float]]]) -> list[plot.Chart]:
    """Tokens/s of the prompts, and of the streams, against the worst gap of the streams; a line a server."""
    found = []
    for metric in MIXED[1:3]:
        points = [
            (name.partition(" ")[0], Summary.of(values[MIXED[-1].name]).median, values[metric.name])
            for name, values in samples.items()
        ]
        found.append(plot.Chart.of(f"{metric.name}, tokens / s", "worst gap of a stream, ms", points))
    return found

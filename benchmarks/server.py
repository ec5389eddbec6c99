"""What HTTP costs a text, and how soon a client that goes away stops costing anything.

The library and a server in another process take turns: as many greedy texts at a time as there are clients,
each read as a stream over a connection of its own. Then a client sends a prompt as long as the context and
leaves in the middle of it; measured is the time until the engine has ended its request.

A peer is a llama-server. Both servers have the path ``/completion`` and take token ids, so that both read the
same bodies, in turns, and do the same work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import runs
from benchmarks.server_peer import llama_server, post, served
from oxillama import InferenceEngine
from oxillama.apps.bench.report import Metric, Row
from oxillama.apps.bench.run import fixed_tokens
from oxillama.apps.doctor.measure import seconds
from oxillama.base.config.server import ServerConfig
from oxillama.errors import ConfigError

PROMPT = "Once upon a time"
PATH = "/v1/completions"
ATTEMPTS = 50  # attempts to disconnect before the end of a prompt
CHUNK = 64  # so that a prompt takes several steps
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
THREAD = (Metric("1 clients, the server's thread", "us a token", False),)
GONE = (Metric("client gone to request ended", "ms", False),)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs.add_model(parser)
    runs.add_option(parser, "--clients", [1, 8], nargs="+", metavar="N")
    runs.add_option(parser, "--new", 100, "tokens of a text")
    parser.add_argument("--peer", type=Path, metavar="LLAMA_SERVER", help="a llama-server to compare with")
    what = "with a peer: tokens of a prompt that clients share; 0 leaves it out"
    runs.add_option(parser, "--prefix", 1000, what, type=int)
    what = "leave out the library and the client that goes"
    parser.add_argument("--only-peer", action="store_true", help=what)
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Tokens a second both ways, microseconds over the library's, and the wait after a client has left."""
    whole = runs.Run(args, "threads", "new", "clients")
    found: list[Row] = []
    if not args.only_peer:
        found += beside_library(whole, args)
    if args.peer is not None:
        found += beside_peer(whole, args)
    return whole.finish(found)


def beside_library(whole: runs.Run, args: argparse.Namespace) -> list[Row]:
    """The rows of the server beside the library, and of a client that goes away."""
    engine = InferenceEngine.from_gguf(args.model, num_threads=args.threads, prefill_chunk_size=CHUNK)
    found: list[Row] = []
    with served(args.model, args.threads) as ours:
        for n in args.clients:
            found += compare(whole, engine, ours.port, n, args.new)
    found += whole.rows({"server": partial(processor_time, engine, args.new)}, THREAD)
    return [*found, *whole.rows({"server": partial(time_to_end, engine)}, GONE)]


def beside_peer(whole: runs.Run, args: argparse.Namespace) -> list[Row]:
    """Tokens a second of streams of either server, and the first token of as many behind a shared prompt."""
    found: list[Row] = []
    context = args.prefix + args.new + 128
    for n in args.clients:
        ours = served(args.model, args.threads, context)
        theirs = llama_server(args.peer, args.model, args.threads, n, context)
        speed = Metric(f"{n} clients over HTTP", "tok/s", True)
        first = Metric(f"first token, {n} clients behind {args.prefix} shared tokens", "ms", False)
        with ours as server, theirs as peer:
            ports, n_vocab = {"oxillama": server.port, "llama-server": peer.port}, vocabulary_of(server.port)
            prompts = [fixed_tokens(16 + i, n_vocab) for i in range(n)]
            turns = {
                name: partial(speed_of, speed.name, port, prompts, args.new) for name, port in ports.items()
            }
            found += whole.rows(turns, [speed])
            if args.prefix:
                how = n, args.prefix, n_vocab
                turns = {name: partial(first_tokens, first.name, port, *how) for name, port in ports.items()}
                found += whole.rows(turns, [first])
    return found


def speed_of(name: str, port: int, prompts: Sequence[list[int]], new: int) -> dict[str, float]:
    """Tokens a second of a stream for each prompt."""
    start = time.perf_counter()
    texts = ask_all(port, prompts, new)
    taken = time.perf_counter() - start
    n = sum(map(len, texts))
    if n != len(prompts) * new:
        raise ConfigError(f"--new: expected {len(prompts) * new} tokens of all clients, got {n}")
    return {name: n / taken}


def first_tokens(name: str, port: int, clients: int, prefix: int, n_vocab: int) -> dict[str, float]:
    """Milliseconds to the first token, the median of ``clients`` that come at once behind a prompt that one
    has sent before; each goes on with other tokens."""
    salt = time.perf_counter_ns() % (n_vocab // 2)
    shared = [(token + salt) % (n_vocab - 300) + 259 for token in fixed_tokens(prefix, n_vocab)]
    ask_all(port, [[*shared, 300]], 1)
    first: list[float] = []
    ask_all(port, [[*shared, *range(301 + 9 * i, 310 + 9 * i)] for i in range(clients)], 4, first)
    return {name: 1e3 * statistics.median(first)}


def ask_all(
    port: int, prompts: Sequence[list[int]], new: int, first: list[float] | None = None
) -> list[list[Any]]:
    """Reads a stream for each prompt to its end, all at a time; the tokens that came.

    ``first`` gets the seconds after which each had its first token.
    """

    def read(prompt: list[int]) -> list[Any]:
        found: list[Any] = []
        body = {"prompt": prompt, "n_predict": new, "stream": True, **GREEDY, "return_tokens": True}
        start = time.perf_counter()
        with closing(post(port, "/completion", body)) as connection:
            for line in connection.getresponse():
                if line.startswith(b"data: {"):
                    tokens = json.loads(line[6:]).get("tokens", [])
                    if tokens and not found and first is not None:
                        first.append(time.perf_counter() - start)
                    found += tokens
        return found

    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(read, prompts))


def vocabulary_of(port: int) -> int:
    """Tokens in the vocabulary of the model that a server has."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as answer:
        return int(json.load(answer)["data"][0]["meta"]["n_vocab"])


def compare(whole: runs.Run, engine: InferenceEngine, port: int, n: int, new: int) -> list[Row]:
    """The rows of ``n`` texts at a time."""
    speed = Metric(f"{n} clients", "tok/s", True)
    extra = Metric(f"{n} clients, over the library", "us a token", False)
    last: dict[str, float] = {}
    ways: dict[str, Callable[[], object]] = {
        "library": partial(engine.generate_batch, [PROMPT] * n, max_tokens=new, **GREEDY),
        "server": partial(read_all, port, n, new),
    }

    def turn(name: str) -> dict[str, float]:
        last[name] = seconds(ways[name]) / new
        return {speed.name: n / last[name], extra.name: 1e6 * (last[name] - last["library"])}

    return whole.rows({name: partial(turn, name) for name in ways}, (speed, extra))


def read_all(port: int, n: int, n_tokens: int) -> None:
    """Reads ``n`` streams to their ends, all at a time."""

    def read(body: dict[str, Any]) -> None:
        with closing(post(port, PATH, body)) as connection:
            last = connection.getresponse().read().splitlines()[-2]
        assert last == b"data: [DONE]", last

    with ThreadPoolExecutor(n) as pool:
        list(pool.map(read, [{"prompt": PROMPT, "max_tokens": n_tokens, "stream": True, **GREEDY}] * n))


@contextmanager
def serving(engine: InferenceEngine) -> Iterator[tuple[int, threading.Thread]]:
    """A server in a thread of this process, which leaves the engine open; its port and its thread."""
    from oxillama.apps.server.listening import Listening
    from oxillama.apps.server.models import Hosted, Models

    hosted, config = Hosted("model", engine), ServerConfig(port=0)
    server = Listening(Models([hosted], config), config)
    with server.bound():
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            while not server.is_listening:  # what it is not yet, it could not stop to be
                time.sleep(0.01)
            yield int(server.url.rpartition(":")[2]), thread
        finally:
            hosted.engine = None  # which the end of the server would close
            server.stop()
            thread.join()


def time_to_end(engine: InferenceEngine) -> dict[str, float]:
    """Milliseconds from a client's leaving, in the middle of its prompt, to the end of its request."""
    with serving(engine) as (port, _):
        for _ in range(ATTEMPTS):
            taken = leave(engine, port)
            if taken is not None:
                return {GONE[0].name: 1e3 * taken}
        raise ConfigError("--model: expected one whose prompts take longer, all were over at once")


def processor_time(engine: InferenceEngine, n_tokens: int) -> dict[str, float]:
    """Microseconds of processor time that the server's thread spends on a token of one client's stream."""
    with serving(engine) as (port, thread):
        assert thread.ident is not None
        read_all(port, 1, n_tokens)
        clock = time.pthread_getcpuclockid(thread.ident)
        start = time.clock_gettime(clock)
        read_all(port, 1, n_tokens)
        return {THREAD[0].name: 1e6 * (time.clock_gettime(clock) - start) / n_tokens}


def leave(engine: InferenceEngine, port: int) -> float | None:
    """Seconds until a request has ended whose client left; None if it had run to its end before."""
    # another prompt each time: what the prefix cache knows is not run
    first = time.perf_counter_ns() % 251
    prompt = [(first + 7 * i) % 256 + 3 for i in range(engine.context_size - 1)]
    metrics, finished = engine.metrics, engine.metrics.finished.copy()
    n_run = metrics.prefill_tokens
    connection = post(port, PATH, {"prompt": prompt, "max_tokens": 1})
    while metrics.prefill_tokens == n_run:
        time.sleep(0.0002)
    connection.close()
    start = time.perf_counter()
    while metrics.finished == finished:
        time.sleep(0.0002)
    taken = time.perf_counter() - start
    return taken if metrics.finished["cancelled"] > finished["cancelled"] else None

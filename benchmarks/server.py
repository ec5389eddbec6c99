"""What HTTP costs a text, and how soon a client that goes away stops costing anything.

The library and a server in another process take turns: as many greedy texts at a time as there are clients,
each read as a stream over a connection of its own. Then a client sends a prompt as long as the context and
leaves in the middle of it; measured is the time until the engine has ended its request.
"""

from __future__ import annotations

import argparse
import http.client
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks import runs, server_peer
from benchmarks.over_http import served
from benchmarks.timing import alternate
from oxillama import InferenceEngine
from oxillama.apps.bench.report import Metric, Row, rows
from oxillama.base.config.server import ServerConfig
from oxillama.errors import ConfigError

PROMPT = "Once upon a time"
ATTEMPTS = 50  # to leave before a prompt is over
CHUNK = 64  # so that a prompt takes several steps
GREEDY = {"temperature": 0, "ignore_eos": True}
THREAD = (Metric("1 clients, the server's thread", "us a token", False),)
GONE = (Metric("client gone to request ended", "ms", False),)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `server`."""
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    runs.add_threads(parser)
    parser.add_argument(
        "--clients", type=runs.positive, nargs="+", default=[1, 8], metavar="N", help="(default: 1 8)"
    )
    parser.add_argument(
        "--new", type=runs.positive, default=100, help="tokens of a text (default: %(default)s)"
    )
    parser.add_argument("--peer", type=Path, metavar="LLAMA_SERVER", help="a llama-server to compare with")
    parser.add_argument(
        "--prefix",
        type=int,
        default=1000,
        help="with a peer: tokens of a prompt that clients share; 0 leaves it out (default: %(default)s)",
    )
    parser.add_argument(
        "--only-peer", action="store_true", help="leave out the library and the client that goes"
    )
    runs.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Tokens a second both ways, microseconds over the library's, and the wait after a client has left."""
    runs.check_models([args.model])
    conditions = {"threads": args.threads, "new": args.new, "clients": args.clients}
    whole = runs.Run("server", args, conditions)
    found: list[Row] = []
    if not args.only_peer:
        found += beside_library(args)
    if args.peer is not None:
        found += beside_peer(args)
    return whole.finish(found)


def beside_library(args: argparse.Namespace) -> list[Row]:
    """The rows of the server beside the library, and of a client that goes away."""
    engine = InferenceEngine.from_gguf(args.model, num_threads=args.threads, prefill_chunk_size=CHUNK)
    found: list[Row] = []
    with served(args.model, args.threads) as ours:
        for n in args.clients:
            found += compare(engine, ours.port, n, args)
    alone = {"server": partial(processor_time, engine, args.new)}
    gone = {"server": partial(time_to_end, engine)}
    for turns, metrics in ((alone, THREAD), (gone, GONE)):
        samples = alternate(turns, rounds=args.rounds, warmup=args.warmup)
        found += rows(args.model.stem, samples, metrics)
    return found


def beside_peer(args: argparse.Namespace) -> list[Row]:
    """The rows of the server beside llama-server."""
    found: list[Row] = []
    context = args.prefix + args.new + 128
    for n in args.clients:
        ours = served(args.model, args.threads, context)
        theirs = server_peer.llama_server(args.peer, args.model, args.threads, n, context)
        with ours as server, theirs as peer:
            found += server_peer.measure(
                {"oxillama": server.port, "llama-server": peer},
                args.model.stem,
                clients=n,
                new=args.new,
                prefix=args.prefix,
                n_vocab=vocabulary_of(server.port),
                rounds=args.rounds,
                warmup=args.warmup,
            )
    return found


def vocabulary_of(port: int) -> int:
    """Tokens in the vocabulary of the model that a server has."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as answer:
        return int(json.load(answer)["data"][0]["meta"]["n_vocab"])


def compare(engine: InferenceEngine, port: int, n: int, args: argparse.Namespace) -> list[Row]:
    """The rows of ``n`` texts at a time."""
    speed = Metric(f"{n} clients", "tok/s", True)
    extra = Metric(f"{n} clients, over the library", "us a token", False)
    last: dict[str, float] = {}

    def turn(name: str) -> dict[str, float]:
        start = time.perf_counter()
        if name == "library":
            engine.generate_batch([PROMPT] * n, max_tokens=args.new, **GREEDY)  # type: ignore[arg-type]
        else:
            read_all(port, n, args.new)
        last[name] = (time.perf_counter() - start) / args.new
        return {speed.name: n / last[name], extra.name: 1e6 * (last[name] - last["library"])}

    subjects = {name: partial(turn, name) for name in ("library", "server")}
    samples = alternate(subjects, rounds=args.rounds, warmup=args.warmup)
    return list(rows(args.model.stem, samples, (speed, extra)))


def read_all(port: int, n: int, n_tokens: int) -> None:
    """Reads ``n`` streams to their ends, all at a time."""
    failed: list[BaseException] = []

    def read() -> None:
        try:
            connection = ask(port, {"prompt": PROMPT, "max_tokens": n_tokens, "stream": True, **GREEDY})
            last = connection.getresponse().read().splitlines()[-2]
            assert last == b"data: [DONE]", last
            connection.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def ask(port: int, body: dict[str, object]) -> http.client.HTTPConnection:
    """A connection on which a completion was asked for."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection


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
            seconds = leave(engine, port)
            if seconds is not None:
                return {GONE[0].name: 1e3 * seconds}
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
    connection = ask(port, {"prompt": prompt, "max_tokens": 1})
    while metrics.prefill_tokens == n_run:
        time.sleep(0.0002)
    connection.close()
    start = time.perf_counter()
    while metrics.finished == finished:
        time.sleep(0.0002)
    seconds = time.perf_counter() - start
    return seconds if metrics.finished["cancelled"] > finished["cancelled"] else None

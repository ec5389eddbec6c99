"""`oxillama serve` beside llama-server: the same requests over HTTP, taking turns.

Both have the path ``/completion`` and take token ids, so that both read the same bodies and do the same work.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.timing import alternate
from oxillama.apps.bench.report import Metric, Row, rows
from oxillama.apps.bench.run import fixed_tokens
from oxillama.errors import ConfigError

START_SECONDS = 120
SLOTS = 8
FIRST = Metric("first token, {n} clients behind {prefix} shared tokens", "ms", False)
Tokens = list[int]


@contextmanager
def llama_server(
    path: Path, model: Path, threads: int, slots: int, context: int, *more: str
) -> Iterator[int]:
    """llama-server in a process of its own, with batches of all slots, and more options; its port."""
    command = [
        *(str(path), "-m", str(model), "-np", str(slots), "-cb"),
        *("-c", str(slots * context), "-t", str(threads), "--no-ui", *more),
    ]
    with running(command, f"a llama-server that serves {model}") as port:
        yield port


@contextmanager
def running(command: Sequence[str], what: str, env: Mapping[str, str] | None = None) -> Iterator[int]:
    """A server in a process of its own, once it answers ``/health``; its port.

    Args:
        command: to which ``--port`` is added.
        what: it is expected to be, in the ConfigError if it ends.
        env: of the process; None for this one's.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*command, "--port", str(port)], env=env, **silent)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ConfigError(f"--peer: expected {what}, got none from {command[0]}")
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()  # vLLM's ends its other processes
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_ready(port: int) -> bool:
    """Whether a server says that its model is loaded."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def measure(
    ports: dict[str, int], model: str, *, clients: int, new: int, prefix: int, n_vocab: int, **how: int
) -> list[Row]:
    """Tokens a second of ``clients`` streams, and the first token of as many behind a shared prompt.

    Args:
        ports: of the servers by name, the one that is compared first.
        new: tokens of a text.
        prefix: tokens of the shared prompt; 0 leaves that part out.
        n_vocab: ids below it are in the vocabulary.
        how: rounds and warmup of `alternate`.
    """
    speed = Metric(f"{clients} clients over HTTP", "tok/s", True)

    def decode(port: int) -> dict[str, float]:
        prompts = [fixed_tokens(16 + i, n_vocab) for i in range(clients)]
        start = time.perf_counter()
        texts = ask_all(port, prompts, new)
        seconds = time.perf_counter() - start
        n = sum(map(len, texts))
        if n != clients * new:
            raise ConfigError(f"--new: expected {clients * new} tokens of all clients, got {n}")
        return {speed.name: n / seconds}

    found = list(
        rows(model, alternate({name: partial(decode, port) for name, port in ports.items()}, **how), [speed])
    )
    if prefix:
        first = Metric(FIRST.name.format(n=clients, prefix=prefix), FIRST.unit, False)
        turns = {name: partial(first_tokens, port, clients, prefix, n_vocab) for name, port in ports.items()}
        shared = {name: (lambda turn=turn: {first.name: turn()}) for name, turn in turns.items()}
        found += rows(model, alternate(shared, **how), [first])
    return found


def first_tokens(port: int, clients: int, prefix: int, n_vocab: int) -> float:
    """Milliseconds to the first token, the median of ``clients`` that come at once behind a prompt that one
    has sent before; each goes on with other tokens."""
    salt = time.perf_counter_ns() % (n_vocab // 2)
    shared = [(token + salt) % (n_vocab - 300) + 259 for token in fixed_tokens(prefix, n_vocab)]
    ask_all(port, [[*shared, 300]], 1)
    seconds: list[float] = []
    ask_all(port, [[*shared, *range(301 + 9 * i, 310 + 9 * i)] for i in range(clients)], 4, seconds)
    return 1e3 * statistics.median(seconds)


def ask_all(
    port: int, prompts: Sequence[Tokens], new: int, first: list[float] | None = None
) -> list[list[Any]]:
    """Reads a stream for each prompt to its end, all at a time; the tokens that came.

    ``first`` gets the seconds after which each had its first token.
    """
    found: list[list[Any]] = [[] for _ in prompts]
    failed: list[BaseException] = []

    def read(index: int) -> None:
        try:
            connection = HTTPConnection("127.0.0.1", port)
            body = {
                **{"prompt": prompts[index], "n_predict": new, "stream": True},
                **{"temperature": 0, "ignore_eos": True, "return_tokens": True},
            }
            start = time.perf_counter()
            connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            for line in answer:
                if line.startswith(b"data: {"):
                    tokens = json.loads(line[6:]).get("tokens", [])
                    if tokens and not found[index] and first is not None:
                        first.append(time.perf_counter() - start)
                    found[index] += tokens
            connection.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return found

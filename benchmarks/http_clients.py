"""Clients that read streams over HTTP, cheaply: one process, one thread, sockets, and no parser.

They share the processors with the server that is measured, so they only note when bytes come, and look for
the number of tokens in the last event. `Clients` starts the process; it is asked in lines of JSON.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from oxillama.errors import ConfigError

TAIL = 2048  # bytes at the end of an answer that are looked at
COUNT = re.compile(rb'"(?:completion_tokens|tokens_predicted)":\s*(\d+)')
TOKENS_EVENT = b"data: {"
Body = Mapping[str, Any]


@dataclass(frozen=True)
class Read:
    """What came of one stream.

    Attributes
    ----------
    n_tokens : that the server counted.
    times : seconds from the start of all at which text came; several events may come at one time.
    """

    n_tokens: int
    times: list[float]

    @property
    def gaps(self) -> list[float]:
        """Seconds between one arrival and the next."""
        return [later - earlier for earlier, later in zip(self.times, self.times[1:])]


@dataclass(frozen=True)
class Turn:
    """What came of all streams: seconds to the end of the last one, and processor seconds of the clients."""

    seconds: float
    cpu_seconds: float
    streams: list[Read]

    @property
    def n_tokens(self) -> int:
        return sum(stream.n_tokens for stream in self.streams)


class Clients:
    """A process of clients; see `clients`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def read(self, port: int, path: str, bodies: Sequence[Body], delays: Sequence[float] = ()) -> Turn:
        """Has each body asked for, all at a time or each after its delay, and each answer read to its end.

        Raises ConfigError for an answer that is no stream, or that has no number of tokens at its end.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        asked = {"port": port, "path": path, "bodies": list(bodies), "delays": list(delays)}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        found = json.loads(self._process.stdout.readline())
        if "error" in found:
            raise ConfigError(f"{path}: {found['error']}")
        return Turn(found["seconds"], found["cpu_seconds"], [Read(**each) for each in found["streams"]])


@contextmanager
def clients() -> Iterator[Clients]:
    """Clients in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.http_clients"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Clients(process)
        finally:
            process.kill()


# --- the process --------------------------------------------------------------------------------------


class Stream:
    """One client: its request, and the times at which parts of the answer come."""

    def __init__(self, port: int, path: str, body: Body) -> None:
        text = json.dumps(body)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self.request = f"{head}Connection: close\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()
        self.port = port
        self.times: list[float] = []
        self.tail = b""

    def send(self) -> None:
        """Connects, and sends the request."""
        self.socket = socket.create_connection(("127.0.0.1", self.port))
        self.socket.sendall(self.request)
        self.socket.setblocking(False)

    def take(self, now: float) -> bool:
        """Reads what has come; whether there will be more."""
        data = self.socket.recv(1 << 16)
        if TOKENS_EVENT in data:
            self.times.append(now)
        self.tail = (self.tail + data)[-TAIL:]
        return bool(data)

    def result(self) -> dict[str, Any]:
        """Raises ValueError for an answer without a number of tokens."""
        self.socket.close()
        counts = COUNT.findall(self.tail)
        if not counts:
            raise ValueError(f"expected a stream with usage, got {self.tail!r}")
        return {"n_tokens": int(counts[-1]), "times": self.times}


def read_all(port: int, path: str, bodies: Sequence[Body], delays: Sequence[float]) -> dict[str, Any]:
    """Reads all streams to their ends."""
    streams = [Stream(port, path, body) for body in bodies]
    coming = sorted(zip(delays or [0.0] * len(streams), range(len(streams))), reverse=True)
    selector = selectors.DefaultSelector()
    n_open = len(streams)
    cpu, start = time.process_time(), time.perf_counter()
    while n_open:
        now = time.perf_counter() - start
        while coming and coming[-1][0] <= now:
            stream = streams[coming.pop()[1]]
            stream.send()
            selector.register(stream.socket, selectors.EVENT_READ, stream)
        ready = selector.select(coming[-1][0] - now if coming else None)
        now = time.perf_counter() - start
        for key, _ in ready:
            if not key.data.take(now):
                selector.unregister(key.fileobj)
                n_open -= 1
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {"seconds": seconds, "cpu_seconds": cpu, "streams": [stream.result() for stream in streams]}


def main() -> None:
    """Answers requests for turns, a line each, until there are no more."""
    for line in sys.stdin:
        try:
            found = read_all(**json.loads(line))
        except (OSError, ValueError) as error:
            found = {"error": str(error)}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

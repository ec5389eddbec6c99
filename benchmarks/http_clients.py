"""Clients that read streams over HTTP, cheaply: one process, one thread, sockets, and no parser.

They share the processors with the server that is measured, so they only note when bytes come, and look for
the number of tokens in the last event.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from benchmarks.server_peer import request_of
from oxillama.errors import ConfigError

PATH = "/v1/completions"
FIRST = 4  # events of a stream before others are asked for beside it
TAIL = 2048  # bytes at the end of an answer that are looked at
COUNT = re.compile(rb'"completion_tokens":\s*(\d+)')
EVENT = b"data: {"
Body = Mapping[str, Any]


@dataclass(frozen=True)
class Read:
    """What came of one stream.

    Attributes:
        n_tokens: that the server counted; the events, for a stream that was left before its end.
        times: seconds from the start at which text came; several events may come at one time.
    """

    n_tokens: int
    times: list[float]


@dataclass(frozen=True)
class Turn:
    """What came of all streams.

    Attributes:
        seconds: from the start to the end of the last stream.
        cpu_seconds: of the clients' processor.
        streams: that were read to their ends.
        beside: those beside them, from the start on.
    """

    seconds: float
    cpu_seconds: float
    streams: list[Read]
    beside: list[Read]


class Clients:
    """A process of clients; see `clients`."""

    def __init__(self, process: Executor) -> None:
        self._process = process

    def read(self, port: int, bodies: Sequence[Body], beside: Sequence[Body] = ()) -> Turn:
        """Asks for texts and reads them to their ends, all at a time.

        Args:
            beside: of streams that run before the start, each with some text, and are left at the end. The
                others are then asked for one after another.

        Raises ConfigError for an answer that is no stream, or that has no number of tokens at its end.
        """
        try:
            return self._process.submit(read_all, port, bodies, beside).result()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{PATH}: {error}") from error


@contextmanager
def clients() -> Iterator[Clients]:
    """Clients in a process of their own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        yield Clients(process)


# --- the process --------------------------------------------------------------------------------------


class Stream:
    """One client: its request, and the times at which parts of the answer come."""

    def __init__(self, port: int, body: Body) -> None:
        self.request, self.port = request_of(PATH, json.dumps(body)), port
        self.times: list[float] = []
        self.n_events = 0
        self.tail = b""

    def send(self, selector: selectors.BaseSelector) -> None:
        """Connects, and sends the request."""
        self.socket = socket.create_connection(("127.0.0.1", self.port))
        self.socket.sendall(self.request)
        self.socket.setblocking(False)
        selector.register(self.socket, selectors.EVENT_READ, self)

    def take(self) -> bool:
        """Reads what has come; whether there will be more."""
        data = self.socket.recv(1 << 16)
        n_events = data.count(EVENT)
        if n_events:
            self.times.append(time.perf_counter())
            self.n_events += n_events
        self.tail = (self.tail + data)[-TAIL:]
        return bool(data)

    def result(self, start: float, is_whole: bool) -> Read:
        """The tokens and the times of an answer. Raises ValueError for an end without a number of tokens."""
        self.socket.close()
        counts = COUNT.findall(self.tail)
        if is_whole and not counts:
            raise ValueError(f"expected a stream with usage, got {self.tail!r}")
        times = [at - start for at in self.times if at >= start]
        return Read(int(counts[-1]) if is_whole else len(times), times)


def read_all(port: int, bodies: Sequence[Body], beside: Sequence[Body]) -> Turn:
    """Reads streams to their ends; see `Clients.read`."""
    running, streams = ([Stream(port, body) for body in each] for each in (beside, bodies))
    selector = selectors.DefaultSelector()
    for stream in running:
        stream.send(selector)
    while any(stream.n_events < FIRST for stream in running):
        take(selector)
    cpu, start = time.process_time(), time.perf_counter()
    for group in ([stream] for stream in streams) if running else [streams]:
        for stream in group:
            stream.send(selector)
        n_open = len(group)
        while n_open:
            n_open -= len(take(selector) & {*group})
    end, cpu = time.perf_counter(), time.process_time() - cpu
    whole = [stream.result(start, True) for stream in streams]
    return Turn(end - start, cpu, whole, [stream.result(start, False) for stream in running])


def take(selector: selectors.BaseSelector) -> set[Stream]:
    """Reads what has come; the streams that have ended."""
    ended = set()
    for key, _ in selector.select():
        if not key.data.take():
            selector.unregister(key.fileobj)
            ended.add(key.data)
            if not key.data.n_events:
                raise ValueError(f"expected a stream, got {key.data.tail!r}")
    return ended

"""A hub that fails on purpose: at the n-th piece of what it sends, in one of several ways, for every n.

A piece is the head of an answer, or a part of its body. So each step of a client is tried against a hub that
stops, ends, lies or floods at that very point.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PIECES = 3
"""Pieces of a body."""

FLOOD = 64 << 20
"""Bytes after which a flood ends, unless the client has left."""

FAULTS = (
    "stops", "ends", "resets", "sends garbage", "drips", "floods", "says a longer length",
    "says a shorter length", "says a negative length", "says it is encoded", "says 500", "says 429",
    "says 404", "redirects to itself", "redirects to a file", "redirects to another host",
    "redirects to nowhere", "redirects to garbage", "sends another range", "sends HTML",
    "sends without an end",
)  # fmt: skip
LATER = FAULTS[:6]
"""The faults that are possible within a body, too."""


@dataclass
class FaultyHub:
    """A hub with one repository, user/repo.

    Attributes:
        files: bytes by path.
        entries: of the listing, in place of those of the files.
        fault, at: what happens at which piece, counted from 0 over all answers; "" for no fault.
        again: whether the fault happens at each later piece, too.
        n_pieces: that were sent.
        n_flood: bytes of floods that were sent.
        heads: more or other headers of the answers about files.
        tokens: (port, the header Authorization) of each request.
    """

    files: dict[str, bytes]
    entries: Any = None
    fault: str = ""
    at: int = -1
    again: bool = False
    n_pieces: int = 0
    n_flood: int = 0
    heads: dict[str, str] = field(default_factory=dict)
    following: str = ""
    tokens: list[tuple[int, str | None]] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)
    ports: list[int] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def other(self) -> str:
        """Another address of the same hub: to a client, another host."""
        return f"http://127.0.0.1:{self.ports[1]}"

    def is_now(self) -> bool:
        """Counts a piece; says whether the fault happens at it."""
        n, self.n_pieces = self.n_pieces, self.n_pieces + 1
        return bool(self.fault) and (n == self.at or (self.again and n > self.at >= 0))

    def listing(self) -> bytes:
        if isinstance(self.entries, bytes):
            return self.entries
        entries = self.entries
        if entries is None:
            entries = [entry(path, data) for path, data in self.files.items()]
        return json.dumps(entries).encode()


def entry(path: str, data: bytes, **more: Any) -> dict[str, Any]:
    """An entry of the listing."""
    digest = hashlib.sha256(data).hexdigest()
    lfs = {"oid": digest, "size": len(data), "pointerSize": 134}
    return {"type": "file", "path": path, "size": len(data), "oid": "0" * 40, "lfs": lfs, **more}


class Answering:
    """A connection of a client."""

    def __init__(self, hub: FaultyHub, connection: socket.socket, port: int) -> None:
        self.hub, self.connection, self.port = hub, connection, port

    def run(self) -> None:
        with self.connection, suppress(OSError):
            while self.one():
                pass

    def one(self) -> bool:
        """Answers a request; whether another may follow."""
        head = b""
        while b"\r\n\r\n" not in head:
            got = self.connection.recv(65536)
            if not got:
                return False
            head += got
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ")
        fields = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        self.hub.tokens.append((self.port, fields.get("authorization")))
        path, headers, status = target.partition("?")[0], {"X-Repo-Commit": COMMIT}, 200
        start = 0
        if "/tree/" in path:
            data = self.hub.listing()
            if self.hub.following:
                headers["Link"] = f'<{self.hub.following}>; rel="next"'
        elif "/resolve/" in path and (name := path.split("/", 5)[5]) in self.hub.files:
            data = self.hub.files[name]
            headers |= {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', **self.hub.heads}
            found = fields.get("range", "bytes=0-")
            start = int(found.removeprefix("bytes=").removesuffix("-"))
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
                status = 206
        else:
            data, status = b"{}", 404
        return self.answer(method, path, data[start:], status, headers)

    def answer(self, method: str, path: str, data: bytes, status: int, headers: dict[str, str]) -> bool:
        hub, length = self.hub, len(data)
        headers = {"Content-Length": str(length), **headers}
        if hub.is_now():
            if hub.fault in LATER:
                return self.fail()
            kind, _, rest = hub.fault.partition(" ")
            if kind == "says" and rest.endswith("length"):
                lies = {"longer": length + 7, "shorter": max(0, length - 7), "negative": -5}
                headers["Content-Length"] = str(lies[rest.split()[1]])
            elif rest == "it is encoded":
                headers["Content-Encoding"] = "br"
            elif kind == "says":
                data, status = b"", int(rest)
                headers = {"Content-Length": "0", "Retry-After": "100000"}
            elif kind == "redirects":
                where = {
                    "to itself": path,
                    "to a file": "file:///etc/passwd",
                    "to another host": hub.other + path,
                    "to nowhere": "http:",
                    "to garbage": "http://[::1:\x7f/\\..",
                }
                data, status = b"", 302
                headers = {"Content-Length": "0", "Location": where[rest]}
            elif rest == "another range":
                status, headers["Content-Range"] = 206, f"bytes 5-{len(data) + 4}/{len(data) + 9}"
            elif rest == "without an end":
                self.send_head(200, {"X-Repo-Commit": COMMIT, "Connection": "close"})
                self.connection.sendall(data)
                return self.flood()
            elif rest == "HTML":
                data = b"<html>log in</html>"
                headers["Content-Length"] = str(len(data))
        self.send_head(status, headers)
        if method == "HEAD":
            return True
        size = -(-len(data) // PIECES) or 1
        for i in range(0, len(data), size):
            if hub.is_now() and hub.fault in LATER:
                return self.fail()
            self.connection.sendall(data[i : i + size])
        return headers["Content-Length"] == str(len(data))

    def send_head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} x", *(f"{name}: {value}" for name, value in headers.items())]
        self.connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def fail(self) -> bool:
        """Applies the fault, which ends the connection."""
        fault, send = self.hub.fault, self.connection.sendall
        if fault == "stops":
            self.hub.is_over.wait(60)
        elif fault == "resets":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif fault == "sends garbage":
            send(bytes(range(256)) * 8)
        elif fault == "drips":
            while not self.hub.is_over.wait(0.05):
                send(b"a")
        elif fault == "floods":
            return self.flood()
        return False

    def flood(self) -> bool:
        """Sends bytes until the client leaves; the connection ends with it."""
        for _ in range(FLOOD >> 16):
            self.connection.sendall(b"\0" * (1 << 16))
            self.hub.n_flood += 1 << 16
        return False


@contextmanager
def serving(hub: FaultyHub) -> Iterator[FaultyHub]:
    """Serves a hub at two addresses inside the block."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    hub.ports = [listener.getsockname()[1] for listener in listeners]

    def accept(listener: socket.socket, port: int) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                run: Callable[[], None] = Answering(hub, connection, port).run
                threading.Thread(target=run, daemon=True).start()

    for listener, port in zip(listeners, hub.ports, strict=True):
        threading.Thread(target=accept, args=(listener, port), daemon=True).start()
    try:
        yield hub
    finally:
        hub.is_over.set()
        for listener in listeners:
            listener.close()

"""A TCP proxy that fails at its n-th event: a part of a stream that it has read, from either side."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

FAULTS = ("reset", "close", "stall", "half", "twice", "garbage", "trickle", "half_close")
"""What happens at the event. After `stall` and `half` nothing more comes from that side."""

TRICKLED = 200
"""Bytes of a part that `trickle` passes on one by one; the rest follows at once."""


class FaultProxy:
    """Passes on what comes until the n-th event.

    Attributes:
        port: at which it listens.
        has_failed: whether there was an n-th event.
    """

    def __init__(self, port: int, fault: str, n: int) -> None:
        self._to, self._fault, self._n = port, fault, n
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self.has_failed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Ends all connections."""
        self._listener.close()
        for each in self._open:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                self._open += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                with self._lock:
                    self._n -= 1
                    is_faulty = self._n == 0
                    self.has_failed |= is_faulty
                if not is_faulty:
                    target.sendall(data)
                elif not self._fail(source, target, data):
                    return
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _fail(self, source: socket.socket, target: socket.socket, data: bytes) -> bool:
        """Fails; returns whether more is passed on."""
        if self._fault in ("reset", "close"):
            for each in (source, target):
                if self._fault == "reset":
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                each.close()
            return False
        if self._fault == "half_close":
            target.shutdown(socket.SHUT_WR)
            return False
        if self._fault in ("stall", "half"):
            if self._fault == "half":
                target.sendall(data[: len(data) // 2])
            return False
        if self._fault == "trickle":
            for i in range(min(TRICKLED, len(data))):
                target.sendall(data[i : i + 1])
                time.sleep(0.001)
            target.sendall(data[TRICKLED:])
        else:
            target.sendall({"twice": data + data, "garbage": b"\xff\x00{]\r\n" * 10}[self._fault])
        return True


@contextmanager
def fault_proxy(port: int, fault: str, n: int) -> Iterator[FaultProxy]:
    """A proxy before a port, inside the block."""
    proxy = FaultProxy(port, fault, n)
    try:
        yield proxy
    finally:
        proxy.close()

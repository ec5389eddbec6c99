"""Faults of sockets on purpose: the n-th call of a server about its clients' sockets fails, for every n.

Calls of one thread count: those about its listener and the sockets that it accepted from there.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

FAULTS: dict[str, tuple[int, ...]] = {
    "accept": (
        *(errno.EPERM, errno.EPROTO, errno.ENETDOWN, errno.ECONNABORTED, errno.ETIMEDOUT, errno.EINTR),
        *(errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM),
    ),
    "recv": (errno.ECONNRESET, errno.ETIMEDOUT, errno.EINTR, errno.ENOMEM, errno.ENOBUFS),
    "send": (errno.EPIPE, errno.ECONNRESET, errno.EINTR, errno.ENOBUFS, errno.ENOMEM, errno.ETIMEDOUT),
    "close": (errno.EIO, errno.ECONNRESET, errno.EINTR),
    "getpeername": (errno.ENOTCONN, errno.ENOBUFS),
    "getsockname": (errno.ENOTCONN, errno.ENOBUFS),
    "setsockopt": (errno.EINVAL, errno.ENOMEM, errno.ENOBUFS),
    "register": (errno.ENOMEM, errno.ENOSPC),
}
"""The errors of each operation that is tried."""

OF_THE_CLIENT = (errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.ETIMEDOUT)
"""Errors of `accept` with which the client is gone; with others it waits on."""

METHODS = ("recv", "recv_into", "send", "sendall", "getpeername", "getsockname", "setsockopt")


class SocketCalls:
    """The calls of a thread about its clients. The n-th of one operation fails.

    Attributes:
        has_failed: whether there was an n-th call.
    """

    def __init__(self, listener: socket.socket, thread: str, operation: str, n: int, code: int) -> None:
        self.listener, self.thread = listener, thread
        self.operation, self.n, self.code = operation, n, code
        self.has_failed = False
        self._accepted: set[int] = set()

    def step(self, operation: str) -> None:
        """Counts a call; raises the error if it is the n-th."""
        if operation == self.operation:
            self.n -= 1
            if not self.n:
                self.has_failed = True
                raise OSError(self.code, os.strerror(self.code))

    def accepted(self, client: socket.socket) -> None:
        self._accepted.add(client.fileno())

    def closed(self, fd: int) -> None:
        self._accepted.discard(fd)

    def has(self, place: Any) -> bool:
        """Whether a socket, or a descriptor, is that of a client, and the thread is the server's."""
        fd = place if isinstance(place, int) else place.fileno()
        return fd in self._accepted and threading.current_thread().name == self.thread


@contextmanager
def failing_sockets(calls: SocketCalls) -> Iterator[SocketCalls]:
    """Counts calls inside the block, and lets one fail."""
    accept, close = socket.socket.accept, socket.socket.close

    def accepting(self: socket.socket) -> tuple[socket.socket, Any]:
        if self is not calls.listener:
            return accept(self)
        try:
            calls.step("accept")  # Linux looks for a descriptor before it looks whether a client waits
        except OSError as error:
            if error.errno in OF_THE_CLIENT:
                with suppress(BlockingIOError):
                    close(accept(self)[0])
            raise
        client, address = accept(self)
        calls.accepted(client)
        return client, address

    def closing(self: socket.socket) -> None:
        fd, ours = self.fileno(), calls.has(self)
        close(self)
        if ours and self.fileno() == -1:
            calls.closed(fd)
            calls.step("close")

    def method(name: str) -> Callable[..., Any]:
        real = getattr(socket.socket, name)
        operation = {"recv_into": "recv", "sendall": "send"}.get(name, name)

        def call(self: socket.socket, *arguments: Any) -> Any:
            if calls.has(self):
                calls.step(operation)
            return real(self, *arguments)

        return call

    def registering(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, fileobj: Any, *arguments: Any) -> Any:
            if calls.has(fileobj):
                calls.step("register")
            return real(self, fileobj, *arguments)

        return call

    kind = selectors.DefaultSelector
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socket.socket, "accept", accepting)
        patched.setattr(socket.socket, "close", closing)
        for name in METHODS:
            patched.setattr(socket.socket, name, method(name), raising=False)
        for name in ("register", "modify"):
            patched.setattr(kind, name, registering(getattr(kind, name)))
        yield calls

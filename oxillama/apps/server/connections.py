"""Connections: how many there may be, and how long a client may take to send the head of a request.

A connection is idle unless a request runs on it: nothing has come yet, a part of the handshake of TLS, half a
head, or the rest of a body that was answered already. An idle one is closed after a while, and makes room for
others at once: however many there are, a client that sends a whole request is answered.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import time
from asyncio import sslproto
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from oxillama.apps.server.protocol import PIECE, Flow, Messages, ProtocolLogger, Repeated, in_origin_form
from oxillama.base.config.server import ServerConfig

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"

SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of `accept` on a system, or a process, without another descriptor."""

GONE = (errno.ECONNABORTED, errno.EPROTO)
"""Errors of `accept` about a client that has gone; the next one may be there."""

AT_ONCE = 100
"""Clients that are accepted before others of the event loop have their turn."""

PAUSE = 0.05
"""Seconds until clients are accepted again after an error."""

NONE = -1
"""In the place of a descriptor."""

TURN = 0.005
"""Seconds for which a connection's bytes are read before others have their turn."""

FAREWELL = 1.0
"""Seconds for a client to take part in the end of TLS."""

TLS_BUFFER = 1 << 16
"""Bytes that a connection with TLS reads at once, for which it has a buffer; asyncio's own are 256 kB."""


def most_connections(config: ServerConfig) -> int:
    """The option, or the process's file descriptors but an eighth (at least 32), whichever is less."""
    try:
        import resource
    except ImportError:  # Windows
        return config.max_connections
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return config.max_connections
    return max(1, min(config.max_connections, soft - max(32, soft // 8)))


class Connections:
    """The connections of a server.

    Attributes:
        most: at a time; at most half of them may be idle.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.head_seconds: float = config.head_seconds
        self.body_seconds: float = config.body_seconds
        self.most: int = most_connections(config)
        self._open: set[Connection] = set()
        self._coming: dict[Connection, asyncio.Task[None]] = {}  # accepted, not open yet
        self._new: set[Connection] = set()  # accepted, neither open nor in the handshake of TLS yet
        self._idle: dict[Connection, None] = {}  # open or in a handshake; the longest first
        self._spare: int | None = None  # a descriptor; None while nobody is accepted
        self._refused = Repeated("%d clients were refused: %s")
        self._failed = Repeated("%d connections failed: %s")
        self.logger: ProtocolLogger = ProtocolLogger()

    def add(self, connection: Connection) -> None:
        """Adds a connection that is open now."""
        self._came(connection)
        self._open.add(connection)

    def is_idle(self, connection: Connection, idle: bool) -> None:
        """Notes whether a connection is idle."""
        if not idle:
            self._idle.pop(connection, None)
        elif connection in self._open:
            self._idle.setdefault(connection)

    def remove(self, connection: Connection) -> None:
        """Forgets a connection."""
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Logs an error that nobody handles: an error of the system without a traceback."""
        error = context.get("exception")
        if isinstance(error, OSError):
            self._failed.add(1, error)
        else:
            loop.default_exception_handler(context)

    # --- accepting ------------------------------------------------------------------------------------

    async def listen(
        self,
        listeners: Sequence[socket.socket],
        make: Callable[[], Connection],
        secure: ssl.SSLContext | None,
    ) -> None:
        """Accepts clients until `close`, of which each gets a protocol."""
        self._loop, self._listeners, self._make, self._secure = _loop(), listeners, make, secure
        self._loop.set_exception_handler(self.unhandled)
        self._spare = NONE
        if secure is not None:
            sslproto.SSLProtocol.max_size = TLS_BUFFER
        for listener in listeners:
            listener.setblocking(False)
        try:
            self._resume()
        except NotImplementedError:  # Windows: there are no limits of descriptors to run into
            for listener in listeners:
                await self._loop.create_server(make, sock=listener, ssl=secure)

    def _resume(self) -> None:
        if self._spare is None:  # the server was closed meanwhile
            return
        with suppress(OSError):
            if self._spare == NONE:
                self._spare = os.open(os.devnull, os.O_RDONLY)
        try:
            for listener in self._listeners:
                self._loop.add_reader(listener, self._accept, listener)
        except OSError as error:
            self._refused.add(0, error)
            self._loop.call_later(PAUSE, self._resume)

    def _pause(self) -> None:
        """Accepts nobody for a moment."""
        for listener in self._listeners:
            self._loop.remove_reader(listener)
        self._loop.call_later(PAUSE, self._resume)

    def _accept(self, listener: socket.socket) -> None:
        """Accepts waiting clients while there is room; idle connections are closed to make room."""
        for _ in range(AT_ONCE):
            if self._new and self._n_taken >= self.most:
                return  # new connections are idle within two turns of the loop, and can make room then
            try:
                client, _ = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in SHORT:
                    self._answer_without(listener)
                elif error.errno not in GONE:
                    self._refused.add(1, error)
                    self._pause()
                return
            self._make_room()
            if self._n_taken >= self.most:
                self._refuse(client)
                self._refused.add(1, "as many connections as there may be")
            else:
                connection = self._make()
                self._new.add(connection)
                self._coming[connection] = task = self._loop.create_task(self._connect(client, connection))
                task.add_done_callback(partial(self._came, connection))

    @property
    def _n_taken(self) -> int:
        return len(self._open) + len(self._coming)

    def _came(self, connection: Connection, _task: object = None) -> None:
        """Forgets the beginning of a connection, which is open now, failed or was cancelled."""
        if self._coming.pop(connection, None) is not None:
            self._new.discard(connection)
            self._idle.pop(connection, None)

    def _make_room(self) -> None:
        while self._idle and (self._n_taken >= self.most or len(self._idle) >= max(1, self.most // 2)):
            first = next(iter(self._idle))
            handshake = self._coming.get(first)
            if handshake is not None:
                self._came(first)
                handshake.cancel()
            else:
                first.end(LATE)
                if self._secure is not None:  # the end of TLS would keep the descriptor
                    first.transport.abort()

    async def _connect(self, client: socket.socket, connection: Connection) -> None:
        """Begins a client's protocol, after the handshake of HTTPS; drops a client that fails."""
        times = {}
        if self._secure is not None:
            times = {"ssl_handshake_timeout": self.head_seconds, "ssl_shutdown_timeout": FAREWELL}
            self._new.discard(connection)
            self._idle[connection] = None
        try:
            client.setblocking(False)
            await self._loop.connect_accepted_socket(lambda: connection, client, ssl=self._secure, **times)
        except asyncio.CancelledError:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)  # its transport, if there is one yet, ends itself
            raise
        except OSError:
            # A transport that failed while it was made still counts as one of the descriptor's (Python 3.12)
            getattr(self._loop, "_transports", {}).pop(client.fileno(), None)
            self._refuse(client)

    def _refuse(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            client.setblocking(False)
            if self._secure is None:
                client.send(BUSY)

    def _answer_without(self, listener: socket.socket) -> None:
        """Answers waiting clients, one after another, with the descriptor that is reserved for this."""
        if self._spare not in (None, NONE):
            os.close(self._spare)
            self._spare = NONE
        n = 0
        with suppress(OSError):  # nobody waits any more
            while n < AT_ONCE:
                self._refuse(listener.accept()[0])
                n += 1
        self._refused.add(n, "no descriptors are left")
        self._pause()

    def close(self) -> None:
        """Accepts nobody any more."""
        if self._spare is not None:
            with suppress(NotImplementedError):
                for listener in self._listeners:
                    self._loop.remove_reader(listener)
            with suppress(OSError):
                os.close(self._spare)
            self._spare = None


def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


class Connection(H11Protocol):
    """uvicorn's, with a deadline for each head, and one for a client that takes nothing of its answer."""

    def __init__(self, *args: Any, connections: Connections, **how: Any) -> None:
        super().__init__(*args, **how)
        self._all = connections
        self.conn: Messages = Messages()
        self._unread = bytearray()
        self._reads_on = self._is_lost = False
        self.logger: ProtocolLogger = connections.logger
        self._deadline: asyncio.TimerHandle | None = None
        self.app = partial(self._answer, self.app)

    async def _answer(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Has the application answer; it may send parts of a body without a length by ``write_now``."""
        if scope["http_version"] == "1.1" and scope["method"] != "HEAD":
            scope["state"]["write_now"] = partial(self._write_now, self.cycle)

        if not scope["raw_path"].startswith(b"/"):
            scope = in_origin_form(scope)

        async def receiving() -> Message:
            try:
                return await receive()
            except OSError:  # the transport of the event loop's selector
                self.transport.abort()
                return {"type": "http.disconnect"}

        async def sending(message: Message) -> None:
            try:
                await send(message)
            except OSError:  # as above; a part may have been sent
                self.transport.abort()

        await app(scope, receiving, sending)

    def _write_now(self, cycle: RequestResponseCycle, data: bytes) -> bool:
        """Sends a chunk, unless the client is behind or gone; whether it was sent.

        To h11, every chunk between the head and the end of an answer is the same: it need not know of them.
        """
        if self.flow.write_paused or cycle.disconnected:
            return False
        try:
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        except OSError:  # as in `_answer`
            self.transport.abort()
        return True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        try:
            super().connection_made(transport)  # type: ignore[arg-type]
        except OSError:  # the client has gone already
            self.end(BUSY)
            return
        self.flow: Flow = Flow(transport, self._unread)
        self._all.add(self)
        self._note()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unread.clear()
        self._all.remove(self)
        self._is_lost = True
        self._disarm()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn leaves the timer of a connection that was reset

    def data_received(self, data: bytes) -> None:
        if self._unread or len(data) > PIECE:
            self._unread += data
            if not self._reads_on:
                self._read_on()
        else:
            super().data_received(data)
            self._note()

    def _read_on(self) -> None:
        """Reads what has come for a `TURN`; the rest follows after the turns of others, or an answer."""
        end, self._reads_on = time.monotonic() + TURN, False
        while self._unread and not (self._reads_on or self.conn.is_paused or self.transport.is_closing()):
            n = max(PIECE, self.conn.n_known)
            data = bytes(memoryview(self._unread)[:n])
            del self._unread[:n]
            super().data_received(data)
            self._reads_on = time.monotonic() > end
        if self.transport.is_closing():
            self._unread.clear()
        elif self._unread:
            self.transport.pause_reading()
            if self._reads_on:
                self.loop.call_soon(self._read_on)
        else:
            self._reads_on = False
            if not self.flow.read_paused:
                self.transport.resume_reading()
        self._note()

    def send_400_response(self, msg: str) -> None:
        """Answers what is not HTTP, unless an answer has begun, and closes. The client counts as gone."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(self.conn.fault or msg)
        self.transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._unread and not self._reads_on:
            self._reads_on = True
            self.loop.call_soon(self._read_on)
        self._note()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._arm(self._all.body_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._disarm()
        self._note()

    def _note(self) -> None:
        """Arms the deadline when the connection becomes idle, and disarms it when a head has come."""
        is_idle = self.cycle is None or self.cycle.response_complete
        self._all.is_idle(self, is_idle)
        if self.transport.is_closing():
            self._arm(self._all.body_seconds, self.transport.abort)
        elif self.flow.write_paused:
            pass  # the client has a deadline
        elif not is_idle:
            self._disarm()
        elif self._deadline is None:
            self._arm(self._all.head_seconds, partial(self.end, LATE))

    def _arm(self, seconds: float, end: Callable[[], object]) -> None:
        """Sets the deadline; a connection that is lost gets none, which would keep its buffers until then."""
        self._disarm()
        if not self._is_lost:
            self._deadline = self.loop.call_later(seconds, end)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def end(self, answer: bytes) -> None:
        """Answers a request whose answer has not begun, and closes."""
        self._all.remove(self)
        if not self.transport.is_closing():
            if self.cycle is None:
                self.transport.write(answer)
            self.transport.close()
        self._arm(self._all.body_seconds, self.transport.abort)

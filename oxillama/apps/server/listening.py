"""uvicorn, with the application: a socket, a thread that listens, and an end with a deadline."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import FrameType

import uvicorn

from oxillama.apps.server.app import create_app
from oxillama.apps.server.connections import Connection, Connections
from oxillama.apps.server.models import Models
from oxillama.apps.server.urgency import be_urgent
from oxillama.base import early_signals
from oxillama.base.config.server import ServerConfig
from oxillama.errors import ConfigError

log: logging.Logger = logging.getLogger(__name__)

BACKLOG = 2048
"""Clients that wait to be accepted."""

FAREWELL = 5.0
"""Seconds for the last words to requests that were ended."""

TICK = 0.1
"""Seconds between two looks of uvicorn whether the server is to end."""

POLL = 0.02
"""Seconds between two looks whether requests have ended."""


class Listening:
    """A server at an address, or at several.

    Args:
        models: that it has.
        ready: called when the default model is loaded.

    Attributes:
        url: of the server, the first of several, once it is `bound`.
        failure: what a model that is loaded at the start raised; it ends `run`.
    """

    def __init__(
        self, models: Models, config: ServerConfig, ready: Callable[[], object] = lambda: None
    ) -> None:
        self.config = config
        self.url: str = ""
        self.failure: BaseException | None = None
        self._sockets: list[socket.socket] = []
        self._signal: int | None = None
        self._app = create_app(models, config, self._fail, ready)
        self._connections = Connections(config)
        self._server = Server(
            uvicorn.Config(
                self._app,
                http=Connection,
                ws="none",
                loop="asyncio",
                access_log=False,  # the gate has its own
                log_config=None,
                server_header=False,
                proxy_headers=False,  # the application has its own
                lifespan="on",
                ssl_certfile=path_of(config.ssl_certfile),
                ssl_keyfile=path_of(config.ssl_keyfile),
            )
        )
        self._server.listening = self

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Binds the addresses inside the block, all at one port. Raises ConfigError if binding fails."""
        config = self.config
        with ExitStack() as stack:
            if config.unix_socket is not None:
                self._sockets = [stack.enter_context(listener(config))]
                self.url = f"unix:{os.fspath(config.unix_socket)}"
            else:
                first, *others = config.hosts
                bound = stack.enter_context(listener(config, first, config.port))
                port = bound.getsockname()[1]
                self._sockets = [bound, *(stack.enter_context(listener(config, x, port)) for x in others)]
                host = f"[{first}]" if bound.family == socket.AF_INET6 else first
                self.url = f"{'https' if config.ssl_certfile else 'http'}://{host}:{port}"
            yield
        if self._signal is not None:
            signal.raise_signal(self._signal)

    def run(self) -> None:
        """Serves until a signal or `stop`; the requests that run then have ``shutdown_seconds``.

        In the main thread of a process SIGINT and SIGTERM stop it. `bound` raises them again at its end.
        """
        assert self._sockets
        be_urgent()
        self._server.run(sockets=self._sockets)

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self.stop()

    def stop(self) -> None:
        """Ends `run`, from any thread."""
        self._server.should_exit = True
        self._server.wake()

    @property
    def is_listening(self) -> bool:
        """Whether clients are answered."""
        return self._server.started


class Server(uvicorn.Server):
    """uvicorn's server; its end answers each client, and it answers without free descriptors, too."""

    listening: Listening
    _loop: asyncio.AbstractEventLoop | None = None
    _woken: asyncio.Event

    def wake(self) -> None:
        """Has `main_loop` look at once, from any thread, whether the server is to end."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._woken.set)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self.wake()

    async def main_loop(self) -> None:
        tick = 0
        while not await self.on_tick(tick):
            tick += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK):
                    await self._woken.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        here, loop = self.listening, asyncio.get_running_loop()
        assert here._sockets
        self._woken, self._loop = asyncio.Event(), loop
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise ConfigError("server: its application did not start")
        make = partial(
            Connection,
            connections=here._connections,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        self.servers = []
        await here._connections.listen(here._sockets, make, self.config.ssl)
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGHUP"):
            reload = here._app.state.keys.reload
            loop.add_signal_handler(signal.SIGHUP, reload)
            if signal.SIGHUP in early_signals.PENDING:
                early_signals.PENDING.discard(signal.SIGHUP)
                reload()
        if not here.config.is_local and not here.config.has_keys:
            log.warning("everybody who reaches %s can use this server: it has no --api-key", here.url)
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        here = self.listening
        in_flight = here._app.state.in_flight
        here._connections.close()
        in_flight.is_stopping = True
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if len(in_flight):
            log.warning("waiting for %d requests (Ctrl-C ends them at once)", len(in_flight))
        await self._until(lambda: not len(in_flight), here.config.shutdown_seconds)
        if here.config.record_snapshots == "stopped" and not self.force_exit:
            await asyncio.to_thread(in_flight.snapshot)
        in_flight.stop()
        await self._until(lambda: not self.server_state.tasks, FAREWELL, even_forced=True)
        for connection in list(self.server_state.connections):
            connection.transport.close()
        await asyncio.sleep(0)
        await self.lifespan.shutdown()  # closes the engines before their next layer
        here._signal = next(iter(self._captured_signals), None)
        self._captured_signals.clear()

    async def _until(self, done: Callable[[], bool], seconds: float, even_forced: bool = False) -> None:
        deadline = time.monotonic() + seconds
        while not done() and time.monotonic() < deadline and (even_forced or not self.force_exit):
            await asyncio.sleep(POLL)


@contextmanager
def listener(config: ServerConfig, host: str = "", port: int = 0) -> Iterator[socket.socket]:
    """A socket that listens inside the block: the configured Unix socket, or a socket of an address.

    Raises ConfigError if it cannot be had.
    """
    path = path_of(config.unix_socket)
    if path is not None:
        if not hasattr(socket, "AF_UNIX"):
            raise ConfigError("unix_socket: expected None, which is all that this system has")
        family, protocol, address = socket.AF_UNIX, 0, path
        where = f"unix_socket: expected a free path, got {path}"
    else:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        protocol = socket.IPPROTO_TCP  # named, or asyncio leaves Nagle's algorithm on: 40 ms for each answer
        address = (host, port)  # type: ignore[assignment]
        where = f"host, port: expected a free address, got {host}:{port}"
    made: os.stat_result | None = None
    with ExitStack() as stack:
        try:
            bound = stack.enter_context(socket.socket(family, socket.SOCK_STREAM, protocol))
            if path is not None:
                remove_dead(path)
            elif os.name == "posix":
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if (
                family == socket.AF_INET6 and len(config.hosts) > 1
            ):  # else :: could not be bound beside 0.0.0.0
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind(address)
            if path is not None:
                os.chmod(path, 0o600)
                made = os.stat(path)
            bound.listen(BACKLOG)  # whoever comes before the event loop runs waits
            bound.getsockname()
        except OSError as error:
            raise ConfigError(f"{where}: {error.strerror or error}") from error
        try:
            yield bound
        finally:
            if path is not None and made is not None:
                with suppress(OSError):
                    if os.path.samestat(made, os.stat(path)):  # another server may have replaced the file
                        os.unlink(path)


def remove_dead(path: str) -> None:
    """Removes the socket of a server that was killed; keeps the socket of a running server."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.settimeout(1.0)  # a server that accepts nobody is a server, too
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
        try:
            other.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


def path_of(path: str | os.PathLike[str] | None) -> str | None:
    """A path in the form that uvicorn needs."""
    return None if path is None else os.fspath(path)

"""uvicorn, with the application: a socket, a thread that listens, and an end with a deadline."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from oxillama.config.server import ServerConfig
from oxillama.errors import ConfigError
from oxillama.server.app import create_app
from oxillama.server.models import Models


class Listening:
    """A server at an address.

    Parameters
    ----------
    models : that it has.
    ready : called when the default model is loaded.

    Attributes
    ----------
    url : of the server, once it is `bound`.
    failure : what a model that is loaded at the start raised; it ends `run`.
    """

    def __init__(
        self, models: Models, config: ServerConfig, ready: Callable[[], object] = lambda: None
    ) -> None:
        self.config = config
        self.url = ""
        self.failure: BaseException | None = None
        self._socket: socket.socket | None = None
        self._server = uvicorn.Server(
            uvicorn.Config(
                create_app(models, config, self._fail, ready),
                access_log=False,  # the gate has its own
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=math.ceil(config.shutdown_seconds),
                lifespan="on",
                ssl_certfile=path_of(config.ssl_certfile),
                ssl_keyfile=path_of(config.ssl_keyfile),
            )
        )

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Has the address inside the block. Raises ConfigError if it cannot be had."""
        config = self.config
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as bound:
            if os.name == "posix":
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                bound.bind((config.host, config.port))
                bound.listen()  # whoever comes before the event loop runs waits
            except OSError as error:
                where = f"{config.host}:{config.port}"
                raise ConfigError(
                    f"host, port: expected a free address, got {where}: {error.strerror}"
                ) from error
            self._socket = bound
            host = f"[{config.host}]" if family == socket.AF_INET6 else config.host
            scheme = "https" if config.ssl_certfile else "http"
            self.url = f"{scheme}://{host}:{bound.getsockname()[1]}"
            yield

    def run(self) -> None:
        """Serves until a signal or `stop`; the requests that run then have ``shutdown_seconds``.

        In the main thread of a process SIGINT and SIGTERM stop it, and are raised again at the end.
        """
        assert self._socket is not None
        self._server.run(sockets=[self._socket])

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self.stop()

    def stop(self) -> None:
        """Ends `run`, from any thread."""
        self._server.should_exit = True

    @property
    def is_listening(self) -> bool:
        """Whether clients are answered."""
        return self._server.started


def path_of(path: str | os.PathLike[str] | None) -> str | None:
    """A path as uvicorn takes it."""
    return None if path is None else os.fspath(path)

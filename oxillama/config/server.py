"""What a server is made with."""

from __future__ import annotations

import os
from dataclasses import dataclass

from oxillama.config import checks
from oxillama.errors import ConfigError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Hosts that only this machine reaches."""


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Options of `oxillama serve`.

    Attributes
    ----------
    host : address to listen at; 0.0.0.0 for all of this machine's.
    port : to listen at; 0 for a free one.
    model_name : what clients call the model; None for the name of its file.
    models_max : most models that are loaded at a time; None for all.
    models_memory : most bytes of weights of the models that are loaded at a time; None for no limit.
    models_idle_seconds : after which a model that nobody uses is unloaded; None for never.
    load_all : whether all models are loaded at the start, and not the default one alone.
    allow_pull : whether Ollama's clients may download models of the hub.
    slot_save_path : folder in which clients save their slots; None to refuse that.
    api_keys : keys of which a client must send one; () for no check.
    cors_origins : origins whose pages may use the server ("https://example.org", or "*"); () for none.
    allowed_hosts : names by which clients may address a server that only this machine reaches, beside its
        own; "*" for any.
    max_body_bytes : most bytes in a request.
    stored_response_bytes : memory for responses that clients may go on from by their ids; 0 keeps none.
    ping_seconds : seconds without text after which a stream sends a comment, as a sign of life.
    page : whether / is a page to talk to the model.
    shutdown_seconds : how long requests may go on when the server is stopped.
    ssl_certfile, ssl_keyfile : PEM files for HTTPS; None for HTTP.

    Raises
    ------
    ConfigError : a field is outside its range; the message names it.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    model_name: str | None = None
    models_max: int | None = None
    models_memory: int | None = None
    models_idle_seconds: float | None = None
    load_all: bool = False
    allow_pull: bool = False
    slot_save_path: str | os.PathLike[str] | None = None
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    max_body_bytes: int = 16 << 20
    stored_response_bytes: int = 64 << 20
    ping_seconds: float = 10.0
    page: bool = True
    shutdown_seconds: float = 10.0
    ssl_certfile: str | os.PathLike[str] | None = None
    ssl_keyfile: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if not checks.encodable("host", self.host):
            raise checks.refuse("host", "an address", self.host)
        self._set("port", checks.integer("port", self.port, 0, 65535))
        if self.model_name is not None and not checks.encodable("model_name", self.model_name).strip():
            raise checks.refuse("model_name", "a name", self.model_name)
        for name in ("models_max", "models_memory"):
            if getattr(self, name) is not None:
                self._set(name, checks.integer(name, getattr(self, name), 1))
        if self.models_idle_seconds is not None:
            seconds = checks.number("models_idle_seconds", self.models_idle_seconds, 0, 1e8)
            self._set("models_idle_seconds", seconds)
        for name in ("load_all", "allow_pull"):
            checks.boolean(name, getattr(self, name))
        for name in ("cors_origins", "allowed_hosts"):
            self._set(name, checks.texts(name, getattr(self, name), empty=False))
        if not isinstance(self.api_keys, (list, tuple)) or not all(map(is_key, self.api_keys)):
            raise ConfigError("api_keys: expected texts of printable ASCII without spaces, got others")
        self._set("api_keys", tuple(self.api_keys))
        self._set("max_body_bytes", checks.integer("max_body_bytes", self.max_body_bytes, 1))
        n_bytes = checks.integer("stored_response_bytes", self.stored_response_bytes, 0)
        self._set("stored_response_bytes", n_bytes)
        self._set("page", checks.boolean("page", self.page))
        for name in ("ping_seconds", "shutdown_seconds"):
            self._set(name, checks.number(name, getattr(self, name), checks.ABOVE_ZERO, 86400))
        for name in ("slot_save_path", "ssl_certfile", "ssl_keyfile"):
            if not isinstance(getattr(self, name), (str, os.PathLike, type(None))):
                raise checks.refuse(name, "a path", getattr(self, name))
        if self.slot_save_path is not None and not os.path.isdir(self.slot_save_path):
            raise checks.refuse("slot_save_path", "a folder", self.slot_save_path)
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigError("ssl_keyfile: expected an ssl_certfile beside it, got none")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the server."""
        return self.host in LOOPBACK


def is_key(key: object) -> bool:
    """Whether a header can hold this as a key."""
    return isinstance(key, str) and key.isascii() and key.isprintable() and key != "" and " " not in key

"""What a server is made with."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from oxillama.base.config import checks
from oxillama.base.config.checks import ABOVE_ZERO
from oxillama.base.config.option import AnyPath, Options, option
from oxillama.errors import ConfigError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Hosts that only this machine reaches."""

RESERVED = frozenset(("messages", "tools", "add_generation_prompt", "template"))
"""Variables of a chat template that have fields of their own in a request, or none."""

DAY = 86400.0
"""Seconds."""

UNIX = "unix"
"""In the place of an address of a proxy: whoever connects to the Unix socket."""


def _text(expected: str) -> Callable[[str, Any], str]:
    """A check for texts that UTF-8 can express and that are more than spaces."""
    filled = checks.expecting(expected, str.strip)
    return lambda name, value: filled(name, checks.encodable(name, value))


def _names(name: str, value: Any) -> str:
    """A text with at least one name, and commas between several. Raises ConfigError."""
    found = _text("names")(name, value)
    if not all(map(str.strip, found.split(","))) or len(set(names_in(found))) != found.count(",") + 1:
        raise checks.refuse(name, "unlike names with commas between them", value)
    return found


def _variables(name: str, value: Any) -> str:
    """A text with a JSON object of variables that no request has fields for. Raises ConfigError."""
    text = _text("a JSON object")(name, value)
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or RESERVED.intersection(found):
        raise checks.refuse(name, f"a JSON object without {', '.join(sorted(RESERVED))}", value)
    return text


def _folder(name: str, value: Any) -> Any:
    """The path of a folder that exists. Raises ConfigError."""
    if not os.path.isdir(checks.path(name, value)):
        raise checks.refuse(name, "a folder", value)
    return value


def _keys(name: str, value: Any) -> tuple[str, ...]:
    """Texts that a header can hold; the message does not show them. Raises ConfigError."""
    if not isinstance(value, (list, tuple)) or not all(map(is_key, value)):
        raise ConfigError(f"{name}: expected texts of printable ASCII without spaces, got others")
    return tuple(value)


def network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """A network, or the network of one address. Raises ValueError."""
    return ipaddress.ip_network(text)


def _proxies(name: str, value: Any) -> tuple[str, ...]:
    """Addresses and networks, each a text of its own or several with commas between. Raises ConfigError."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
        raise checks.refuse(name, "texts", value)
    found = tuple(each for text in value for each in names_in(text))
    for each in found:
        try:
            if each != UNIX:
                network(each)
        except ValueError as error:
            raise checks.refuse(name, f"addresses, networks (10.0.0.0/8) and {UNIX}", each) from error
    return found


def names_in(text: str | None) -> tuple[str, ...]:
    """The names of a text with commas between them; () for None."""
    return () if text is None else tuple(name.strip() for name in text.split(","))


@dataclass(frozen=True, kw_only=True)
class ServerConfig(Options):
    """Options of `oxillama serve`.

    Raises:
        ConfigError: a field is outside its range; the message names it.
    """

    # fmt: off
    host: str = option("127.0.0.1", check=_names,
        help="address to listen at, or several with commas between them; 0.0.0.0 for all of this machine's")
    port: int = option(8080, low=0, high=65535, help="to listen at; 0 for a free one")
    model_name: str | None = option(None, check=_names, flags="--alias",
        help="what clients call the model, with commas before further names that it answers to; None for the "
             "name of its file")
    model_tags: str | None = option(None, check=_names, flags="--tags",
        help="words with commas between them that the list of models has beside the model; None for none")
    models_max: int | None = option(None, low=1, help="max models that are loaded at a time; None for all")
    models_memory: int | None = option(None, low=1, argument="BYTES",
        help="max bytes of weights of the models that are loaded at a time; None for no limit")
    models_idle_seconds: float | None = option(None, low=0, high=100000000.0,
        help="after which a model that nobody uses is unloaded; None for never")
    load_all: bool = option(False,
        help="whether all models are loaded at the start, and not the default one alone")
    allow_pull: bool = option(False,
        help="whether the page and Ollama's clients may download models of the hub")
    pull_mmproj: bool = option(True,
        help="whether the projector file (mmproj) of a model of the hub is downloaded with it")
    slot_save_path: AnyPath | None = option(None, check=_folder, argument="FOLDER",
        help="folder in which clients save their slots; without a folder that is refused")
    media_path: AnyPath | None = option(None, check=_folder, argument="FOLDER",
        help="folder from which clients may name pictures and sounds by URLs (file://NAME); without "
             "a folder that is refused")
    prefill_assistant: bool = option(False,
        help="whether a last message of the assistant is the beginning of the answer where the request does "
             "not say (continue_final_message), as llama-server takes it")
    unix_socket: AnyPath | None = option(None, argument="FILE",
        help="Unix socket to listen at, in place of an address and a port; None for those")
    api_keys: tuple[str, ...] = option((), check=_keys, flags="--api-key",
        help="keys of which a client must send one; with none nothing is checked")
    admin_keys: tuple[str, ...] = option((), check=_keys, flags="--admin-key",
        help="further keys, which may also read /metrics, set the scales of adapters, pull and unload "
             "models, and ask for a priority. A single key may do that, too")
    api_key_file: AnyPath | None = option(None,
        help="file with a key on each line, or sha256: and its hash, and behind it any of name=NAME, "
             "running=N, waiting=N, tokens=N, priority and admin; it is read again on SIGHUP")
    key_running: int | None = option(None, low=1,
        help="max requests of one key that run at a time; others of the key wait. None for no limit")
    key_waiting: int | None = option(None, low=0,
        help="max requests of one key that wait; one more is refused. None for no limit")
    key_tokens: int | None = option(None, low=1,
        help="max tokens of prompts and texts of one key in a minute; then its requests are refused until "
             "they are paid off. None for no limit")
    max_tokens: int | None = option(None, low=1,
        help="max tokens of a text whose request does not say. None for what its interface has")
    max_tokens_limit: int | None = option(None, low=1,
        help="max tokens that a request may ask for; None for as many as the context holds")
    timeout_limit: float | None = option(None, low=ABOVE_ZERO,
        help="max seconds that a request may ask for, and that one has which asks for none; None for no "
             "limit")
    share_prefixes: bool = option(False,
        help="whether all keys share cached prompts. Then an answer tells with its number of cached tokens "
             "whether another key has sent the same beginning of a prompt")
    cors_origins: tuple[str, ...] = option((), flags="--cors-origin",
        help='origins whose pages may use the server ("https://example.org"; "localhost" for pages of this '
             'machine at any port; "*" for all)')
    cors_credentials: bool = option(False,
        help="whether these pages may send cookies and the like, which a proxy before the server may ask for")
    trusted_proxies: tuple[str, ...] = option((), check=_proxies, argument="ADDRESS",
        help="addresses and networks (10.0.0.0/8) of proxies whose X-Forwarded-For, X-Forwarded-Proto and "
             "Forwarded name the client, unix for those at the Unix socket")
    allowed_hosts: tuple[str, ...] = option((), flags="--allowed-host",
        help="names by which clients may address a server that only this machine reaches, beside its own; "
             '"*" for any')
    max_body_bytes: int = option(16 << 20, low=1, argument="BYTES", help="max bytes in a request")
    max_connections: int = option(4096, low=1,
        help="max connections at a time, fewer where the process may not open as many files; half of them "
             "may be idle, or have sent only a part of a head")
    head_seconds: float = option(10.0, low=ABOVE_ZERO, high=DAY,
        help="seconds that a client may take to send the head of a request")
    body_seconds: float = option(60.0, low=ABOVE_ZERO, high=DAY,
        help="seconds that a client may take to send a body, and for which an answer waits for a client that "
             "takes no part of it")
    compile_seconds: float = option(60.0, low=ABOVE_ZERO, high=DAY,
        help="seconds after which a grammar or a schema that is still being compiled is refused")
    job_processes: int = option(3, low=0, high=64,
        help="max processes that read large bodies, tokenize long prompts and compile large grammars, each "
             "started when it is first needed; 0 to have threads do that")
    stored_response_bytes: int = option(64 << 20, low=0, argument="BYTES",
        help="memory for responses that clients may go on from by their ids; 0 keeps none")
    record: AnyPath | None = option(None, argument="FOLDER",
        help="folder in which each request that begins a text is recorded, with its answer and with receipts "
             "for oxillama replay; None for no records")
    record_bytes: int | None = option(None, low=1, argument="BYTES",
        help="max bytes of the records, of which the oldest are removed; None for no limit")
    record_days: float | None = option(None, low=ABOVE_ZERO, high=100000.0,
        help="after which a record is removed; None for never")
    record_texts: str = option("all", choices=("all", "hashes"),
        help='what is recorded of prompts and texts: "hashes" for no word of them')
    record_snapshots: str = option("none", choices=("none", "stopped"),
        help='texts whose snapshots are recorded, to go on from: "stopped" for those that the end of the '
             "server cuts")
    ping_seconds: float = option(10.0, low=ABOVE_ZERO, high=DAY,
        help="seconds without text after which a stream sends a comment, as a sign of life")
    pooling: str | None = option(None, choices=("last", "mean", "max", "cls", "none"),
        help="how one vector comes from those of a text's tokens where a request does not say; none for the "
             "vectors of all tokens, which /embedding alone has; None for what the model's file says")
    page: bool = option(True, flags="--ui --webui", help="whether / is a page to talk to the model")
    chat_template_kwargs: str | None = option(None, check=_variables, argument="JSON",
        help='variables that chat templates get where a request does not set them ({"enable_thinking": '
             "false}); None for none")
    metrics: bool = option(True, help="whether /metrics tells Prometheus what was done")
    slots: bool = option(True, help="whether /slots tells which sequences are busy")
    mcp: AnyPath | None = option(None,
        help='file with "mcpServers", whose tools the page and requests may use; None for no tools. Whoever '
             "may use the server may call them")
    mcp_connect_seconds: float = option(30.0, low=ABOVE_ZERO, high=DAY,
        help="seconds that a tool server may take to start, and to list its tools")
    mcp_call_seconds: float = option(60.0, low=ABOVE_ZERO, high=DAY,
        help="seconds that a call of a tool server's tool may take")
    shutdown_seconds: float = option(10.0, low=ABOVE_ZERO, high=DAY,
        help="how long requests may go on when the server is stopped")
    ssl_certfile: AnyPath | None = option(None, flags="--tls-cert",
        help="PEM file of the certificate for HTTPS; None for HTTP")
    ssl_keyfile: AnyPath | None = option(None, flags="--tls-key",
        help="PEM file of the key for HTTPS; None for HTTP")
    # fmt: on

    def _check_together(self) -> None:
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigError("ssl_keyfile: expected an ssl_certfile beside it, got none")
        if self.cors_credentials and not self.cors_origins:
            raise ConfigError("cors_credentials: expected cors_origins beside it, got none")
        for name in ("record_bytes", "record_days", "record_texts", "record_snapshots"):
            if self.record is None and getattr(self, name) not in (None, "all", "none"):
                raise ConfigError(f"{name}: expected a folder to record in (record) beside it, got none")
        if self.record_texts == "hashes" and self.record_snapshots != "none":
            raise ConfigError("record_snapshots: expected none with record_texts hashes: they hold the texts")

    @cached_property
    def template_variables(self) -> dict[str, Any]:
        """Variables that chat templates get where a request does not set them."""
        found: dict[str, Any] = json.loads(self.chat_template_kwargs or "{}")
        return found

    @property
    def hosts(self) -> tuple[str, ...]:
        """The addresses to listen at."""
        return names_in(self.host)

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the server."""
        return self.unix_socket is not None or all(host in LOOPBACK for host in self.hosts)

    @property
    def has_keys(self) -> bool:
        """Whether a client must send a key."""
        return bool(self.api_keys or self.admin_keys or self.api_key_file)


def is_key(key: object) -> bool:
    """Whether a header can hold this as a key."""
    return isinstance(key, str) and key.isascii() and key.isprintable() and key != "" and " " not in key

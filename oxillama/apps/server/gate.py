"""The gate of every request: request id, access log, checks of the host, the key and the body's size."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oxillama.apps.server.callers import CONTEXT, Caller, Keys, Limits, RequestContext, too_many
from oxillama.apps.server.connections import most_connections
from oxillama.apps.server.errors import ApiError, ClientGone, ErrorBody, api_error, body_too_large, stopping
from oxillama.apps.server.origins import is_allowed
from oxillama.apps.server.recording import Recording
from oxillama.apps.server.workers import Pools
from oxillama.base.config.server import LOOPBACK, ServerConfig
from oxillama.engine.generation import Generation

if TYPE_CHECKING:
    from oxillama.sessions.records.folder import RecordFolder

log: logging.Logger = logging.getLogger(__name__)

CLIENT_GONE = 499
"""The status in the log of a request whose client went away before the answer."""

MOST_OF_FREE = 3
"""Requests that a key may have for each free connection: so that a few are left for every other key, whoever
takes what there is (dynamic thresholds; Choudhury and Hahne, 1998)."""

MOST_BODIES = 1 << 30
"""Bytes that the bodies of all requests may have together, unless two of the largest have more."""

SMALL_BODY = 1 << 16
"""Bytes of a body that is taken even if others take all of `MOST_BODIES`."""

MOST_PATH = 2048
"""Characters of a path in the log."""

REQUEST_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)
"""Ids that clients may choose."""


def sent_key(headers: Headers) -> str:
    """The key of a request, sent in OpenAI's way or in Anthropic's."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


class InFlight:
    """The requests that are being answered, and their end when the server ends.

    Attributes:
        is_stopping: whether new requests are refused.
        n_bytes: of the bodies of the requests, as they came and decompressed.
    """

    def __init__(self) -> None:
        self.is_stopping = False
        self.n_bytes: int = 0
        self._tasks: dict[asyncio.Task[Any], RequestContext] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, found: RequestContext) -> None:
        """Notes the request of this task. Raises ApiError when the server ends."""
        if self.is_stopping:
            raise stopping()
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = found
        found.hold = partial(self.hold, found)

    def hold(self, found: RequestContext, n_bytes: int) -> None:
        """Counts further bytes of a request's body, which are held until the request ends.

        Raises ApiError with 503 if all bodies together have too many, unless this body is small.
        """
        found.n_held += n_bytes
        self.n_bytes += n_bytes
        most = max(MOST_BODIES, 2 * found.config.max_body_bytes)
        if self.n_bytes > most and found.n_held > SMALL_BODY:
            message = f"body: expected at most {most} bytes in all bodies of the server together, got more"
            raise ApiError(503, message, type="unavailable_error", code="bodies_full")

    def n_of(self, caller: Caller) -> int:
        """The number of requests of one caller."""
        return sum(found.caller is caller for found in self._tasks.values())

    def remove(self) -> None:
        """Ends what `add` began."""
        found = self._tasks.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
        self.n_bytes -= 0 if found is None else found.n_held

    def snapshot(self) -> None:
        """Makes each recording keep snapshots of its unfinished texts; may run in any thread."""
        for found in list(self._tasks.values()):
            if found.recording is not None:
                found.recording.snapshot(list(found.generations))

    def stop(self) -> None:
        """Ends all requests: streams with an event, others with an answer of 503."""
        for task, found in list(self._tasks.items()):
            found.is_stopped = True
            task.cancel()


@dataclass(eq=False)
class Gate:
    """The outermost layer of the application.

    A server that only this machine reaches answers to its own names alone. Otherwise a page of a foreign site
    whose name resolves to 127.0.0.1 could read what it answers.

    Attributes:
        open_paths: that need no key.
        unlogged_paths: whose answers are no lines of the access log, unless they are errors.
        error_body: the shape of errors on a path.
        records: where requests with texts are recorded; None for nowhere.
    """

    app: ASGIApp
    config: ServerConfig
    keys: Keys
    pools: Pools
    in_flight: InFlight
    open_paths: frozenset[str]
    unlogged_paths: frozenset[str]
    error_body: Callable[[str], ErrorBody]
    records: RecordFolder | None = None

    def __post_init__(self) -> None:
        config = self.config
        self.most_connections: int = most_connections(config)
        names = (*LOOPBACK, *config.allowed_hosts)
        is_checked = config.is_local or not config.has_keys
        no_check = "*" in names or not is_checked or config.unix_socket is not None
        self.hosts: frozenset[str] | None = None if no_check else frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers, began, status = Headers(scope=scope), time.perf_counter(), 0
        wanted = headers.get("x-request-id", "")
        request_id = wanted if REQUEST_ID.fullmatch(wanted) else f"req_{uuid.uuid4().hex}"
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        address = (scope.get("client") or ("-",))[0]
        tag = state.get("id_tag", "")
        found = RequestContext(
            client=address, request_id=request_id, config=self.config, pools=self.pools, id_tag=tag
        )
        CONTEXT.set(found)
        if self.records is not None and scope["method"] == "POST":
            found.recording = Recording(scope, self.config)
            receive, send = found.recording.wrap(receive, send)

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                sent = MutableHeaders(scope=message)
                sent["x-request-id"] = sent["request-id"] = request_id  # OpenAI's name and Anthropic's
            await send(message)

        async def answer(error: ApiError) -> None:
            if status == 0:
                body = self.error_body(scope["path"])(error)
                await JSONResponse(body, error.status, error.headers)(scope, receive, sending)

        try:
            self.in_flight.add(found)
            self.check(scope, headers, found)
            found.receive = self.limited(receive, headers, found)
            await self.app(scope, found.receive, sending)
        except (ClientGone, ClientDisconnect):
            status = status or CLIENT_GONE
        except asyncio.CancelledError:
            if not found.is_stopped:
                raise
            await answer(stopping())
        except Exception as error:
            if api_error(error).status == 500:
                log.exception("%s failed", request_id)
            await answer(api_error(error))
        finally:
            self.in_flight.remove()
            work = work_of(found.generations)
            seconds, name = time.perf_counter() - began, found.caller.name
            if self.records is not None and found.recording is not None and found.generations:
                found.recording.end(self.records, found, request_id, status, seconds)
            found.end()
            if scope["path"] not in self.unlogged_paths or status >= 400:
                path = scope.get("raw_path", b"").decode("ascii", "replace") or scope["path"]
                said = [address, *([name] if name else []), scope["method"], path[:MOST_PATH]]
                line = (request_id, " ".join(map(word, said)), status, seconds, work)
                log.info("%s %s %d %.3f s%s", *line)

    def check(self, scope: Scope, headers: Headers, found: RequestContext) -> None:
        """Notes the caller. Raises ApiError unless the request is allowed."""
        if "transfer-encoding" in headers and "content-length" in headers:  # RFC 9112, 6.3, has it closed
            message = "content-length: expected none beside transfer-encoding, got one"
            raise ApiError(400, message, closes=True)
        if "transfer-encoding" in headers and scope["http_version"] == "1.0":
            raise ApiError(400, "transfer-encoding: expected none in HTTP/1.0, got one", closes=True)
        is_old = scope.get("http_version") == "1.0"  # HTTP/1.0 needs no host
        if not is_old or "host" in headers:
            self.check_host(headers.get("host", ""))
        self.check_site(scope, headers)
        key = sent_key(headers)
        caller = self.keys.caller(key)
        if caller is not None:
            found.caller, found.client = caller, caller.name or found.client
        elif scope["path"] not in self.open_paths:
            got = "another" if key else "none"
            raise ApiError(401, f"api key: expected a valid one, got {got}", code="invalid_api_key")
        else:
            found.caller = NOBODY
        self.check_connections(found.caller)
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.config.max_body_bytes:
            raise body_too_large(int(length), self.config.max_body_bytes)

    def check_connections(self, caller: Caller) -> None:
        """Raises ApiError if one of several keys holds too many of the connections."""
        n, most = len(self.in_flight), self.most_connections
        if len(self.keys) > 1 and n > most // 2:
            n_own = self.in_flight.n_of(caller)
            if n_own > max(1, MOST_OF_FREE * (most - n)):
                raise too_many(f"{n_own - 1} of {most} connections are of this key", "key_connections", 1)

    def check_host(self, said: str) -> None:
        """Raises ApiError for a host name that may be another site's, or that is malformed."""
        try:
            host = urlsplit(f"//{said}").hostname or ""
        except ValueError as error:
            raise ApiError(400, f"host: expected a name or an address, got {said[:100]!r}") from error
        if self.hosts is None or host in self.hosts or (not self.config.is_local and is_address(host)):
            return
        known = ", ".join(sorted(self.hosts))
        raise ApiError(403, f"host: expected one of {known} (see --allowed-host), got {host[:100]}")

    def check_site(self, scope: Scope, headers: Headers) -> None:
        """Raises ApiError for a request that a page of a foreign site makes, and not its user."""
        if scope["path"] in self.open_paths or headers.get("sec-fetch-site") != "cross-site":
            return
        if not is_allowed(headers.get("origin"), self.config.cors_origins):
            raise ApiError(403, "origin: expected this server or one of --cors-origin, got another")

    def limited(self, receive: Receive, headers: Headers, found: RequestContext) -> Receive:
        """``receive`` that raises ApiError for a body that is too large or too slow."""
        n_bytes = 0
        is_whole = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
        deadline = time.monotonic() + self.config.body_seconds

        async def receiving() -> Message:
            nonlocal n_bytes, is_whole
            if is_whole:
                return await receive()
            coming = asyncio.ensure_future(receive())
            try:
                await asyncio.wait({coming}, timeout=max(0.0, deadline - time.monotonic()))
            finally:
                coming.cancel()  # unless it is done
            if not coming.done():
                seconds = self.config.body_seconds
                raise ApiError(408, f"body: expected all of it within {seconds:g} s, got {n_bytes} bytes")
            message = coming.result()
            n_new = len(message.get("body", b""))
            found.hold(n_new)
            n_bytes += n_new
            is_whole = not message.get("more_body", False)
            if n_bytes > self.config.max_body_bytes:
                raise body_too_large(n_bytes, self.config.max_body_bytes)
            return message

        return receiving


NOBODY = Caller("", Limits())
"""Who asks without a key for what needs none."""


def work_of(generations: Iterable[Generation]) -> str:
    """Tokens of the texts of a request and their rates, for the end of a line of the log; "" for none.

    The rates leave out what the texts waited for others.
    """
    found = ""
    for generation in generations:
        usage, seconds = generation.usage, generation.timings
        prompt = f"{usage.prompt_tokens} prompt tokens, {usage.cached_tokens} cached"
        rates = [
            f", {n / spent:.1f}/s" if spent > 0 else ""  # false for nan
            for n, spent in (
                (seconds.prefill_tokens, seconds.prefill),
                (seconds.decode_tokens, seconds.decode),
            )
        ]
        found += f"; {prompt}{rates[0]}, {usage.generated_tokens} tokens{rates[1]}"
    return found


def is_address(host: str) -> bool:
    """Whether a host is an IP address: no site can have its name resolve to one."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def word(text: str) -> str:
    """A text as one word of a line of the log: spaces and control characters are escapes."""
    if text.isprintable() and " " not in text:
        return text
    return "".join(
        "\\x20" if c == " " else c if c.isprintable() else c.encode("unicode_escape", "replace").decode()
        for c in text
    )

"""What every request passes: a request id, the access log, the host, the key, the size of its body."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oxillama.config.server import LOOPBACK, ServerConfig
from oxillama.server.callers import CONTEXT, Caller, Keys, Limits, RequestContext, too_many
from oxillama.server.connections import most_connections
from oxillama.server.errors import ApiError, ClientGone, ErrorBody, api_error, stopping
from oxillama.server.origins import is_allowed
from oxillama.server.recording import Recording
from oxillama.server.workers import Pools

if TYPE_CHECKING:
    from oxillama.engine.generation import Generation
    from oxillama.records.folder import RecordFolder

log: logging.Logger = logging.getLogger(__name__)

CLIENT_GONE = 499
"""The status in the log of a request whose client went away before the answer."""

MOST_OF_FREE = 3
"""Requests that a key may have for each free connection: so that a few are left for every other key, whoever
takes what there is (dynamic thresholds; Choudhury and Hahne, 1998)."""

REQUEST_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)
"""Ids that clients may choose."""


def sent_key(headers: Headers) -> str:
    """The key that a request has: OpenAI's way to send it, or Anthropic's."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


class InFlight:
    """The requests that are being answered, and their end when the server ends.

    Attributes
    ----------
    is_stopping : whether new requests are refused.
    """

    def __init__(self) -> None:
        self.is_stopping = False
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

    def n_of(self, caller: Caller) -> int:
        """How many of them are of one caller."""
        return sum(found.caller is caller for found in self._tasks.values())

    def remove(self) -> None:
        """Ends what `add` began."""
        self._tasks.pop(asyncio.current_task(), None)  # type: ignore[arg-type]

    def snapshot(self) -> None:
        """Has each recording keep snapshots of its texts that go on; in any thread."""
        for found in list(self._tasks.values()):
            if found.recording is not None:
                found.recording.snapshot(list(found.generations))

    def stop(self) -> None:
        """Ends all requests: streams with an event, others with an answer of 503."""
        for task, found in list(self._tasks.items()):
            found.is_stopped = True
            task.cancel()


class Gate:
    """The outermost layer of the application.

    A server that only this machine reaches answers to its own names alone. Otherwise a page of a foreign site
    whose name resolves to 127.0.0.1 could read what it answers.

    Parameters
    ----------
    open_paths : that need no key.
    unlogged_paths : whose answers are no lines of the access log, unless they are errors.
    error_body : the shape of errors on a path.
    records : where requests with texts are recorded; None for nowhere.
    """

    def __init__(
        self,
        app: ASGIApp,
        config: ServerConfig,
        keys: Keys,
        pools: Pools,
        in_flight: InFlight,
        open_paths: Iterable[str],
        unlogged_paths: Iterable[str],
        error_body: Callable[[str], ErrorBody],
        records: RecordFolder | None = None,
    ) -> None:
        self.app = app
        self.records: RecordFolder | None = records
        self.config: ServerConfig = config
        self.error_body = error_body
        self.keys: Keys = keys
        self.pools: Pools = pools
        self.in_flight: InFlight = in_flight
        self.most_connections: int = most_connections(config)
        self.open_paths, self.unlogged_paths = frozenset(open_paths), frozenset(unlogged_paths)
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
        scope.setdefault("state", {})["request_id"] = request_id
        address = (scope.get("client") or ("-",))[0]
        found = RequestContext(client=address, config=self.config, pools=self.pools)
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
            found.receive = self.limited(receive, headers)
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
            who = f"{address} {name}" if name else address
            path = printable(scope.get("raw_path", b"").decode("ascii", "replace") or scope["path"])
            if scope["path"] not in self.unlogged_paths or status >= 400:
                line = (request_id, who, scope["method"], path, status, seconds, work)
                log.info("%s %s %s %s %d %.3f s%s", *line)

    def check(self, scope: Scope, headers: Headers, found: RequestContext) -> None:
        """Notes who asks. Raises ApiError unless the request may go on."""
        if "transfer-encoding" in headers and "content-length" in headers:  # RFC 9112, 6.3, has it closed
            message = "content-length: expected none beside transfer-encoding, got one"
            raise ApiError(400, message, closes=True)
        if "transfer-encoding" in headers and scope["http_version"] == "1.0":
            raise ApiError(400, "transfer-encoding: expected none in HTTP/1.0, got one", closes=True)
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
            raise self.too_large(int(length))

    def check_connections(self, caller: Caller) -> None:
        """Raises ApiError for a request with which one of several keys has too many of the connections."""
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

    def limited(self, receive: Receive, headers: Headers) -> Receive:
        """``receive``, that raises ApiError when more comes than a body may have, or it comes too late."""
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
            n_bytes += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            if n_bytes > self.config.max_body_bytes:
                raise self.too_large(n_bytes)
            return message

        return receiving

    def too_large(self, n_bytes: int) -> ApiError:
        most = self.config.max_body_bytes
        return ApiError(413, f"body: expected at most {most} bytes, got {n_bytes}", code="body_too_large")


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
            f", {n / spent:.1f}/s" if spent > 0 else ""  # and not for nan
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


def printable(text: str) -> str:
    """A text for a line of the log, which it can neither end nor leave for the terminal."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "replace").decode() for char in text
    )

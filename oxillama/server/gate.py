"""What every request passes: a request id, the access log, the host, the key, the size of its body."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oxillama.config.server import LOOPBACK, ServerConfig
from oxillama.server.errors import ApiError, ClientGone, ErrorBody, api_error

log = logging.getLogger(__name__)

CLIENT_GONE = 499
"""The status in the log of a request whose client went away before the answer."""

REQUEST_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)
"""Ids that clients may choose."""


class Keys:
    """Keys of which a client must have one. Only hashes are kept, and all are compared, in constant time."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def admit(self, key: str) -> bool:
        """Whether this is one of them."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        return sum([hmac.compare_digest(digest, known) for known in self._digests]) > 0


def sent_key(headers: Headers) -> str:
    """The key that a request has: OpenAI's way to send it, or Anthropic's."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


class Gate:
    """The outermost layer of the application.

    A server that only this machine reaches answers to its own names alone. Otherwise a page of a foreign site
    whose name resolves to 127.0.0.1 could read what it answers.

    Parameters
    ----------
    open_paths : that need no key.
    error_body : the shape of errors on a path.
    """

    def __init__(
        self,
        app: ASGIApp,
        config: ServerConfig,
        open_paths: Iterable[str],
        error_body: Callable[[str], ErrorBody],
    ) -> None:
        self.app, self.config, self.error_body = app, config, error_body
        self.open_paths = frozenset(open_paths)
        self.keys = Keys(config.api_keys)
        names = (*LOOPBACK, *config.allowed_hosts)
        self.hosts = None if "*" in names or not config.is_local else frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers, began, status = Headers(scope=scope), time.perf_counter(), 0
        wanted = headers.get("x-request-id", "")
        request_id = wanted if REQUEST_ID.fullmatch(wanted) else f"req_{uuid.uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = request_id

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                sent = MutableHeaders(scope=message)
                sent["x-request-id"] = sent["request-id"] = request_id  # OpenAI's name and Anthropic's
            await send(message)

        try:
            self.check(scope, headers)
            await self.app(scope, self.limited(receive), sending)
        except ClientGone:
            status = status or CLIENT_GONE
        except Exception as error:
            found = api_error(error)
            if found.status == 500:
                log.exception("%s failed", request_id)
            if status == 0:
                body = self.error_body(scope["path"])(found)
                await JSONResponse(body, found.status, found.headers)(scope, receive, sending)
        finally:
            client = (scope.get("client") or ("-",))[0]
            seconds = time.perf_counter() - began
            log.info(
                "%s %s %s %s %d %.3f s", request_id, client, scope["method"], scope["path"], status, seconds
            )

    def check(self, scope: Scope, headers: Headers) -> None:
        """Raises ApiError unless the request may go on."""
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        if self.hosts is not None and host not in self.hosts:
            raise ApiError(403, f"host: expected one of {', '.join(sorted(self.hosts))}, got {host[:100]}")
        if self.keys and scope["path"] not in self.open_paths:
            key = sent_key(headers)
            if not self.keys.admit(key):
                raise ApiError(
                    401,
                    f"api key: expected a valid one, got {'another' if key else 'none'}",
                    code="invalid_api_key",
                )
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.config.max_body_bytes:
            raise self.too_large(int(length))

    def limited(self, receive: Receive) -> Receive:
        """``receive``, that raises ApiError when more comes than a body may have."""
        n_bytes = 0

        async def receiving() -> Message:
            nonlocal n_bytes
            message = await receive()
            n_bytes += len(message.get("body", b""))
            if n_bytes > self.config.max_body_bytes:
                raise self.too_large(n_bytes)
            return message

        return receiving

    def too_large(self, n_bytes: int) -> ApiError:
        most = self.config.max_body_bytes
        return ApiError(413, f"body: expected at most {most} bytes, got {n_bytes}", code="body_too_large")

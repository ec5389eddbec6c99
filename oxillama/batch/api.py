"""Rows of OpenAI's batch format, answered by the server's application without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from oxillama.batch.plain import Settings
from oxillama.config.server import ServerConfig
from oxillama.distribution import install
from oxillama.engine.engine import InferenceEngine
from oxillama.errors import ConfigError, RequestFailed
from oxillama.server.errors import ApiError, invalid

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
FIELDS = ("custom_id", "method", "url", "body")

MOST_BYTES = 1 << 30
"""Bytes of a body: whoever starts the job has chosen its file."""


def is_api_row(row: Mapping[str, Any]) -> bool:
    """Whether a row is one of OpenAI's format, or was meant to be."""
    return "body" in row or "url" in row


class Api:
    """The application, for rows of one engine. Raises ConfigError if its packages are not installed."""

    def __init__(self, engine: InferenceEngine, settings: Settings) -> None:
        try:
            from oxillama.server.app import create_app
        except ImportError as error:
            wanted = f"the packages of the server ({install('server')}) for rows of OpenAI's format"
            raise ConfigError(f"batch: expected {wanted}, got none of {error.name}") from error
        from oxillama.server.models import Hosted, Models

        self.max_tokens: int | None = settings.max_tokens
        config = ServerConfig(allowed_hosts=("*",), max_body_bytes=MOST_BYTES)
        self._app = create_app(Models([Hosted(settings.model_name, engine)], config), config)

    async def answer(self, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
        """The response of a row: status, request id and body.

        Parameters
        ----------
        number : of the row; ids in the answer are made of it. The time of the answer is left out (0), and so
            is what the prefix cache had: neither follows from the row.

        Raises
        ------
        ApiError : the row is not of the format.
        RequestFailed : the engine has failed, and not this row.
        """
        body = self.body_of(row)
        request_id = f"req_{number}"
        status, data = await call(self._app, row["url"], json.dumps(body).encode(), request_id)
        found = json.loads(data)
        if status >= 500 and found["error"]["code"] != "out_of_memory":
            raise RequestFailed(f"row {number}: {found['error']['message']}")
        if "id" in found:
            found["id"] = f"{found['id'].partition('-')[0]}-{number}"
        if "created" in found:
            found["created"] = 0
        if "usage" in found:
            found["usage"].pop("prompt_tokens_details", None)
        return {"status_code": status, "request_id": request_id, "body": found}

    def body_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The body that a row asks with. Raises ApiError."""
        for name in row:
            if name not in FIELDS:
                raise ApiError(
                    400, f"{name}: is no field of a batch's rows", param=name, code="unknown_field"
                )
        if not isinstance(row.get("custom_id"), str):
            raise invalid("custom_id", "a text", row.get("custom_id"))
        if row.get("method") != "POST":
            raise invalid("method", '"POST"', row.get("method"))
        if row.get("url") not in URLS:
            raise invalid("url", f"one of {', '.join(URLS)}", row.get("url"))
        body = row.get("body")
        if not isinstance(body, dict):
            raise invalid("body", "an object", body)
        if body.get("stream"):
            raise invalid("body.stream", "false in a batch", body["stream"])
        names = ("max_tokens", "max_completion_tokens", "n_predict")
        says = any(body.get(name) is not None for name in names) or row["url"] == URLS[2]
        return body if says or self.max_tokens is None else {**body, "max_tokens": self.max_tokens}


async def call(app: Any, path: str, body: bytes, request_id: str) -> tuple[int, bytes]:
    """Status and body of what an ASGI application answers to a POST of JSON."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),  # by which a body that is too large is refused
            (b"x-request-id", request_id.encode()),
        ],
        "client": ("127.0.0.1", 0),
        "server": ("localhost", 80),
    }
    parts: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
    status, data = 0, b""

    async def receive() -> dict[str, Any]:
        if not parts:
            await asyncio.Event().wait()  # the client never goes away
        return parts.pop()

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, data
        status = message.get("status", status)
        data += message.get("body", b"")

    await app(scope, receive, send)
    return status, data

"""Answers rows in OpenAI's batch format by calling the server's application without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from oxillama.apps.batch.plain import Settings
from oxillama.apps.batch.reproducible import ANSWERS, reproducible
from oxillama.apps.server.errors import ApiError, invalid
from oxillama.base.config.server import ServerConfig
from oxillama.base.distribution import install
from oxillama.engine.engine import InferenceEngine
from oxillama.errors import ConfigError, RequestFailed

FIELDS = ("custom_id", "method", "url", "body")

WITHOUT_TEXT = ("/v1/embeddings", "/v1/decisions", "/v1/systemone")
"""Urls of requests that generate no text."""

MOST_BYTES = 1 << 30
"""The maximum size of a body in bytes: large, because the user chose the job's file."""


def is_api_row(row: Mapping[str, Any]) -> bool:
    """Whether a row is in OpenAI's format, or was meant to be."""
    return "body" in row or "url" in row


class Api:
    """The server's application for one engine. Raises ConfigError if its packages are not installed."""

    def __init__(self, engine: InferenceEngine, settings: Settings) -> None:
        try:
            from oxillama.apps.server.app import create_app
        except ImportError as error:
            wanted = f"the packages of the server ({install('server')}) for rows of OpenAI's format"
            raise ConfigError(f"batch: expected {wanted}, got none of {error.name}") from error
        from oxillama.apps.server.models import Hosted, Models

        self.max_tokens: int | None = settings.max_tokens
        config = ServerConfig(allowed_hosts=("*",), max_body_bytes=MOST_BYTES)
        self._app = create_app(Models([Hosted(settings.model_name, engine)], config), config)

    async def answer(self, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
        """The response of a row: status, request id and body.

        Args:
            number: number of the row, from which ids in the answer are made.

        Raises:
            ApiError: the row is not in the format.
            RequestFailed: the engine failed; the row is not at fault.
        """
        body = self.body_of(row)
        request_id = f"req_{number}"
        status, data = await call(self._app, row["url"], json.dumps(body).encode(), request_id)
        found = json.loads(data)
        if status >= 500 and found["error"]["code"] != "out_of_memory":
            raise RequestFailed(f"row {number}: {found['error']['message']}")
        return {
            "status_code": status,
            "request_id": request_id,
            "body": reproducible(row["url"], number, found),
        }

    def body_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The request body of a row. Raises ApiError."""
        for name in row:
            if name not in FIELDS:
                raise ApiError(
                    400, f"{name}: is no field of a batch's rows", param=name, code="unknown_field"
                )
        if not isinstance(row.get("custom_id"), str):
            raise invalid("custom_id", "a text", row.get("custom_id"))
        if row.get("method") != "POST":
            raise invalid("method", '"POST"', row.get("method"))
        if row.get("url") not in tuple(ANSWERS):
            raise invalid("url", f"one of {', '.join(ANSWERS)}", row.get("url"))
        body = row.get("body")
        if not isinstance(body, dict):
            raise invalid("body", "an object", body)
        if body.get("stream"):
            raise invalid("body.stream", "false in a batch", body["stream"])
        names = ("max_tokens", "max_completion_tokens", "n_predict")
        says = any(body.get(name) is not None for name in names) or row["url"] in WITHOUT_TEXT
        return body if says or self.max_tokens is None else {**body, "max_tokens": self.max_tokens}


async def call(app: Any, path: str, body: bytes, request_id: str) -> tuple[int, bytes]:
    """Status and body of an ASGI application's answer to a POST request with JSON."""
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
            (b"content-length", str(len(body)).encode()),  # the application checks the size by it
            (b"x-request-id", request_id.encode()),
        ],
        "client": ("127.0.0.1", 0),
        "server": ("localhost", 80),
    }
    parts: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
    status, data = 0, b""

    async def receive() -> dict[str, Any]:
        if not parts:
            await asyncio.Event().wait()  # the client never disconnects
        return parts.pop()

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, data
        status = message.get("status", status)
        data += message.get("body", b"")

    await app(scope, receive, send)
    return status, data

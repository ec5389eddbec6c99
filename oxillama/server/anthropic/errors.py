"""Errors in Anthropic's shape: {"type": "error", "error": {"type", "message"}}."""

from __future__ import annotations

from typing import Any

from oxillama.server.errors import ApiError, encodable
from oxillama.server.stream import named_event

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Types by status; other statuses below 500 are invalid_request_error, those from 500 on api_error."""


def error_body(error: ApiError) -> dict[str, Any]:
    """The JSON of an error. Of a prompt that is too long it has the words that agents look for."""
    kind = TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = encodable(error.message)
    if error.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"
    param = None if error.param is None else encodable(error.param)
    more = {"param": param, "code": error.code, **error.more}
    facts = {name: value for name, value in more.items() if value is not None}
    return {"type": "error", "error": {"type": kind, "message": message, **facts}}


def error_event(error: ApiError) -> str:
    """An error in the middle of a stream."""
    return named_event("error", error_body(error))

"""Errors of answers, in OpenAI's form: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from oxillama.errors import (
    ChatTemplateError,
    ConfigError,
    EngineClosed,
    GrammarError,
    KvCacheFullError,
    MediaError,
    OxiLlamaError,
    PromptError,
    QueueFull,
    SamplingError,
    TokenizerError,
)

RETRY_SECONDS = 1
"""What a client is told to wait when the queue is full."""

INVALID = "invalid_request_error"
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
"""Types of errors by status; other statuses below 500 are `INVALID`, those from 500 on server_error."""

STATUS: tuple[tuple[type[OxiLlamaError], int, str | None], ...] = (
    (QueueFull, 429, "queue_full"),
    (EngineClosed, 503, "shutting_down"),
    (KvCacheFullError, 503, "out_of_memory"),
    (PromptError, 400, "invalid_prompt"),
    (TokenizerError, 400, "invalid_prompt"),
    (ChatTemplateError, 400, "invalid_messages"),
    (GrammarError, 400, "invalid_grammar"),
    (SamplingError, 400, "no_token"),
    (MediaError, 400, "invalid_media"),
    (ConfigError, 400, "invalid_value"),
)
"""Status and code of the library's errors; any other is a 500."""


class ApiError(Exception):
    """An answer that is an error.

    Attributes:
        status: of HTTP.
        param: field of the body at fault.
        code: a word for programs.
        type: kind of error; None: the usual kind of the status.
        retry_seconds: after which a client may try again; for 429.
        closes: whether the connection ends with the answer.
        more: further entries of the error.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        type: str | None = None,
        retry_seconds: int = RETRY_SECONDS,
        closes: bool = False,
        **more: Any,
    ) -> None:
        message = encodable(message)
        super().__init__(message)
        self.status: int = status
        self.message: str = message
        self.code: str | None = code
        self.param: str | None = None if param is None else encodable(param)
        self.type: str = type or TYPES.get(status, INVALID if status < 500 else "server_error")
        self.more: dict[str, Any] = more
        self.retry_seconds: int = retry_seconds
        self.closes: bool = closes

    def body(self) -> dict[str, Any]:
        """The JSON of the error."""
        facts = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": {**facts, **self.more}}

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        if self.closes:
            return {"Connection": "close"}
        if self.status == 429:
            return {"Retry-After": str(self.retry_seconds)}
        return {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}


def encodable(text: str) -> str:
    """A text that UTF-8 can hold: a text of a body may have half a surrogate pair in it."""
    return text.encode("utf-8", "backslashreplace").decode()


ErrorBody = Callable[[ApiError], dict[str, Any]]
"""Makes the JSON of an error, in the shape of an interface."""


class ClientGone(Exception):
    """The client has closed its connection: nobody reads an answer."""


def api_error(error: Exception) -> ApiError:
    """The answer for an error of the library. Other errors are not shown to clients."""
    if isinstance(error, ApiError):
        return error
    for kind, status, code in STATUS:
        if isinstance(error, kind):
            named = re.match(r"([a-z][\w.\[\]]*): ", str(error))
            param = named[1] if named and status == 400 else None
            return ApiError(status, str(error), param=param, code=code)
    message = (
        without_paths(error) if isinstance(error, OxiLlamaError) else "the server failed; its log says more"
    )
    return ApiError(500, message, code="internal_error")


FOLDERS = re.compile(r"""(?<![^\s'"(=:])(?:[A-Za-z]:)?(?:[/\\][^\s/\\'":,;)]+)+(?=[/\\])[/\\]""")
"""The folders of an absolute path."""


def without_paths(error: BaseException) -> str:
    """The message of an error of the library, with files' names without folders, which are the operator's."""
    return FOLDERS.sub("", str(error))


def stopping() -> ApiError:
    """The error of a request that a stopping server does not finish."""
    return ApiError(503, "the server is stopping", code="shutting_down")


def fault(param: str, what: str, code: str | None = None, status: int = 400, **more: Any) -> ApiError:
    """The error of a field, which its message names."""
    return ApiError(status, f"{param}: {what}", param=param, code=code, **more)


def invalid(param: str, expected: str, value: object) -> ApiError:
    """The error for a field with a wrong value."""
    return fault(param, f"expected {expected}, got {value!r:.200}", "invalid_value")


def unsupported(param: str, expected: str, value: object) -> ApiError:
    """The error for a field with a value that has a meaning, and that is not honoured here."""
    found = invalid(param, expected, value)
    found.code = "unsupported_value"
    return found


def refuse_others(
    where: str, value: Mapping[str, Any], known: Sequence[str], ignored: Container[str] = ()
) -> None:
    """Raises ApiError for a field that is neither known nor ignored, unless it is null."""
    for name, item in value.items():
        if name not in known and name not in ignored and item is not None:
            what = f"expected one of {', '.join(known)}, got another field"
            raise fault(f"{where}.{name[:200]}", what, "unknown_parameter")


def body_too_large(n_bytes: int, most: int) -> ApiError:
    """The error for a body of more than ``most`` bytes."""
    return ApiError(413, f"body: expected at most {most} bytes, got {n_bytes}", code="body_too_large")


def prompt_too_long(name: str, n_tokens: int, context_size: int, free: int) -> ApiError:
    """The error of a too long prompt. Agents look for the code in the text, and read both numbers."""
    most = context_size - free
    return fault(
        name,
        f"expected at most {most} tokens for the context of {context_size}, got {n_tokens}: "
        "too large, it exceeds the available context size (context_length_exceeded)",
        "context_length_exceeded",
        type="exceed_context_size_error",
        n_prompt_tokens=n_tokens,
        n_ctx=context_size,
    )

"""The error of a tool server."""

from __future__ import annotations

from oxillama.errors import OxiLlamaError


class ToolServerError(OxiLlamaError, RuntimeError):
    """A tool server cannot be started or reached, has ended, or breaks the protocol; the message names it."""


def reason_of(error: BaseException) -> str:
    """What went wrong, in one line. Of a group of exceptions, the first one counts."""
    while getattr(error, "exceptions", None):
        error = error.exceptions[0]  # type: ignore[attr-defined]
    text = " ".join(str(error).split()).partition(" For further information visit")[0]  # as pydantic ends
    return text[:500] or type(error).__name__

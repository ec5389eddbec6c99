"""The error of a tool server."""

from __future__ import annotations

from oxillama.errors import OxiLlamaError


class ToolServerError(OxiLlamaError, RuntimeError):
    """A tool server cannot be started or reached, has ended, or violates the protocol; it is named."""


def reason_of(error: BaseException) -> str:
    """The message of an error in one line; of an exception group, the first exception's."""
    while getattr(error, "exceptions", None):
        error = error.exceptions[0]  # type: ignore[attr-defined]
    text = " ".join(str(error).split()).partition(" For further information visit")[0]  # pydantic's ending
    return text[:500] or type(error).__name__

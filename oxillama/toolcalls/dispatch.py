"""Who runs a call, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from oxillama.toolcalls.events import ToolCall


@dataclass(frozen=True)
class ToolResult:
    """What a tool returned, or why it could not.

    Attributes
    ----------
    value : what it returned: text, or what JSON can hold.
    error : the reason, where it failed; then ``value`` does not count.
    """

    value: Any = None
    error: str | None = None

    @property
    def failed(self) -> bool:
        return self.error is not None


@runtime_checkable
class ToolDispatcher(Protocol):
    """Runs calls. What goes wrong is a result, so that the model can be told of it."""

    def dispatch(self, call: ToolCall) -> ToolResult:
        """The result of a call."""


class NoOpDispatcher:
    """Runs nothing: every call's result is the error that says so."""

    def dispatch(self, call: ToolCall) -> ToolResult:
        return ToolResult(error=f"{call.name}: expected a dispatcher that runs tools, got none")

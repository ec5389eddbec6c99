"""Dispatchers, which run calls, and the results of calls."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from oxillama.base.events import ToolCall
from oxillama.errors import ConfigError
from oxillama.text.toolcalls.arguments import converted
from oxillama.text.toolcalls.definitions import Definition, definitions, name_of, signature_of


@dataclass(frozen=True)
class ToolResult:
    """The value that a tool returned, or the reason why it failed.

    Attributes:
        value: a text, or a value that JSON can hold.
        error: the reason of a failure, None without one; ``value`` means nothing beside it.
    """

    value: Any = None
    error: str | None = None

    @property
    def failed(self) -> bool:
        return self.error is not None


@runtime_checkable
class ToolDispatcher(Protocol):
    """Runs calls. An error becomes a result, so that the model sees it."""

    def dispatch(self, call: ToolCall) -> ToolResult:
        """The result of a call."""


class NoOpDispatcher:
    """Runs nothing: the result of every call is an error."""

    def dispatch(self, call: ToolCall) -> ToolResult:
        return ToolResult(error=f"{call.name}: expected a dispatcher that runs tools, got none")


class FunctionDispatcher:
    """Runs Python functions, coroutines too, with the arguments that their annotations ask for.

    Args:
        functions: functions, dataclasses and pydantic models, as `definitions` takes them. A class is made.

    Raises:
        ConfigError: one is no tool, or has the name of another one.
    """

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        for i, function in enumerate(functions):
            if isinstance(function, Mapping) or not callable(function):
                raise ConfigError(f"tools[{i}]: expected a function, got {type(function).__name__}")
        self.definitions: list[Definition] = definitions(functions)
        self._functions = {name_of(function): function for function in functions}

    def dispatch(self, call: ToolCall) -> ToolResult:
        """The result of a call. A coroutine is run to its end in an event loop of its own."""
        try:
            value = self._started(call)
            if inspect.isawaitable(value):
                value = asyncio.run(_awaited(value))
            return ToolResult(value)
        except Exception as error:
            return failure(error)

    async def adispatch(self, call: ToolCall) -> ToolResult:
        """`dispatch`, in asyncio. A function that is no coroutine blocks the event loop; see `is_async`."""
        try:
            value = self._started(call)
            return ToolResult(await value if inspect.isawaitable(value) else value)
        except Exception as error:
            return failure(error)

    def is_async(self, call: ToolCall) -> bool:
        """Whether the call is of a coroutine."""
        function = self._functions.get(call.name)
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004
        )

    def _started(self, call: ToolCall) -> Any:
        """What the function returns."""
        function = self._functions.get(call.name)
        if function is None:
            raise LookupError(f"expected one of {', '.join(self._functions)}, got {call.name[:80]!r}")
        if isinstance(function, type):
            return converted(call.args, function)
        hints, _ = signature_of(function)
        given = {
            name: converted(value, hints[name], name) if name in hints else value
            for name, value in call.args.items()
        }
        return function(**given)


async def _awaited(value: Any) -> Any:
    return await value


def failure(error: BaseException) -> ToolResult:
    """The result of a call that raised something."""
    return ToolResult(error=f"{type(error).__name__}: {error}".rstrip(": "))

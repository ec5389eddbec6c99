"""The loop of an agent: the model answers, its calls are run, and the model continues with their results."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from oxillama.base.config import checks
from oxillama.base.events import Event, ToolCall
from oxillama.errors import ConfigError
from oxillama.text.toolcalls.definitions import Definition, definitions
from oxillama.text.toolcalls.dispatch import FunctionDispatcher, ToolDispatcher, ToolResult, failure
from oxillama.text.toolcalls.openai_form import Message, answer_message, result_message

MAX_STEPS = 8
TIMEOUT = 60.0
"""Seconds that a call may take."""


class ChatEngine(Protocol):
    """What generates: an `InferenceEngine` or, for `arun_tools`, an `AsyncEngine`."""

    def stream_chat(self, messages: Iterable[Mapping[str, Any]], **fields: Any) -> Any:
        """A `Generation`."""


@dataclass(frozen=True)
class CallResult:
    """A call that was run, and what came of it."""

    call: ToolCall
    result: ToolResult


Progress = Callable[["Event | CallResult"], object]
"""Is called with each event of each answer, and with each result."""


@dataclass
class ToolRun:
    """What came of a conversation with tools.

    Attributes:
        messages: the whole conversation: what it began with, each answer, each result.
        completions: of each answer, as `Generation.result` gives them.
        results: of all calls, in the order of the calls.
        finish_reason: the reason of the last answer; "steps" if it had calls and no steps were left.
    """

    messages: list[Message]
    completions: list[Any] = field(default_factory=list)
    results: list[CallResult] = field(default_factory=list)
    finish_reason: str = ""

    @property
    def text(self) -> str:
        """The text of the last answer."""
        return self.completions[-1].text if self.completions else ""


def run_tools(
    engine: ChatEngine,
    messages: Iterable[Mapping[str, Any]],
    tools: Sequence[Any],
    dispatcher: ToolDispatcher | None = None,
    *,
    max_steps: int = MAX_STEPS,
    timeout: float | None = TIMEOUT,
    progress: Progress | None = None,
    **fields: Any,
) -> ToolRun:
    """Answers a conversation with tools: generates and runs calls until an answer has no calls.

    The calls of one answer run at the same time, each in a thread. The
    model gets an error as the result of a call that fails or takes too long. A thread cannot be ended, so a
    late call runs on, and its result is dropped.

    Args:
        engine: that generates.
        tools: as for `InferenceEngine.chat`. Without a ``dispatcher`` all must be functions or classes.
        dispatcher: runs the calls.
        max_steps: answers, at most.
        timeout: seconds for each call; None: no limit.
        progress: is called with each event as it is written, and with each `CallResult`.
        fields: of `GenerationOptions` and `InferenceEngine.stream_chat`. A ``tool_choice`` that asks for a
            call holds for the first answer; after it the model is free.

    Raises:
        ConfigError: a tool is invalid, or cannot be run; an option is out of range.

    And what ``stream_chat`` raises.
    """
    run, runner = _begun(messages, tools, dispatcher, max_steps, timeout)
    while _goes_on(run, max_steps):
        generation = engine.stream_chat(list(run.messages), tools=runner.tools, **_fields(fields, run))
        with generation:
            for event in generation.events():
                _tell(progress, event)
            calls = _answered(run, generation.result())
        for told in _told(run, calls, runner.results(calls)):
            _tell(progress, told)
    return run


async def arun_tools(
    engine: ChatEngine,
    messages: Iterable[Mapping[str, Any]],
    tools: Sequence[Any],
    dispatcher: ToolDispatcher | None = None,
    *,
    max_steps: int = MAX_STEPS,
    timeout: float | None = TIMEOUT,
    progress: Progress | None = None,
    **fields: Any,
) -> ToolRun:
    """`run_tools`, in asyncio, with an `AsyncEngine`.

    Coroutines run in the event loop, and are cancelled after the timeout; other functions run in threads.
    ``progress`` may be a coroutine.
    """
    run, runner = _begun(messages, tools, dispatcher, max_steps, timeout)
    while _goes_on(run, max_steps):
        generation = engine.stream_chat(list(run.messages), tools=runner.tools, **_fields(fields, run))
        try:
            async for event in generation.events():
                await _atell(progress, event)
            calls = _answered(run, await generation)
        finally:
            generation.cancel()
        results = await asyncio.gather(*(runner.aresult(call) for call in calls))
        for told in _told(run, calls, results):
            await _atell(progress, told)
    return run


class CallRunner:
    """Runs calls, each for so many seconds at most.

    Args:
        tools, dispatcher, timeout: as for `run_tools`.

    Attributes:
        tools: their definitions.
    """

    def __init__(
        self, tools: Sequence[Any], dispatcher: ToolDispatcher | None, timeout: float | None
    ) -> None:
        self.tools: list[Definition] = definitions(tools)
        self._dispatcher = FunctionDispatcher(tools) if dispatcher is None else dispatcher
        if not callable(getattr(self._dispatcher, "dispatch", None)):
            raise checks.refuse("dispatcher", "an object with dispatch(call)", dispatcher)
        self._timeout = timeout

    def results(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """The results of calls that run at the same time."""
        running = [self._start(call) for call in calls]
        end = None if self._timeout is None else time.monotonic() + self._timeout
        found = []
        for call, future in zip(calls, running):
            try:
                found.append(future.result(None if end is None else max(0.0, end - time.monotonic())))
            except FutureTimeout:
                found.append(self._late(call))
        return found

    async def aresult(self, call: ToolCall) -> ToolResult:
        """The result of a call, in asyncio."""
        dispatcher: Any = self._dispatcher
        blocks = isinstance(dispatcher, FunctionDispatcher) and not dispatcher.is_async(call)
        is_async = hasattr(dispatcher, "adispatch") and not blocks
        try:
            running = dispatcher.adispatch(call) if is_async else asyncio.wrap_future(self._start(call))
            return _checked(await asyncio.wait_for(running, self._timeout))
        except TimeoutError:
            return self._late(call)
        except Exception as error:
            return failure(error)

    def _start(self, call: ToolCall) -> Future[ToolResult]:
        """Runs a call in a thread."""
        future: Future[ToolResult] = Future()

        def work() -> None:
            try:
                found = _checked(self._dispatcher.dispatch(call))
            except BaseException as error:
                found = failure(error)
            with suppress(InvalidStateError, RuntimeError):  # nobody waits any more, or the loop is closed
                future.set_result(found)

        # no thread of a pool: the pool would wait for it when the process ends
        threading.Thread(target=work, name=f"oxillama tool {call.name}", daemon=True).start()
        return future

    def _late(self, call: ToolCall) -> ToolResult:
        return ToolResult(error=f"{call.name}: expected a result within {self._timeout:g} seconds, got none")


def _begun(
    messages: Iterable[Mapping[str, Any]],
    tools: Sequence[Any],
    dispatcher: ToolDispatcher | None,
    max_steps: int,
    timeout: float | None,
) -> tuple[ToolRun, CallRunner]:
    checks.integer("max_steps", max_steps, 1)
    if timeout is not None:
        checks.number("timeout", timeout, checks.ABOVE_ZERO)
    if isinstance(messages, (str, bytes, Mapping)):
        raise checks.refuse("messages", "a list of messages", messages)
    return ToolRun([dict(message) for message in messages]), CallRunner(tools, dispatcher, timeout)


def _goes_on(run: ToolRun, max_steps: int) -> bool:
    """Whether the model answers once more."""
    if not run.completions:
        return True
    run.finish_reason = run.completions[-1].finish_reason
    if run.finish_reason != "tool_calls":
        return False
    if len(run.completions) >= max_steps:
        run.finish_reason = "steps"
    return run.finish_reason == "tool_calls"


def _fields(fields: Mapping[str, Any], run: ToolRun) -> dict[str, Any]:
    """The options of the next answer."""
    if "tools" in fields:
        raise ConfigError("tools: expected them once, got them twice")
    if run.completions and fields.get("tool_choice", "auto") not in ("auto", "none"):
        return {**fields, "tool_choice": "auto"}
    return dict(fields)


def _answered(run: ToolRun, completion: Any) -> list[ToolCall]:
    """Notes an answer and returns the calls to run: no calls if the answer was cut."""
    n_before = sum(len(message.get("tool_calls") or ()) for message in run.messages)
    calls = completion.tool_calls if completion.finish_reason == "tool_calls" else []
    run.messages.append(answer_message(completion.text, completion.reasoning, calls, n_before))
    run.completions.append(completion)
    return list(calls)


def _told(run: ToolRun, calls: Sequence[ToolCall], results: Iterable[ToolResult]) -> list[CallResult]:
    """Notes results, as messages too."""
    ids = [call["id"] for call in run.messages[-1].get("tool_calls", ())] if calls else []
    found = []
    for id, call, result in zip(ids, calls, results):
        try:
            message = result_message(id, call.name, result)
        except (TypeError, ValueError, RecursionError) as error:
            result = failure(error)
            message = result_message(id, call.name, result)
        run.messages.append(message)
        found.append(CallResult(call, result))
    run.results += found
    return found


def _checked(result: Any) -> ToolResult:
    if not isinstance(result, ToolResult):
        raise TypeError(f"dispatch: expected a ToolResult, got a {type(result).__name__}")
    return result


def _tell(progress: Progress | None, event: Event | CallResult) -> None:
    if progress is not None:
        progress(event)


async def _atell(progress: Progress | None, event: Event | CallResult) -> None:
    if progress is not None:
        told = progress(event)
        if inspect.isawaitable(told):
            await told

"""`ToolCallDetector`, `ToolCall`, and who runs calls."""

from __future__ import annotations

import pytest

from oxillama.errors import ConfigError
from oxillama.text.toolcalls import (
    NoOpDispatcher,
    ToolCall,
    ToolCallDetector,
    ToolCallGrammar,
    ToolDispatcher,
    ToolResult,
)

CALL = '<tool_call>{"name": "ping", "arguments": {"a": 1}}</tool_call>'


def test_calls_come_when_they_are_complete() -> None:
    detector = ToolCallDetector(ToolCallGrammar.Qwen)
    for char in f"Hm. {CALL[:-13]}":
        assert detector.feed(char) is None
    assert detector.feed(CALL[-13:]) == ToolCall("ping", {"a": 1})
    assert detector.feed("") is None
    assert detector.finish() is None


def test_several_calls_of_one_piece() -> None:
    detector = ToolCallDetector(ToolCallGrammar.Qwen)
    assert detector.feed(CALL + CALL.replace("1", "2")) == ToolCall("ping", {"a": 1})
    assert detector.feed("") == ToolCall("ping", {"a": 2})
    assert detector.feed("") is None


def test_the_end_of_the_message() -> None:
    detector = ToolCallDetector(ToolCallGrammar.Custom("<<", ">>"))
    text = CALL.removeprefix("<tool_call>").removesuffix("</tool_call>")
    assert detector.feed(f"<<[{text}, {text}]") == ToolCall("ping", {"a": 1})
    assert detector.finish() == ToolCall("ping", {"a": 1})
    assert detector.finish() is None


def test_reset() -> None:
    detector = ToolCallDetector(ToolCallGrammar.Qwen, in_reasoning=True)
    assert detector.feed(CALL) is None
    detector.reset()
    assert detector.feed(f"</think>{CALL}{CALL}") is not None
    detector.reset()
    assert detector.feed("</think>") is None


def test_arguments_by_either_name() -> None:
    assert ToolCall("ping", {"a": 1}) == ToolCall("ping", arguments={"a": 1})
    assert ToolCall("ping").arguments == ToolCall("ping").args == {}
    assert ToolCall("ping", {"a": "é"}).text == '{"a": "é"}'
    with pytest.raises(ConfigError, match="arguments: expected None beside args"):
        ToolCall("ping", {}, arguments={})


def test_dispatchers() -> None:
    class Doubling:
        def dispatch(self, call: ToolCall) -> ToolResult:
            return ToolResult(2 * call.args["a"])

    call = ToolCall("ping", {"a": 1})
    dispatchers: list[ToolDispatcher] = [Doubling(), NoOpDispatcher()]
    assert all(isinstance(dispatcher, ToolDispatcher) for dispatcher in dispatchers)
    assert dispatchers[0].dispatch(call) == ToolResult(2)
    nothing = dispatchers[1].dispatch(call)
    assert nothing.failed
    assert nothing.error is not None
    assert "ping: expected a dispatcher" in nothing.error
    assert not ToolResult(None).failed

"""Events of an answer in OpenAI's form: deltas of a stream, and the message that they come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oxillama.events import ArgumentsPart, CallFailed, CallStart, Event, ReasoningPart, TextPart
from oxillama.toolcalls.conversation import call_id


def delta_of(event: Event | None, first: int) -> dict[str, Any]:
    """OpenAI's delta of an event; {} for one that tells nothing new.

    Reasoning stands under both names that clients look for. What looked like a call and had no name is text.
    Of a call that breaks off later, the arguments were sent; the finish reason says that it did.

    Parameters
    ----------
    first : number of the first call that the model gives no id, among those of the conversation.
    """
    if isinstance(event, TextPart):
        return {"content": event.text}
    if isinstance(event, ReasoningPart):
        return {"reasoning_content": event.text, "reasoning": event.text}
    if isinstance(event, CallStart):
        function = {"name": event.name, "arguments": ""}
        id = event.id or call_id(first + event.index)
        return {"tool_calls": [{"index": event.index, "id": id, "type": "function", "function": function}]}
    if isinstance(event, ArgumentsPart):
        return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
    if isinstance(event, CallFailed) and event.index is None:
        return {"content": event.text}
    return {}


def whole_message(deltas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The message that deltas come to; its content is None if it has calls alone."""
    texts = {name: "".join(delta.get(name, "") for delta in deltas) for name in ("content", "reasoning")}
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        for part in delta.get("tool_calls", ()):
            function = part["function"]
            if "id" in part:
                calls[part["index"]] = {"id": part["id"], "type": "function", "function": dict(function)}
            else:
                calls[part["index"]]["function"]["arguments"] += function["arguments"]
    content = texts["content"] or (None if calls else "")
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if texts["reasoning"]:
        message |= {"reasoning_content": texts["reasoning"], "reasoning": texts["reasoning"]}
    return message | ({"tool_calls": [calls[index] for index in sorted(calls)]} if calls else {})

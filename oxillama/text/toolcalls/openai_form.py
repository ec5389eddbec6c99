"""Answers and results of tools as messages in OpenAI's form, whole or as deltas of a stream."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import string
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from oxillama.base.events import (
    ArgumentsPart,
    CallFailed,
    CallStart,
    Event,
    ReasoningPart,
    TextPart,
    ToolCall,
)
from oxillama.text.toolcalls.dispatch import ToolResult

Message = dict[str, Any]
"""``role``, ``content``, ``reasoning_content``, ``tool_calls`` and ``tool_call_id``, in OpenAI's form."""


LETTERS = string.digits + string.ascii_letters
LENGTH = 9
"""Letters and digits of an id, which Mistral's templates ask for, and other templates take."""


def call_id(number: int, stem: str = "") -> str:
    """The id of a call that the model gave no id: `LENGTH` letters and digits.

    Args:
        number: of the call, in the answer; without a ``stem`` in the whole conversation.
        stem: text that no other answer of the conversation has (`id_stem`).
    """
    if not stem:
        return f"call{number:05d}"
    left, found = int.from_bytes(hashlib.sha256(f"{stem}/{number}".encode()).digest(), "big"), ""
    for _ in range(LENGTH):
        left, digit = divmod(left, len(LETTERS))
        found += LETTERS[digit]
    return found


def id_stem(prompt: Sequence[int], *more: Any) -> str:
    """A text for `call_id` that follows from a prompt's token ids and from what else tells answers apart.

    The same request gets the same ids, so that a conversation can be repeated. ``more`` are plain values.
    """
    return hashlib.sha256(array("i", prompt).tobytes() + repr(more).encode()).hexdigest()


class CallIds:
    """The ids of the calls of one answer.

    Args:
        origin: returns a stem for `call_id`, and the ids of earlier calls. It is called for the first call.
    """

    def __init__(self, origin: Callable[[], tuple[str, Iterable[str]]] = lambda: ("", ())) -> None:
        self._origin = origin
        self._taken: set[str] | None = None

    def of(self, number: int, own: str | None) -> str:
        """The id of the answer's call of this number.

        Args:
            own: the id that the model gave the call; it is not used if an earlier call has it.
        """
        if self._taken is None:
            self._stem, taken = self._origin()
            self._taken = set(taken)
        found = own if own and own not in self._taken else call_id(number, self._stem)
        self._taken.add(found)
        return found


def answer_message(
    text: str,
    reasoning: str,
    calls: Sequence[ToolCall],
    first: int = 0,
    origin: tuple[Sequence[int], int | None] | None = None,
) -> Message:
    """The message of the assistant.

    Args:
        first: number of calls in the conversation before it; calls without an id are numbered from there.
        origin: `Generation.origin`, from which calls without an id get ids that no other answer of the
            conversation has. None numbers them.
    """
    ids = CallIds() if origin is None else CallIds(lambda: (id_stem(*origin), ()))
    message: Message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": ids.of(first + i, call.id),
                "type": "function",
                "function": {"name": call.name, "arguments": call.text},
            }
            for i, call in enumerate(calls)
        ]
    return message


def delta_of(event: Event | None, ids: CallIds) -> dict[str, Any]:
    """OpenAI's delta of an event; {} for an event without news.

    Reasoning has both names that clients look for. A text that looked like a call and had no name is text.
    The arguments of a call that breaks off later were sent; the finish reason says that it broke off.

    Args:
        ids: of the calls of the answer.
    """
    if isinstance(event, TextPart):
        return {"content": event.text}
    if isinstance(event, ReasoningPart):
        return {"reasoning_content": event.text, "reasoning": event.text}
    if isinstance(event, CallStart):
        function = {"name": event.name, "arguments": ""}
        id = ids.of(event.index, event.id)
        return {"tool_calls": [{"index": event.index, "id": id, "type": "function", "function": function}]}
    if isinstance(event, ArgumentsPart):
        return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
    if isinstance(event, CallFailed) and event.index is None:
        return {"content": event.text}
    return {}


def whole_message(deltas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The message that deltas add up to; a message with calls alone has the content None."""
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


def result_message(id: str, name: str, result: ToolResult) -> Message:
    """The message with the result of a call for the model."""
    content = f"Error: {result.error}" if result.error is not None else text_of_value(result.value)
    return {"role": "tool", "tool_call_id": id, "name": name, "content": content}


def text_of_value(value: Any) -> str:
    """The value of a tool as text. Raises TypeError, ValueError for a value that JSON cannot hold."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):  # pydantic
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    if hasattr(value, "tolist"):  # NumPy
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"expected what JSON can hold, got a {type(value).__name__}")

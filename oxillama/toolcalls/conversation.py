"""Messages of a conversation with calls: what an answer becomes, and what a chat template is given of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from oxillama.chat.template import ChatTemplate
from oxillama.config import checks
from oxillama.errors import ChatTemplateError
from oxillama.toolcalls.dispatch import ToolResult
from oxillama.toolcalls.events import ToolCall

Message = dict[str, Any]
"""``role``, ``content``, ``reasoning_content``, ``tool_calls`` and ``tool_call_id``, as OpenAI has them."""

_NEEDLE = {"needle": [1, "n"]}


def call_id(number: int) -> str:
    """The id of a call that the model gave none: 9 letters and digits, as Mistral's templates want it."""
    return f"call{number:05d}"


def answer_message(text: str, reasoning: str, calls: Sequence[ToolCall], first: int = 0) -> Message:
    """The message of the assistant.

    Parameters
    ----------
    first : calls of the conversation before it; those without an id are numbered from there.
    """
    message: Message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id or call_id(first + i),
                "type": "function",
                "function": {"name": call.name, "arguments": call.text},
            }
            for i, call in enumerate(calls)
        ]
    return message


def result_message(id: str, name: str, result: ToolResult) -> Message:
    """The message that tells the model what came of a call."""
    content = f"Error: {result.error}" if result.error is not None else text_of_value(result.value)
    return {"role": "tool", "tool_call_id": id, "name": name, "content": content}


def text_of_value(value: Any) -> str:
    """What a tool returned, as text. Raises TypeError, ValueError for what JSON cannot hold."""
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


def for_template(messages: Sequence[Any], template: ChatTemplate) -> list[Any]:
    """Messages as a template takes them: arguments of calls as text or as objects, reasoning by its names.

    Arguments stay the text that the model wrote where the template writes text as it is, so that the prompt
    goes on as the model's own turn did.

    Raises
    ------
    ChatTemplateError : the arguments of a call are no object.
    """
    told = [message for message in messages if isinstance(message, Mapping)]
    if not any(message.get("tool_calls") or message.get("reasoning_content") for message in told):
        return list(messages)
    as_text = takes_text(template)
    return [
        _converted(message, f"messages[{i}]", as_text, template) if isinstance(message, Mapping) else message
        for i, message in enumerate(messages)
    ]


def takes_text(template: ChatTemplate) -> bool:
    """Whether a template writes the arguments of calls as they are where they are text."""
    written = json.dumps(_NEEDLE)
    call = {"id": call_id(0), "type": "function", "function": {"name": "f", "arguments": written}}
    messages: list[Message] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id(0), "name": "f", "content": "b"},
    ]
    try:
        return written in template.render(messages)
    except ChatTemplateError:
        return False


def _converted(message: Mapping[str, Any], where: str, as_text: bool, template: ChatTemplate) -> Message:
    found = dict(message)
    reasoning = found.get("reasoning_content")
    if reasoning and "thinking" not in found and ".thinking" in template.source:
        # gpt-oss takes text or reasoning beside a call
        both = found.get("content") and found.get("tool_calls") and "<|channel|>" in template.source
        if not both:
            found["thinking"] = reasoning
    calls = found.get("tool_calls")
    if not calls:
        return found
    if isinstance(calls, (str, bytes, Mapping)) or not isinstance(calls, Sequence):
        raise ChatTemplateError(f"{where}.tool_calls: expected a list, got {checks.shown(calls)}")
    found["tool_calls"] = [_call(call, f"{where}.tool_calls[{i}]", as_text) for i, call in enumerate(calls)]
    return found


def _call(call: Any, where: str, as_text: bool) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ChatTemplateError(f"{where}: expected a function with a name, got {checks.shown(call)}")
    arguments = function.get("arguments")
    try:
        if as_text and not isinstance(arguments, str):
            arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
        elif not as_text and not isinstance(arguments, Mapping):
            arguments = json.loads(arguments or "{}")
            if not isinstance(arguments, dict):
                raise ValueError("no object")
    except (TypeError, ValueError, RecursionError) as error:
        got = checks.shown(arguments)
        raise ChatTemplateError(f"{where}: expected arguments that are an object, got {got}") from error
    return {**call, "function": {**function, "arguments": arguments}}

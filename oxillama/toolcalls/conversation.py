"""Messages of a conversation with calls: what an answer becomes, and what a chat template is given of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any

from oxillama.chat.template import ChatTemplate
from oxillama.config import checks
from oxillama.errors import ChatTemplateError, ConfigError
from oxillama.events import ArgumentsPart, CallFailed, CallStart, Event, ReasoningPart, TextPart, ToolCall
from oxillama.toolcalls.dispatch import ToolResult
from oxillama.toolcalls.formats import grammar_of_template
from oxillama.toolcalls.patterns import pattern
from oxillama.toolcalls.tool_grammar import ToolCallGrammar

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
    goes on as the model's own turn did. Calls that the template leaves out become part of the content, as the
    model writes them.

    Raises
    ------
    ChatTemplateError : the arguments of a call are no object; the template leaves calls out, and writing them
        is not known for their format.
    """
    told = [message for message in messages if isinstance(message, Mapping)]
    if not any(message.get("tool_calls") or message.get("reasoning_content") for message in told):
        return list(messages)
    as_text = takes_text(template)
    form = grammar_of_template(template.source)
    left_out = form.has_calls and leaves_calls_out(template)
    found: list[Any] = []
    for i, message in enumerate(messages if left_out or takes_many(template) else one_by_one(messages)):
        if isinstance(message, Mapping):
            message = _converted(message, f"messages[{i}]", as_text and not left_out, template)
            if left_out and message.get("tool_calls"):
                said = message.get("content") or ""
                texts = [said] if isinstance(said, str) else [part["text"] for part in said]
                calls = written_calls(form, message["tool_calls"])
                message = {**message, "content": "\n".join(filter(None, [*texts, calls]))}
        found.append(message)
    return found


def takes_text(template: ChatTemplate) -> bool:
    """Whether a template writes the arguments of calls as they are where they are text.

    Where it writes text and objects in different forms, objects are what the model's own turn has.
    """
    written = json.dumps(_NEEDLE)
    if written not in (_with_call(template, written) or ""):
        return False
    of_object = _with_call(template, _NEEDLE)
    return of_object is None or '{"needle"' in of_object


def leaves_calls_out(template: ChatTemplate) -> bool:
    """Whether a template writes nothing of calls."""
    shown = [_with_call(template, _NEEDLE), _with_call(template, json.dumps(_NEEDLE))]
    return None not in shown and not any("needle" in str(text) for text in shown)


def takes_many(template: ChatTemplate) -> bool:
    """Whether a template writes several calls of one message, if it writes one."""
    ways = (_NEEDLE, json.dumps(_NEEDLE))
    one, two = (max((_with_call(template, way, n) or "").count("needle") for way in ways) for n in (1, 2))
    return not one or two > one


def one_by_one(messages: Sequence[Any]) -> list[Any]:
    """Messages of which each has one call, with the results of that call behind it."""
    found: list[Any] = []
    left = list(messages)
    while left:
        message = left.pop(0)
        calls = message.get("tool_calls") if isinstance(message, Mapping) else None
        if not isinstance(calls, list) or len(calls) < 2:
            found.append(message)
            continue
        results = list(takewhile(_is_result, left))
        del left[: len(results)]
        for i, call in enumerate(calls):
            rest = {} if i == 0 else {"content": "", "reasoning_content": None}
            found.append({**message, **rest, "tool_calls": [call]})
            id = call.get("id") if isinstance(call, Mapping) else None
            own = [result for result in results if result.get("tool_call_id") == id] or results[:1]
            found += own
            results = [result for result in results if not any(result is one for one in own)]
        found += results
    return found


def _is_result(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "tool"


def _with_call(template: ChatTemplate, arguments: Any, n: int = 1) -> str | None:
    """A conversation with calls as a template writes it; None if it refuses these arguments, or so many."""
    function = {"name": "f", "arguments": arguments}
    calls = [{"id": call_id(i), "type": "function", "function": function} for i in range(n)]
    results = [{"role": "tool", "tool_call_id": call["id"], "name": "f", "content": "b"} for call in calls]
    messages: list[Message] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *results,
    ]
    try:
        return template.render(messages)
    except ChatTemplateError:
        return None


def written_calls(form: ToolCallGrammar, calls: Sequence[Mapping[str, Any]]) -> str:
    """Calls with objects as arguments, in the text of a format: JSON or Python between delimiters.

    Raises ChatTemplateError for other formats.
    """
    parts = pattern(form.calls[0]).parts
    is_python = "$keywords" in parts
    if "$number" in parts or not (is_python or pattern(form.calls[0]).is_object):
        wanted = f"a chat template that writes calls, as it has the format {form.name}"
        raise ChatTemplateError(f"tool_calls: expected {wanted}, got another")
    items = []
    for call in calls:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        words = {"~": " ", "$name": name, "$json": _shown(arguments)}
        words["$keywords"] = ", ".join(f"{key}={_shown(value)}" for key, value in arguments.items())
        items.append("".join(words.get(part, part) for part in parts))
    open, line = form.opens[0].removesuffix("["), "" if is_python or form.opens[0].endswith("[") else "\n"
    inside = [f"[{', '.join(items)}]"] if form.listed else items
    return "\n".join(f"{open}{line}{text}{line}{form.close}".rstrip() for text in inside)


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def tool_variables(template: ChatTemplate, tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """The variables in which a template takes tools; None for none. Raises ConfigError if it takes none."""
    known = template.variables
    if {"functions", "datetime"} <= known and "tools" not in known:  # firefunction: as text, with the time
        text = json.dumps(list(tools), indent=4, ensure_ascii=False) if tools else ""
        return {"functions": text, "datetime": datetime.now().strftime("%Y-%m-%d %H:%M:%S")}
    if tools is None:
        return {}
    if "tools" in known:
        return {"tools": list(tools)}
    if "xml_tools" in known:
        return {"xml_tools": list(tools)}
    raise ConfigError("tools: expected a chat template that tells the model of them, got another")


def _converted(message: Mapping[str, Any], where: str, as_text: bool, template: ChatTemplate) -> Message:
    found = dict(message)
    reasoning = found.get("reasoning_content")
    if reasoning and "thinking" not in found and ".thinking" in template.source:
        # gpt-oss takes text or reasoning beside a call
        both = found.get("content") and found.get("tool_calls") and "<|channel|>" in template.source
        if not both:
            found["thinking"] = reasoning
    if reasoning and ".reasoning" in template.source and ".reasoning_content" not in template.source:
        found.setdefault("reasoning", reasoning)
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

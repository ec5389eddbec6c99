"""Step 1 of a prompt: messages of any client become canonical messages, in the forms that a template reads.

`canonical` knows how clients write the same message in different ways. Where a template cannot show a
canonical message, the rules of `oxillama.text.chat.rules` change the message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from oxillama.base.config import checks
from oxillama.errors import ChatTemplateError
from oxillama.text.chat.needs import needs_of
from oxillama.text.chat.template import ChatTemplate
from oxillama.text.tokenizer.escapes import Escaper

Message = dict[str, Any]
"""``role``, ``content``, ``reasoning_content``, ``tool_calls`` and ``tool_call_id``, in OpenAI's form."""

TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of content parts that are text."""

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Names under which clients send the reasoning of an assistant's message."""


def canonical(messages: Sequence[Any], template: ChatTemplate) -> list[Message]:
    """Messages with one form for what clients write in several forms.

    - A content of None, or no content, is "", or the text of a refusal. Parts of text are one text with line
      breaks between them, or stay parts if the template writes parts.
    - Fields without a value go, and an empty list of calls.
    - The role "developer" is "system" if the template does not name it. The role "function" is "tool".
    - Reasoning under any name, and in parts of the content, is ``reasoning_content``, and has the name that
      the template reads, too.
    - Results are in the order of their calls, and have the ids and names of their calls.
    - Arguments of calls are text or objects, as the template needs. Arguments that are no JSON object stay
      the text that they are.

    Raises:
        ConfigError: a role is no string, or a part of a content is not text; the message names the part.
        ChatTemplateError: a message is no mapping; a message that is not the assistant's has no content;
            calls are no list; a call has no function with a name.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ChatTemplateError(f"messages: expected a list of mappings, got {type(messages).__name__}")
    found = [_canonical(message, f"messages[{i}]", template) for i, message in enumerate(messages)]
    return _with_results_ordered(found) if any(map(calls_of, found)) else found


def calls_of(message: Message) -> list[Any]:
    """The calls of a canonical message."""
    return message.get("tool_calls") or []


def escaped(value: Any, escaper: Escaper) -> Any:
    """A copy of messages, tools or variables in which each text is escaped, names of members included."""
    if isinstance(value, str):
        return escaper.escape(value) if escaper.candidates.search(value) else value
    if isinstance(value, Mapping):
        return {escaped(name, escaper): escaped(item, escaper) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [escaped(item, escaper) for item in value]
    return value


def is_text(message: Any) -> bool:
    """Whether all parts of a message's content are text, as far as their types say."""
    content = message.get("content") if isinstance(message, Mapping) else None
    parts = content if isinstance(content, (list, tuple)) else ()
    return all(isinstance(part, Mapping) and part.get("type") in (*TEXT_PARTS, *_OTHERS) for part in parts)


def text_parts(where: str, parts: Sequence[Any]) -> list[dict[str, Any]]:
    """The parts of a content, as templates know them. Raises ConfigError for a part that is not text."""
    found = []
    for j, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(kind, str) or kind not in (*TEXT_PARTS, "refusal"):
            raise checks.refuse(f"{where}[{j}]", "a part of type text", part if kind is None else kind)
        key = "refusal" if kind == "refusal" else "text"
        if not isinstance(part.get(key), str):
            raise checks.refuse(f"{where}[{j}].{key}", "a string", part.get(key))
        rest = {name: value for name, value in part.items() if name != "refusal"}
        found.append({**rest, "type": "text", "text": part[key]})
    return found


_OTHERS = ("refusal", "thinking", "reasoning")
"""Types of parts without pictures and sounds, besides `TEXT_PARTS`."""


def _canonical(message: Any, where: str, template: ChatTemplate) -> Message:
    if not isinstance(message, Mapping):
        raise ChatTemplateError(f"{where}: expected a mapping, got {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise checks.refuse(f"{where}.role", "a string", role)
    if "content" not in message and role != "assistant":
        raise ChatTemplateError(f"{where}: expected content or tool_calls, got neither")
    found = {key: value for key, value in message.items() if value is not None}
    if role == "developer" and role not in template.source:
        found["role"] = role = "system"
    elif role == "function":
        found["role"] = role = "tool"
    reasoning = ""
    if isinstance(content, (list, tuple)):
        reasoning = "".join(map(_reasoning_of, content))
        parts = text_parts(f"{where}.content", [part for part in content if not _reasoning_of(part)])
        is_list = bool(parts) and needs_of(template).writes_parts(role)
        content = parts if is_list else "\n".join(part["text"] for part in parts)
    elif content is not None and not isinstance(content, str):
        found_type = type(content).__name__
        raise ChatTemplateError(f"{where}.content: expected a string or a list of parts, got {found_type}")
    refusal = found.pop("refusal", "")
    found["content"] = content or refusal
    if role == "assistant":
        found = _with_reasoning(found, reasoning, template)
    if "function_call" in found:  # the form before `tool_calls`
        found["tool_calls"] = [{"type": "function", "function": found.pop("function_call")}]
    if "tool_calls" in found:
        found["tool_calls"] = _canonical_calls(found["tool_calls"], where, template)
        if not found["tool_calls"]:
            del found["tool_calls"]
    return found


def _reasoning_of(part: Any) -> str:
    """The reasoning in a part of a content; "" for a part of another type."""
    if not isinstance(part, Mapping) or part.get("type") not in ("thinking", "reasoning"):
        return ""
    found = part.get("thinking", part.get("reasoning", part.get("text", "")))
    if isinstance(found, (list, tuple)):  # Mistral's: parts of text
        found = "".join(str(each.get("text", "")) for each in found if isinstance(each, Mapping))
    return found if isinstance(found, str) else ""


def _with_reasoning(message: Message, reasoning: str, template: ChatTemplate) -> Message:
    """The message with its reasoning under ``reasoning_content`` and the name that the template reads."""
    named = {name: message.pop(name) for name in REASONING if name in message}
    texts = {name: value for name, value in named.items() if isinstance(value, str)}
    blocks = "".join(
        _reasoning_of({"type": "thinking", **each})
        for value in named.values()
        if isinstance(value, (list, tuple))
        for each in value
        if isinstance(each, Mapping)
    )
    reasoning = next(filter(None, texts.values()), "") or reasoning or blocks
    if not reasoning:
        return message
    message["reasoning_content"] = reasoning
    source = template.source
    if ".thinking" in source:
        # gpt-oss takes text or reasoning of a message with a call, not both
        both = message["content"] and message.get("tool_calls") and "<|channel|>" in source
        if "thinking" in texts or not both:
            message["thinking"] = texts.get("thinking", reasoning)
    if ".reasoning" in source and ".reasoning_content" not in source:
        message["reasoning"] = texts.get("reasoning", reasoning)
    return message


def _canonical_calls(calls: Any, where: str, template: ChatTemplate) -> list[Any]:
    if isinstance(calls, (str, bytes, Mapping)) or not isinstance(calls, Sequence):
        raise ChatTemplateError(f"{where}.tool_calls: expected a list, got {checks.shown(calls)}")
    as_text = bool(calls) and needs_of(template).takes_text
    return [_call(call, f"{where}.tool_calls[{i}]", as_text) for i, call in enumerate(calls)]


def _call(call: Any, where: str, as_text: bool) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ChatTemplateError(f"{where}: expected a function with a name, got {checks.shown(call)}")
    arguments = function.get("arguments")
    if arguments is None or arguments == "":
        arguments = {}
    try:
        if as_text and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        elif not as_text and isinstance(arguments, str):
            parsed = json.loads(arguments)
            arguments = parsed if isinstance(parsed, dict) else arguments
    except (TypeError, ValueError, RecursionError):  # cut off: shown as it is
        arguments = arguments if isinstance(arguments, str) else str(arguments)
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def _with_results_ordered(messages: Sequence[Message]) -> list[Message]:
    """Messages whose results have the ids and names of their calls, and the order of the calls."""
    found: list[Message] = []
    i = 0
    while i < len(messages):
        message = messages[i]
        i += 1
        calls = calls_of(message)
        if not calls:
            found.append(message)
            continue
        first = i
        while i < len(messages) and messages[i].get("role") == "tool":
            i += 1
        calls = [
            {**call, "id": str(call.get("id") or f"call{len(found):04d}{j}")} for j, call in enumerate(calls)
        ]
        found += [{**message, "tool_calls": calls}, *_results_of(calls, messages[first:i])]
    return found


def _results_of(calls: Sequence[Any], results: Sequence[Message]) -> list[Message]:
    """The results of calls, by the order of the calls; a result without an id is the next open call's."""
    by_id = {call["id"]: (j, call["function"]["name"]) for j, call in enumerate(calls)}
    taken = {result.get("tool_call_id") for result in results}
    open_ids = [call["id"] for call in calls if call["id"] not in taken]
    named = []
    for result in results:
        id = result.get("tool_call_id") or (open_ids.pop(0) if open_ids else None)
        if id in by_id:
            result = {"name": by_id[id][1], **result, "tool_call_id": id}
        named.append(result)
    return sorted(named, key=lambda result: by_id.get(result.get("tool_call_id"), (len(calls),))[0])

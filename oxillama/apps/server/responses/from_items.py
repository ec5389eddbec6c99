"""Conversion of the items and tools of OpenAI's responses to chat messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oxillama.apps.server.chats import allowed_tools, function_call, tool_result
from oxillama.apps.server.errors import invalid, refuse_others, unsupported
from oxillama.apps.server.responses.namespaces import Functions
from oxillama.engine.features.media.parts import Placed

FIELDS: dict[str, tuple[str, ...]] = {
    "message": ("role", "content", "phase"),
    "function_call": ("call_id", "name", "arguments", "parsed_arguments", "caller", "namespace"),
    "function_call_output": ("call_id", "output", "name", "caller", "namespace"),
    "reasoning": ("summary", "content"),
}
"""Kinds of items, and their fields besides `ALL_HAVE`. OpenAI's SDKs add ``parsed_arguments`` to a call."""

ALL_HAVE = ("type", "id", "status")

DIRECT = {"type": "direct"}
"""The caller of a function that the model itself has called."""

ROLES = ("user", "assistant", "system", "developer")

TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Kinds of parts of a content, and the field with their text."""

BETWEEN = "\n\n"
"""Stands between instructions that become one message."""


def listed(given: Any) -> list[Any]:
    """The items of an input. Raises ApiError if it is neither a text nor a list of at least one."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if isinstance(given, list) and given:
        return given
    raise invalid("input", "a text or a list of items", given)


def conversation_messages(
    instructions: str | None,
    before: Sequence[Any],
    items: Sequence[Any],
    functions: Functions | None = None,
) -> list[dict[str, Any]]:
    """Messages in OpenAI's form for chats.

    What the model has reasoned, said and called, one behind the other, is one message. So are instructions
    and the first items if they instruct, too: many templates know one such message, at the beginning.

    Args:
        before: items of an earlier response, which have been checked.
        functions: of the request, with the names of functions in namespaces.

    Raises:
        ApiError: an item is malformed, or of an unsupported kind.
    """
    found: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    functions = Functions(()) if functions is None else functions
    if instructions:
        found.append({"role": "system", "content": instructions})
    for i, item in enumerate([*before, *items], -len(before)):
        where = f"input[{i}]"
        kind = checked_kind(where, item)
        last: dict[str, Any] = found[-1] if found else {"role": ""}
        if kind == "message":
            role, read = item["role"], content_of if item["role"] == "user" else text_of
            text: Any = read(f"{where}.content", item.get("content"))
            role = "system" if role == "developer" else role
            if role == "system" and all(message["role"] == "system" for message in found) and found:
                last["content"] += BETWEEN + text
            elif role == "assistant" and is_open(last, "content", "tool_calls"):
                last["content"] = text
            else:
                found.append({"role": role, "content": text})
        elif kind == "function_call_output":
            if item.get("name"):
                names.setdefault(item["call_id"], functions.name(item["name"], item.get("namespace")))
            found.append(tool_result(item["call_id"], content_of(f"{where}.output", item["output"]), names))
        elif kind == "function_call":
            name = functions.name(item["name"], item.get("namespace"))
            names[item["call_id"]] = name
            if last["role"] != "assistant":
                last = {"role": "assistant", "content": ""}
                found.append(last)
            call = function_call(item["call_id"], name, item["arguments"])
            last.setdefault("tool_calls", []).append(call)
        else:
            text = reasoning_of(where, item)
            if is_open(last, "content", "tool_calls"):
                last["reasoning_content"] += "\n" + text
            elif text:
                found.append({"role": "assistant", "content": "", "reasoning_content": text})
    return found


def is_open(message: Mapping[str, Any], *names: str) -> bool:
    """Whether a message is the assistant's, with reasoning and without the named fields."""
    return "reasoning_content" in message and not any(message.get(name) for name in names)


def checked_kind(where: str, item: Any) -> str:
    """The kind of an item. Raises ApiError for one that is not supported, or has wrong fields."""
    kind = item.get("type", "message" if "role" in item else None) if isinstance(item, dict) else None
    if not isinstance(kind, str) or kind not in FIELDS:
        raise invalid(where, f"an item of type {', '.join(FIELDS)}", item if kind is None else kind)
    refuse_others(where, item, (*ALL_HAVE, *FIELDS[kind]))
    texts = {"function_call": ("call_id", "name", "arguments"), "function_call_output": ("call_id",)}
    for name in ("call_id", "name", "arguments", "namespace") if kind in texts else ():
        if not isinstance(item.get(name), str) and (name in texts[kind] or item.get(name) is not None):
            raise invalid(f"{where}.{name}", "a text", item.get(name))
    if kind == "message" and (not isinstance(item.get("role"), str) or item["role"] not in ROLES):
        raise invalid(f"{where}.role", f"one of {', '.join(ROLES)}", item.get("role"))
    if item.get("caller") not in (None, DIRECT):
        raise unsupported(f"{where}.caller", f"{DIRECT}", item["caller"])
    if kind == "function_call_output" and "output" not in item:
        raise invalid(f"{where}.output", "a text or a list of parts", None)
    return kind


def content_of(where: str, content: Any) -> str | list[Any]:
    """The text of a content, or parts in OpenAI's form if some are media. Raises ApiError."""
    if not isinstance(content, list):
        return text_of(where, content)
    parts: list[Any] = []
    for i, part in enumerate(content):
        place = f"{where}[{i}]"
        if isinstance(part, dict) and part.get("type") in ("input_image", "input_audio"):
            parts.append(Placed(place, part))
        else:
            parts.append({"type": "text", "text": text_of(where, [part], i)})
    is_text = not any(isinstance(part, Placed) for part in parts)
    return "\n".join(part["text"] for part in parts) if is_text else parts


def text_of(where: str, content: Any, first: int = 0) -> str:
    """The text of a content, with line breaks between its parts, whose numbers begin with ``first``.

    Raises ApiError for a content that is no text.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(where, "a text or a list of parts", content)
    found = []
    for i, part in enumerate(content, first):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in TEXTS or not isinstance(part.get(TEXTS[kind]), str):
            raise invalid(f"{where}[{i}]", "a part of type input_text or output_text", kind)
        found.append(part[TEXTS[kind]])
    return "\n".join(found)


def reasoning_of(where: str, item: Mapping[str, Any]) -> str:
    """The text of reasoning: its content, or else its summary."""
    for name, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        parts = item.get(name) or []
        if not isinstance(parts, list):
            raise invalid(f"{where}.{name}", "a list of parts", parts)
        for i, part in enumerate(parts):
            if (
                not isinstance(part, dict)
                or part.get("type") != kind
                or not isinstance(part.get("text"), str)
            ):
                raise invalid(f"{where}.{name}[{i}]", f"a part of type {kind}", part)
        if parts:
            return "\n".join(part["text"] for part in parts)
    return ""


def chosen_tools(
    choice: str | Mapping[str, Any], functions: Functions
) -> tuple[list[dict[str, Any]], str | dict[str, Any]]:
    """The functions that may be called, and the choice among them as `GenerationOptions` has it.

    Raises:
        ApiError: the choice is of a kind that is not supported, or names a tool that there is not.
    """
    tools = functions.definitions
    if isinstance(choice, str):
        return list(tools), choice
    kind = choice.get("type")
    if kind == "function":
        return list(tools), {"type": "function", "function": {"name": functions.asked(choice)[0]}}
    if kind != "allowed_tools":
        raise invalid("tool_choice.type", "function or allowed_tools", kind)
    return allowed_tools("tool_choice", choice, tools, functions.asked)

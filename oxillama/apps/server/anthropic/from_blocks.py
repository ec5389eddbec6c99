"""Conversion of Anthropic's messages, blocks and tools to chat messages."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from oxillama.apps.server.chats import function_call, tool_result
from oxillama.apps.server.errors import invalid, refuse_others, unsupported
from oxillama.apps.server.media import media_part

Block = tuple[str, Mapping[str, Any]]
"""A block of a message, after the place it stands at."""

FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("text", "citations"),
    "thinking": ("thinking", "signature"),
    "tool_use": ("id", "name", "input", "caller"),
    "tool_result": ("tool_use_id", "content", "is_error"),
    "image": ("source",),
}
"""Kinds of blocks, and their fields beside those that all have."""

ALL_HAVE = ("type", "cache_control")

KINDS = {
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
    "system": ("text",),
}
"""Blocks that a message of a role may have."""

TOOL_FIELDS = (
    *("type", "name", "description", "input_schema", "cache_control"),
    *("strict", "defer_loading", "eager_input_streaming", "allowed_callers"),  # change nothing here
)


def conversation_messages(
    system: Any, messages: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], str]:
    """Messages in OpenAI's form, and the beginning of an answer in the last one, which may be "".

    Neighbouring messages of one role are one message. Results of tools are messages of their own, in their
    order.

    Raises:
        ApiError: a message or a block is malformed, or of an unsupported kind.
    """
    found = []
    about = text_of(blocks_of("system", system, KINDS["system"]))
    if about:
        found.append({"role": "system", "content": about})
    turns: list[tuple[str, list[Block]]] = []
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        role = message.get("role")
        if not isinstance(role, str) or role not in KINDS:
            raise invalid(f"{where}.role", f"one of {', '.join(KINDS)}", role)
        refuse_others(where, message, ("role", "content"))
        blocks = blocks_of(f"{where}.content", message.get("content"), KINDS[role])
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, blocks))
    answer = begun_answer(turns.pop()[1]) if turns[-1][0] == "assistant" else ""
    names: dict[str, str] = {}
    for role, blocks in turns:
        if role == "assistant":
            found.append(assistant_message(blocks))
            names |= {block["id"]: block["name"] for _, block in blocks if block["type"] == "tool_use"}
        elif role == "user":
            found += user_messages(blocks, names)
        else:
            found.append({"role": role, "content": text_of(blocks)})
    return found, answer


def blocks_of(where: str, content: Any, kinds: Collection[str]) -> list[Block]:
    """The blocks of a content. Raises ApiError for a block that is not of ``kinds``, or has other fields."""
    if isinstance(content, str):
        return [(where, {"type": "text", "text": content})]
    if not isinstance(content, list):
        raise invalid(where, "a text or a list of blocks", content)
    found = []
    for i, block in enumerate(content):
        place = f"{where}[{i}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str) or kind not in kinds:
            raise unsupported(place, f"a block of type {' or '.join(kinds)}", kind)
        refuse_others(place, block, (*ALL_HAVE, *FIELDS[kind]))
        check_block(place, kind, block)
        found.append((place, block))
    return found


def check_block(where: str, kind: str, block: Mapping[str, Any]) -> None:
    """Raises ApiError for a wrong field."""
    texts = {"text": ("text",), "thinking": ("thinking",), "tool_use": ("id", "name"), "image": ()}
    for name in texts.get(kind, ("tool_use_id",)):
        if not isinstance(block.get(name), str):
            raise invalid(f"{where}.{name}", "a text", block.get(name))
    if kind == "text" and block.get("citations"):
        raise invalid(f"{where}.citations", "none, which is all that is supported", block["citations"])
    if kind == "tool_use" and not isinstance(block.get("input"), dict):
        raise invalid(f"{where}.input", "an object", block.get("input"))


def text_of(blocks: Sequence[Block]) -> str:
    """The text of blocks, joined by line breaks."""
    return "\n".join(block["text"] for _, block in blocks if block["type"] == "text")


def content_of(blocks: Sequence[Block]) -> str | list[dict[str, Any]]:
    """The content of a message: the text of blocks, or parts in OpenAI's form if some are pictures."""
    if all(block["type"] == "text" for _, block in blocks):
        return text_of(blocks)
    return [
        {"type": "text", "text": block["text"]} if block["type"] == "text" else picture_of(where, block)
        for where, block in blocks
    ]


def picture_of(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    """The part for a picture. Raises ApiError for a picture without base64: the server fetches nothing."""
    source, place = block.get("source"), f"{where}.source"
    if not isinstance(source, dict):
        raise invalid(place, "an object", source)
    if source.get("type") != "base64":
        raise unsupported(f"{place}.type", "base64, for the server fetches nothing", source.get("type"))
    refuse_others(place, source, ("type", "media_type", "data"))
    form = source.get("media_type")
    if not isinstance(form, str) or not form.startswith("image/"):
        raise invalid(f"{place}.media_type", "the type of a picture, as image/png", form)
    return media_part(f"{place}.data", source.get("data"), "image")


def begun_answer(blocks: Sequence[Block]) -> str:
    """The beginning of an answer. Raises ApiError if it holds more than text."""
    for where, block in blocks:
        if block["type"] != "text":
            raise invalid(where, "text alone in a last message that the answer goes on from", block["type"])
    return text_of(blocks)


def assistant_message(blocks: Sequence[Block]) -> dict[str, Any]:
    """The chat message of an assistant's message."""
    message: dict[str, Any] = {"role": "assistant", "content": text_of(blocks)}
    reasoning = "\n".join(block["thinking"] for _, block in blocks if block["type"] == "thinking")
    if reasoning:
        message["reasoning_content"] = reasoning
    calls = [
        function_call(block["id"], block["name"], json.dumps(block["input"], ensure_ascii=False))
        for _, block in blocks
        if block["type"] == "tool_use"
    ]
    return {**message, "tool_calls": calls} if calls else message


def user_messages(blocks: Sequence[Block], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """The chat messages of a user's message: text, and results of calls.

    Args:
        names: of the tools that were called, by the ids of the calls.
    """
    found: list[dict[str, Any]] = []
    said: list[Block] = []
    for where, block in blocks:
        if block["type"] != "tool_result":
            said.append((where, block))
            continue
        if said:
            found.append({"role": "user", "content": content_of(said)})
            said = []
        found.append(result_message(where, block, names))
    return [*found, {"role": "user", "content": content_of(said)}] if said or not found else found


def result_message(where: str, block: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The chat message with the result of a call."""
    content = block.get("content")
    blocks = [] if content is None else blocks_of(f"{where}.content", content, ("text", "image"))
    is_error = block.get("is_error", False)
    if not isinstance(is_error, (bool, type(None))):
        raise invalid(f"{where}.is_error", "true or false", is_error)
    found = content_of(blocks)
    if is_error:
        is_list = isinstance(found, list)
        found = [{"type": "text", "text": "Error:"}, *found] if is_list else f"Error: {found}"
    return tool_result(block["tool_use_id"], found, names)


def functions(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Definitions in OpenAI's form. Anthropic's own tools are left out: models cannot call them.

    Raises:
        ApiError: a tool has other fields.
    """
    found = []
    for i, tool in enumerate(tools):
        where = f"tools[{i}]"
        if tool.get("type") not in (None, "custom"):
            continue
        refuse_others(where, tool, TOOL_FIELDS)
        function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
        if not isinstance(function["name"], str):
            raise invalid(f"{where}.name", "a text", function["name"])
        if not isinstance(function["parameters"], dict):
            raise invalid(f"{where}.input_schema", "an object", function["parameters"])
        if tool.get("description") is not None:
            function["description"] = tool["description"]
        found.append({"type": "function", "function": function})
    return found

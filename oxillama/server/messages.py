"""From the messages of a chat to a prompt, and from what the model writes to the parts of a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from oxillama.engine.engine import InferenceEngine
from oxillama.server.bodies import ChatBody, TemplateBody
from oxillama.server.errors import invalid
from oxillama.toolcalls import (
    Event,
    MessageParser,
    ReasoningPart,
    TextPart,
    ToolCallGrammar,
    grammar_of_template,
)

ROLES = {"developer": "system"}
"""Roles of OpenAI's that templates do not know, and what stands for them."""

RESERVED = ("messages", "tools", "add_generation_prompt", "template")
"""Variables of a template that have fields of their own, or none."""

TAIL = 64
"""Tokens at the end of a prompt that may open a reasoning."""


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as templates know them: parts of text are joined by line breaks. Raises ApiError."""
    found = []
    for i, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str):
            raise invalid(f"messages[{i}].role", "a string", role)
        changed = {**message, "role": ROLES.get(role, role)}
        if isinstance(message.get("content"), list):
            changed["content"] = joined_text(f"messages[{i}].content", message["content"])
        found.append(
            {name: value for name, value in changed.items() if value is not None or name == "content"}
        )
    return found


def joined_text(where: str, parts: Sequence[Any]) -> str:
    """The text of a content's parts. Raises ApiError for one that is no text."""
    texts = []
    for j, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else part
        if kind not in ("text", "input_text") or not isinstance(part.get("text"), str):
            raise invalid(f"{where}[{j}]", "a part of type text", kind)
        texts.append(part["text"])
    return "\n".join(texts)


def variables(body: ChatBody | TemplateBody) -> dict[str, Any]:
    """Variables for the template. Raises ApiError for one that has a field of its own."""
    for name in RESERVED:
        if name in body.chat_template_kwargs:
            raise invalid("chat_template_kwargs", "variables without fields of their own", name)
    found = dict(body.chat_template_kwargs)
    if body.reasoning_effort is not None:
        found.setdefault("reasoning_effort", body.reasoning_effort)
    return found


def prompt_text(engine: InferenceEngine, body: ChatBody | TemplateBody) -> str:
    """The prompt of a chat, as text."""
    return engine.tokenizer.apply_chat_template(
        plain_messages(body.messages), body.add_generation_prompt, **variables(body)
    )


def prompt_tokens(engine: InferenceEngine, body: ChatBody) -> list[int]:
    """The prompt of a chat, as token ids."""
    return engine.tokenizer.encode_chat(
        plain_messages(body.messages), body.add_generation_prompt, **variables(body)
    )


class Reader:
    """Tells reasoning and text of a message apart.

    Parameters
    ----------
    tokens : the prompt; it may open the reasoning.
    format : as in the body: "none" leaves everything in the text.
    is_constrained : whether a grammar rules the text from its first token, so that it has no reasoning.
    """

    def __init__(
        self, engine: InferenceEngine, tokens: Sequence[int], format: str, is_constrained: bool
    ) -> None:
        grammar = reasoning_of(engine)
        self._parser: MessageParser | None = None
        if grammar.reasoning is not None and format != "none" and not is_constrained:
            end = engine.tokenizer.decode(tokens[-TAIL:], skip_special=False)
            self._parser = MessageParser(grammar, in_reasoning=grammar.begins_in_reasoning(end))

    def feed(self, text: str, is_last: bool) -> Sequence[Event]:
        """What the next piece of text, perhaps the last, brings."""
        if self._parser is None:
            return [TextPart(text)] if text else []
        events = self._parser.feed(text) if text else []
        return [*events, *(self._parser.finish() if is_last else ())]


def reasoning_of(engine: InferenceEngine) -> ToolCallGrammar:
    """How the model writes reasoning, by its template; calls are left in the text."""
    source = engine.tokenizer.chat_template_source("default")
    found = replace(grammar_of_template(source), opens=())
    return found if found.style == "harmony" else replace(found, style="none")


def parts_of(events: Sequence[Event]) -> tuple[str, str]:
    """Text and reasoning."""
    text = "".join(event.text for event in events if isinstance(event, TextPart))
    return text, "".join(event.text for event in events if isinstance(event, ReasoningPart))

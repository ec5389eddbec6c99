"""From the messages of a chat to a prompt, and from what the model writes to the parts of a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oxillama.chat.template import ChatTemplate
from oxillama.engine.engine import InferenceEngine
from oxillama.errors import ConfigError
from oxillama.server.bodies import ChatBody, TemplateBody
from oxillama.server.errors import ApiError, invalid
from oxillama.toolcalls import ArgumentsPart, CallFailed, CallStart, Event, ReasoningPart, TextPart
from oxillama.toolcalls.conversation import call_id, for_template, tool_variables
from oxillama.toolcalls.definitions import definitions
from oxillama.toolcalls.formats import grammar_of_template
from oxillama.toolcalls.parsing import WITH_TOOLS, template_values

ROLES = {"developer": "system"}
"""Roles of OpenAI's that templates do not know, and what stands for them."""

RESERVED = ("messages", "tools", "add_generation_prompt", "template")
"""Variables of a template that have fields of their own, or none."""


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
        found.append({key: value for key, value in changed.items() if value is not None or key == "content"})
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


@dataclass(frozen=True)
class Conversation:
    """What the prompt of a chat is made of.

    Attributes
    ----------
    messages : as OpenAI has them.
    tools : definitions as OpenAI has them.
    variables : of the template.
    opens_answer : whether the prompt ends with the beginning of an answer.
    answer : what the answer has already; the model goes on from there.
    name : the field of the body that the messages stand in.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)
    opens_answer: bool = True
    answer: str = ""
    name: str = "messages"


def conversation_of(body: ChatBody | TemplateBody) -> Conversation:
    """The conversation of a body in OpenAI's form. Raises ApiError if a variable has a field of its own."""
    variables = checked_variables(body.chat_template_kwargs)
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    return Conversation(body.messages, body.tools, variables, body.add_generation_prompt)


def checked_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Variables that a body gives the template. Raises ApiError if one has a field of its own."""
    for name in RESERVED:
        if name in variables:
            raise invalid("chat_template_kwargs", "variables without fields of their own", name)
    return dict(variables)


def template_of(engine: InferenceEngine, has_tools: bool) -> ChatTemplate:
    """The template of the file for a conversation. Raises ChatTemplateError if there is none."""
    tokenizer = engine.tokenizer
    return tokenizer.chat_template(
        WITH_TOOLS if has_tools and WITH_TOOLS in tokenizer.chat_template_names else "default"
    )


def template_arguments(engine: InferenceEngine, talk: Conversation) -> dict[str, Any]:
    """The arguments with which the chat template is rendered.

    Raises
    ------
    ApiError : a message is none; the template cannot tell the model of tools.
    ChatTemplateError : there is no template, or a call in a message is none.
    ConfigError : a tool is none.
    """
    tools = definitions(talk.tools) if talk.tools else None
    found = template_values(talk.variables, tools)
    if tools is not None and WITH_TOOLS in engine.tokenizer.chat_template_names:
        found["template"] = WITH_TOOLS
    template = template_of(engine, tools is not None)
    if tools is not None:
        try:
            found = {**tool_variables(template, tools), **found}
        except ConfigError as error:
            raise ApiError(400, str(error), param="tools") from error
    messages = for_template(plain_messages(talk.messages), template)
    return {**found, "messages": messages, "add_generation_prompt": talk.opens_answer}


def prompt_text(engine: InferenceEngine, talk: Conversation) -> str:
    """The prompt of a chat, as text.

    Raises as `template_arguments`, and ApiError where an answer has begun and the template opens reasoning.
    """
    text = engine.tokenizer.apply_chat_template(**template_arguments(engine, talk))
    if talk.answer:
        source = template_of(engine, bool(talk.tools)).source
        if grammar_of_template(source).begins_in_reasoning(text):
            wanted = "a last message that is the user's, for the template opens reasoning before an answer"
            raise invalid(talk.name, wanted, "one of the assistant's")
    return text + talk.answer


def prompt_tokens(engine: InferenceEngine, talk: Conversation) -> list[int]:
    """The prompt of a chat, as token ids. Raises as `prompt_text`."""
    return engine.tokenizer.encode_rendered(prompt_text(engine, talk))


class Deltas:
    """Makes OpenAI's deltas of what the model writes: text, reasoning, calls.

    Parameters
    ----------
    first : number of the first call that the model gives no id, among those of the conversation.
    """

    def __init__(self, first: int) -> None:
        self.first = first

    def of(self, event: Event) -> dict[str, Any]:
        """The delta of an event; {} for one that tells nothing new.

        Reasoning stands under both names that clients look for. What looked like a call and had no name is
        text. Of a call that breaks off later, the arguments were sent; the finish reason says that it did.
        """
        if isinstance(event, TextPart):
            return {"content": event.text}
        if isinstance(event, ReasoningPart):
            return {"reasoning_content": event.text, "reasoning": event.text}
        if isinstance(event, CallStart):
            function = {"name": event.name, "arguments": ""}
            id = event.id or call_id(self.first + event.index)
            return {
                "tool_calls": [{"index": event.index, "id": id, "type": "function", "function": function}]
            }
        if isinstance(event, ArgumentsPart):
            return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
        if isinstance(event, CallFailed) and event.index is None:
            return {"content": event.text}
        return {}


def number_of_calls(messages: Sequence[Mapping[str, Any]]) -> int:
    """How many calls there are in a conversation."""
    calls = (message.get("tool_calls") for message in messages)
    return sum(len(each) for each in calls if isinstance(each, list))


def whole_message(deltas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The message that deltas come to; its content is None if it has calls alone."""
    texts = {name: "".join(delta.get(name, "") for delta in deltas) for name in ("content", "reasoning")}
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        for part in delta.get("tool_calls", ()):
            function = part["function"]
            if "id" in part:
                calls[part["index"]] = {
                    "id": part["id"],
                    "type": "function",
                    "function": dict(function),
                }
            else:
                calls[part["index"]]["function"]["arguments"] += function["arguments"]
    content = texts["content"] or (None if calls else "")
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if texts["reasoning"]:
        message |= {"reasoning_content": texts["reasoning"], "reasoning": texts["reasoning"]}
    return message | ({"tool_calls": [calls[index] for index in sorted(calls)]} if calls else {})

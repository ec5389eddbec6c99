"""From the messages of a chat to a prompt, and from what the model writes to the parts of a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oxillama.conversations.prompt import chat_text
from oxillama.engine.engine import InferenceEngine
from oxillama.server.bodies import ChatBody, TemplateBody
from oxillama.server.errors import invalid
from oxillama.toolcalls import ArgumentsPart, CallFailed, CallStart, Event, ReasoningPart, TextPart
from oxillama.toolcalls.conversation import call_id

RESERVED = ("messages", "tools", "add_generation_prompt", "template")
"""Variables of a template that have fields of their own, or none."""


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

    @property
    def all_variables(self) -> dict[str, Any]:
        """Variables of the template, with the one that opens an answer."""
        return {**self.variables, "add_generation_prompt": self.opens_answer}


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


def prompt_text(engine: InferenceEngine, talk: Conversation) -> str:
    """The prompt of a chat, as text. Raises as `chat_text`."""
    return chat_text(engine.tokenizer, talk.messages, talk.tools, talk.all_variables, answer=talk.answer)


def prompt_tokens(engine: InferenceEngine, talk: Conversation) -> list[int]:
    """The prompt of a chat, as token ids. Raises as `chat_text`."""
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

"""What a conversation of any interface comes to, and how it is made ready to run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from oxillama.config import GenerationOptions
from oxillama.conversations.prompt import chat_prompt
from oxillama.engine.engine import InferenceEngine
from oxillama.server.errors import ApiError
from oxillama.server.messages import Conversation, number_of_calls
from oxillama.server.options import options_of
from oxillama.server.running import checked_prompt


@dataclass(frozen=True)
class Chat:
    """A request for the next message of a conversation.

    Attributes
    ----------
    conversation : what the prompt is made of.
    rest : fields of the body for the table of options.
    known : names of the other fields, for the message about one that is unknown.
    fixed : fields of `GenerationOptions` and `SamplerConfig` that the interface sets; None for not set.
    tool_choice, parallel_tool_calls : as in `GenerationOptions`.
    keeps_reasoning : leaves reasoning in the text.
    """

    conversation: Conversation
    rest: Mapping[str, Any] = field(default_factory=dict)
    known: Iterable[str] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    tool_choice: str | Mapping[str, Any] = "auto"
    parallel_tool_calls: bool = True
    keeps_reasoning: bool = False


@dataclass(frozen=True)
class ChatPlan:
    """A chat, made ready to run."""

    prompt: list[int]
    options: GenerationOptions
    n_calls: int
    """Calls in the conversation so far; those that the model gives no id are numbered from there."""


def chat_plan(engine: InferenceEngine, chat: Chat, request_id: str) -> ChatPlan:
    """What a chat asks for. Raises ApiError, and errors of the library."""
    talk = chat.conversation
    if talk.tools and chat.keeps_reasoning:
        message = 'reasoning_format: "none" cannot be combined with tools'
        raise ApiError(400, message, param="reasoning_format", code="invalid_value")
    fixed = dict(chat.fixed)
    if talk.tools or chat.tool_choice not in ("auto", "none"):
        fixed |= {"tools": talk.tools or None, "tool_choice": chat.tool_choice}
        fixed["parallel_tool_calls"] = chat.parallel_tool_calls
    options = options_of(
        chat.rest,
        engine,
        chat.known,
        {"max_tokens": None},
        request_id=request_id,
        **fixed,
    )
    # a text that a grammar rules from its first token has no reasoning, even if the prompt opens one
    is_ruled = options.sampler is not None and options.sampler.constraint not in (None, "structural_tag")
    prompt, options = chat_prompt(
        engine.tokenizer,
        talk.messages,
        options,
        talk.all_variables,
        answer=talk.answer,
        parse=bool(talk.tools) or not (chat.keeps_reasoning or is_ruled),
    )
    checked_prompt(engine, prompt, name=talk.name)
    return ChatPlan(prompt, options, number_of_calls(talk.messages))

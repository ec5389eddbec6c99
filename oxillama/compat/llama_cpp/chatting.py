"""From the prompt of a chat to its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oxillama.compat.llama_cpp.answers import (
    Answer,
    call_answer,
    call_chunks,
    chat_answer,
    chat_chunk,
    chat_logprobs,
    text_answer,
    text_chunks,
)
from oxillama.compat.llama_cpp.completion import Text, stop_strings
from oxillama.compat.llama_cpp.llama_grammar import LlamaGrammar
from oxillama.compat.llama_cpp.processors import StoppingCriteria
from oxillama.compat.llama_cpp.protocols import Model
from oxillama.config import checks
from oxillama.config.response_format import constraint_of
from oxillama.errors import ConfigError
from oxillama.toolcalls.conversation import delta_of, whole_message

CHAT_ONLY = frozenset(
    {
        "functions",
        "function_call",
        "tools",
        "tool_choice",
        "response_format",
        "stream",
        "stop",
        "top_logprobs",
    }
)
"""Arguments of chats that completions do not have, or have in another form."""


@dataclass(frozen=True)
class Asked:
    """What a chat asks for.

    Attributes
    ----------
    tools : definitions; None without tools.
    choice : "auto", "none" or "required".
    named : the one tool that must be called; None if the model chooses.
    given : all arguments.
    """

    tools: list[Any] | None
    choice: str
    named: Mapping[str, Any] | None
    given: Mapping[str, Any]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Asked:
        """Of the arguments of `create_chat_completion`; former names of tools are taken, too.

        Raises
        ------
        ConfigError : ``tool_choice`` names no tool, or has another form.
        """
        tools, choice = given.get("tools"), given.get("tool_choice")
        if given.get("functions") is not None:
            tools = [{"type": "function", "function": function} for function in given["functions"]]
        call = given.get("function_call")
        if isinstance(call, str):
            choice = call
        elif call is not None:
            choice = {"type": "function", "function": {"name": call["name"]}}
        if not isinstance(choice, Mapping):
            word = "auto" if choice is None else choice
            if word not in ("auto", "none", "required"):
                raise checks.refuse("tool_choice", "auto, none, required or one tool", word)
            if word == "required" and not tools:
                raise ConfigError("tool_choice: expected tools, got none for required")
            return cls(tools or None, word, None, given)
        name = choice["function"]["name"]
        found = next((tool for tool in tools or () if tool["function"]["name"] == name), None)
        if found is None:
            raise ConfigError(f"tool_choice: Tool choice {name!r} not found in tools")
        return cls(tools, "auto", found["function"], given)

    @property
    def rules(self) -> LlamaGrammar | None:
        """The grammar that is asked for, as such, as a JSON object, or as the arguments of the named tool.

        Raises ConfigError if there are two, GrammarError for a schema that cannot be enforced.
        """
        rules = [self.given.get("grammar")]
        if self.named is not None:
            rules.append(LlamaGrammar.of(self.named.get("parameters") or {"type": "object"}))
        if "json_schema" in self.format:
            rules.append(LlamaGrammar.of(self.format["json_schema"]))
        found = [each for each in rules if each is not None]
        if len(found) > 1:
            raise ConfigError("grammar: expected one of grammar, response_format and one tool, got several")
        return found[0] if found else None

    @property
    def format(self) -> dict[str, Any]:
        """The field of the sampler that the response format comes to; {} for text. Raises ConfigError."""
        wanted = self.given.get("response_format")
        found: dict[str, Any] = {} if wanted is None else constraint_of(wanted)
        return found

    @property
    def n_logprobs(self) -> int | None:
        """How many of the likeliest tokens are wanted; None for no log-probabilities. Raises ConfigError."""
        top = self.given.get("top_logprobs")
        if self.given.get("logprobs"):
            return top or 0
        if top:
            raise ConfigError(f"top_logprobs: expected logprobs=True beside it, got {top}")
        return None


def answer(
    llama: Model,
    prompt: Any,
    asked: Asked,
    stop: str | Sequence[str] | None = None,
    criteria: Sequence[StoppingCriteria] | None = None,
    *,
    parses: bool = False,
    message_format: str | None = None,
) -> Any:
    """The answer of a chat, or its chunks.

    Parameters
    ----------
    prompt : token ids, or a prompt with media.
    stop, criteria : of the format, beside those that are asked for.
    parses : whether calls are parsed where there are tools.
    message_format : how they are written; None for the way of the file's template.
    """
    given = {name: value for name, value in asked.given.items() if name not in CHAT_ONLY}
    calls = parses and bool(asked.tools) and asked.named is None and asked.choice != "none"
    options: dict[str, Any] = {}
    if "structural_tag" in asked.format:
        options["response_format"] = asked.given["response_format"]
    if calls:
        options |= {"tools": asked.tools, "tool_choice": asked.choice, "message_format": message_format}
    given |= {"logprobs": asked.n_logprobs, "grammar": asked.rules}
    text = llama.text_of(
        prompt,
        **given,
        stop=[*stop_strings(asked.given.get("stop")), *stop_strings(stop)],
        stopping_criteria=criteria,
        offset=len(prompt),
        options=options,
    )
    streams = bool(asked.given.get("stream"))
    if calls:
        messages: Sequence[Any] = asked.given.get("messages") or ()
        first = sum(len(message.get("tool_calls") or ()) for message in messages)
        return parsed_chunks(text, first) if streams else parsed_answer(text, first)
    if asked.named is not None:
        name = str(asked.named["name"])
        return call_chunks(name, text.chunks()) if streams else call_answer(name, text.whole())
    return text_chunks(text.chunks()) if streams else text_answer(text.whole())


def parsed_answer(text: Text, first: int) -> Answer:
    """The answer of a text with calls, and perhaps reasoning, whole.

    Parameters
    ----------
    first : calls of the conversation; those without an id are numbered from there.
    """
    message = whole_message([delta_of(event, first) for event in text.events()])
    del message["refusal"]
    logprobs = chat_logprobs(text.logprobs_of(0)) if text.logprobs is not None else None
    head = {**text.head, "usage": text.usage}
    return chat_answer(head, message, logprobs, text.reason)


def parsed_chunks(text: Text, first: int) -> Iterator[Answer]:
    """Its chunks: the role, deltas, and an empty one with the finish reason."""
    yield chat_chunk(text.head, {"role": "assistant"})
    n = 0
    for event in text.events():
        delta = delta_of(event, first)
        if delta:
            logprobs = chat_logprobs(text.logprobs_of(n)) if text.logprobs is not None else None
            n = text.n
            yield chat_chunk(text.head, delta, logprobs)
    yield chat_chunk(text.head, {}, None, text.reason)

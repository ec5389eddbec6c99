"""Generates the answer of a chat from its prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oxillama.base.config import checks
from oxillama.base.config.response_format import constraint_of
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
from oxillama.errors import ConfigError
from oxillama.text.toolcalls.openai_form import CallIds, delta_of, whole_message

CHAT_ONLY = (
    *("functions", "function_call", "tools", "tool_choice"),
    *("response_format", "stream", "stop", "top_logprobs"),
)
"""Arguments of chats that completions lack or have in another form."""


@dataclass(frozen=True)
class Asked:
    """The tools and constraints that a chat request asks for.

    Attributes:
        tools: definitions; None without tools.
        choice: "auto", "none" or "required".
        named: the one tool that must be called; None: the model chooses.
        given: all arguments of the request.
    """

    tools: list[Any] | None
    choice: str
    named: Mapping[str, Any] | None
    given: Mapping[str, Any]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Asked:
        """Parse the arguments of `create_chat_completion`, including deprecated names of tool arguments.

        Raises:
            ConfigError: ``tool_choice`` names an unknown tool, or has another form.
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
        """The grammar: as given, or of a JSON response format, or of the named tool's arguments.

        Raises ConfigError if there are several, GrammarError for a schema that cannot be enforced.
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
        """The response format as a field of `SamplerConfig`; {} for text. Raises ConfigError."""
        wanted = self.given.get("response_format")
        found: dict[str, Any] = {} if wanted is None else constraint_of(wanted)
        return found

    @property
    def n_logprobs(self) -> int | None:
        """The number of top tokens in log-probabilities; None: no log-probabilities. Raises ConfigError."""
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
    """Generate a chat's answer; returns a dict, or an iterator of chunks.

    Args:
        prompt: token ids, or a prompt with media.
        stop, criteria: the chat format's, in addition to the request's.
        parses: whether to parse tool calls if the request has tools.
        message_format: how the model writes calls; None: as in the file's template.
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
        return parsed_chunks(text) if streams else parsed_answer(text)
    if asked.named is not None:
        name = str(asked.named["name"])
        return call_chunks(name, text.chunks()) if streams else call_answer(name, text.whole())
    return text_chunks(text.chunks()) if streams else text_answer(text.whole())


def parsed_answer(text: Text) -> Answer:
    """A whole answer whose text may contain tool calls and reasoning."""
    ids = CallIds(lambda: (text.head["id"], ()))
    message = whole_message([delta_of(event, ids) for event in text.events()])
    del message["refusal"]
    logprobs = chat_logprobs(text.logprobs_of(0)) if text.logprobs is not None else None
    head = {**text.head, "usage": text.usage}
    return chat_answer(head, message, logprobs, text.reason)


def parsed_chunks(text: Text) -> Iterator[Answer]:
    """The chunks of such an answer: the role, deltas, and an empty one with the finish reason."""
    yield chat_chunk(text.head, {"role": "assistant"})
    n, ids = 0, CallIds(lambda: (text.head["id"], ()))
    for event in text.events():
        delta = delta_of(event, ids)
        if delta:
            logprobs = chat_logprobs(text.logprobs_of(n)) if text.logprobs is not None else None
            n = text.n
            yield chat_chunk(text.head, delta, logprobs)
    yield chat_chunk(text.head, {}, None, text.reason)

"""The one way from a conversation, whatever its interface, to a prompt and the options of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oxillama.config import GenerationOptions
from oxillama.config.server import RESERVED
from oxillama.conversations.prompt import (
    BUDGET,
    SWITCHES,
    chat_prompt,
    chat_text,
    is_text,
    template_of,
    text_parts,
)
from oxillama.engine.engine import InferenceEngine
from oxillama.server.bodies import TemplateBody
from oxillama.server.callers import context
from oxillama.server.errors import ApiError, invalid
from oxillama.server.media import ClientMedia, marker_text
from oxillama.server.options import options_of
from oxillama.server.prompts import bounded
from oxillama.server.running import checked_prompt
from oxillama.toolcalls.formats import grammar_of_template

EFFORT = "reasoning_effort"
"""The variable by which templates say how much of it there is."""


@dataclass(frozen=True)
class Chat:
    """A request for the next message of a conversation.

    Attributes
    ----------
    messages : as OpenAI has them.
    tools : definitions as OpenAI has them.
    variables : of the template.
    answer : what the answer has already; the model goes on from there.
    tool_choice, parallel_tool_calls : as in `GenerationOptions`.
    keeps_reasoning : leaves reasoning in the text.
    name : the field of the body that the messages stand in.
    reasoning : that stands before ``answer``.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)
    answer: str = ""
    tool_choice: str | Mapping[str, Any] = "auto"
    parallel_tool_calls: bool = True
    keeps_reasoning: bool = False
    name: str = "messages"
    reasoning: str = ""

    @property
    def n_calls(self) -> int:
        """Calls in the conversation so far; those that the model gives no id are numbered from there."""
        calls = (message.get("tool_calls") for message in self.messages)
        return sum(len(each) for each in calls if isinstance(each, list))

    @property
    def all_variables(self) -> dict[str, Any]:
        """Those of the request, and those of the server where the request does not set them."""
        return {**context().config.template_variables, **self.variables}

    def text(self, engine: InferenceEngine) -> str:
        """The prompt, as text, with markers in the places of media. Raises as `chat_text`."""
        begun = {"answer": self.answer, "reasoning": self.reasoning}
        return chat_text(
            engine.tokenizer, marker_text(self.messages), self.tools, self.all_variables, **begun
        )

    def n_tokens(self, engine: InferenceEngine) -> int:
        """The number of tokens of the prompt, be it too long or not. Raises as `chat_text`."""
        return len(self.tokens(engine, fits=False))

    def tokens(self, engine: InferenceEngine, *, fits: bool = True, closes: bool = False) -> list[int]:
        """The token ids of the prompt, a `MediaPrompt` if it has media. Raises as `chat_text`.

        Parameters
        ----------
        fits : whether a text that is too long for the context is an error before it is tokenized.
        closes : adds the tokens that the vocabulary puts behind every text.
        """
        given: Any
        if all(map(is_text, self.messages)):
            given = bounded(engine, self.name, fits=fits).encode_rendered(self.text(engine), closes)
            return given  # type: ignore[no-any-return]
        messages, held = ClientMedia(engine, self.name).take(self.messages)
        text = replace(self, messages=messages).text(engine)  # which refuses parts of other kinds
        assert held is not None
        given = held.prompt(text, closes)
        return given  # type: ignore[no-any-return]

    def prepared(
        self,
        engine: InferenceEngine,
        request_id: str,
        rest: Mapping[str, Any],
        **fixed: Any,
    ) -> tuple[list[int], GenerationOptions]:
        """The token ids of the prompt, a `MediaPrompt` if it has media, and the options of the request.

        Parameters
        ----------
        rest, fixed : as for `options_of`.

        Raises ApiError, and errors of the library.
        """
        if self.tools and self.keeps_reasoning:
            message = 'reasoning_format: "none" cannot be combined with tools'
            raise ApiError(400, message, param="reasoning_format", code="invalid_value")
        if self.tools or self.tool_choice not in ("auto", "none"):
            fixed |= {"tools": self.tools or None, "tool_choice": self.tool_choice}
            fixed["parallel_tool_calls"] = self.parallel_tool_calls
        options = options_of(rest, engine, {"max_tokens": None}, request_id=request_id, **fixed)
        prompt, options = chat_prompt(
            bounded(engine, self.name),
            self.messages,
            options,
            self.all_variables,
            answer=self.answer,
            reasoning=self.reasoning,
            parse=bool(self.tools) or not (self.keeps_reasoning or rules_text(options)),
            media=lambda: ClientMedia(engine, self.name),
        )
        return checked_prompt(engine, prompt, name=self.name), options


def rules_text(options: GenerationOptions) -> bool:
    """Whether a grammar rules the text from its first token: no reasoning, even if the prompt opens it."""
    return options.sampler is not None and options.sampler.constraint not in (None, "structural_tag")


def chat_of(body: TemplateBody, may_go_on: bool = True, **more: Any) -> Chat:
    """The chat of a body in OpenAI's form.

    Parameters
    ----------
    may_go_on : whether `ServerConfig.prefill_assistant` counts.

    Raises ApiError if a variable has a field of its own, or if there is no answer to be continued.
    """
    variables = checked_variables(body.chat_template_kwargs)
    if body.reasoning_effort is not None:
        variables.setdefault(EFFORT, body.reasoning_effort)
    goes_on = continues(body) if may_go_on else body.continue_final_message
    variables["add_generation_prompt"] = body.add_generation_prompt or goes_on
    if not goes_on:
        return Chat(body.messages, body.tools, variables, **more)
    stated = body.continue_final_message and "add_generation_prompt" in body.model_fields_set
    if stated and body.add_generation_prompt:
        raise invalid("add_generation_prompt", "false beside continue_final_message", True)
    *messages, last = body.messages
    answer, reasoning = last.get("content"), last.get("reasoning_content") or last.get("reasoning") or ""
    if isinstance(answer, list) and is_text(last):
        parts = text_parts(f"messages[{len(messages)}].content", answer)
        answer = "\n".join(part["text"] for part in parts)
    is_answer = isinstance(answer, str) and answer and isinstance(reasoning, str)
    if last.get("role") != "assistant" or last.get("tool_calls") or not is_answer:
        wanted = "a text of the assistant without calls, which continue_final_message goes on from"
        raise invalid(f"messages[{len(messages)}]", wanted, "another")
    return Chat(messages, body.tools, variables, str(answer), reasoning=str(reasoning), **more)


def continues(body: TemplateBody) -> bool:
    """Whether the last message is the beginning of the answer: the body says so, or the server's default.

    Raises ApiError where that default meets two messages of the assistant, of which neither can be meant.
    """
    if "continue_final_message" in body.model_fields_set or not context().config.prefill_assistant:
        return body.continue_final_message
    roles = [message.get("role") for message in body.messages[-2:]]
    if roles == ["assistant", "assistant"]:
        where = f"messages[{len(body.messages) - 1}]"
        raise invalid(where, "at most one message of the assistant at the end (--prefill-assistant)", "two")
    return roles[-1] == "assistant" and not body.messages[-1].get("tool_calls")


def checked_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Variables that a body gives the template. Raises ApiError if one has a field of its own."""
    for name in RESERVED:
        if name in variables:
            raise invalid("chat_template_kwargs", "variables without fields of their own", name)
    return dict(variables)


def thinking_variables(
    engine: InferenceEngine, has_tools: bool, wanted: bool, name: str | None, budget: int | None = None
) -> dict[str, Any]:
    """Variables of the template that switch reasoning on or off; {} if it has none.

    Without a switch a model reasons, or does not, as it was trained.

    Parameters
    ----------
    name : of the field that asks for it; None where a template without a switch will do.
    budget : tokens that it may take, for templates that tell the model so; None for any number.

    Raises
    ------
    ApiError : a field asks for no reasoning, and the template has reasoning without a switch.
    ChatTemplateError : there is no template.
    """
    template = template_of(engine.tokenizer, has_tools)
    switch = next((variable for variable in SWITCHES if variable in template.variables), None)
    variables: dict[str, Any] = {} if switch is None else {switch: wanted}
    if BUDGET in template.variables and (budget is not None or not wanted):
        variables[BUDGET] = budget if wanted else 0
    if variables or wanted or name is None:
        return variables
    if grammar_of_template(template.source).reasoning is not None:
        message = f"{name}: expected a chat template that switches reasoning off, this one does not"
        raise ApiError(400, message, param=name, code="unsupported_value")
    return {}


def thinking_of(engine: InferenceEngine) -> dict[str, Any]:
    """Whether the template delimits reasoning, and the variable that switches it; None without one."""
    template = template_of(engine.tokenizer, False)
    return {
        "delimited": grammar_of_template(template.source).reasoning is not None,
        "switch": next((name for name in SWITCHES if name in template.variables), None),
    }


def effort_variables(engine: InferenceEngine, has_tools: bool, effort: str, name: str) -> dict[str, Any]:
    """Variables of the template for an effort of reasoning: "none" is none at all.

    Raises as `thinking_variables`.
    """
    variables = thinking_variables(engine, has_tools, effort != "none", name)
    return variables if effort == "none" else {**variables, EFFORT: effort}


def function_call(id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of a message in OpenAI's form."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_result(id: str, content: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """The result of a call as a message in OpenAI's form; ``names`` has the tools by the ids of calls."""
    message = {"role": "tool", "tool_call_id": id, "content": content}
    return {**message, "name": names[id]} if id in names else message


def refuse_others(where: str, value: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raises ApiError for a field that is not known."""
    for name, item in value.items():
        if name not in known and item is not None:
            place = f"{where}.{name[:200]}"
            message = f"{place}: expected one of {', '.join(known)}, got another field"
            raise ApiError(400, message, param=place, code="unknown_parameter")

"""`Chat`: a conversation of any interface, from which the prompt and the options of a request are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oxillama.apps.server.bodies import TemplateBody
from oxillama.apps.server.callers import context
from oxillama.apps.server.errors import fault, invalid, unsupported
from oxillama.apps.server.media import ClientMedia, HeldPrompt, marker_text
from oxillama.apps.server.options import options_of
from oxillama.apps.server.prompts import bounded, check_messages
from oxillama.apps.server.running import checked_prompt
from oxillama.base.config import GenerationOptions
from oxillama.base.config.server import RESERVED
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Generation
from oxillama.text.chat.messages import is_text, text_parts
from oxillama.text.chat.prompt import BUDGET, SWITCHES, chat_prompt, chat_text, escaped_text, template_of
from oxillama.text.toolcalls.openai_form import CallIds, id_stem

EFFORT = "reasoning_effort"
"""The variable of templates for the effort of reasoning."""


@dataclass(frozen=True)
class Chat:
    """A request for the next message of a conversation.

    Attributes:
        messages: in OpenAI's form.
        tools: definitions in OpenAI's form.
        variables: of the template.
        answer: the beginning of the answer, which the model continues.
        tool_choice, parallel_tool_calls: as in `GenerationOptions`.
        keeps_reasoning: leaves reasoning in the text.
        name: the field of the body that has the messages.
        reasoning: the reasoning before ``answer``.
        special_in_content: as in `GenerationOptions`, for prompts without a request.
        room: tokens of the context for prompt and text; None: all that the model has.
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
    special_in_content: bool = False
    room: int | None = None

    def ids_of(self, prompt: Any, generation: Generation, index: int = 0) -> CallIds:
        """The ids of the calls of an answer, which no other answer of the conversation has.

        They follow from the prompt, the earlier ids and, unless the answer is greedy, the seed, so that the
        same request gets the same ids. A client may leave out earlier messages: the last id is enough.

        Args:
            prompt: of the answer: token ids, or a `MediaPrompt`.
            index: number of the answer in the request.
        """

        def origin() -> tuple[str, list[str]]:
            given, earlier = getattr(prompt, "given", None), earlier_ids(self.messages)
            media = [] if given is None else [use.digest for use in given.media]
            return id_stem(*generation.origin, media, earlier, index), earlier

        return CallIds(origin)

    @property
    def all_variables(self) -> dict[str, Any]:
        """Variables of the request, and variables of the server that the request does not set."""
        return {**context().config.template_variables, **self.variables}

    def text(self, engine: InferenceEngine) -> str:
        """The prompt, as text, with markers in the places of media. Raises as `chat_text`."""
        begun = {"answer": self.answer, "reasoning": self.reasoning}
        return chat_text(
            engine.tokenizer, marker_text(self.messages), self.tools, self.all_variables, **begun
        )

    def _escaped(self, engine: InferenceEngine) -> str:
        begun = self.answer, self.reasoning, self.special_in_content
        return escaped_text(engine.tokenizer, self.messages, self.tools, self.all_variables, *begun)

    def n_tokens(self, engine: InferenceEngine) -> int:
        """The number of tokens of the prompt, also of one that is too long. Raises as `chat_text`.

        Media are decoded and not encoded.
        """
        text, held = self._taken(engine)
        if held is not None:
            return held.n_tokens(text)
        return len(bounded(engine, self.name, fits=False).encode_rendered(text, escaped=True))

    def tokens(self, engine: InferenceEngine, *, closes: bool = False, free: int = 1) -> list[int]:
        """The token ids of the prompt, a `MediaPrompt` if it has media. Raises as `chat_text`.

        Args:
            closes: adds the tokens that the vocabulary puts after every text.
            free: tokens that must fit into the context after the prompt.
        """
        given: Any
        check_messages(engine, self.messages, self.name)
        text, held = self._taken(engine, free)
        if held is None:
            given = bounded(engine, self.name).encode_rendered(text, closes, escaped=True)
        else:
            given = held.prompt(text, closes)
        return given  # type: ignore[no-any-return]

    def _taken(self, engine: InferenceEngine, free: int = 1) -> tuple[str, HeldPrompt | None]:
        """The prompt as text with escapes, with markers in the places of media; the media, or None."""
        if all(map(is_text, self.messages)):
            return self._escaped(engine), None
        messages, held = ClientMedia(engine, self.name, self.room, free).take(self.messages)
        return replace(self, messages=messages)._escaped(engine), held  # rendering refuses other parts

    def prepared(
        self, engine: InferenceEngine, rest: Mapping[str, Any], **fixed: Any
    ) -> tuple[list[int], GenerationOptions]:
        """The token ids of the prompt, a `MediaPrompt` if it has media, and the options of the request.

        Args:
            rest, fixed: as for `options_of`.

        Raises ApiError, and errors of the library.
        """
        if self.tools and self.keeps_reasoning:
            raise fault("reasoning_format", '"none" cannot be combined with tools', "invalid_value")
        if self.tools or self.tool_choice not in ("auto", "none"):
            fixed |= {"tools": self.tools or None, "tool_choice": self.tool_choice}
            fixed["parallel_tool_calls"] = self.parallel_tool_calls
        options = options_of(rest, engine, {"max_tokens": None}, **fixed)
        if self.all_variables.get(BUDGET) == 0 and options.reasoning_budget is None:
            options = options._changed(reasoning_budget=0)
        check_messages(engine, self.messages, self.name)
        prompt, options = chat_prompt(
            engine.tokenizer,
            self.messages,
            options,
            self.all_variables,
            answer=self.answer,
            reasoning=self.reasoning,
            parse=bool(self.tools) or not (self.keeps_reasoning or rules_text(options)),
            media=lambda: ClientMedia(engine, self.name, self.room),
            encode=bounded(engine, self.name).encode_rendered,
        )
        return checked_prompt(engine, prompt, name=self.name), options


def earlier_ids(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The ids of calls, and of results, in messages of OpenAI's form, as far as they are texts."""
    found = []
    for message in messages:
        calls = message.get("tool_calls")
        listed = calls if isinstance(calls, list) else []
        found += [call.get("id") for call in listed if isinstance(call, Mapping)]
        found.append(message.get("tool_call_id"))
    return [id for id in found if isinstance(id, str)]


def rules_text(options: GenerationOptions) -> bool:
    """Whether a grammar rules the text from its first token: no reasoning, even if the prompt opens it."""
    return options.sampler is not None and options.sampler.constraint not in (None, "structural_tag")


def chat_of(engine: InferenceEngine, body: TemplateBody, may_go_on: bool = True, **more: Any) -> Chat:
    """The chat of a body in OpenAI's form.

    Args:
        may_go_on: whether `ServerConfig.prefill_assistant` counts.

    Raises ApiError if a variable has a field of its own, or if there is no answer to be continued; and as
    `effort_variables`.
    """
    variables = checked_variables(body.chat_template_kwargs)
    more["special_in_content"] = bool(body.rest.get("special_in_content"))
    if body.reasoning_effort is not None:
        variables = effort_variables(engine, bool(body.tools), body.reasoning_effort, EFFORT) | variables
    goes_on = continues(body) if may_go_on else body.continue_final_message
    variables["add_generation_prompt"] = body.add_generation_prompt or goes_on
    for i, message in enumerate(body.messages):
        if message.get("audio") is not None:
            raise unsupported(f"messages[{i}].audio", "no audio of an earlier answer", message["audio"])
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
    """Whether the last message is the beginning of the answer, by the body or by the server's default.

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
    """Variables of the template that switch reasoning on or off.

    A template without a switch gets no variables, or a `BUDGET` of 0 if a field asks for no reasoning:
    `Chat.prepared` then ends reasoning at its beginning.

    Args:
        name: of the field that asks for it; None if no field does.
        budget: tokens that it may take, for templates that tell the model so; None for any number.

    Raises ChatTemplateError if there is no template.
    """
    template = template_of(engine.tokenizer, has_tools)
    switch = next((variable for variable in SWITCHES if variable in template.variables), None)
    variables: dict[str, Any] = {} if switch is None else {switch: wanted}
    if BUDGET in template.variables and (budget is not None or not wanted):
        variables[BUDGET] = budget if wanted else 0
    if not variables and not wanted and name is not None and template.format.reasoning is not None:
        variables[BUDGET] = 0
    return variables


def thinking_of(engine: InferenceEngine) -> dict[str, Any]:
    """Whether the template delimits reasoning, and the variable that switches it; None without one."""
    template = template_of(engine.tokenizer, False)
    return {
        "delimited": template.format.reasoning is not None,
        "switch": next((name for name in SWITCHES if name in template.variables), None),
    }


def effort_variables(engine: InferenceEngine, has_tools: bool, effort: str, name: str) -> dict[str, Any]:
    """Variables of the template for an effort of reasoning; "none" switches reasoning off.

    Raises as `thinking_variables`.
    """
    variables = thinking_variables(engine, has_tools, effort != "none", name)
    return variables if effort == "none" else {**variables, EFFORT: effort}


def allowed_tools(
    where: str,
    choice: Mapping[str, Any],
    tools: Sequence[dict[str, Any]],
    names_of: Callable[[Mapping[str, Any]], list[Any]],
) -> tuple[list[dict[str, Any]], str]:
    """The tools that OpenAI's choice "allowed_tools" lists, in the chats' form, and the choice among them.

    Args:
        where: the field that has the choice.
        choice: its mode, and the tools with their names.
        names_of: the names of the functions that an entry of the choice names.

    Raises ApiError if the choice has another mode, or names a tool that is not there.
    """
    mode, wanted = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required"):
        raise invalid(f"{where}.mode", "auto or required", mode)
    if not isinstance(wanted, list) or not all(isinstance(each, dict) for each in wanted):
        raise invalid(f"{where}.tools", "a list of tools", wanted)
    allowed = [name for each in wanted for name in names_of(each)]
    names = [tool_name(tool) for tool in tools]
    for name in allowed:
        if name not in names:
            raise invalid(f"{where}.tools", f"functions among {', '.join(map(str, names))[:1000]}", name)
    return [tool for tool in tools if tool_name(tool) in allowed], str(mode)


def asked_names(entry: Mapping[str, Any]) -> list[Any]:
    """The name of the function that an entry of a choice names, in either form of OpenAI's interfaces."""
    function = entry.get("function") or entry
    return [function.get("name")] if entry.get("type") == "function" and isinstance(function, dict) else []


def tool_name(tool: Mapping[str, Any]) -> Any:
    """The name of a tool in the chats' form, if it has one."""
    function = tool.get("function")
    return function.get("name") if isinstance(function, Mapping) else None


def function_call(id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of a message in OpenAI's form."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_result(id: str, content: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """The result of a call as a message in OpenAI's form; ``names`` has the tools by the ids of calls."""
    message = {"role": "tool", "tool_call_id": id, "content": content}
    return {**message, "name": names[id]} if id in names else message

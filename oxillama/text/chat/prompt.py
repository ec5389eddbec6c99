"""The prompt of a chat: canonical messages, rules that fit them to the template, text, token ids.

All callers take these steps here: the engine, batches, the command line and the interfaces of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oxillama.base.config import GenerationOptions
from oxillama.errors import ConfigError
from oxillama.text.chat.bridge import TokenizerBridge
from oxillama.text.chat.fitting import fitted_text
from oxillama.text.chat.messages import canonical, escaped, is_text
from oxillama.text.chat.template import ChatTemplate
from oxillama.text.tokenizer.escapes import NO_NAMES, Escaper, unescape
from oxillama.text.toolcalls.definitions import definitions
from oxillama.text.toolcalls.formats import WITH_TOOLS, checked_format, reasons_before, rules_text

SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates switch reasoning on and off."""

BUDGET = "thinking_budget"
"""The variable in which some templates take the most tokens of reasoning; 0 for no reasoning."""


def chat_prompt(
    tokenizer: TokenizerBridge,
    messages: Sequence[Any],
    options: GenerationOptions,
    variables: Mapping[str, Any] | None = None,
    *,
    answer: str = "",
    reasoning: str = "",
    parse: bool = True,
    media: Callable[[], Any] | None = None,
    encode: Callable[..., list[int]] | None = None,
) -> tuple[Any, GenerationOptions]:
    """The token ids of a chat's prompt, and the options of its request with the format of the answer.

    Args:
        messages, variables, answer, reasoning: as for `chat_text`.
        options: of the request, with its tools.
        parse: whether a ``message_format`` of None becomes the format of the template, which separates
            reasoning and calls from the text.
        media: returns the `Media` of the model (`oxillama.engine.features.media`), which takes pictures and
            sounds out of the messages. The tokens are a `MediaPrompt` then. None refuses all parts but text.
        encode: turns the text into token ids, as `Tokenizer.encode_rendered`, which None stands for.

    Raises:
        ChatTemplateError, ConfigError, TokenizerError: as `chat_text`.
        ConfigError: the format of the template has no tool calls, and there are tools.
    """
    template = template_of(tokenizer, bool(options.tools), variables)
    tools = definitions(options.tools) if options.tools else None
    held = None
    if media is not None and not all(map(is_text, messages)):
        messages, held = media().take(messages)
    escaper = NO_NAMES if options.special_in_content else template.escaper
    text = _text(template, messages, tools, variables or {}, answer, reasoning, escaper)
    form = options.message_format
    is_ruled = options.sampler is not None and rules_text(options, template.format)
    if is_ruled and not (parse and reasons_before(options, template.format)):
        text = template.format.at_answer(text)
    elif (parse and form is None) or (isinstance(form, str) and form == "auto"):
        form = template.format if options.tools is None else checked_format(template.format)
        if form.name != "none" or form.reasoning is not None:  # else there is nothing to tell apart
            options = options._changed(message_format=form)
    if held is not None:
        return held.prompt(text), options
    return (encode or tokenizer.encode_rendered)(text, escaped=True), options


def chat_text(
    tokenizer: TokenizerBridge,
    messages: Sequence[Any],
    tools: Sequence[Any] | None = None,
    variables: Mapping[str, Any] | None = None,
    *,
    answer: str = "",
    reasoning: str = "",
) -> str:
    """The prompt of a chat, as text.

    Args:
        messages: in OpenAI's form; a content is a text or a list of parts, all of them text.
        tools: as in `GenerationOptions`.
        variables: of the template, e.g. ``{"enable_thinking": False}``. "template" names another template of
            the file; "add_generation_prompt" says whether the prompt ends with the beginning of an answer.
        answer, reasoning: as for `with_answer`.

    Raises:
        ChatTemplateError: there is no template, or the template refuses the messages.
        ConfigError: a part of a content is not text; a tool is invalid, or the template takes no tools; an
            answer has begun without reasoning, and the template opens reasoning.
    """
    return unescape(escaped_text(tokenizer, messages, tools, variables, answer, reasoning))[0]


def escaped_text(
    tokenizer: TokenizerBridge,
    messages: Sequence[Any],
    tools: Sequence[Any] | None = None,
    variables: Mapping[str, Any] | None = None,
    answer: str = "",
    reasoning: str = "",
    special_in_content: bool = False,
) -> str:
    """The prompt of a chat as `chat_text`, with escapes before names of control tokens in the messages.

    `Tokenizer.encode_rendered` takes the text. ``special_in_content`` is as in `GenerationOptions`.
    """
    found = definitions(tools) if tools else None
    template = template_of(tokenizer, found is not None, variables)
    escaper = NO_NAMES if special_in_content else template.escaper
    return _text(template, messages, found, variables or {}, answer, reasoning, escaper)


def _text(
    template: ChatTemplate,
    messages: Sequence[Any],
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
    answer: str,
    reasoning: str,
    escaper: Escaper,
) -> str:
    said = canonical(messages, template)
    said, tools, variables, answer, reasoning = escaped((said, tools, variables, answer, reasoning), escaper)
    text = fitted_text(template, said, tools, variables)
    return with_answer(template, text, answer, reasoning) if answer else text


def with_answer(template: ChatTemplate, text: str, answer: str, reasoning: str) -> str:
    """A prompt that ends with the beginning of the answer, which the model continues.

    Args:
        reasoning: the reasoning before ``answer``, for a template that opens reasoning.

    Raises ConfigError if an answer has begun without reasoning, and the template opens reasoning.
    """
    form = template.format
    if answer and form.reasoning is not None and form.begins_in_reasoning(text):
        if reasoning:
            return f"{text}{reasoning.strip()}\n{form.reasoning[1]}\n\n{answer}"
        wanted = "a last message that is the user's, for the template opens reasoning before an answer"
        raise ConfigError(f"messages: expected {wanted}, got one of the assistant's")
    return text + answer


def template_of(
    tokenizer: TokenizerBridge, has_tools: bool, variables: Mapping[str, Any] | None = None
) -> ChatTemplate:
    """The template of a conversation: the one that ``variables`` name, or the file's for chats of this kind.

    Raises ChatTemplateError if the file has no such template.
    """
    usual = WITH_TOOLS if has_tools and WITH_TOOLS in tokenizer.templates else "default"
    name = str((variables or {}).get("template", usual))
    return tokenizer.compiled.get(name) or tokenizer.chat_template(name)

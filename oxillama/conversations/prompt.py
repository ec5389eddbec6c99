"""`chat_prompt`: from messages, tools and template variables to the prompt and the options of its request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from oxillama.chat.template import ChatTemplate
from oxillama.config import GenerationOptions
from oxillama.conversations.messages import plain_messages
from oxillama.errors import ConfigError
from oxillama.tokenizer.bridge import TokenizerBridge
from oxillama.toolcalls.conversation import for_template, tool_variables
from oxillama.toolcalls.definitions import definitions
from oxillama.toolcalls.formats import grammar_of_template
from oxillama.toolcalls.parsing import WITH_TOOLS, format_of_source, template_values


def chat_prompt(
    tokenizer: TokenizerBridge,
    messages: Sequence[Any],
    options: GenerationOptions,
    variables: Mapping[str, Any] | None = None,
    *,
    answer: str = "",
    parse: bool = True,
) -> tuple[list[int], GenerationOptions]:
    """The token ids of a chat's prompt, and the options of its request with the format of the answer.

    Parameters
    ----------
    messages, variables, answer : as for `chat_text`.
    options : of the request, with its tools.
    parse : whether a ``message_format`` of None becomes the format of the template, by which reasoning and
        calls are told apart from the text.

    Raises
    ------
    ChatTemplateError, ConfigError, TokenizerError : as `chat_text`.
    ConfigError : the format of the template has no tool calls, and there are tools.
    """
    text = chat_text(tokenizer, messages, options.tools, variables, answer=answer)
    wanted, has_tools = options.message_format, options.tools is not None
    if (parse and wanted is None) or (isinstance(wanted, str) and wanted == "auto"):
        form = format_of_source(template_of(tokenizer, has_tools, variables).source, has_tools)
        options = replace(options, message_format=form)
    return tokenizer.encode_rendered(text), options


def chat_text(
    tokenizer: TokenizerBridge,
    messages: Sequence[Any],
    tools: Sequence[Any] | None = None,
    variables: Mapping[str, Any] | None = None,
    *,
    answer: str = "",
) -> str:
    """The prompt of a chat, as text.

    Parameters
    ----------
    messages : in OpenAI's form; a content is a text or a list of parts, all of them of text.
    tools : as in `GenerationOptions`.
    variables : of the template, e.g. ``{"enable_thinking": False}``. "template" names another template of the
        file; "add_generation_prompt" says whether the prompt ends with the beginning of an answer.
    answer : the beginning of the answer, from which the model goes on.

    Raises
    ------
    ChatTemplateError : there is no template, or it refuses the messages.
    ConfigError : a part of a content is not text; a tool is none, or the template has no place for tools; an
        answer has begun, and the template opens reasoning.
    """
    found = None if not tools else definitions(tools)
    values = template_values(variables, found)
    template = template_of(tokenizer, found is not None, values)
    values.pop("template", None)
    if found is not None:
        values = {**tool_variables(template, found), **values}
    text = template.render(for_template(plain_messages(messages, template), template), **values)
    if answer and grammar_of_template(template.source).begins_in_reasoning(text):
        wanted = "a last message that is the user's, for the template opens reasoning before an answer"
        raise ConfigError(f"messages: expected {wanted}, got one of the assistant's")
    return text + answer


def template_of(
    tokenizer: TokenizerBridge, has_tools: bool, variables: Mapping[str, Any] | None = None
) -> ChatTemplate:
    """The template of a conversation: the one that ``variables`` name, or the file's for chats of this kind.

    Raises ChatTemplateError if there is none.
    """
    usual = WITH_TOOLS if has_tools and WITH_TOOLS in tokenizer.chat_template_names else "default"
    return tokenizer.chat_template(str((variables or {}).get("template", usual)))

"""`chat_prompt`: from messages, tools and template variables to the prompt and the options of its request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oxillama.chat.template import ChatTemplate
from oxillama.config import GenerationOptions, checks
from oxillama.errors import ChatTemplateError, ConfigError
from oxillama.tokenizer.bridge import TokenizerBridge
from oxillama.toolcalls.conversation import for_template, tool_variables
from oxillama.toolcalls.definitions import definitions
from oxillama.toolcalls.formats import grammar_of_template
from oxillama.toolcalls.parsing import WITH_TOOLS, format_of_source, template_values

SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates switch reasoning on and off."""

BUDGET = "thinking_budget"
"""The variable by which some templates name a number of tokens for it; 0 for none."""

TEXT_PARTS = ("text", "input_text")
"""Types of parts that are text."""


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
) -> tuple[Any, GenerationOptions]:
    """The token ids of a chat's prompt, and the options of its request with the format of the answer.

    Parameters
    ----------
    messages, variables, answer, reasoning : as for `chat_text`.
    options : of the request, with its tools.
    parse : whether a ``message_format`` of None becomes the format of the template, by which reasoning and
        calls are told apart from the text.
    media : gives the model's `oxillama.media.feature.Media`, which takes pictures and sounds out of the
        messages. The tokens are a `MediaPrompt` then. None refuses all parts but text.

    Raises
    ------
    ChatTemplateError, ConfigError, TokenizerError : as `chat_text`.
    ConfigError : the format of the template has no tool calls, and there are tools.
    """
    held = None
    if media is not None and not all(map(is_text, messages)):
        messages, held = media().take(messages)
    text = chat_text(tokenizer, messages, options.tools, variables, answer=answer, reasoning=reasoning)
    wanted, has_tools = options.message_format, options.tools is not None
    if (parse and wanted is None) or (isinstance(wanted, str) and wanted == "auto"):
        form = format_of_source(template_of(tokenizer, has_tools, variables).source, has_tools)
        options = options._changed(message_format=form)
    return tokenizer.encode_rendered(text) if held is None else held.prompt(text), options


def is_text(message: Any) -> bool:
    """Whether all parts of a message's content are text, as far as their types say."""
    content = message.get("content") if isinstance(message, Mapping) else None
    parts = content if isinstance(content, (list, tuple)) else ()
    return all(isinstance(part, Mapping) and part.get("type") in TEXT_PARTS for part in parts)


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

    Parameters
    ----------
    messages : in OpenAI's form; a content is a text or a list of parts, all of them of text.
    tools : as in `GenerationOptions`.
    variables : of the template, e.g. ``{"enable_thinking": False}``. "template" names another template of the
        file; "add_generation_prompt" says whether the prompt ends with the beginning of an answer.
    answer : the beginning of the answer, from which the model goes on.
    reasoning : that stands before it, for a template that opens reasoning.

    Raises
    ------
    ChatTemplateError : there is no template, or it refuses the messages.
    ConfigError : a part of a content is not text; a tool is none, or the template has no place for tools; an
        answer has begun without reasoning, and the template opens it.
    """
    found = None if not tools else definitions(tools)
    values = template_values(variables, found)
    template = template_of(tokenizer, found is not None, values)
    values.pop("template", None)
    values = {**tool_variables(template, found), **values}
    text = template.render(for_template(plain_messages(messages, template), template), **values)
    form = grammar_of_template(template.source)
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

    Raises ChatTemplateError if there is none.
    """
    usual = WITH_TOOLS if has_tools and WITH_TOOLS in tokenizer.chat_template_names else "default"
    return tokenizer.chat_template(str((variables or {}).get("template", usual)))


def plain_messages(messages: Sequence[Any], template: ChatTemplate) -> list[Any]:
    """Messages with roles and contents that a template knows, and without fields that are None.

    Parts of text become one text with line breaks between them, unless the template writes parts itself. The
    role "developer" is "system" for a template that does not name it.

    Raises
    ------
    ConfigError : a role is no string, or a part of a content is not text; the message names the part.
    """
    found: list[Any] = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            found.append(message)  # which the template refuses
            continue
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str):
            raise checks.refuse(f"messages[{i}].role", "a string", role)
        changed = {key: value for key, value in message.items() if value is not None or key == "content"}
        if role == "developer" and role not in template.source:
            changed["role"] = role = "system"
        if isinstance(content, (list, tuple)):
            parts = text_parts(f"messages[{i}].content", content)
            is_list = writes_parts(template, role)
            changed["content"] = parts if is_list else "\n".join(part["text"] for part in parts)
        found.append(changed)
    return found


def text_parts(where: str, parts: Sequence[Any]) -> list[dict[str, Any]]:
    """The parts of a content, as templates know them. Raises ConfigError for one that is not text."""
    found = []
    for j, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(kind, str) or kind not in TEXT_PARTS:
            raise checks.refuse(f"{where}[{j}]", "a part of type text", part if kind is None else kind)
        if not isinstance(part.get("text"), str):
            raise checks.refuse(f"{where}[{j}].text", "a string", part.get("text"))
        found.append({**part, "type": "text"})
    return found


def writes_parts(template: ChatTemplate, role: str) -> bool:
    """Whether a template writes the text of each part of a content, and not the list as it is."""
    message = {"role": role, "content": [{"type": "text", "text": word} for word in ("needle", "thread")]}
    ask = {"role": "user", "content": "a"}
    around: dict[str, list[Any]] = {"user": [message], "system": [message, ask], "developer": [message, ask]}
    try:
        text = template.render(around.get(role, [ask, message]))
    except ChatTemplateError:
        return False
    quoted = any(f"{quote}needle{quote}" in text for quote in "'\"")
    return "needle" in text and "thread" in text and not quoted

"""Step 2 of a prompt: rules change messages that a template refuses or shows in part; the text is checked.

A template is a program, so whether a rule helps is found by rendering. A conversation is first reduced to the
order of kinds of its messages, of which short conversations with known words are made. So the rules for a
conversation depend on its kinds of messages alone, and are found once for a template.

The prompt itself is checked in any case. A text that the prompt lacks is an error. It is a warning if the
template never shows such texts: the story model's template shows the last message alone.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from oxillama.errors import ChatTemplateError, ConfigError
from oxillama.text.chat.messages import Message
from oxillama.text.chat.needs import needs_of
from oxillama.text.chat.rules import SHORT_ID, Messages, applied
from oxillama.text.chat.searching import Kind, Rules, probe, search
from oxillama.text.chat.template import ChatTemplate, TemplateTimeout

MOST_KEPT = 256
"""Kinds of conversations whose rules are kept for a template."""

WORD = re.compile(r"\w+")

SWITCH = re.compile("/(no_?)?think")
"""Words in messages by which templates switch reasoning, and which templates may remove."""

PROBE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {"key": {"type": "string", "description": "d"}}},
    },
}


def fitted_text(
    template: ChatTemplate,
    messages: Messages,
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
) -> str:
    """The prompt of canonical messages, which shows all their texts.

    Args:
        tools, variables: as for `render`.

    Raises:
        ChatTemplateError: the template refuses the messages whatever the rules do, or leaves out a text that
            it shows in other conversations; the error names the text.
        ConfigError: as `render`.

    Warns UserWarning, once for a template, if the template leaves out texts in all such conversations.
    """
    rules = rules_for(template, messages, tools, variables)
    refusal: ChatTemplateError
    try:
        fit = applied(rules, messages, template.format) if rules else messages
        text = render(template, fit, tools, variables)
        lost = lost_text(messages, text, template)
        if lost is None:
            return text
        refusal = ChatTemplateError(f"{lost[0]}: the chat template leaves out {lost[1][:80]!r}")
        if rules is None:
            if template not in _WARNED:
                _WARNED.add(template)
                warnings.warn(f"{refusal}, and such texts of later conversations", stacklevel=2)
            return text
    except TemplateTimeout:
        raise
    except ChatTemplateError as error:
        refusal = error
    found = _searched(template, messages, tools, variables)  # the texts themselves decide
    if found is None:
        raise refusal
    return render(template, applied(found, messages, template.format), tools, variables)


def rules_for(
    template: ChatTemplate,
    messages: Messages,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] = MappingProxyType({}),
) -> Rules | None:
    """The rules that a template needs for the kinds of some canonical messages; None if no rules help.

    They are found once for a template, its variables, and whether there are tools.
    """
    kinds = reduced([kind_of(message) for message in messages])
    of_variables = repr(sorted(variables.items(), key=lambda item: item[0])) if variables else ""
    facts = repr((kinds, bool(tools), of_variables)).encode("utf-8", "surrogatepass")
    key = hashlib.blake2b(facts, digest_size=32).digest()  # a client decides how long the facts are
    kept = _KEPT.setdefault(template, {})
    if key not in kept:
        if len(kept) >= MOST_KEPT:
            kept.clear()
        as_text = any(kind.n_calls for kind in kinds) and needs_of(template).takes_text
        short = list(probe(kinds, as_text))
        kept[key] = _searched(template, short, [PROBE_TOOL] if tools else None, variables)
    return kept[key]


_KEPT: weakref.WeakKeyDictionary[ChatTemplate, dict[bytes, Rules | None]] = weakref.WeakKeyDictionary()
_WARNED: weakref.WeakSet[ChatTemplate] = weakref.WeakSet()


def _searched(
    template: ChatTemplate,
    messages: Messages,
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
) -> Rules | None:
    def shows(changed: Messages) -> bool:
        try:
            text = render(template, changed, tools, variables)
        except TemplateTimeout:
            raise
        except ChatTemplateError:
            return False
        writes_list = "'text'" in text and any(isinstance(m["content"], list) for m in changed)
        writes_none = "None" in text and "None" not in template.source + json.dumps(messages)
        return not (writes_list or writes_none) and lost_text(messages, text, template) is None

    return search(messages, template.format, shows)


# --- kinds of messages ------------------------------------------------------------------------------


def kind_of(message: Message) -> Kind:
    """The kind of a canonical message."""
    calls = message.get("tool_calls", ())
    ids = [call.get("id") for call in calls] or [message.get("tool_call_id", "000000000")]
    return Kind(
        message["role"],
        bool(message["content"]),
        isinstance(message["content"], list),
        bool(message.get("reasoning_content")),
        min(len(calls), 2),
        any(_is_cut(call["function"]["arguments"]) for call in calls),
        all(isinstance(id, str) and SHORT_ID.fullmatch(id) for id in ids),
    )


def _is_cut(arguments: Any) -> bool:
    try:
        return isinstance(arguments, str) and not isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return True


def reduced(kinds: Sequence[Kind]) -> tuple[Kind, ...]:
    """A short order of kinds in which the same kinds follow one another.

    A part that comes back to a kind is left out if each pair of neighbours in the part came before it.
    """
    walk: list[Kind] = []
    for kind in kinds:
        if kind in walk:
            at = len(walk) - 1 - walk[::-1].index(kind)
            part = [*walk[at:], kind]
            before = walk[: at + 1]
            if set(pairwise(part)) <= set(pairwise(before)):
                del walk[at + 1 :]
                continue
        walk.append(kind)
    return tuple(walk)


# --- text -------------------------------------------------------------------------------------------


def render(
    template: ChatTemplate,
    messages: Sequence[Any],
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The text that a template writes.

    Args:
        messages: in the forms that the template reads.
        tools: definitions in OpenAI's form; None without tools.
        variables: of the template, e.g. ``{"enable_thinking": False}``.

    Raises:
        ChatTemplateError: the template refuses the messages, or is over a limit.
        ConfigError: the template takes no tools, or ``variables`` name tools, too.
    """
    values = {name: value for name, value in (variables or {}).items() if name != "template"}
    if tools is not None:
        if values.get("tools") is not None:
            raise ConfigError("tools: expected them once, got them in template, too")
        values["tools"] = tools
    return template.render(messages, **{**tool_variables(template, tools), **values})


def tool_variables(template: ChatTemplate, tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """The variables in which a template takes tools. Raises ConfigError if it takes no tools."""
    known = template.variables
    if {"functions", "datetime"} <= known and "tools" not in known:  # firefunction: as text, with the time
        text = json.dumps(list(tools), indent=4, ensure_ascii=False) if tools else ""
        return {"functions": text, "datetime": datetime.now().strftime("%Y-%m-%d %H:%M:%S")}
    if tools is None:
        return {}
    if "tools" in known:
        return {"tools": list(tools)}
    if "xml_tools" in known:
        return {"xml_tools": list(tools)}
    raise ConfigError("tools: expected a chat template that tells the model of them, got another")


# --- texts that a prompt lacks ----------------------------------------------------------------------


def lost_text(messages: Sequence[Message], prompt: str, template: ChatTemplate) -> tuple[str, str] | None:
    """The place and the text of the first text that a prompt lacks; None if it has all.

    Reasoning is no such text: templates leave out the reasoning of earlier turns.
    """
    position = 0
    words: _Words | None = None
    for where, text in texts_of(messages, template):
        at = prompt.find(text, position)
        if at >= 0:
            position = at + len(text)
        elif text not in prompt and json.dumps(text, ensure_ascii=False)[1:-1] not in prompt:
            words = words or _Words(prompt, template.source)
            if not words.has_all_of(text):
                return where, text
    return None


def texts_of(messages: Sequence[Message], template: ChatTemplate) -> Iterator[tuple[str, str]]:
    """The places and texts of contents, and of the names and arguments of calls."""
    close = template.format.reasoning[1] if template.format.reasoning else ""
    for i, message in enumerate(messages):
        content = message["content"]
        parts = [content] if isinstance(content, str) else [part["text"] for part in content]
        for text in parts:
            if close and message["role"] == "assistant":
                text = text.rpartition(close)[2]  # the template may cut reasoning off
            if text := text.strip():
                yield f"messages[{i}].content", text
        for j, call in enumerate(message.get("tool_calls", ())):
            where, function = f"messages[{i}].tool_calls[{j}]", call["function"]
            yield f"{where}.function.name", function["name"]
            for text in _leaves(function["arguments"]):
                yield f"{where}.function.arguments", text


def _leaves(value: Any) -> Iterator[str]:
    """The texts in arguments: names of members and strings."""
    if isinstance(value, str):
        if _is_cut(value):
            yield value
        else:
            yield from _leaves(json.loads(value))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from [item] if isinstance(item, str) else _leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from [item] if isinstance(item, str) else _leaves(item)


class _Words:
    """The words of a prompt. Templates write texts in other cases, and with other white space."""

    def __init__(self, prompt: str, source: str) -> None:
        self._prompt = prompt.casefold()
        self._known = frozenset(WORD.findall(self._prompt))
        self._has_switch = SWITCH.search(source) is not None

    def has_all_of(self, text: str) -> bool:
        """Whether the prompt has all words of a text, apart from switches that the template knows."""
        if self._has_switch:
            text = SWITCH.sub(" ", text)
        words = frozenset(WORD.findall(text.casefold())) - self._known
        return all(word in self._prompt or json.dumps(word)[1:-1] in self._prompt for word in words)

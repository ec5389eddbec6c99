"""Rules that change canonical messages where a chat template refuses or leaves out what they say.

A rule returns new messages, and returns equal messages where the rule has nothing to change. Which rules a
conversation needs is found by `oxillama.text.chat.fitting`. `docs/chat.md` has a table of the rules.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from oxillama.text.chat.messages import Message, calls_of
from oxillama.text.toolcalls.patterns import pattern
from oxillama.text.toolcalls.tool_grammar import ToolCallGrammar

Messages = list[Message]
Apply = Callable[[Messages, ToolCallGrammar], Messages]

SYSTEM = ("system", "developer")
"""Roles of instructions."""

SHORT_ID = re.compile("[a-zA-Z0-9]{9}")
"""Ids of calls that Mistral's templates take."""


class Rule(NamedTuple):
    """A rule: the name and the text in the documentation, and the function that applies the rule."""

    name: str
    text: str
    apply: Apply


def _of_each(change: Callable[[Message], list[Message]]) -> Apply:
    """A rule that changes each message by itself, or makes several of it."""
    return lambda messages, form: [new for message in messages for new in change(message)]


def _null_content(message: Message) -> list[Message]:
    return [{**message, "content": None} if calls_of(message) and not message["content"] else message]


def _text_parts(message: Message) -> list[Message]:
    text = message["content"]
    return [{**message, "content": [{"type": "text", "text": text}]} if isinstance(text, str) else message]


def _joined_parts(message: Message) -> list[Message]:
    return [{**message, "content": text_of(message)}]


def _short_ids(message: Message) -> list[Message]:
    def short(id: Any) -> Any:
        if not isinstance(id, str) or SHORT_ID.fullmatch(id):
            return id
        return hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:9]

    if calls_of(message):
        calls = [{**call, "id": short(call.get("id"))} for call in calls_of(message)]
        return [{**message, "tool_calls": calls}]
    known = {"tool_call_id": short(message["tool_call_id"])} if "tool_call_id" in message else {}
    return [{**message, **known}]


def _arguments_in_object(message: Message) -> list[Message]:
    calls = [
        {**call, "function": {**call["function"], "arguments": _object_of(call["function"]["arguments"])}}
        for call in calls_of(message)
    ]
    return [{**message, "tool_calls": calls}] if calls else [message]


def _separate_text(message: Message) -> list[Message]:
    if not (calls_of(message) and message["content"]):
        return [message]
    text = {key: value for key, value in message.items() if key != "tool_calls"}
    return [text, {"role": message["role"], "content": "", "tool_calls": calls_of(message)}]


def _one_call_each(messages: Messages, form: ToolCallGrammar) -> Messages:
    found: Messages = []
    rest = list(messages)
    while rest:
        message = rest.pop(0)
        calls = calls_of(message)
        if len(calls) < 2:
            found.append(message)
            continue
        results = list(takewhile(_is_result, rest))
        del rest[: len(results)]
        for i, call in enumerate(calls):
            first = message if i == 0 else {"role": message["role"], "content": ""}
            found.append({**first, "tool_calls": [call]})
            own = [result for result in results if result.get("tool_call_id") == call.get("id")]
            found += own
            results = [result for result in results if not any(result is each for each in own)]
        found += results
    return found


def _calls_in_content(messages: Messages, form: ToolCallGrammar) -> Messages:
    found = []
    for message in messages:
        if calls_of(message):
            text = "\n".join(filter(None, [text_of(message), written_calls(form, calls_of(message))]))
            message = {key: value for key, value in message.items() if key != "tool_calls"}
            message["content"] = text
        found.append(message)
    return found


def _results_as_user(message: Message) -> list[Message]:
    return [{"role": "user", "content": message["content"]} if _is_result(message) else message]


def _system_first(messages: Messages, form: ToolCallGrammar) -> Messages:
    instructions = [m for m in messages if m["role"] in SYSTEM]
    if not instructions or (len(instructions) == 1 and instructions[0] is messages[0]):
        return messages
    first = {**instructions[0], "content": joined_texts(map(text_of, instructions))}
    return [first, *(m for m in messages if m["role"] not in SYSTEM)]


def _system_in_user(messages: Messages, form: ToolCallGrammar) -> Messages:
    found: Messages = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] in SYSTEM:
            waiting.append(text_of(message))
        elif message["role"] == "user" and waiting:
            found.append({**message, "content": joined_texts([*waiting, text_of(message)])})
            waiting = []
        else:
            found.append(message)
    return [*found, {"role": "user", "content": joined_texts(waiting)}] if waiting else found


def _user_first(messages: Messages, form: ToolCallGrammar) -> Messages:
    n = len(list(takewhile(lambda m: m["role"] in SYSTEM, messages)))
    if n < len(messages) and messages[n]["role"] == "user":
        return messages
    return [*messages[:n], {"role": "user", "content": ""}, *messages[n:]]


def _joined(messages: Messages, form: ToolCallGrammar) -> Messages:
    found: Messages = []
    for message in messages:
        last = found[-1] if found else {"role": ""}
        if message["role"] == last["role"] != "tool" and not calls_of(last):
            reasoning = [m["reasoning_content"] for m in (last, message) if m.get("reasoning_content")]
            content = joined_texts([text_of(last), text_of(message)])
            found[-1] = {**last, **message, "content": content}
            if len(reasoning) == 2:
                found[-1]["reasoning_content"] = joined_texts(reasoning)
        else:
            found.append(message)
    return found


def _turn_between(messages: Messages, form: ToolCallGrammar) -> Messages:
    found: Messages = []
    for message in messages:
        last = found[-1] if found else {"role": ""}
        if message["role"] == "user" and (_is_result(last) or calls_of(last)):
            found.append({"role": "assistant", "content": ""})
        found.append(message)
    return found


def _user_in_result(messages: Messages, form: ToolCallGrammar) -> Messages:
    found: Messages = []
    for message in messages:
        last = found[-1] if found else {"role": ""}
        if message["role"] == "user" and _is_result(last):
            found[-1] = {**last, "content": joined_texts([text_of(last), text_of(message)])}
        else:
            found.append(message)
    return found


RULES = (
    # Rules are applied in this order; `PREFERENCE` says which of them are tried first.
    Rule("separate text", "text beside calls becomes a message before the calls", _of_each(_separate_text)),
    Rule("one call each", "each call becomes a message, followed by its result", _one_call_each),
    Rule("calls in content", "calls become text, in the format of the model", _calls_in_content),
    Rule("results as user", "results of tools become messages of the user", _of_each(_results_as_user)),
    Rule("system first", "all system messages become one, at the beginning", _system_first),
    Rule("system in user", "a system message is joined with the user's message after it", _system_in_user),
    Rule("user first", "an empty message of the user comes before the first message", _user_first),
    Rule("user in result", "a user's message after a result is joined with the result", _user_in_result),
    Rule("turn between", "an empty answer separates a result from the user's next message", _turn_between),
    Rule("joined", "neighbours of one role become one message", _joined),
    Rule("short ids", "ids of calls become nine letters and digits", _of_each(_short_ids)),
    Rule(
        "object",
        'arguments that are cut off become an object: `{"arguments": "..."}`',
        _of_each(_arguments_in_object),
    ),
    Rule("null content", "the content of a message with calls alone is null", _of_each(_null_content)),
    Rule("joined parts", "parts of text become one text", _of_each(_joined_parts)),
    Rule("text parts", "a text becomes a list of one part", _of_each(_text_parts)),
)

PREFERENCE = tuple(
    next(rule for rule in RULES if rule.name == name)
    for name in (
        "null content", "short ids", "joined parts", "text parts", "object", "joined", "system first",
        "separate text", "one call each", "turn between", "user in result", "system in user", "user first",
        "calls in content", "results as user",
    )
)  # fmt: skip
"""The rules, from the one that changes the meaning least."""

_MILD = {"short ids", "object", "joined", "system first", "turn between"}
_TURNS = {"calls in content", "results as user", "system in user", "user first", "joined"}

SETS = tuple(
    frozenset(rule for rule in RULES if rule.name in names)
    for base in (
        _MILD,
        {*_MILD, "system in user", "user first"},
        {*_MILD, "separate text", "one call each"},
        _TURNS,
    )
    for names in (base, base | {"null content"}, base | {"joined parts"}, base | {"text parts"})
)
"""Rules that are tried together, and then without each rule that is not needed. The last sets leave turns of
the user and the assistant alone."""


def applied(rules: Sequence[Rule] | frozenset[Rule], messages: Messages, form: ToolCallGrammar) -> Messages:
    """The messages after some of the rules."""
    for rule in RULES:
        if rule in rules:
            messages = rule.apply(messages, form)
    return messages


def text_of(message: Message) -> str:
    """The text of a canonical message's content."""
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content or ())


def joined_texts(texts: Any) -> str:
    """Texts with a blank line between each two; empty ones are left out."""
    return "\n\n".join(filter(None, texts))


def _is_result(message: Message) -> bool:
    return bool(message["role"] == "tool")


def _object_of(arguments: Any) -> Any:
    """The object that a text is as JSON; an object with the text, for any other text."""
    if not isinstance(arguments, str):
        return arguments
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"arguments": arguments}


# --- calls as text --------------------------------------------------------------------------------


def written_calls(form: ToolCallGrammar, calls: Sequence[Mapping[str, Any]]) -> str:
    """Calls in the text of a format: JSON or Python between delimiters; a line of JSON each for others."""
    found = [(call["function"]["name"], _object_of(call["function"]["arguments"])) for call in calls]
    parts = pattern(form.calls[0]).parts if form.calls else ()
    is_python = "$keywords" in parts
    if not parts or "$number" in parts or not (is_python or pattern(form.calls[0]).is_object):
        return "\n".join(_json({"name": name, "arguments": arguments}) for name, arguments in found)
    items = []
    for name, arguments in found:
        words = {"~": " ", "$name": name, "$json": _json(arguments)}
        words["$keywords"] = ", ".join(f"{key}={_json(value)}" for key, value in arguments.items())
        items.append("".join(words.get(part, part) for part in parts))
    open, line = form.opens[0].removesuffix("["), "" if is_python or form.opens[0].endswith("[") else "\n"
    inside = [f"[{', '.join(items)}]"] if form.listed else items
    return "\n".join(f"{open}{line}{text}{line}{form.close}".rstrip() for text in inside)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

"""The search for rules with which a template shows a conversation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from oxillama.text.chat.messages import Message
from oxillama.text.chat.rules import PREFERENCE, SETS, Messages, Rule, applied
from oxillama.text.toolcalls.tool_grammar import ToolCallGrammar

Rules = frozenset[Rule]

MOST_PAIRED = 40
"""Messages of a conversation for which pairs of rules are tried."""


class Kind(NamedTuple):
    """What of a canonical message decides how a template shows it."""

    role: str
    has_text: bool
    has_parts: bool
    has_reasoning: bool
    n_calls: int
    is_cut: bool
    is_short: bool


def search(messages: Messages, form: ToolCallGrammar, shows: Callable[[Messages], bool]) -> Rules | None:
    """The rules with which a template shows a conversation; None if no rules help.

    One rule is better than two, and two are better than a set; the first of `PREFERENCE` are better.

    Args:
        shows: whether the template shows all texts of ``messages`` when it gets the messages after the rules.
    """

    def works(rules: Sequence[Rule] | Rules) -> bool:
        changed = applied(rules, messages, form)
        return not (rules and changed == messages) and shows(changed)

    if works(()):
        return frozenset()
    useful = [rule for rule in PREFERENCE if rule.name == "joined" or rule.apply(messages, form) != messages]
    for n in (1, 2) if len(messages) < MOST_PAIRED else (1,):
        for rules in combinations(useful, n):
            if works(rules):
                return frozenset(rules)
    for needed in filter(works, SETS):
        for rule in reversed(PREFERENCE):
            if rule in needed and works(needed - {rule}):
                needed -= {rule}
        return needed
    return None


def probe(kinds: Sequence[Kind], as_text: bool) -> Iterator[Message]:
    """Messages of some kinds, with a word of its own in each text; ``as_text`` makes arguments text."""
    ids: list[tuple[str, str]] = []
    for i, kind in enumerate(kinds):
        word = f"needle{i}"
        message: Message = {"role": kind.role, "content": word if kind.has_text else ""}
        if kind.has_parts:
            message["content"] = [{"type": "text", "text": word}]
        if kind.has_reasoning:
            message["reasoning_content"] = message["reasoning"] = message["thinking"] = f"why{i}"
        if kind.n_calls:
            ids = [
                (f"call{i:03d}{j:02d}" if kind.is_short else f"call_{i}_{j}", f"tool{i}x{j}")
                for j in range(kind.n_calls)
            ]
            message["tool_calls"] = [
                {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for id, name in ids
                for arguments in [_probe_arguments(name, kind.is_cut, as_text)]
            ]
        elif kind.role == "tool":
            id, name = ids.pop(0) if ids else (f"call{i:05d}" if kind.is_short else f"call_{i}", "tool")
            message |= {"tool_call_id": id, "name": name}
        yield message


def _probe_arguments(name: str, is_cut: bool, as_text: bool) -> Any:
    if is_cut:
        return f'{{"key": "value{name}'
    arguments = {"key": f"value{name}"}
    return json.dumps(arguments) if as_text else arguments

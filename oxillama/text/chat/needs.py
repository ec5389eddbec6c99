"""What a chat template needs: in which forms it takes contents and arguments.

A template is a program, so its needs are found by rendering short conversations with known words in them.
Each need is found once for a template, when a conversation first depends on it.
"""

from __future__ import annotations

import json
import weakref
from functools import cached_property
from typing import Any

from oxillama.errors import ChatTemplateError
from oxillama.text.chat.template import ChatTemplate

NEEDLE: dict[str, Any] = {"needle": [1, "n"]}
"""Arguments of a call, to be found in what a template writes."""


class TemplateNeeds:
    """The needs of one template."""

    def __init__(self, template: ChatTemplate) -> None:
        self._render = template.render
        self._writes_parts: dict[str, bool] = {}

    def writes_parts(self, role: str) -> bool:
        """Whether the template writes the text of each part of a content, and not the list itself."""
        if role not in self._writes_parts:
            self._writes_parts[role] = self._finds_parts(role)
        return self._writes_parts[role]

    def _finds_parts(self, role: str) -> bool:
        message = {"role": role, "content": [{"type": "text", "text": word} for word in ("needle", "thread")]}
        messages: list[dict[str, Any]] = [message]
        if role != "user":
            messages.insert(1 if role in ("system", "developer") else 0, {"role": "user", "content": "a"})
        try:
            text = self._render(messages)
        except ChatTemplateError:
            return False
        quoted = any(f"{quote}needle{quote}" in text for quote in "'\"")
        return "needle" in text and "thread" in text and not quoted

    @cached_property
    def takes_text(self) -> bool:
        """Whether the template writes arguments that are text as they are.

        If the template writes text and objects in different forms, the model's own turns have objects.
        """
        if not any(json.dumps(NEEDLE) in text for text in self._with_call(json.dumps(NEEDLE))):
            return False
        of_object = self._with_call(NEEDLE)
        return not of_object or any('{"needle"' in text for text in of_object)

    def _with_call(self, arguments: Any) -> list[str]:
        """A conversation with a call, as the template writes it: with the contents "" and None."""
        call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": arguments}}
        result = {"role": "tool", "tool_call_id": "call00000", "name": "f", "content": "b"}
        found = []
        for content in ("", None):
            answer = {"role": "assistant", "content": content, "tool_calls": [call]}
            try:
                found.append(self._render([{"role": "user", "content": "a"}, answer, result]))
            except ChatTemplateError:
                continue
        return found


_NEEDS: weakref.WeakKeyDictionary[ChatTemplate, TemplateNeeds] = weakref.WeakKeyDictionary()


def needs_of(template: ChatTemplate) -> TemplateNeeds:
    """The needs of a template, found once."""
    if template not in _NEEDS:
        _NEEDS[template] = TemplateNeeds(template)
    return _NEEDS[template]

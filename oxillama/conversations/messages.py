"""Messages as chat templates know them: their roles, and contents that are lists of parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oxillama.chat.template import ChatTemplate
from oxillama.config import checks
from oxillama.errors import ChatTemplateError

TEXT_PARTS = ("text", "input_text")
"""Types of parts that are text."""


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
    around = {"user": [message], "system": [message, ask], "developer": [message, ask]}
    try:
        text = template.render(around.get(role, [ask, message]))
    except ChatTemplateError:
        return False
    quoted = any(f"{quote}needle{quote}" in text for quote in "'\"")
    return "needle" in text and "thread" in text and not quoted

"""A conversation: its messages, taking exchanges back, and JSON files of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from oxillama.apps.cli.console import read_text
from oxillama.apps.cli.media import KINDS, ContentPart
from oxillama.base.atomic_file import replaced_file
from oxillama.errors import ConfigError

Message = dict[str, Any]

MORE = ("reasoning_content", "tool_calls", "tool_call_id", "name")
"""Keys of messages with calls and results of tools."""


class Conversation:
    """Messages with "role" and "content", the oldest first.

    Args:
        system: text of the system message; None without such a message.
    """

    def __init__(self, system: str | None = None) -> None:
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[Message] = list(self._opening)

    def asking(self, text: str | list[ContentPart]) -> list[Message]:
        """The messages followed by a question; the conversation itself is unchanged."""
        return [*self.messages, {"role": "user", "content": text}]

    def add(self, question: str | list[ContentPart], answer: str) -> None:
        self.messages = [*self.asking(question), {"role": "assistant", "content": answer}]

    def undo(self, command: str = "/undo") -> str | list[ContentPart]:
        """Removes the last question, which is returned, and its answer. Raises ConfigError without one."""
        asked = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        if not asked:
            raise ConfigError(f"{command}: expected an exchange to take back, got none")
        question: str | list[ContentPart] = self.messages[asked[-1]]["content"]
        del self.messages[asked[-1] :]
        return question

    def _last(self, role: str) -> Any:
        return next((m["content"] for m in reversed(self.messages) if m["role"] == role), None)

    @property
    def last_question(self) -> str | list[ContentPart] | None:
        """The last question, a text or parts; None if nothing was asked."""
        found: str | list[ContentPart] | None = self._last("user")
        return found

    @property
    def last_answer(self) -> str | None:
        """The text of the last answer; None without an answer."""
        found: str | None = self._last("assistant")
        return found

    @property
    def system(self) -> str | None:
        """The text of the system message; None without such a message."""
        return self.messages[0]["content"] if self.messages and self.messages[0]["role"] == "system" else None

    def set_system(self, text: str) -> None:
        rest = self.messages if self.system is None else self.messages[1:]
        self._opening = [{"role": "system", "content": text}]
        self.messages = [*self._opening, *rest]

    def reset(self) -> None:
        """Removes all but the system message."""
        self.messages = list(self._opening)

    def save(self, path: str) -> None:
        """Writes the messages as a JSON array. Raises ModelFileError if the file cannot be written."""
        with replaced_file(Path(path)) as file:
            file.write((json.dumps(self.messages, indent=1, ensure_ascii=False) + "\n").encode())

    def load(self, path: str) -> None:
        """Replaces the messages by a file's messages. Raises ConfigError if the file holds none."""
        text = read_text(path, "/load")
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"/load: expected JSON in {path}, got {error}") from error
        self.messages = messages_of(found, "/load", path)

    def resume(self, saved: object) -> None:
        """Continues with the messages of a session. Raises ConfigError for other values, and for
        another system message."""
        found = messages_of(saved, "--session", "the session")
        if self._opening and found[:1] != self._opening:
            raise ConfigError("--system: expected the one that the session began with, got another")
        self._opening = found[:1] if found and found[0]["role"] == "system" else []
        self.messages = found


def messages_of(found: object, option: str, path: str) -> list[Message]:
    """The messages in a JSON value. Raises ConfigError, which names ``option``, for another value."""
    if not isinstance(found, list) or not all(map(is_message, found)):
        raise ConfigError(f'{option}: expected a list of objects with "role" and "content" in {path}')
    return [{key: message[key] for key in ("role", "content", *MORE) if key in message} for message in found]


def is_message(value: object) -> bool:
    """Whether a JSON value is a message with a text, or, for the user's, with parts."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    content = value.get("content")
    if value["role"] == "user" and isinstance(content, list):
        return bool(content) and all(map(is_part, content))
    return isinstance(content, str)


def is_part(value: object) -> bool:
    """Whether a JSON value is a text, or a file, as a part of a message."""
    if not isinstance(value, dict):
        return False
    key = {"text": "text", **dict.fromkeys(KINDS, "path")}.get(str(value.get("type")))
    return key is not None and isinstance(value.get(key), str)

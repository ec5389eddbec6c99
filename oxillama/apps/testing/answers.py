"""Models' answers in tests, and a folder that caches them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blake3 import blake3

from oxillama.base.atomic_file import replaced_file
from oxillama.base.events import ToolCall
from oxillama.base.version import __version__
from oxillama.engine.completion import Completion
from oxillama.sessions.receipt import Receipt

FORMAT = 1
"""The format version of cached files; part of the keys."""

LASTING = ("stop", "length", "tool_calls")
"""Finish reasons of answers that are reproducible."""


class Answer(str):
    """The text of an answer, with further attributes.

    Attributes:
        finish_reason, reasoning, tool_calls, tokens: as in `Completion`.
        receipt: the receipt of the text; None if not requested.
    """

    finish_reason: str
    reasoning: str
    tool_calls: list[ToolCall]
    tokens: list[int]
    receipt: Receipt | None

    @classmethod
    def of(cls, completion: Completion) -> Answer:
        found = cls(completion.text)
        found.finish_reason = completion.finish_reason
        found.reasoning = completion.reasoning
        found.tool_calls = list(completion.tool_calls)
        found.tokens = list(completion.tokens)
        found.receipt = completion.receipt
        return found

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message of a conversation."""
        from oxillama.engine import features

        message: dict[str, Any] = features.load("messages")(str(self), self.reasoning, self.tool_calls)
        return message

    def to_json(self) -> str:
        """The answer as JSON text for `from_json`."""
        calls = [{"name": c.name, "args": c.args, "id": c.id, "text": c.text} for c in self.tool_calls]
        plain = {
            "text": str(self),
            "finish_reason": self.finish_reason,
            "reasoning": self.reasoning,
            "tool_calls": calls,
            "tokens": self.tokens,
            "receipt": None if self.receipt is None else self.receipt.to_json(),
        }
        return json.dumps(plain, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Answer:
        """Parse the text of `to_json`. Raises ValueError, KeyError, TypeError or ReceiptError."""
        plain = json.loads(text)
        found = cls(plain["text"])
        found.finish_reason, found.reasoning = plain["finish_reason"], plain["reasoning"]
        found.tool_calls = [ToolCall(c["name"], c["args"], c["id"], c["text"]) for c in plain["tool_calls"]]
        found.tokens = plain["tokens"]
        found.receipt = None if plain["receipt"] is None else Receipt.from_json(plain["receipt"])
        return found


class AnswerCache:
    """A folder of answers, one file each, named by a hash of everything that determines the answer.

    Args:
        folder: created with the first answer; None: nothing is cached.

    Attributes:
        hits, misses: number of answers that were found, and not found.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.hits: int = 0
        self.misses: int = 0

    def key(self, model: Sequence[Any], kind: str, prompt: Any, options: Mapping[str, Any]) -> str | None:
        """The key of an answer: a hash of the library's version, the model, the prompt and the options.

        None if one of them is not plain data: such an answer is not cached.
        """
        parts = [FORMAT, __version__, list(model), kind, prompt, dict(options)]
        try:
            text = json.dumps(parts, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError):
            return None
        return blake3(text.encode()).hexdigest()

    def find(self, key: str | None) -> Answer | None:
        """The answer with a key; None if it is missing or its file is damaged."""
        found = None
        if self.folder is not None and key is not None:
            try:
                found = Answer.from_json((self.folder / f"{key}.json").read_text(encoding="utf-8"))
            except (OSError, ValueError, KeyError, TypeError):
                found = None
        self.hits += found is not None
        self.misses += found is None
        return found

    def keep(self, key: str | None, answer: Answer) -> None:
        """Cache an answer, if it is reproducible (not cut by a timeout)."""
        if self.folder is None or key is None or answer.finish_reason not in LASTING:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with replaced_file(self.folder / f"{key}.json", synced=False) as file:
            file.write(answer.to_json().encode())

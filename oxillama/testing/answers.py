"""Answers of models to tests, and a folder that keeps them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blake3 import blake3

from oxillama._version import __version__
from oxillama.atomic_file import replaced_file
from oxillama.engine.generation import Completion
from oxillama.events import ToolCall
from oxillama.sessions.receipt import Receipt

FORMAT = 1
"""Of the files of a cache: a new one makes new keys."""

LASTING = ("stop", "length", "tool_calls")
"""Finish reasons that come again."""


class Answer(str):
    """The text of an answer, with what belongs to it.

    Attributes
    ----------
    finish_reason, reasoning, tool_calls, tokens : as in `Completion`.
    receipt : what the text follows from; None if none was asked for.
    """

    finish_reason: str
    reasoning: str
    tool_calls: list[ToolCall]
    tokens: list[int]
    receipt: Receipt | None

    @classmethod
    def of(cls, completion: Completion) -> Answer:
        """The answer that was generated."""
        found = cls(completion.text)
        found.finish_reason = completion.finish_reason
        found.reasoning = completion.reasoning
        found.tool_calls = list(completion.tool_calls)
        found.tokens = list(completion.tokens)
        found.receipt = completion.receipt
        return found

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message of the conversation."""
        from oxillama.engine import features

        message: dict[str, Any] = features.load("messages")(str(self), self.reasoning, self.tool_calls)
        return message

    def to_json(self) -> str:
        """JSON text, of which `from_json` makes the answer again."""
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
        """Raises ValueError, KeyError, TypeError or ReceiptError where it is none."""
        plain = json.loads(text)
        found = cls(plain["text"])
        found.finish_reason, found.reasoning = plain["finish_reason"], plain["reasoning"]
        found.tool_calls = [ToolCall(c["name"], c["args"], c["id"], c["text"]) for c in plain["tool_calls"]]
        found.tokens = plain["tokens"]
        found.receipt = None if plain["receipt"] is None else Receipt.from_json(plain["receipt"])
        return found


class AnswerCache:
    """Answers in a folder, a file each, by what they follow from.

    Parameters
    ----------
    folder : is made when the first answer is kept; None keeps nothing.

    Attributes
    ----------
    hits, misses : answers that were found, and that were not.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.hits: int = 0
        self.misses: int = 0

    def key(self, model: Sequence[Any], kind: str, prompt: Any, options: Mapping[str, Any]) -> str | None:
        """The key of an answer: a hash of the library's version, the model, the prompt and the options.

        None if one of them is no plain data: such an answer is not kept.
        """
        parts = [FORMAT, __version__, list(model), kind, prompt, dict(options)]
        try:
            text = json.dumps(parts, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError):
            return None
        return blake3(text.encode()).hexdigest()

    def find(self, key: str | None) -> Answer | None:
        """The answer of a key; None if there is none, or its file is damaged."""
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
        """Keeps an answer that would come again: one that a timeout has cut would not."""
        if self.folder is None or key is None or answer.finish_reason not in LASTING:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with replaced_file(self.folder / f"{key}.json", synced=False) as file:
            file.write(answer.to_json().encode())

"""What a message is made of: pieces of text, of reasoning, and of calls, in the order of writing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oxillama.base.config import checks
from oxillama.base.lazy_import import lazy

dumps: Callable[..., str] = lazy("json:dumps")


@dataclass(frozen=True, init=False)
class ToolCall:
    """A call of a tool.

    Attributes:
        name: of the tool.
        args: its arguments by name.
        id: what the model calls this call, if it does.
        text: the arguments as JSON, as the model wrote them where it wrote JSON.
    """

    name: str
    args: dict[str, Any]
    id: str | None
    text: str

    def __init__(
        self,
        name: str,
        args: Mapping[str, Any] | None = None,
        id: str | None = None,
        text: str | None = None,
        *,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """``arguments`` is another name of ``args``. Raises ConfigError if both are given."""
        if args is not None and arguments is not None:
            raise checks.refuse("arguments", "None beside args, which is the same", arguments)
        found = dict(args if args is not None else arguments or {})
        for key, value in {
            "name": name,
            "args": found,
            "id": id,
            "text": dumps(found, ensure_ascii=False) if text is None else text,
        }.items():
            object.__setattr__(self, key, value)

    @property
    def arguments(self) -> dict[str, Any]:
        """`args` by its other name."""
        return self.args


@dataclass(frozen=True)
class TextPart:
    """The next piece of the answer."""

    text: str


@dataclass(frozen=True)
class ReasoningPart:
    """The next piece of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A call begins: the ``index``-th of the message. Its ``id`` may follow only with `CallEnd`."""

    index: int
    name: str
    id: str | None = None


@dataclass(frozen=True)
class ArgumentsPart:
    """The next piece of a call's arguments: all pieces together are `ToolCall.text`."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnd:
    """The call is complete, and its arguments are an object."""

    index: int
    call: ToolCall


@dataclass(frozen=True)
class CallFailed:
    """A text that looked like a call cannot be parsed.

    Attributes:
        index: of the call that had begun; None if not even its name was parsed.
        text: all that was written, with its delimiters.
        reason: what was expected, and what was found.
    """

    index: int | None
    text: str
    reason: str


Event = TextPart | ReasoningPart | CallStart | ArgumentsPart | CallEnd | CallFailed

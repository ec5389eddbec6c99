"""`ToolCallDetector`: whole calls only."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from oxillama.events import CallEnd, Event, ToolCall
from oxillama.toolcalls.message import MessageParser
from oxillama.toolcalls.tool_grammar import ToolCallGrammar


class ToolCallDetector:
    """Finds the calls in what a model writes. `MessageParser` also gives text, reasoning, and what failed.

    Parameters
    ----------
    grammar, tools, in_reasoning : as for `MessageParser`.
    """

    def __init__(
        self,
        grammar: ToolCallGrammar,
        tools: Sequence[Mapping[str, Any]] | None = None,
        in_reasoning: bool = False,
    ) -> None:
        self.grammar = grammar
        self.tools = tools
        self.in_reasoning = in_reasoning
        self.reset()

    def reset(self) -> None:
        """Forgets what was fed: a new message begins."""
        self._parser = MessageParser(self.grammar, self.tools, self.in_reasoning)
        self._found: deque[ToolCall] = deque()

    def feed(self, text: str) -> ToolCall | None:
        """The first complete call that was not returned yet. Of several, ``feed("")`` gives the others."""
        return self._next(self._parser.feed(text))

    def finish(self) -> ToolCall | None:
        """The next call at the end of the message: one whose end was not written, too. Then the others."""
        return self._next(self._parser.finish())

    def _next(self, events: list[Event]) -> ToolCall | None:
        self._found += [event.call for event in events if isinstance(event, CallEnd)]
        return self._found.popleft() if self._found else None

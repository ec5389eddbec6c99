"""`Part`: text or reasoning, handed out piece by piece."""

from __future__ import annotations

from collections.abc import Callable

from oxillama.events import Event, ReasoningPart, TextPart


class Part:
    """Text or reasoning, whose whitespace at both ends is held back and dropped next to another part."""

    def __init__(self, add: Callable[[Event], None], kind: type[TextPart] | type[ReasoningPart]) -> None:
        self.emit = add
        self._kind = kind
        self._held = ""
        self._fresh = False  # behind another part: leading whitespace is dropped
        self.has_begun = False

    def add(self, text: str) -> None:
        text = text.lstrip() if self._fresh else self._held + text
        kept = text.rstrip()
        if kept:
            self.emit(self._kind(kept))
            self._fresh, self.has_begun = False, True
        self._held = "" if self._fresh else text[len(kept) :]

    def part(self) -> None:
        """Another part begins here."""
        self._held, self._fresh = "", True

    def end(self) -> None:
        """The text is at its end."""
        if self._held:
            self.emit(self._kind(self._held))
        self._held = ""

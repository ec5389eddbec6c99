"""Ends a text at a stop string."""

from __future__ import annotations

from collections.abc import Sequence as Listed


class StopStrings:
    """Holds text back while it may be the beginning of a stop string.

    Attributes:
        found: the string that came first, of several at one place the first of ``strings``; None until then.
    """

    def __init__(self, strings: Listed[str]) -> None:
        self.strings: tuple[str, ...] = tuple(strings)
        self.held: str = ""
        self.found: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """The text that may be shown, and whether a stop string was found (dropped with what follows it)."""
        self.held += text
        places = {stop: self.held.find(stop) for stop in self.strings}
        met = [stop for stop in self.strings if places[stop] >= 0]
        if met:
            self.found = min(met, key=places.__getitem__)
            shown, self.held = self.held[: places[self.found]], ""
            return shown, True
        keep = max((self._overlap(stop) for stop in self.strings), default=0)
        cut = len(self.held) - keep
        shown, self.held = self.held[:cut], self.held[cut:]
        return shown, False

    def flush(self) -> str:
        """The text that was held back, when nothing more comes."""
        shown, self.held = self.held, ""
        return shown

    def end(self, text: str) -> str:
        """The rest of the text, up to a stop string if there is one."""
        shown, found = self.push(text)
        return shown if found else shown + self.flush()

    def _overlap(self, stop: str) -> int:
        """How many characters at the end of the text begin ``stop``."""
        longest = min(len(stop) - 1, len(self.held))
        return next((n for n in range(longest, 0, -1) if self.held.endswith(stop[:n])), 0)

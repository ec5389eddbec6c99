"""The text of a Lark-style grammar: blanks, names, strings and the like."""

from __future__ import annotations

import json
import re
from typing import Any

from oxillama.grammar.grammar_text import GrammarText

_BLANK = re.compile(r"(?:[ \t\r]|//[^\n]*|#[^\n]*)*")


class LarkText(GrammarText):
    """A text of Lark's notation, and the place that is read next. Raises GrammarError as its base."""

    def blanks(self, lines: bool = False) -> None:
        """Pass blanks and comments, and with ``lines`` ends of lines."""
        while True:
            found = _BLANK.match(self.text, self.pos)
            self.pos = found.end() if found else self.pos
            if not lines or self.peek() != "\n":
                return
            self.pos += 1

    def expect(self, char: str, what: str) -> None:
        if self.peek() != char:
            self.fail(f"expected {char} {what}, got {self.found()}")
        self.pos += 1

    def json_object(self) -> dict[str, Any]:
        start = self.pos
        try:
            found, self.pos = json.JSONDecoder().raw_decode(self.text, start)
        except (ValueError, RecursionError) as error:
            self.fail(f"expected a JSON object: {error}", start)
        if not isinstance(found, dict):
            self.fail(f"expected a JSON object, got a {type(found).__name__}", start)
        return found

"""The text of a Lark-style grammar: where a reader is in it, and the errors that say so."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from oxillama.errors import GrammarError

MAX_TEXT = 4_000_000
"""Characters of a grammar."""

_BLANK = re.compile(r"(?:[ \t\r]|//[^\n]*|#[^\n]*)*")


class LarkText:
    """A text, and the place that is read next.

    Raises
    ------
    GrammarError : it is too long.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_TEXT:
            raise GrammarError(f"grammar: expected at most {MAX_TEXT} characters, got {len(text)}")
        self.text = text
        self.pos = 0

    def peek(self) -> str:
        return self.text[self.pos : self.pos + 1]

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

    def found(self) -> str:
        char = self.peek()
        return repr(char) if char else "the end of the text"

    def place(self, pos: int) -> str:
        line, column = self.line_and_column(pos)
        return f"line {line}, column {column}"

    def line_and_column(self, pos: int) -> tuple[int, int]:
        before = self.text[:pos]
        return before.count("\n") + 1, pos - before.rfind("\n")

    def fail(self, message: str, pos: int | None = None) -> NoReturn:
        line, column = self.line_and_column(self.pos if pos is None else pos)
        raise GrammarError(message, line=line, column=column)

    def json_object(self) -> dict[str, Any]:
        start = self.pos
        try:
            found, self.pos = json.JSONDecoder().raw_decode(self.text, start)
        except (ValueError, RecursionError) as error:
            self.fail(f"expected a JSON object: {error}", start)
        if not isinstance(found, dict):
            self.fail(f"expected a JSON object, got a {type(found).__name__}", start)
        return found

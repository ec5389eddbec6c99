"""The text of a grammar: where a reader is in it, what all notations have, and errors that say where."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from oxillama.errors import GrammarError
from oxillama.grammar.rules import Node

MAX_DEPTH = 60  # groups inside groups
MAX_TEXT = 4_000_000
"""Characters of a grammar, a schema or a structural tag."""

TokenIds = Callable[[str], list[int]]
"""Gives the ids of a text's tokens."""


class GrammarText:
    """A text, and the place that is read next; the base of a notation's reader.

    Parameters
    ----------
    token_ids : gives the ids of a token's text; None: no token may be named by its text.

    Raises
    ------
    GrammarError : the text is too long.
    """

    blank: re.Pattern[str]
    """Blanks and comments; matches nothing, too."""
    blank_lines: re.Pattern[str]
    """The same with ends of lines."""

    def __init__(self, text: str, token_ids: TokenIds | None) -> None:
        if len(text) > MAX_TEXT:
            raise GrammarError(f"grammar: expected at most {MAX_TEXT} characters, got {len(text)}")
        self.text: str = text
        self.token_ids: TokenIds | None = token_ids
        self.pos: int = 0
        self.depth: int = 0  # of groups

    def peek(self) -> str:
        """The next character; "" at the end."""
        return self.text[self.pos : self.pos + 1]

    def read(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        """Pass what matches here; GrammarError that names what was expected."""
        found = pattern.match(self.text, self.pos)
        if found is None:
            self.fail(f"expected {expected}, got {self.found()}")
        self.pos = found.end()
        return found

    def blanks(self, lines: bool = False) -> None:
        """Pass blanks and comments, and with ``lines`` ends of lines."""
        self.read(self.blank_lines if lines else self.blank, "blanks")

    def expect(self, text: str, what: str) -> None:
        """Pass this text; ``what`` says what it is for."""
        if not self.text.startswith(text, self.pos):
            self.fail(f"expected {text} {what}, got {self.found()}")
        self.pos += len(text)

    def alternatives(self) -> Node:
        """What stands in a rule or a group: one way or several."""
        raise NotImplementedError

    def group(self, close: str) -> Node:
        """What stands in the brackets that open here."""
        start = self.pos
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"expected at most {MAX_DEPTH} groups inside each other")
        self.pos += 1
        self.blanks(lines=True)
        node = self.alternatives()
        self.expect(close, f"to close the group of {self.place(start)}")
        self.depth -= 1
        return node

    def found(self) -> str:
        """The next character, as an error shows it."""
        char = self.peek()
        return repr(char) if char else "the end of the text"

    def place(self, pos: int) -> str:
        """A position, as an error names it."""
        line, column = self.line_and_column(pos)
        return f"line {line}, column {column}"

    def line_and_column(self, pos: int) -> tuple[int, int]:
        """Of a position, both from 1."""
        before = self.text[:pos]
        return before.count("\n") + 1, pos - before.rfind("\n")

    @contextmanager
    def errors_at(self, pos: int) -> Iterator[None]:
        """Gives a GrammarError that is raised inside the line and column of a position."""
        try:
            yield
        except GrammarError as error:
            self.fail(str(error), pos)

    def fail(self, message: str, pos: int | None = None) -> NoReturn:
        """Raises GrammarError with the line and column of a position; None for the next character."""
        line, column = self.line_and_column(self.pos if pos is None else pos)
        raise GrammarError(message, line=line, column=column)


def one_token(text: str, token_ids: TokenIds | None) -> int:
    """The id of the token of a text. Raises GrammarError where there is not just one."""
    if token_ids is None:
        raise GrammarError(f"the token {text} can only be looked up in a tokenizer, and none was given")
    ids = token_ids(text)
    if len(ids) != 1:
        raise GrammarError(f"expected the text of one token, but {text} is {len(ids)} tokens")
    return ids[0]

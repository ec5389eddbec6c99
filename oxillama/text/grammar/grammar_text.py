"""The base of grammar parsers: a text with a position, shared rules, and errors with line and column."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from oxillama.errors import GrammarError
from oxillama.text.grammar.rules import Node

MAX_DEPTH = 60  # nesting of groups
MAX_TEXT = 4_000_000
"""The maximum number of characters of a grammar, a schema or a structural tag."""

TokenIds = Callable[[str], list[int]]
"""Encodes a text to token ids."""


class GrammarText:
    """A grammar's text and the current position; the base class of the parsers.

    Args:
        token_ids: encodes a token's text to ids; None: the grammar may not name tokens by their text.

    Raises:
        GrammarError: the text is too long.
    """

    blank: re.Pattern[str]
    """Matches blanks and comments, or the empty string."""
    blank_lines: re.Pattern[str]
    """Matches blanks, comments and line ends, or the empty string."""

    def __init__(self, text: str, token_ids: TokenIds | None) -> None:
        if len(text) > MAX_TEXT:
            raise GrammarError(f"grammar: expected at most {MAX_TEXT} characters, got {len(text)}")
        self.text: str = text
        self.token_ids: TokenIds | None = token_ids
        self.pos: int = 0
        self.depth: int = 0  # nesting of groups

    def peek(self) -> str:
        """The next character; "" at the end."""
        return self.text[self.pos : self.pos + 1]

    def read(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        """Consume a match of ``pattern``; without a match, raise GrammarError that names ``expected``."""
        found = pattern.match(self.text, self.pos)
        if found is None:
            self.fail(f"expected {expected}, got {self.found()}")
        self.pos = found.end()
        return found

    def blanks(self, lines: bool = False) -> None:
        """Consume blanks and comments, and line ends if ``lines``."""
        self.read(self.blank_lines if lines else self.blank, "blanks")

    def expect(self, text: str, what: str) -> None:
        """Consume exactly ``text``; ``what`` says in the error what it is for."""
        if not self.text.startswith(text, self.pos):
            self.fail(f"expected {text} {what}, got {self.found()}")
        self.pos += len(text)

    def alternatives(self) -> Node:
        """Parse the alternatives of a rule or a group."""
        raise NotImplementedError

    def group(self, close: str) -> Node:
        """Parse a bracketed group; the position is at the opening bracket."""
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
        """The next character, formatted for an error."""
        char = self.peek()
        return repr(char) if char else "the end of the text"

    def place(self, pos: int) -> str:
        """A position, formatted for an error."""
        line, column = self.line_and_column(pos)
        return f"line {line}, column {column}"

    def line_and_column(self, pos: int) -> tuple[int, int]:
        """Line and column of a position, both counted from 1."""
        before = self.text[:pos]
        return before.count("\n") + 1, pos - before.rfind("\n")

    @contextmanager
    def errors_at(self, pos: int) -> Iterator[None]:
        """Adds line and column of ``pos`` to a GrammarError raised inside the block."""
        try:
            yield
        except GrammarError as error:
            self.fail(str(error), pos)

    def fail(self, message: str, pos: int | None = None) -> NoReturn:
        """Raise GrammarError with line and column of ``pos``; None: the current position."""
        line, column = self.line_and_column(self.pos if pos is None else pos)
        raise GrammarError(message, line=line, column=column)


@contextmanager
def errors_under(place: str) -> Iterator[None]:
    """Puts a place before the message of a GrammarError raised inside the block."""
    try:
        yield
    except GrammarError as error:
        raise GrammarError(f"{place}: {error}") from error


def one_token(text: str, token_ids: TokenIds | None) -> int:
    """The id of the token with this text. Raises GrammarError unless the text is exactly one token."""
    if token_ids is None:
        raise GrammarError(f"the token {text} can only be looked up in a tokenizer, and none was given")
    ids = token_ids(text)
    if len(ids) != 1:
        raise GrammarError(f"expected the text of one token, but {text} is {len(ids)} tokens")
    return ids[0]

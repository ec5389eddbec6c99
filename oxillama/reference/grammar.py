"""Computes the tokens that a grammar allows: Earley's algorithm (1970), with a column for each byte."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from oxillama.errors import GrammarError
from oxillama.reference.gbnf import ROOT, Bytes, Productions, Token, Way

Item = tuple[str, Way, int, int]
"""An Earley item: name, alternative, number of symbols read, and the column where it began."""


def productive(productions: Productions) -> Productions:
    """The productions without alternatives that match no text."""
    known: set[str] = set()
    while True:
        found = {
            name
            for name, ways in productions.items()
            if any(all(not isinstance(s, str) or s in known for s in way) for way in ways)
        }
        if found == known:
            break
        known = found
    return {
        name: [way for way in ways if all(not isinstance(s, str) or s in known for s in way)]
        for name, ways in productions.items()
        if name in known
    }


class Column:
    """The Earley items at one position of a text.

    Attributes:
        items: all items.
        waiting: items whose next symbol is a name, by name.
        scanning: items whose next symbol is a byte or a token.
        is_complete: whether the text up to here belongs to the language.
    """

    def __init__(self) -> None:
        self.items: set[Item] = set()
        self.waiting: dict[str, list[Item]] = {}
        self.scanning: list[Item] = []
        self.is_complete = False


class Recogniser:
    """Follows a text token by token.

    Args:
        productions: the grammar; the text must match "root".
        strings: bytes of each token, by id; b"" for a token that is not text.
        ends: tokens that end a generation.

    Raises:
        GrammarError: no text matches the grammar, or it names an unknown token.
    """

    def __init__(
        self, productions: Productions, strings: Sequence[bytes], ends: Collection[int] = ()
    ) -> None:
        named = [s.id for ways in productions.values() for way in ways for s in way if isinstance(s, Token)]
        if max(named, default=0) >= len(strings):
            raise GrammarError(f"reference: grammar: names token {max(named)}, of {len(strings)}")
        self.ways: Productions = productive(productions)
        if ROOT not in self.ways:
            raise GrammarError("reference: grammar: no text matches it")
        self.ends: frozenset[int] = frozenset(ends)
        self.strings: list[bytes] = [b"" if i in self.ends else string for i, string in enumerate(strings)]
        self.empty: set[str] = self._empty()
        self.order = sorted((string, i) for i, string in enumerate(self.strings) if string)
        self.columns: list[Column] = [self._column(0, [(ROOT, way, 0, 0) for way in self.ways[ROOT]])]

    def _empty(self) -> set[str]:
        """The names that match the empty text."""
        known: set[str] = set()
        while True:
            found = {
                name for name, ways in self.ways.items() if any(all(s in known for s in w) for w in ways)
            }
            if found == known:
                return known
            known = found

    def _column(self, at: int, items: list[Item]) -> Column:
        """Complete the column at position ``at`` from its first items."""
        column, predicted, todo = Column(), set[str](), list(items)
        while todo:
            item = todo.pop()
            if item in column.items:
                continue
            column.items.add(item)
            name, way, dot, begin = item
            if dot == len(way):
                if begin == 0 and name == ROOT:
                    column.is_complete = True
                if begin < at:  # an item that began here matched the empty text, handled below
                    todo += [(n, w, d + 1, b) for n, w, d, b in self.columns[begin].waiting.get(name, ())]
                continue
            symbol = way[dot]
            if not isinstance(symbol, str):
                column.scanning.append(item)
                continue
            column.waiting.setdefault(symbol, []).append(item)
            if symbol in self.empty:
                todo.append((name, way, dot + 1, begin))
            if symbol not in predicted:
                predicted.add(symbol)
                todo += [(symbol, w, 0, at) for w in self.ways[symbol]]
        return column

    def _read(self, byte: int) -> bool:
        """Append the column after a byte; returns False, and appends nothing, if the byte is not allowed."""
        found = [
            (name, way, dot + 1, begin)
            for name, way, dot, begin in self.columns[-1].scanning
            if isinstance(s := way[dot], Bytes) and s.first <= byte <= s.last
        ]
        if found:
            self.columns.append(self._column(len(self.columns), found))
        return bool(found)

    def _taken(self, column: Column, token: int) -> list[Item]:
        """The items after a token that the grammar names."""
        return [
            (name, way, dot + 1, begin)
            for name, way, dot, begin in column.scanning
            if isinstance(s := way[dot], Token)
            and ((s.id != token and bool(self.strings[token])) if s.negated else s.id == token)
        ]

    def _may_end(self, token: int) -> bool:
        """Whether the text may end here, or with this token if the grammar names it."""
        if self.columns[-1].is_complete:
            return True
        taken = self._taken(self.columns[-1], token)
        return bool(taken) and self._column(len(self.columns), taken).is_complete

    def advance(self, token: int) -> None:
        """Accept a token. Raises GrammarError if it is not allowed."""
        if token in self.ends:
            if not self._may_end(token):
                raise GrammarError(f"reference: grammar: token {token} is not allowed")
            return
        before = len(self.columns)
        taken = self._taken(self.columns[-1], token)
        is_read = bool(self.strings[token]) and all(self._read(byte) for byte in self.strings[token])
        if taken:
            if is_read:
                taken += self.columns.pop().items
            else:
                del self.columns[before:]
            self.columns.append(self._column(len(self.columns), taken))
        elif not is_read:
            del self.columns[before:]
            raise GrammarError(f"reference: grammar: token {token} is not allowed")

    def allowed(self) -> np.ndarray:
        """bool (vocab,): the tokens that may come next."""
        found, start, last = np.zeros(len(self.strings), bool), len(self.columns), b""
        for string, token in self.order:  # sorted, so that neighbours share prefixes and columns
            known = 0
            while known < min(len(string), len(last)) and string[known] == last[known]:
                known += 1
            n_read = len(self.columns) - start
            if known > n_read:  # a byte of the common prefix is not allowed
                last = string
                continue
            del self.columns[start + known :]
            found[token] = all(self._read(byte) for byte in string[known:])
            last = string
        del self.columns[start:]
        for item in self.columns[-1].scanning:
            symbol = item[1][item[2]]
            if isinstance(symbol, Token):
                for token in range(len(found)) if symbol.negated else (symbol.id,):
                    found[token] |= bool(self._taken(self.columns[-1], token))
        for token in self.ends:
            found[token] = self._may_end(token)
        return found

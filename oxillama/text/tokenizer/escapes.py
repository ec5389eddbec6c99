"""Escapes: names of special tokens in a text that are to be tokenized as text.

`ESCAPE` after a character says that no special token begins at that character. Chat templates, which look for
names in messages, do not find an escaped name. `QUOTE` precedes a character of the text that is `ESCAPE` or
`QUOTE` itself. Both are ideographic symbols: Python prints them as they are, chat templates leave them alone,
and few texts contain them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable

ESCAPE, QUOTE = "\u303f", "\u303e"

HEAD = 3
"""Names are grouped by this many characters at their beginning."""


class Escaper:
    """Escapes the names of some tokens in texts.

    Args:
        names: of the tokens.

    Attributes:
        candidates: matches each character at which a name can begin. A text without a match needs no escapes.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._sorted = sorted({name for name in names if name})
        heads: dict[str, list[str]] = {}
        for name in self._sorted:
            heads.setdefault(name[:HEAD], []).append(name)
        self._heads = {head: tuple(group) for head, group in heads.items()}
        self._short = tuple(name for name in self._sorted if len(name) < HEAD)
        self._longest = max(map(len, self._sorted), default=0)
        firsts = {ESCAPE, QUOTE, *(name[0] for name in self._sorted)}
        self.candidates: re.Pattern[str] = re.compile("[" + "".join(map(re.escape, sorted(firsts))) + "]")

    def escape(self, text: str) -> str:
        """The text with an escape after each character at which a name begins.

        A beginning of a name at the end of the text is escaped, too: what follows the text may complete it.
        """
        parts, position = [], 0
        for found in self.candidates.finditer(text):
            i, c = found.start(), found.group()
            quote = QUOTE if c in (ESCAPE, QUOTE) else ""
            escape = ESCAPE if self._begins(text, i) else ""
            if quote or escape:
                parts.append(f"{text[position:i]}{quote}{c}{escape}")
                position = i + 1
        return "".join([*parts, text[position:]]) if parts else text

    def _begins(self, text: str, i: int) -> bool:
        """Whether a name begins at character ``i``, or the text ends inside a name that begins there."""
        if text.startswith(self._heads.get(text[i : i + HEAD], ()), i):
            return True
        if self._short and text.startswith(self._short, i):
            return True
        rest = text[i:] if len(text) - i < self._longest else ""
        at = bisect_left(self._sorted, rest)
        return bool(rest) and at < len(self._sorted) and self._sorted[at].startswith(rest)


NO_NAMES = Escaper(())
"""Quotes `ESCAPE` and `QUOTE` alone: names of special tokens stay names."""

_MARK = re.compile(f"{QUOTE}(.?)|{ESCAPE}", re.DOTALL)


def unescape(text: str) -> tuple[str, frozenset[int]]:
    """The text without escapes, and the characters in it at which no special token begins."""
    parts: list[str] = []
    literal: list[int] = []
    position = length = 0
    for found in _MARK.finditer(text):
        parts += text[position : found.start()], found.group(1) or ""
        length += len(parts[-2]) + len(parts[-1])
        if found.group() == ESCAPE:
            literal.append(length - 1)
        position = found.end()
    return ("".join([*parts, text[position:]]) if parts else text), frozenset(literal)

"""The budget of one rendering: work, lengths and depths. All are counted, so every machine decides alike.

A unit of work stands for at most about 30 ns of time and 4 bytes of memory: a character handled is one
unit, a small object `OBJECT`. What an operation handles and makes is charged before it runs, and nothing is
given back, so the budget also bounds the memory that is alive at once.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple

from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined
from markupsafe import Markup

MAX_WORK = 1 << 24  # units of work of one rendering
MAX_TEXT = 1 << 22  # characters of a string, and of the rendered prompt
MAX_ITEMS = 1 << 17  # elements of a list or dict
MAX_BITS = 128  # of an integer
MAX_LEVELS = 128  # of lists and dicts inside each other, where a value is compared, hashed or written
MAX_CALLS = 50  # of macros and recursive loops inside each other

# A long conversation takes and makes more: so much for each character of input.
# An element counts as `ELEMENT` characters.
WORK_PER_INPUT = 64
TEXT_PER_INPUT = 8
ITEMS_PER_INPUT = 1
ELEMENT = 32

NODE = 16  # units for each node of the syntax tree that may be evaluated
STEP = 64  # units for an operation of the table, besides what it handles and makes
OBJECT = 24  # units for a new small object: a piece of a string, a pair of a dict
SCALAR = 44  # characters that a number, a boolean or None, with its separator, takes at most

VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
SEQUENCES = frozenset((list, tuple, *VIEWS))
NUMBERS = frozenset((int, float, bool))
PLAIN = SEQUENCES | NUMBERS | {str, Markup, dict, range, type(None), Undefined}


class OverBudget(Exception):
    """A rendering was stopped; says what it took too much of."""


class Extent(NamedTuple):
    """What a walk over a value found."""

    size: int  # characters and elements, shared parts counted each time
    elements: int
    levels: int


class Budget:
    """What one rendering may still spend, and how long its values may get.

    Parameters
    ----------
    given : int
        Size of the input, in characters and `ELEMENT` for each element.
    """

    def __init__(self, given: int = 0) -> None:
        self.work: int
        self.left: int
        self.work = self.left = MAX_WORK + WORK_PER_INPUT * given
        self.text_limit: int = MAX_TEXT + TEXT_PER_INPUT * given
        self.item_limit: int = MAX_ITEMS + ITEMS_PER_INPUT * given
        self._calls = 0

    def spend(self, work: int) -> None:
        self.left -= work
        if self.left < 0:
            raise OverBudget(f"more than {self.work} units of work")

    def enter(self) -> None:
        """A macro or a recursive loop is called; `leave` ends it."""
        if self._calls >= MAX_CALLS:
            raise OverBudget(f"more than {MAX_CALLS} calls inside each other")
        self._calls += 1

    def leave(self) -> None:
        self._calls -= 1

    def made(self, value: Any) -> Any:
        """Let the result of an operation pass, unless it is longer than values may be."""
        kind = type(value)
        if kind is str or kind is Markup:
            if len(value) > self.text_limit:
                raise OverBudget(f"more than {self.text_limit} characters in a string")
        elif kind is int:
            if value.bit_length() > MAX_BITS:
                raise OverBudget(f"more than {MAX_BITS} bits in an integer")
        elif kind is list or kind is tuple or kind is dict:
            if len(value) > self.item_limit:
                raise OverBudget(f"more than {self.item_limit} elements in a {kind.__name__}")
        elif kind is complex:
            raise SecurityError("complex numbers are not available to templates")
        return value

    def size(self, value: Any) -> int:
        """Characters and elements in a value; the walk is spent."""
        return len(value) if type(value) is str else self.walk(value).size

    def walk(self, value: Any, escaped: bool = False) -> Extent:
        """Measure a value of plain data, level by level, and spend the walk.

        With `escaped`, a string counts with what escapes can make of it, a number with its digits.
        """
        size = elements = levels = 0
        level = [value]
        while level:
            levels += 1
            if levels > MAX_LEVELS:
                raise OverBudget(f"more than {MAX_LEVELS} lists and dicts inside each other")
            elements += len(level)
            below: list[Any] = []
            for item in level:
                kind = type(item)
                if kind is str or kind is Markup:
                    if escaped:
                        self.spend(len(item))
                        size += len(item) * (2 if item.isascii() and item.isprintable() else 12)
                    else:
                        size += len(item)
                elif kind is dict:
                    self.spend(12 * len(item))
                    below += item
                    below += item.values()
                elif kind in SEQUENCES:
                    self.spend(6 * len(item))
                    below += item
                elif kind is range:
                    size += SCALAR
                elif kind not in PLAIN:
                    raise SecurityError(f"expected plain data, got {kind.__name__}")
            level = below
        return Extent(size + elements * (SCALAR if escaped else 1), elements, levels)

    def text(self, value: Any) -> Any:
        """`str(value)`; strings, marked ones too, pass as they are."""
        if isinstance(value, str):
            return value
        self.spend(SCALAR if type(value) in NUMBERS else self.walk(value, escaped=True).size)
        return self.made(str(value))


current_budget: ContextVar[Budget] = ContextVar("budget")

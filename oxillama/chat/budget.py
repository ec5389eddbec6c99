"""The budget of one rendering, and what operations of a template cost: characters and elements handled."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from jinja2.exceptions import SecurityError

MAX_BITS = 4096  # of an integer
_SPLITTING = frozenset(("split", "rsplit", "splitlines"))


class Budget:
    """What one rendering may still spend."""

    def __init__(self, seconds: float, work: int) -> None:
        self._deadline = time.monotonic() + seconds
        self._seconds, self._left, self._work = seconds, work, work

    def spend(self, work: int = 1) -> None:
        self._left -= work
        if self._left < 0:
            raise OverBudget(f"more than {self._work} units of work")
        if time.monotonic() > self._deadline:
            raise OverBudget(f"more than {self._seconds:g} seconds")

    def add(self, work: int) -> None:
        self._left += work
        self._work += work

    def size(self, value: Any) -> int:
        """Characters and elements in a value, shared parts counted each time; the walk itself costs time."""
        if isinstance(value, str):
            return len(value)
        total, pending, steps = 0, [value], 0
        while pending:
            item = pending.pop()
            steps += 1
            if not steps & 0xFF:
                self.spend(0)
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, dict):
                pending += item.keys()
                pending += item.values()
            elif isinstance(item, (list, tuple)):
                pending += item
            total += 1
        return total


class OverBudget(Exception):
    """A rendering was stopped; says what it took too much of."""


current_budget: ContextVar[Budget] = ContextVar("budget")


def method_cost(text: str, name: str, args: tuple[Any, ...], size: int) -> int:
    if name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        return len(text) + text.count(args[0]) * len(args[1])
    if name == "join":
        return size + len(text) * size
    if name == "format":
        if re.search(r"\d{4}|\{[^}]*\{", text):
            raise SecurityError(
                "a format may not name a width of more than three digits, or take it from a value"
            )
        return len(text) + text.count("{") * (1000 + size)
    return 8 * len(text) if name in _SPLITTING else len(text)


def binop_cost(operator: str, left: Any, right: Any) -> int:
    """What an operation makes, in characters, elements or bits; refuses what has no sensible size."""
    sizes = [len(v) if isinstance(v, (str, list, tuple)) else None for v in (left, right)]
    if operator == "*" and sizes != [None, None]:
        times = right if sizes[1] is None else left
        return (sizes[0] or sizes[1] or 0) * max(0, times if isinstance(times, int) else 0)
    if operator == "+":
        return sum(size or 0 for size in sizes)
    if operator == "%" and isinstance(left, str):
        if re.search(r"\d{4}|\*", left):
            raise SecurityError("a format may not name a width of more than three digits")
        return current_budget.get().size((left, right)) + 1000 * left.count("%")
    bits = [abs(v).bit_length() if isinstance(v, int) else 0 for v in (left, right)]
    if operator == "**" and isinstance(right, int) and bits[0] * abs(right) > MAX_BITS:
        raise SecurityError(f"an integer of more than {MAX_BITS} bits")
    if operator == "*" and sum(bits) > MAX_BITS:
        raise SecurityError(f"an integer of more than {MAX_BITS} bits")
    return 0


def filter_cost(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    value = args[0] if args else None
    if name == "join" and isinstance(value, (list, tuple, dict, str)):
        separator = args[1] if len(args) > 1 else kwargs.get("d", "")
        return len(value) * len(str(separator))
    if name == "replace" and len(args) > 2:
        return str(value).count(str(args[1])) * len(str(args[2]))
    if name == "indent":
        width = args[1] if len(args) > 1 else kwargs.get("width", 4)
        return (str(value).count("\n") + 1) * (width if isinstance(width, int) else len(str(width)))
    return 0

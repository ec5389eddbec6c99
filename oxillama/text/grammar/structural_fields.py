"""Reads the JSON objects of structural tags and grammars; unknown keys are errors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from oxillama.base.config.checks import shown
from oxillama.errors import GrammarError
from oxillama.text.grammar.grammar_text import MAX_TEXT

MAX_COUNT = 1_000_000_000

_REQUIRED = object()


class Fields:
    """The keys of the object at a path; `done` raises if a key was never taken."""

    def __init__(self, path: str, values: Any) -> None:
        if not isinstance(values, Mapping):
            raise GrammarError(f"{path}: expected an object, got {shown(values)}")
        self._path, self._values = path, values
        self._left = set(values)

    def path_of(self, name: str) -> str:
        return f"{self._path}.{name}"

    def error(self, name: str, expected: str) -> GrammarError:
        """The error for an invalid value of a key."""
        return GrammarError(f"{self.path_of(name)}: expected {expected}, got {shown(self._values.get(name))}")

    def done(self) -> None:
        """Raise GrammarError if a key was not taken."""
        for name in sorted(self._left, key=str):
            raise GrammarError(f"{self._path}: expected only keys that are honoured, got {shown(name)}")

    def known(self, name: str) -> Any:
        """The value of a key, without taking it; None if absent."""
        return self._values.get(name)

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        if name not in self._values:
            if default is _REQUIRED:
                raise GrammarError(f"{self._path}: expected {name}, got {shown(list(self._values))}")
            return default
        self._left.discard(name)
        return self._values[name]

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        (found,) = texts_of(self.path_of(name), [self.take(name, default)])
        return found

    def items(self, name: str, default: Any = _REQUIRED, least: int = 0) -> list[Any]:
        found = self.take(name, default)
        if not isinstance(found, (list, tuple)) or len(found) < least:
            raise self.error(name, "a list" + (" that is not empty" if least else ""))
        return list(found)

    def each(self, name: str, path: str = "", least: int = 0) -> Iterator[Fields]:
        """The objects of a list; ``path``: of the list, if not below this object's."""
        for i, item in enumerate(self.items(name, least=least)):
            yield Fields(f"{path or self.path_of(name)}[{i}]", item)

    def texts(self, name: str, default: Any = _REQUIRED) -> tuple[str, ...]:
        return texts_of(self.path_of(name), self.items(name, default))

    def flag(self, name: str, default: bool = False) -> bool:
        found = self.take(name, default)
        if not isinstance(found, bool):
            raise self.error(name, "true or false")
        return found

    def count(self, name: str, default: int | None) -> int | None:
        found = self.take(name, default)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= MAX_COUNT:
            raise self.error(name, f"a number from 0 to {MAX_COUNT}")
        return found


def texts_of(path: str, values: Any) -> tuple[str, ...]:
    """The values as a tuple of str; raises GrammarError for other types and for lone surrogates."""
    if not isinstance(values, (list, tuple)):
        raise GrammarError(f"{path}: expected texts, got {shown(values)}")
    for value in values:
        if not isinstance(value, str) or value != value.encode(errors="ignore").decode():
            raise GrammarError(f"{path}: expected text that UTF-8 can express, got {shown(value)}")
    return tuple(values)


def parsed(path: str, text: str | bytes, **how: Any) -> Any:
    """Parse a JSON text; ``how`` is passed to `json.loads`."""
    if len(text) > MAX_TEXT:
        raise GrammarError(f"{path}: expected at most {MAX_TEXT} characters, got {len(text)}")
    try:
        return json.loads(text, **how)
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise GrammarError(f"{path}: is not JSON: {error}") from None

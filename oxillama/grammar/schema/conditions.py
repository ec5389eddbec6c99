"""What a value must meet: schemas that hold or that do not.

A `State` is a set of conditions, all to be met; the empty one is met by every value. The values below an
array or an object are described by states, and a state is what becomes one rule of the grammar.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from operator import attrgetter
from typing import NamedTuple

from oxillama.config.checks import shown
from oxillama.errors import GrammarError
from oxillama.grammar.schema.dialects import UNDECLARED
from oxillama.grammar.schema.references import NO_SCOPE, Resource, Schema, Scope, entered

MAX_EXPONENT = 400  # of a number in a schema


class Choice(NamedTuple):
    """At least one of these conditions."""

    options: tuple[Condition, ...]


class Condition(NamedTuple):
    """A schema (in a dynamic scope) or a choice that holds, or does not if ``positive`` is false.

    ``key`` orders conditions the same way in every run; that of a negative one ends in "!".
    """

    what: Schema | Choice
    scope: Scope
    positive: bool
    key: str

    def negated(self) -> Condition:
        """The opposite."""
        key = self.key + "!" if self.positive else self.key[:-1]
        return Condition(self.what, self.scope, not self.positive, key)


_KEY = attrgetter("key")
State = frozenset[Condition]
ANYTHING: State = frozenset()
_FALSE = Schema(False, "#", Resource("oxillama:false"), UNDECLARED, 0)
FALSE = Condition(_FALSE, NO_SCOPE, True, "0")
NOTHING: State = frozenset({FALSE})


def of_schema(schema: Schema, scope: Scope) -> Condition:
    """That a schema holds, met from a schema of this scope."""
    if schema.value is False:
        return FALSE
    if not scope and not schema.resource.dynamic:
        return Condition(schema, scope, True, f"{schema.serial:06d}")
    inside = entered(scope, schema)
    places = "".join(sorted(f",{name}@{s.serial}" for name, s in inside))
    return Condition(schema, inside, True, f"{schema.serial:06d}{places}")


def state_of(*conditions: Condition) -> State:
    """The state of these conditions, less those that every value meets."""
    state = frozenset(c for c in conditions if not _is_trivial(c))
    return NOTHING if any(_is_false(c) for c in state) else state


def both(a: State, b: State) -> State:
    """All conditions of both; `NOTHING` where two contradict each other."""
    if a <= b or b <= a:
        return b if a <= b else a
    merged = a | b
    if FALSE in merged or any(c.negated() in merged for c in a):
        return NOTHING
    return merged


def any_of(options: list[Condition]) -> State:
    """That at least one of these holds."""
    if any(_is_trivial(c) for c in options):
        return ANYTHING
    useful = tuple(sorted({c for c in options if not _is_false(c)}, key=_KEY))
    if len(useful) <= 1:
        return state_of(*useful) if useful else NOTHING
    key = "|".join(map(_KEY, useful))
    return frozenset({Condition(Choice(useful), NO_SCOPE, True, f"({key})")})


def not_all(state: State) -> State:
    """That at least one condition of the state does not hold."""
    return any_of([c.negated() for c in ordered(state)])


def ordered(state: State) -> list[Condition]:
    """The conditions in an order that does not depend on hashes."""
    return sorted(state, key=_KEY)


def _is_trivial(c: Condition) -> bool:
    if isinstance(c.what, Choice):
        return False
    value = c.what.value
    return (value is True or value == {}) if c.positive else value is False


def _is_false(c: Condition) -> bool:
    if isinstance(c.what, Choice):
        return False
    value = c.what.value
    return value is False if c.positive else (value is True or value == {})


# --------------------------------------------------------------------------- JSON values

TYPES = ("null", "boolean", "number", "string", "array", "object")


def json_type(value: object, path: str) -> str:
    """The type of a JSON value; GrammarError where it is none."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float, Decimal)):
        return "number"
    if isinstance(value, str):
        return "string"
    if isinstance(value, (list, tuple)):
        return "array"
    if isinstance(value, Mapping):
        return "object"
    raise GrammarError(f"{path}: expected a JSON value, got {type(value).__name__}")


def exact(value: object, path: str) -> Fraction:
    """A JSON number without rounding: a float is the decimal that Python writes for it."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise GrammarError(f"{path}: expected a number, got {shown(value):.80}")
    number = Decimal(repr(value)) if isinstance(value, float) else value
    if isinstance(number, Decimal):
        if not number.is_finite():
            raise GrammarError(f"{path}: expected a finite number, got {value}")
        if abs(number.adjusted()) > MAX_EXPONENT or len(number.as_tuple().digits) > MAX_EXPONENT:
            raise GrammarError(f"{path}: expected a number of at most {MAX_EXPONENT} digits, got {value:.20}")
    elif abs(number) >= 10**MAX_EXPONENT:
        raise GrammarError(f"{path}: expected a number of at most {MAX_EXPONENT} digits")
    return Fraction(number)


def canonical(value: object, path: str) -> str:
    """A text that two JSON values share exactly if they are equal."""
    kind = json_type(value, path)
    if kind == "number":
        return str(exact(value, path))
    if isinstance(value, Mapping):
        items = sorted((json.dumps(str(k)), canonical(v, path)) for k, v in value.items())
        return "{" + ",".join(f"{k}:{v}" for k, v in items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(canonical(one, path) for one in value) + "]"
    return json.dumps(value)

"""Conditions on a value: schemas that hold or that do not hold.

A `State` is a set of conditions that all hold; every value meets the empty set. States describe the values
inside an array or an object. Each state becomes one rule of the grammar.
"""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from oxillama.base.config.checks import shown
from oxillama.errors import GrammarError
from oxillama.text.grammar.schema.dialects import UNDECLARED
from oxillama.text.grammar.schema.references import NO_SCOPE, Resource, Schema, Scope, entered

MAX_EXPONENT = 400  # digits of a number in a schema
LIMIT = 10**MAX_EXPONENT


class Choice(NamedTuple):
    """At least one of these conditions."""

    options: tuple[Condition, ...]


class Condition(str):
    """A condition: a schema (in a dynamic scope) or a choice holds, or fails if ``positive`` is False.

    As a str it is the key that identifies the condition in a compilation. Sorting by keys gives the same
    order in every run. The key of a negated condition ends in "!".

    Attributes:
        always: True if every value meets the condition, False if no value does, None if not obvious.
    """

    __slots__ = ("_opposite", "always", "positive", "scope", "what")
    what: Schema | Choice
    scope: Scope
    positive: bool
    always: bool | None
    _opposite: Condition | None

    def __new__(cls, key: str, what: Schema | Choice, scope: Scope, positive: bool = True) -> Condition:
        made = str.__new__(cls, key)
        made.what, made.scope, made.positive, made._opposite, made.always = what, scope, positive, None, None
        if isinstance(what, Schema) and not what.words:
            made.always = (what.value is not False) is positive
        return made

    def negated(self) -> Condition:
        """The negated condition."""
        if self._opposite is None:
            key = self + "!" if self.positive else self[:-1]
            self._opposite = Condition(key, self.what, self.scope, not self.positive)
            self._opposite._opposite = self
        return self._opposite


State = frozenset[Condition]
ANYTHING: State = frozenset()
_FALSE = Schema(False, frozenset(), "#", Resource("oxillama:false"), UNDECLARED, 0)
FALSE = Condition("0", _FALSE, NO_SCOPE)
NOTHING: State = frozenset({FALSE})


def of_schema(schema: Schema, scope: Scope) -> Condition:
    """The condition that a schema holds, seen from a schema of this scope."""
    if scope or schema.resource.dynamic:
        inside = entered(scope, schema)
        places = "".join(sorted(f",{name}@{s.serial}" for name, s in inside))
        return Condition(f"{schema.serial:06d}{places}", schema, inside)
    if schema.holds is None:
        schema.holds = FALSE if schema.value is False else Condition(f"{schema.serial:06d}", schema, NO_SCOPE)
    found: Condition = schema.holds
    return found


def state_of(*conditions: Condition) -> State:
    """The state of these conditions, without conditions that every value meets."""
    known = [c.always for c in conditions]
    if False in known:
        return NOTHING
    return frozenset([c for c in conditions if not c.always] if True in known else conditions)


def both(a: State, b: State) -> State:
    """The union of both states' conditions; `NOTHING` where two conditions contradict each other."""
    if a <= b or b <= a:
        return b if a <= b else a
    merged = a | b
    if FALSE in merged or any(c.negated() in merged for c in a):
        return NOTHING
    return merged


def any_of(options: list[Condition]) -> State:
    """The state that at least one of the conditions holds."""
    if any(c.always for c in options):
        return ANYTHING
    useful = tuple(sorted({c for c in options if c.always is None}))
    if len(useful) <= 1:
        return frozenset(useful) if useful else NOTHING
    return frozenset({Condition(f"({'|'.join(useful)})", Choice(useful), NO_SCOPE)})


def not_all(state: State) -> State:
    """The state that at least one condition of ``state`` does not hold."""
    return any_of([c.negated() for c in ordered(state)])


def ordered(state: State) -> list[Condition]:
    """The conditions in an order that is the same in every run."""
    return sorted(state)


def lower(a: int | None, b: int | None) -> int | None:
    """The lower of two upper bounds; None means no bound."""
    return b if a is None else a if b is None else min(a, b)


# --------------------------------------------------------------------------- JSON values

_CLASSES: dict[str, type | tuple[type, ...]] = {
    "null": type(None),
    "boolean": bool,  # before "number", because bool is a subclass of int
    "number": (int, float, Decimal),
    "string": str,
    "array": list,
    "object": dict,
}
TYPES = tuple(_CLASSES)


def json_type(value: object, path: str) -> str:
    """The JSON type of a value; raises GrammarError if the value is not JSON."""
    for name, classes in _CLASSES.items():
        if isinstance(value, classes):
            return name
    raise GrammarError(f"{path}: expected a JSON value, got {type(value).__name__}")


def exact(value: object, path: str) -> Fraction:
    """A JSON number without rounding; a float is taken as the decimal of its repr."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise GrammarError(f"{path}: expected a number, got {shown(value):.80}")
    number = Decimal(repr(value)) if isinstance(value, float) else value
    if isinstance(number, Decimal):
        if not number.is_finite():
            raise GrammarError(f"{path}: expected a finite number, got {value}")
        if abs(number.adjusted()) > MAX_EXPONENT or len(number.as_tuple().digits) > MAX_EXPONENT:
            raise GrammarError(f"{path}: expected a number of at most {MAX_EXPONENT} digits, got {value:.20}")
    elif abs(number) >= LIMIT:
        raise GrammarError(f"{path}: expected a number of at most {MAX_EXPONENT} digits")
    return Fraction(number)


def canonical(value: object, path: str) -> str:
    """A text of a JSON value; two values have the same text exactly if they are equal."""
    kind = json_type(value, path)
    if kind == "number":
        return str(exact(value, path))
    if isinstance(value, dict):
        items = sorted((json.dumps(str(k)), canonical(v, path)) for k, v in value.items())
        return "{" + ",".join(f"{k}:{v}" for k, v in items) + "}"
    if isinstance(value, list):
        return "[" + ",".join(canonical(one, path) for one in value) + "]"
    return json.dumps(value)

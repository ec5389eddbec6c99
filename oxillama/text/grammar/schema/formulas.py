"""Formulas: limits and conditions on values of one type, combined by all, any, not, and exactly one.

`Expander` converts a formula to a union of conjuncts; a conjunct is one conjunction of limits (`Strings`,
`Numbers`, `Arrays`, `Objects`, `Constants`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from oxillama.base.deadline import check_deadline
from oxillama.errors import GrammarError
from oxillama.text.grammar.schema.arrays import Arrays
from oxillama.text.grammar.schema.conditions import (
    ANYTHING,
    FALSE as NEVER,
    Choice,
    Condition,
    State,
    both,
    ordered,
)
from oxillama.text.grammar.schema.constants import BOOLEAN, NULL, Constants
from oxillama.text.grammar.schema.numbers import Numbers
from oxillama.text.grammar.schema.objects import Objects
from oxillama.text.grammar.schema.references import Schema
from oxillama.text.grammar.schema.strings import Strings

Conjunct = Constants | Numbers | Strings | Arrays | Objects
Boxes = tuple[Conjunct, ...]
TOP: dict[str, Conjunct] = {
    "null": NULL,
    "boolean": BOOLEAN,
    "number": Numbers(),
    "string": Strings(),
    "array": Arrays(),
    "object": Objects(),
}
MAX_BOXES = 2_000  # conjuncts of one schema for one type
MAX_MEETS = 200_000  # intersections in a whole compilation
MAX_DEPTH = 60  # nesting of schemas that apply to one value


@dataclass(slots=True, unsafe_hash=True)
class Atom:
    """Limits stated at ``path``; a negation excludes ``outer``, if given, which contains the conjunct."""

    conjunct: Conjunct
    path: str
    outer: Conjunct | None = None


@dataclass(slots=True, unsafe_hash=True)
class Is:
    """A condition on the same value."""

    condition: Condition


@dataclass(slots=True, unsafe_hash=True)
class All:
    """All of the items; true without items."""

    items: tuple[Formula, ...] = ()


@dataclass(slots=True, unsafe_hash=True)
class Any:
    """At least one of the items; false without items."""

    items: tuple[Formula, ...] = ()


@dataclass(slots=True, unsafe_hash=True)
class Not:
    """The negation."""

    item: Formula


@dataclass(slots=True, unsafe_hash=True)
class One:
    """Exactly one of these conditions."""

    items: tuple[Condition, ...]


@dataclass(slots=True, unsafe_hash=True)
class Unknown:
    """An unenforceable condition that was ignored: true, negated or not."""


Formula = Atom | Is | All | Any | Not | One | Unknown
TRUE, FALSE = All(), Any()


@dataclass(eq=False, repr=False)
class Expander:
    """Converts conditions and states to conjuncts, and caches the results.

    Args:
        formulas: returns the formulas of a condition's schema for a type of values.
        kinds: the types of values that a schema can restrict or allow; other types are not allowed.
        unenforced: called with a path and a reason where something cannot be enforced; raises if that is an
            error.
    """

    formulas: Callable[[Condition, str], Iterable[Formula]]
    kinds: Callable[[Schema], Sequence[str]]
    unenforced: Callable[[str, str], None]

    def __post_init__(self) -> None:
        self.known: dict[str, dict[Condition, Boxes | None]] = {kind: {} for kind in TOP}
        self.meanings: dict[tuple[Condition, str], Formula] = {}
        self.overlaps: dict[tuple[Condition, Condition, str], bool] = {}
        self.states: dict[str, dict[State, Boxes]] = {kind: {} for kind in TOP}
        self.impossible_states: dict[State, bool] = {}
        # The keys are the ids of both conjuncts; the value keeps them alive.
        self.met: dict[tuple[int, int], tuple[Conjunct, Conjunct, Conjunct | None]] = {}
        self.kept: dict[Conjunct | None, Conjunct | None] = {}
        self.depth: int = 0
        self.meets: int = 0

    def asked(self, state: State) -> Sequence[str]:
        """The types of values that may meet a state; values of other types do not."""
        if len(state) == 1:
            (alone,) = state
            if alone.positive and isinstance(alone.what, Schema):
                return self.kinds(alone.what)
        found: set[str] = set()
        for condition in state:
            found.update(self.kinds(condition.what) if isinstance(condition.what, Schema) else TOP)
        return [kind for kind in TOP if kind in found] if any(c.positive for c in state) else list(TOP)

    def of_state(self, state: State, kind: str) -> Boxes:
        """The conjuncts of a type's values that meet a state."""
        if len(state) == 1:
            (condition,) = state
            return self.of_condition(condition, kind)
        known = self.states[kind]
        if state not in known:
            parts = [self.of_condition(condition, kind) for condition in ordered(state)]
            found: Boxes = () if () in parts else (TOP[kind],)
            for part in parts:
                found = self.conjunction(kind, found, part) if found else found
            known[state] = found
        return known[state]

    def of_condition(self, condition: Condition, kind: str) -> Boxes:
        """The conjuncts of a type's values that meet a condition."""
        known = self.known[kind]
        if condition not in known:
            known[condition] = None
            known[condition] = self._of_condition(condition, kind)
        found = known[condition]
        if found is None:
            raise GrammarError(
                f"{_path(condition.what)}: the schema applies itself to the same value for ever"
            )
        return found

    def _of_condition(self, condition: Condition, kind: str) -> Boxes:
        check_deadline()
        what = condition.what
        if isinstance(what, Schema) and kind not in self.kinds(what):
            return () if condition.positive else (TOP[kind],)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise GrammarError(f"{_path(what)}: at most {MAX_DEPTH} schemas may apply to one value")
        found = self.evaluate(self.meaning(condition, kind), condition.positive, kind)
        self.depth -= 1
        return found

    def meaning(self, condition: Condition, kind: str) -> Formula:
        """The condition's schema or choice as a formula."""
        what, key = condition.what, (condition if condition.positive else condition.negated(), kind)
        if key not in self.meanings:
            if isinstance(what, Choice):
                found: Formula = Any(tuple(map(Is, what.options)))
            elif isinstance(what.value, bool):
                found = TRUE if what.value else FALSE
            else:
                found = All(tuple(self.formulas(condition, kind)))
            self.meanings[key] = found
        return self.meanings[key]

    def evaluate(self, formula: Formula, positive: bool, kind: str) -> Boxes:
        """The conjuncts of the values for which a formula holds, or does not hold if not ``positive``."""
        if isinstance(formula, Unknown):
            return (TOP[kind],)
        if isinstance(formula, Not):
            return self.evaluate(formula.item, not positive, kind)
        if isinstance(formula, Is):
            condition = formula.condition
            return self.of_condition(condition if positive else condition.negated(), kind)
        if isinstance(formula, Atom):
            return (formula.conjunct,) if positive else self.negated(formula, kind)
        if isinstance(formula, One):
            if positive:
                return self.exactly_one(formula.items, kind)
            return self.evaluate(_none_or_two(formula.items), True, kind)
        if isinstance(formula, All) == positive:
            found: Boxes = (TOP[kind],)
            for item in formula.items:
                if not found:
                    break
                found = self.conjunction(kind, found, self.evaluate(item, positive, kind))
            return found
        return self.union(kind, (self.evaluate(item, positive, kind) for item in formula.items))

    def negated(self, atom: Atom, kind: str) -> Boxes:
        if isinstance(atom.conjunct, Arrays) and atom.conjunct.unique:
            self.unenforced(atom.path, "that some items are equal")
            return (TOP[kind],)
        return tuple((atom.outer or atom.conjunct).negated())

    def union(self, kind: str, parts: Iterable[Boxes]) -> Boxes:
        """All conjuncts, without duplicates; only the top if it is among them."""
        found: dict[Conjunct, None] = {}
        for part in parts:
            found |= dict.fromkeys(part)
            if TOP[kind] in found:
                return (TOP[kind],)
        self.check_number(len(found))
        return tuple(found)

    def conjunction(self, kind: str, a: Boxes, b: Boxes) -> Boxes:
        """The intersection of two unions of conjuncts."""
        top = TOP[kind]
        if len(a) == 1 and (a[0] is top or a[0] == top):
            return b
        if len(b) == 1 and (b[0] is top or b[0] == top):
            return a
        found: dict[int, Conjunct] = {}
        for one in a:
            for other in b:
                met = self.meet(one, other)
                if met is not None:
                    found[id(met)] = met
            self.check_number(len(found))
        return tuple(found.values())

    def check_number(self, count: int) -> None:
        if count > MAX_BOXES:
            raise GrammarError(f"schema: expected at most {MAX_BOXES} combinations of alternatives, got more")

    def meet(self, a: Conjunct, b: Conjunct) -> Conjunct | None:
        """The intersection of two conjuncts; None if known to be empty. Equal results are one object."""
        self.meets += 1 + len(a.properties) // 64 if isinstance(a, Objects) else 1  # cost of the properties
        if self.meets > MAX_MEETS:
            raise GrammarError(f"schema: expected at most {MAX_MEETS} combinations of alternatives, got more")
        key = id(a), id(b)
        if key not in self.met:
            found = self._meet(a, b)
            self.met[key] = a, b, self.kept.setdefault(found, found)
        return self.met[key][2]

    def _meet(self, a: Conjunct, b: Conjunct) -> Conjunct | None:
        if isinstance(a, Objects) and isinstance(b, Objects) and (a.required or b.required):
            these, those = dict(a.properties), dict(b.properties)
            for name in (*a.required, *b.required):
                state = both(these.get(name, ANYTHING), those.get(name, ANYTHING))
                if state and self.impossible(state):
                    return None
        found = a.meet(b)  # type: ignore[arg-type]
        if isinstance(found, Arrays) and any(map(self.impossible, found.required())):
            return None
        return found

    def impossible(self, state: State) -> bool:
        """Whether a state of several conditions is known to have no value."""
        if len(state) < 2:
            return NEVER in state
        if state not in self.impossible_states:
            self.impossible_states[state] = False  # the answer for recursive calls
            self.depth += 1
            if self.depth <= MAX_DEPTH:
                asked = [self.kinds(c.what) for c in state if c.positive and isinstance(c.what, Schema)]
                kinds = [kind for kind in TOP if all(kind in some for some in asked)]
                self.impossible_states[state] = not any(self.of_state(state, kind) for kind in kinds)
            self.depth -= 1
        return self.impossible_states[state]

    def exactly_one(self, items: Sequence[Condition], kind: str) -> Boxes:
        """The union over the alternatives, each without the alternatives that overlap with it."""
        found: list[Boxes] = []
        for i, item in enumerate(items):
            rest = self.of_condition(item, kind)
            for j, other in enumerate(items):
                if j != i and rest and self.overlap(item, other, kind):
                    rest = self.less(rest, other, kind)
            found.append(rest)
        return self.union(kind, found)

    def overlap(self, one: Condition, other: Condition, kind: str) -> bool:
        """Whether a value of the type may meet both conditions."""
        key = one, other, kind
        if key not in self.overlaps:
            pairs = product(self.of_condition(one, kind), self.of_condition(other, kind))
            found = any(self.meet(a, b) is not None for a, b in pairs)
            self.overlaps[key] = self.overlaps[other, one, kind] = found
        return self.overlaps[key]

    def less(self, conjuncts: Boxes, condition: Condition, kind: str) -> Boxes:
        """The conjuncts without the values that meet a condition."""
        unwanted = self.of_condition(condition, kind)
        found: list[Boxes] = []
        for conjunct in conjuncts:
            meets = any(self.meet(conjunct, one) is not None for one in unwanted)
            found.append(
                self.conjunction(kind, (conjunct,), self.of_condition(condition.negated(), kind))
                if meets
                else (conjunct,)
            )
        return self.union(kind, found)


def _path(what: Schema | Choice) -> str:
    return what.path if isinstance(what, Schema) else "#"


def _none_or_two(items: Sequence[Condition]) -> Formula:
    pairs = [All((Is(a), Is(b))) for i, a in enumerate(items) for b in items[i + 1 :]]
    return Any((All(tuple(Not(Is(item)) for item in items)), *pairs))

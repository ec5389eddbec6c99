"""`unevaluatedProperties` and `unevaluatedItems`: conditions on what other keywords leave unevaluated.

Which properties or items are evaluated depends on which alternatives hold. So a schema has cases: the
conditions of a case, and what is evaluated in the case. The keyword means: in some case, everything
unevaluated meets the keyword's schema. Alternatives that evaluate nothing make no cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from oxillama.errors import GrammarError
from oxillama.text.grammar.rules import Node
from oxillama.text.grammar.schema.arrays import Arrays
from oxillama.text.grammar.schema.conditions import Condition, any_of, state_of
from oxillama.text.grammar.schema.formulas import TRUE, All, Any, Atom, Formula, Is, Not, Unknown
from oxillama.text.grammar.schema.keywords import REFERENCES, Keywords, Place, array_items
from oxillama.text.grammar.schema.objects import Names, Objects, Rule
from oxillama.text.grammar.schema.references import Schema

UNEVALUATED = ("unevaluatedItems", "unevaluatedProperties")
MAX_CASES = 1_024
MAX_DEPTH = 60  # nesting of schemas that apply to one value


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The evaluated parts of a value: names and patterns of names, or the first items; or everything.

    ``matching``: items that meet one of these are evaluated too. ``unknown``: a pattern was ignored.
    """

    everything: bool = False
    names: frozenset[str] = frozenset()
    patterns: tuple[Node, ...] = ()
    n_items: int = 0
    matching: tuple[Condition, ...] = ()
    unknown: bool = False

    def joined(self, other: Evaluated) -> Evaluated:
        """The parts that either has evaluated."""
        return Evaluated(
            self.everything or other.everything,
            self.names | other.names,
            tuple(dict.fromkeys(self.patterns + other.patterns)),
            max(self.n_items, other.n_items),
            tuple(dict.fromkeys(self.matching + other.matching)),
            self.unknown or other.unknown,
        )


Case = tuple[tuple[Formula, ...], Evaluated]
_NONE = Evaluated()
_NOTHING_MORE: list[Case] = [((), _NONE)]


class Unevaluated:
    """Makes the formulas of both keywords."""

    def __init__(self, keywords: Keywords) -> None:
        self.keywords = keywords
        self.depth: int = 0

    def formulas(self, place: Place, kind: str) -> Iterator[Formula]:
        """The formula of the keyword for values of a type, if the schema has the keyword."""
        keyword = {"object": "unevaluatedProperties", "array": "unevaluatedItems"}.get(kind)
        if keyword is None or not place.has(keyword):
            return
        rest = place.sub(keyword)
        if not state_of(rest):
            return  # anything may be left over
        cases = self.cases(place, kind, own=True)
        yield Any(
            tuple(All((*needs, self.left_over(done, rest, place.at(keyword), kind))) for needs, done in cases)
        )

    def left_over(self, done: Evaluated, rest: Condition, path: str, kind: str) -> Formula:
        """The formula that everything unevaluated meets the keyword's schema."""
        if done.everything:
            return TRUE
        if done.unknown:
            return Unknown()
        if kind == "object":
            return Atom(Objects(rules=(Rule(Names(done.names, (), done.patterns), state_of(rest)),)), path)
        state = any_of([*done.matching, rest]) if done.matching else state_of(rest)
        return Atom(Arrays((frozenset(),) * done.n_items, state), path)

    def cases(self, place: Place, kind: str, own: bool = False) -> list[Case]:
        """The cases of a schema for values of a type; ``own``: it is the schema of the keyword itself."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise GrammarError(f"{place.path}: at most {MAX_DEPTH} schemas may apply to one value")
        found = _NOTHING_MORE
        if isinstance(place.schema.value, dict):
            for alternatives in self.parts(place, kind, own):
                found = self.product(found, alternatives, place.path)
        self.depth -= 1
        return found

    def product(self, a: list[Case], b: list[Case], path: str) -> list[Case]:
        if b == _NOTHING_MORE:
            return a
        found = dict.fromkeys(((*n, *m), x.joined(y)) for n, x in a for m, y in b)
        if len(found) > MAX_CASES:
            raise GrammarError(f"{path}: more than {MAX_CASES} ways to evaluate a value")
        return list(found)

    def parts(self, place: Place, kind: str, own: bool) -> Iterator[list[Case]]:
        """The cases of each keyword that evaluates something."""
        for keyword in REFERENCES:
            if place.has(keyword):
                yield self.of(self.keywords.target(place, keyword), kind)
                if keyword == "$ref" and place.schema.dialect.ref_hides_siblings:
                    return
        yield [((), self.objects(place, own) if kind == "object" else self.arrays(place, own))]
        for sub in place.subs("allOf") if place.has("allOf") else ():
            yield self.of(sub, kind)
        if place.has("anyOf"):
            yield self.any_of(place.subs("anyOf"), kind, place.path)
        if place.has("oneOf"):
            yield [case for sub in place.subs("oneOf") for case in self.holding(sub, kind)]
        if place.has("if"):
            yield self.conditional(place, kind)
        if kind == "object":
            for keyword in ("dependentSchemas", "dependencies"):
                for name, value in place.mapping(keyword).items():
                    if isinstance(value, (bool, dict)):
                        yield self.dependent(place, keyword, name, kind)

    def objects(self, place: Place, own: bool) -> Evaluated:
        if place.has("additionalProperties") or (place.has("unevaluatedProperties") and not own):
            return Evaluated(everything=True)
        texts = place.mapping("patternProperties")
        nodes = [self.keywords.pattern(text, place.at("patternProperties")) for text in texts]
        known = tuple(node for node in nodes if node is not None)
        names = frozenset(place.mapping("properties"))
        return Evaluated(names=names, patterns=known, unknown=len(known) < len(nodes))

    def arrays(self, place: Place, own: bool) -> Evaluated:
        prefix, rest = array_items(place)
        if rest is not None or (place.has("unevaluatedItems") and not own):
            return Evaluated(everything=True)
        matching = place.has("contains") and place.schema.dialect.draft >= 2020
        return Evaluated(n_items=len(prefix), matching=(place.sub("contains"),) if matching else ())

    def of(self, condition: Condition, kind: str) -> list[Case]:
        """The cases of a schema that is known to hold."""
        assert isinstance(condition.what, Schema)
        return self.cases(Place(condition.what, condition.scope), kind)

    def holding(self, condition: Condition, kind: str) -> list[Case]:
        """The cases of a schema, each with the condition that the schema holds."""
        return [((Is(condition), *needs), done) for needs, done in self.of(condition, kind)]

    def any_of(self, subs: list[Condition], kind: str, path: str) -> list[Case]:
        """The cases of every subset of alternatives that hold, without alternatives that evaluate nothing."""
        found = _NOTHING_MORE
        empty = False
        for sub in subs:
            held = self.holding(sub, kind)
            cases = [case for case in held if case[1] != _NONE]
            empty = empty or len(cases) < len(held)
            if cases:
                found = self.product(found, [*_NOTHING_MORE, *cases], path)
        return found if empty else [case for case in found if case != _NOTHING_MORE[0]]

    def conditional(self, place: Place, kind: str) -> list[Case]:
        test = place.sub("if")
        then = self.of(place.sub("then"), kind) if place.has("then") else _NOTHING_MORE
        other = self.of(place.sub("else"), kind) if place.has("else") else _NOTHING_MORE
        yes = self.product(self.holding(test, kind), then, place.path)
        return [*yes, *(((Not(Is(test)), *needs), done) for needs, done in other)]

    def dependent(self, place: Place, keyword: str, name: str, kind: str) -> list[Case]:
        present = Atom(Objects(required=(name,)), place.at(keyword))
        cases = self.of(place.sub(keyword, name), kind)
        return [*_NOTHING_MORE, *(((present, *needs), done) for needs, done in cases if done != _NONE)]

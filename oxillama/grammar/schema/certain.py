"""Schemas of which it is known, without writing their rules, that they can be enforced.

A schema of simple keywords is *certain*: its rule can be written, whatever else the document holds, and the
rules that it refers to are those of single schemas below it. So it is written when a parser first comes to
it. All others are written at once, and what cannot be enforced is an error there and then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from oxillama.grammar.analysis import is_productive
from oxillama.grammar.rules import Alt, Node, Ref, Seq
from oxillama.grammar.schema.conditions import TYPES, Condition, exact
from oxillama.grammar.schema.formats import FORMATS, UNENFORCEABLE, format_node
from oxillama.grammar.schema.keywords import MAX_COUNT, Keywords, Place, type_names
from oxillama.grammar.schema.references import NO_SCOPE, Schema

MAX_DEPTH = 40  # schemas applied to one value within each other
MAX_NUMBER = 10**12  # of a bound
ANYHOW = Seq(())  # met by some value whatever else is met
WITHOUT_MEANING = frozenset({"$defs", "definitions"})
SIMPLE = {
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "array": frozenset({"items", "minItems", "maxItems", "uniqueItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
VALUES = frozenset({"enum", "const"})
KNOWN = VALUES.union({"type"}, *SIMPLE.values())
COMBINATIONS = frozenset({"allOf", "anyOf", "oneOf"})


class Certain(NamedTuple):
    """What is known of a schema.

    Attributes
    ----------
    below : the schemas whose rules its rule refers to.
    needs : what must be met below for it to be met, as an expression of `key`s.
    """

    below: tuple[Schema, ...] = ()
    needs: Node = ANYHOW


SCALARS = Certain()
"""Of schemas that refer to no others, and are met by some value."""


def key(schema: Schema) -> str:
    """The name by which `needs` speak of a schema."""
    return f"#{schema.serial}"


class Certainty:
    """Finds what is certain.

    Attributes
    ----------
    needs : of the schemas that need something, by `key`.
    """

    def __init__(self, keywords: Keywords) -> None:
        self.keywords = keywords
        self.known: dict[int, Certain | None] = {}
        self.needs: dict[str, Node] = {}
        self.depth = 0
        self.by_kind = {
            "number": self.number,
            "string": self.string,
            "array": self.array,
            "object": self.object,
        }

    def of(self, schema: Schema) -> Certain | None:
        """What is certain of a schema; None where it has to be written. GrammarError as for writing it."""
        number = schema.serial
        if number not in self.known:
            self.known[number] = None  # while it is being looked at
            self.depth += 1
            found = self.known[number] = self.find(schema) if self.depth <= MAX_DEPTH else None
            self.depth -= 1
            if found is not None and found.needs is not ANYHOW:
                self.needs[key(schema)] = found.needs
        return self.known[number]

    def find(self, schema: Schema) -> Certain | None:
        if isinstance(schema.value, bool):
            return SCALARS if schema.value else None
        if schema.resource.dynamic:
            return None
        words = schema.words - WITHOUT_MEANING
        place = Place(schema, NO_SCOPE)
        if "$ref" in words:
            if len(words) > 1 and not schema.dialect.ref_hides_siblings:
                return None
            return self.same_value([self.keywords.target(place, "$ref")], all_of=True)
        if KNOWN.issuperset(words):
            return self.simple(place, words)
        if len(words) > 1 or COMBINATIONS.isdisjoint(words):
            return None
        (word,) = words
        subs = place.subs(word)
        if word == "allOf":
            subs = [sub for sub in subs if not sub.always] or subs[:1]
            return self.same_value(subs, all_of=True) if len(subs) == 1 else None
        if word == "oneOf":
            schemas = [sub.what for sub in subs if isinstance(sub.what, Schema)]
            kinds = [kind for schema in schemas for kind in self.keywords.kinds(schema)]
            if len(set(kinds)) < len(kinds):
                return None
        return self.same_value(subs, all_of=False)

    def same_value(self, conditions: Sequence[Condition], all_of: bool) -> Certain | None:
        """Of a schema that applies others to the same value, and says nothing else."""
        below: list[Schema] = []
        needs: list[Node] = []
        for condition in conditions:
            assert isinstance(condition.what, Schema)
            found = self.of(condition.what)
            if found is None:
                return None
            below += found.below
            needs.append(Ref(key(condition.what)))
        return Certain(tuple(below), needs[0] if all_of else Alt(tuple(needs)))

    def simple(self, place: Place, words: frozenset[str]) -> Certain | None:
        named = type_names(place.get("type")) if "type" in words else TYPES
        if named is None:
            return None
        if len(words) == 1 and "type" in words:
            return SCALARS
        kinds = {"number" if kind == "integer" else kind for kind in named}
        if not VALUES.isdisjoint(words):
            return SCALARS if len(words - {"type"}) == 1 and _few_scalars(place, set(named)) else None
        below: tuple[Schema, ...] = ()
        needs: list[Node] = []
        for kind, group in SIMPLE.items():
            own = words & group
            if not own:
                continue
            found = self.by_kind[kind](place, own)
            if found is None:
                return None
            if kind in kinds:
                below += found.below
                needs.append(found.needs)
        scalar = not kinds <= {"array", "object"} or len(needs) < len(kinds)
        return Certain(below, ANYHOW if scalar else needs[0] if len(needs) == 1 else Alt(tuple(needs)))

    # ----------------------------------------------------------------- types

    def number(self, place: Place, words: frozenset[str]) -> Certain | None:
        values = [place.get(word) for word in words]
        if not all(_is_plain_number(value) for value in values):
            return None
        bounds = {word: exact(place.get(word), place.at(word)) for word in words}
        low = max([bounds[word] for word in ("minimum", "exclusiveMinimum") if word in words], default=None)
        high = min([bounds[word] for word in ("maximum", "exclusiveMaximum") if word in words], default=None)
        return SCALARS if low is None or high is None or high - low > 1 else None

    def string(self, place: Place, words: frozenset[str]) -> Certain | None:
        if words <= {"minLength", "maxLength"}:
            return SCALARS if _in_order(place, words, "minLength", "maxLength") else None
        if len(words) > 1:
            return None
        if "format" in words:
            name = place.get("format")
            if not isinstance(name, str) or name in UNENFORCEABLE:
                return None
            if name in FORMATS:
                format_node(name)  # parsed at once, as patterns are, and once in a process
            return SCALARS
        node = self.keywords.pattern(place.get("pattern"), place.at("pattern"))
        return SCALARS if node is None or is_productive(node) else None

    def array(self, place: Place, words: frozenset[str]) -> Certain | None:
        counts = words & {"minItems", "maxItems"}
        if not _in_order(place, counts, "minItems", "maxItems"):
            return None
        if "uniqueItems" in words and place.get("uniqueItems") is not False:
            return None
        if "items" not in words:
            return SCALARS
        if not isinstance(place.get("items"), (bool, dict)) or place.get("items") is False:
            return None
        items = place.below("items")
        some = "minItems" in words and place.count("minItems")
        return Certain((items,), Ref(key(items)) if some else ANYHOW)

    def object(self, place: Place, words: frozenset[str]) -> Certain | None:
        below: dict[str, Schema] = {}
        for name in place.mapping("properties"):
            sub = place.below("properties", name)
            if sub.value is False:
                return None
            below[name] = sub
        others: Schema | None = None
        if "additionalProperties" in words:
            others = place.below("additionalProperties")
        needs: list[Node] = []
        for name in place.strings("required", place.get("required")) if "required" in words else ():
            schema = below.get(name, others)
            if not is_text(name) or (schema is not None and schema.value is False):
                return None
            if schema is not None:
                needs.append(Ref(key(schema)))
        found = [*below.values(), *([others] if others is not None and others.value is not False else ())]
        return Certain(tuple(found), Seq(tuple(needs)) if needs else ANYHOW)


def _in_order(place: Place, words: frozenset[str], least: str, most: str) -> bool:
    """Whether bounds are counts, the lower not above the upper."""
    for word in words:
        count = place.get(word)
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_COUNT:
            return False
    return len(words) < 2 or place.count(least) <= place.count(most)


def _is_plain_number(value: Any) -> bool:
    """Whether a number has few digits."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return False
    return -MAX_NUMBER < value < MAX_NUMBER and len(str(value)) <= 16 and "e" not in str(value).lower()


def is_text(text: str) -> bool:
    """Whether it has an encoding."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def _few_scalars(place: Place, kinds: set[str]) -> bool:
    """Whether the values of `enum` or `const` are scalars, of which some have the type."""
    values = [place.get("const")] if place.has("const") else place.get("enum")
    return (
        isinstance(values, list)
        and all(map(_is_scalar, values))
        and any(kind in kinds for value in values for kind in _kinds(value))
    )


def _is_scalar(value: object) -> bool:
    if isinstance(value, str):
        return is_text(value)
    return value is None or isinstance(value, bool) or _is_plain_number(value)


def _kinds(value: object) -> Iterator[str]:
    """The types that a scalar is certainly of."""
    if isinstance(value, str):
        yield "string"
    elif value is None or isinstance(value, bool):
        yield "null" if value is None else "boolean"
    else:
        yield from ("number", "integer") if isinstance(value, int) else ("number",)

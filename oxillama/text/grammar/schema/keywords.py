"""The keywords of JSON Schema as formulas.

Each keyword is a function from a schema and a type of values to a formula; a keyword that does not restrict
the type is true. Values of keywords are validated here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from oxillama.base.config.checks import shown
from oxillama.errors import GrammarError
from oxillama.text.grammar.regex import parse_regex
from oxillama.text.grammar.rules import Node
from oxillama.text.grammar.schema.arrays import Arrays, Contains
from oxillama.text.grammar.schema.conditions import (
    ANYTHING,
    TYPES,
    Condition,
    State,
    canonical,
    exact,
    json_type,
    of_schema,
    state_of,
)
from oxillama.text.grammar.schema.constants import BOOLEAN, NULL, Constants
from oxillama.text.grammar.schema.dialects import OPENAPI_FORMATS, warn_of
from oxillama.text.grammar.schema.formats import FORMATS, MOST, UNENFORCEABLE, format_node
from oxillama.text.grammar.schema.formulas import (
    FALSE,
    TRUE,
    All,
    Any,
    Atom,
    Conjunct,
    Formula,
    Is,
    Not,
    One,
    Unknown,
)
from oxillama.text.grammar.schema.numbers import Numbers
from oxillama.text.grammar.schema.objects import Names, Objects, Rule, exactly, forbidden
from oxillama.text.grammar.schema.references import NO_SCOPE, References, Schema, Scope
from oxillama.text.grammar.schema.strings import Strings

MAX_COUNT = 1_000_000_000  # the largest bound of a length or a number of items or properties
MAX_CHAIN = 60  # references to references
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
VALUES = ("type", "const", "enum")
COMBINATIONS = ("allOf", "anyOf", "oneOf", "not", "if")
TYPE_NAMES = frozenset({*TYPES, "integer"})
OF_TYPE = {
    kind: frozenset(words.split())
    for kind, words in {
        "null": "",
        "boolean": "",
        "number": "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf",
        "string": "minLength maxLength pattern format",
        "array": """items prefixItems additionalItems minItems maxItems uniqueItems contains minContains
            maxContains unevaluatedItems""",
        "object": """properties patternProperties additionalProperties propertyNames required minProperties
            maxProperties dependentRequired dependentSchemas dependencies unevaluatedProperties""",
    }.items()
}
"""The keywords that restrict values of one type only."""


class Place(NamedTuple):
    """A schema and its dynamic scope."""

    schema: Schema
    scope: Scope

    @property
    def path(self) -> str:
        return self.schema.path

    def has(self, keyword: str) -> bool:
        """Whether the schema has the keyword, and its draft defines the keyword."""
        return keyword in self.schema.words

    def get(self, keyword: str) -> object:
        """The keyword's value."""
        return self.schema.value[keyword]

    def at(self, keyword: str) -> str:
        return f"{self.schema.path}/{keyword}"

    def below(self, *keys: str) -> Schema:
        """The schema under a keyword (and a name or an index)."""
        found = self.schema.below.get(keys)
        if found is None:
            value = self.get(keys[0])
            raise GrammarError(f"{self.at(keys[0])}: expected a schema, got {shown(value):.80}")
        return found

    def sub(self, *keys: str) -> Condition:
        """The condition that the schema under a keyword (and a name or an index) holds."""
        return of_schema(self.below(*keys), self.scope)

    def state(self, *keys: str) -> State:
        return state_of(self.sub(*keys))

    def subs(self, keyword: str) -> list[Condition]:
        """The conditions of a keyword whose value is a list of schemas."""
        value = self.get(keyword)
        if not isinstance(value, list) or not value:
            raise GrammarError(f"{self.at(keyword)}: expected a list of schemas, got {shown(value):.80}")
        return [self.sub(keyword, str(i)) for i in range(len(value))]

    def mapping(self, keyword: str) -> Mapping[str, object]:
        """The value of a keyword that is a mapping; empty if the keyword is absent."""
        value = self.get(keyword) if self.has(keyword) else {}
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise GrammarError(f"{self.at(keyword)}: expected an object, got {shown(value):.80}")
        return value

    def count(self, keyword: str) -> int:
        """The value of a keyword that is a nonnegative integer."""
        value = self.get(keyword)
        if type(value) is int and 0 <= value <= MAX_COUNT:
            return value
        number = exact(value, self.at(keyword))
        if number.denominator != 1 or not number >= 0:
            raise GrammarError(f"{self.at(keyword)}: expected a count, got {shown(value):.80}")
        if number > MAX_COUNT:
            raise GrammarError(f"{self.at(keyword)}: expected at most {MAX_COUNT}, got {number}")
        return int(number)

    def strings(self, keyword: str, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise GrammarError(f"{self.at(keyword)}: expected a list of strings, got {shown(value):.80}")
        return tuple(value)

    def is_true(self, keyword: str) -> bool:
        value = self.get(keyword)
        if not isinstance(value, bool):
            raise GrammarError(f"{self.at(keyword)}: expected true or false, got {shown(value):.80}")
        return value


@dataclass(eq=False, repr=False)
class Keywords:
    """The formulas of schemas.

    Args:
        references: the documents.
        formats: whether `format` is enforced; None: as in the dialect.
        plain_integers: integers, and whole numbers in `enum` and `const`, are written without ".0".
        unenforced: called with a path and a reason where a keyword cannot be enforced; raises if that is an
            error.
    """

    references: References
    formats: bool | None
    plain_integers: bool
    unenforced: Callable[[str, str], None]
    constants: dict[str, Schema] = field(default_factory=dict, init=False)
    kinds_of: dict[Schema, Sequence[str]] = field(default_factory=dict, init=False)

    def kinds(self, schema: Schema) -> Sequence[str]:
        """The types of values that a schema can restrict or allow; its `type` excludes the other types."""
        if schema not in self.kinds_of:
            words, wanted = schema.words, TYPES
            names = type_names(schema.value["type"]) if "type" in words else None
            if names is not None:  # an invalid `type` raises later
                wanted = tuple(["number" if name == "integer" else name for name in names])
            self.kinds_of[schema] = [k for k in TYPES if k in wanted or not words.isdisjoint(OF_TYPE[k])]
        return self.kinds_of[schema]

    def formulas(self, place: Place, kind: str) -> Iterator[Formula]:
        """The formulas of a schema's keywords, without `unevaluated*`, for values of a type.

        The schema's own properties come first: their order wins where orders contradict each other.
        """
        words = place.schema.words
        hidden = "$ref" in words and place.schema.dialect.ref_hides_siblings
        concerned = not words.isdisjoint(OF_TYPE[kind])
        if kind == "object" and concerned and not hidden:
            yield from self.objects(place)
        if not words.isdisjoint(REFERENCES):
            for keyword in REFERENCES:
                if keyword in words:
                    yield Is(self.target(place, keyword))
                    if hidden:
                        return
        if not words.isdisjoint(VALUES):
            yield from self.values(place, kind)
        if not words.isdisjoint(COMBINATIONS):
            yield from self.combinations(place, kind)
        if concerned and kind != "object":
            by_kind = {"number": self.numbers, "string": self.strings, "array": self.arrays}
            yield from by_kind[kind](place)

    def target(self, place: Place, keyword: str) -> Condition:
        """The condition that the target of a reference holds."""
        return of_schema(self.references.target(place.schema, keyword, place.scope), place.scope)

    def followed(self, condition: Condition) -> Condition:
        """The condition with references followed, while the schema is nothing but a reference."""
        for _ in range(MAX_CHAIN):
            schema = condition.what
            if not isinstance(schema, Schema) or "$ref" not in schema.words:
                break
            if len(schema.words) > 1 and not schema.dialect.ref_hides_siblings:
                break
            found = self.target(Place(schema, condition.scope), "$ref")
            condition = found if condition.positive else found.negated()
        return condition

    # ----------------------------------------------------------------- any type

    def values(self, place: Place, kind: str) -> Iterator[Formula]:
        if place.has("type"):
            yield self.types(place, kind)
        if place.has("const"):
            yield self.equals(place.get("const"), kind, place.at("const"))
        if place.has("enum"):
            values = place.get("enum")
            if not isinstance(values, list):
                raise GrammarError(f"{place.at('enum')}: expected a list of values, got {shown(values):.80}")
            yield self.one_of_values(values, kind, place.at("enum"))

    def types(self, place: Place, kind: str) -> Formula:
        names = type_names(place.get("type"))
        if names is None:
            found = shown(place.get("type"))
            raise GrammarError(f"{place.at('type')}: expected names of types, got {found:.80}")
        if kind in names:
            return TRUE
        if kind == "number" and "integer" in names:
            plain = self.plain_integers or place.schema.dialect.draft == 4
            return Atom(Numbers(step=Fraction(1), plain=plain), place.at("type"))
        return FALSE

    def one_of_values(self, values: Sequence[object], kind: str, path: str) -> Formula:
        """The formula of a list of allowed values; all numbers or strings are one conjunct."""
        found = [value for value in values if json_type(value, path) == kind]
        if not found:
            return FALSE
        if kind == "string":
            return Atom(Strings(values=frozenset(map(str, found))), path)
        if kind == "number":
            exacts = frozenset(exact(value, path) for value in found)
            long = frozenset(value for value in exacts if abs(value) >= 10**16)  # exponents allowed
            parts = ((exacts - long, True), (long, False)) if self.plain_integers else ((exacts, False),)
            return Any(tuple(Atom(Numbers(values=part, plain=plain), path) for part, plain in parts if part))
        return Any(tuple(self.equals(value, kind, path) for value in found))

    def equals(self, value: object, kind: str, path: str) -> Formula:
        """The formula of equality with a JSON value."""
        if json_type(value, path) != kind:
            return FALSE
        if kind in ("null", "boolean"):
            every = NULL.every if kind == "null" else BOOLEAN.every
            text = "null" if value is None else "true" if value else "false"
            return Atom(Constants((text,), every), path)
        if isinstance(value, list):
            items = tuple(state_of(self.constant(one, path)) for one in value)
            return Atom(Arrays(items, least=len(items), most=len(items)), path)
        if isinstance(value, dict):
            states = {str(name): state_of(self.constant(one, path)) for name, one in value.items()}
            return Atom(exactly(states), path)
        return self.one_of_values([value], kind, path)

    def constant(self, value: object, path: str) -> Condition:
        """The condition of equality with a JSON value."""
        key = canonical(value, path)
        if key not in self.constants:
            self.constants[key] = self.references.constant(value, path)
        return of_schema(self.constants[key], NO_SCOPE)

    def combinations(self, place: Place, kind: str) -> Iterator[Formula]:
        if place.has("allOf"):
            yield from map(Is, self.alternatives(place, "allOf"))
        if place.has("anyOf"):
            yield Any(tuple(map(Is, self.alternatives(place, "anyOf"))))
        if place.has("oneOf"):
            yield One(tuple(self.alternatives(place, "oneOf")))
        if place.has("not"):
            yield Not(Is(place.sub("not")))
        if place.has("if") and (place.has("then") or place.has("else")):
            test = Is(place.sub("if"))
            then = Is(place.sub("then")) if place.has("then") else TRUE
            other = Is(place.sub("else")) if place.has("else") else TRUE
            yield Any((All((test, then)), All((Not(test), other))))

    def alternatives(self, place: Place, keyword: str) -> list[Condition]:
        """The conditions of a list of schemas, with references followed."""
        return [self.followed(sub) for sub in place.subs(keyword)]

    # ----------------------------------------------------------------- numbers and strings

    def numbers(self, place: Place) -> Iterator[Formula]:
        for end, other in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            excluded = place.has(other) and place.get(other)
            if place.has(end):
                bound = exact(place.get(end), place.at(end))
                yield Atom(_bounded(end, bound, excluded is True), place.at(end))
            if place.has(other) and not isinstance(excluded, bool):
                bound = exact(excluded, place.at(other))
                yield Atom(_bounded(end, bound, True), place.at(other))
        if place.has("multipleOf"):
            step = exact(place.get("multipleOf"), place.at("multipleOf"))
            if step <= 0:
                raise GrammarError(f"{place.at('multipleOf')}: expected more than 0, got {step}")
            yield Atom(Numbers(step=step), place.at("multipleOf"))

    def strings(self, place: Place) -> Iterator[Formula]:
        least = place.count("minLength") if place.has("minLength") else 0
        most = place.count("maxLength") if place.has("maxLength") else None
        patterns: frozenset[Node] = frozenset()
        if place.has("pattern"):
            node = self.pattern(place.get("pattern"), place.at("pattern"))
            if node is None:
                yield Unknown()
            else:
                patterns = frozenset({node})
        yield _limits(Strings(least, most, patterns).settled(), place)
        if place.has("format"):
            yield self.format(place)

    def pattern(self, value: object, path: str) -> Node | None:
        """The strings in which a pattern matches somewhere; None if the pattern was ignored."""
        if not isinstance(value, str):
            raise GrammarError(f"{path}: expected a regular expression, got {shown(value):.80}")
        try:
            return parse_regex(value, search=True)
        except GrammarError as error:
            self.unenforced(path, str(error))
            return None

    def format(self, place: Place) -> Formula:
        name = place.get("format")
        if not isinstance(name, str):
            raise GrammarError(f"{place.at('format')}: expected a name, got {shown(name):.80}")
        if not (place.schema.dialect.asserts_formats if self.formats is None else self.formats):
            return TRUE
        if name in UNENFORCEABLE:
            self.unenforced(place.at("format"), f"the format {name!r} is not regular")
            return Unknown()
        if name not in FORMATS:
            if name not in OPENAPI_FORMATS:
                warn_of(place.at("format"), "format", name, FORMATS)
            return TRUE  # the specification says that unknown formats are ignored
        some, all_of_it = (
            Strings(most=MOST.get(name), patterns=frozenset({format_node(name, may_be)}))
            for may_be in (False, True)
        )
        return Atom(some, place.at("format"), all_of_it)

    # ----------------------------------------------------------------- arrays

    def arrays(self, place: Place) -> Iterator[Formula]:
        prefix, rest = array_items(place)
        least = place.count("minItems") if place.has("minItems") else 0
        most = place.count("maxItems") if place.has("maxItems") else None
        yield _limits(Arrays(tuple(prefix), rest or ANYTHING, least, most).settled(), place)
        if place.has("uniqueItems") and place.is_true("uniqueItems"):
            yield Atom(Arrays(unique=True), place.at("uniqueItems"))
        if place.has("contains"):
            least = place.count("minContains") if place.has("minContains") else 1
            most = place.count("maxContains") if place.has("maxContains") else None
            if least or most is not None:
                contains = Contains(place.state("contains"), 0, least, most)
                conjunct = Arrays(contains=(contains,)).settled()
                yield FALSE if conjunct is None else Atom(conjunct, place.at("contains"))

    # ----------------------------------------------------------------- objects

    def objects(self, place: Place) -> Iterator[Formula]:
        names = list(place.mapping("properties"))
        properties = tuple([(name, place.state("properties", name)) for name in names])
        patterns: list[Node] = []
        all_known = True  # False: it is unknown which names are additional
        rules: list[Rule] = []
        for text in place.mapping("patternProperties"):
            node = self.pattern(text, f"{place.at('patternProperties')}/{text}")
            if node is None:
                all_known = False
                break
            patterns.append(node)
            rules.append(Rule(Names(patterns=(node,)), place.state("patternProperties", text)))
        if place.has("additionalProperties"):
            state = place.state("additionalProperties")
            if all_known:
                rules.append(Rule(Names(frozenset(names), (), tuple(patterns)), state))
            else:
                yield Unknown()
        every_name = place.state("propertyNames") if place.has("propertyNames") else ANYTHING
        required = place.strings("required", place.get("required")) if place.has("required") else ()
        least = place.count("minProperties") if place.has("minProperties") else 0
        most = place.count("maxProperties") if place.has("maxProperties") else None
        conjunct = Objects(properties, tuple(rules), every_name, tuple(dict.fromkeys(required)), least, most)
        yield _limits(conjunct.settled(), place)
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, value in place.mapping(keyword).items():
                yield self.dependency(place, keyword, name, value)

    def dependency(self, place: Place, keyword: str, name: str, value: object) -> Formula:
        """The formula of one entry of a dependency keyword, which applies if ``name`` is present."""
        path = place.at(keyword)
        absent = Atom(forbidden(name), path)
        if isinstance(value, (bool, dict)):
            present = Atom(Objects(required=(name,)), path)
            return Any((absent, All((present, Is(place.sub(keyword, name))))))
        others = (value,) if isinstance(value, str) else place.strings(keyword, value)
        return Any((absent, Atom(Objects(required=(name, *others)), path)))


def type_names(value: object) -> list[str] | None:
    """The type names in the value of `type`; None if the value is invalid."""
    if isinstance(value, str):
        return [value] if value in TYPE_NAMES else None
    if isinstance(value, list) and all(isinstance(name, str) and name in TYPE_NAMES for name in value):
        return value or None
    return None


def _limits(conjunct: Conjunct | None, place: Place) -> Formula:
    """The formula of limits that a schema's own keywords state; ``conjunct`` None: contradictory."""
    return FALSE if conjunct is None else Atom(conjunct, place.path)


def array_items(place: Place) -> tuple[list[State], State | None]:
    """The states of the first items, and of the others (None: unrestricted), by the schema's draft."""
    items = place.get("items") if place.has("items") else None
    if place.has("prefixItems"):
        prefix = [state_of(sub) for sub in place.subs("prefixItems")]
        return prefix, None if items is None else place.state("items")
    if isinstance(items, list) and (place.schema.dialect.draft < 2020 or not place.schema.dialect.declared):
        prefix = [place.state("items", str(i)) for i in range(len(items))]
        return prefix, place.state("additionalItems") if place.has("additionalItems") else None
    return [], None if items is None else place.state("items")


def _bounded(end: str, bound: Fraction, is_open: bool) -> Numbers:
    if end == "minimum":
        return Numbers(low=bound, low_open=is_open)
    return Numbers(high=bound, high_open=is_open)

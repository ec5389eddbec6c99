"""Random schemas and values: accepted if and only if an independent validator says so; so are drawn texts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice, permutations, product

import pytest
from hypothesis import given, settings, strategies as st

from oxillama.errors import GrammarError
from oxillama.text.grammar import Grammar, JsonSchemaCompiler
from oxillama.text.grammar.analysis import analysis_of
from oxillama.text.grammar.rules import Rules
from tests.support.schema_samples import Sampler

jsonschema = pytest.importorskip("jsonschema")

NAMES = st.sampled_from("abcd")
NUMBERS = st.sampled_from([0, 1, 2, 3, -1, 10, 0.5, 1.0, 1.5, -2.5, 100])
STRINGS = st.sampled_from(["", "a", "b", "ab", "abc", "aab", "x1", "é", "😀", "\t"])
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, STRINGS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "c", "d", "x", "xy"]), inner, max_size=3),
    ),
    max_leaves=6,
)
TYPES = st.sampled_from(["string", "integer", "number", "null", "boolean", "array", "object"])
COUNTS = st.integers(0, 3)
PATTERNS = st.sampled_from(["a", "^a", "b$", "^a*$", "^[ab]+$", "x|é", "^$", "^[^x]$", "a[^x]*b", "[bc]"])
LEAVES = st.one_of(
    st.booleans(),
    TYPES.map(lambda kind: {"type": kind}),
    SCALARS.map(lambda value: {"const": value}),
    st.just({"$ref": "#/$defs/r"}),
)


def keywords(sub: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Schemas of a few keywords, over smaller ones."""
    some = st.lists(sub, min_size=1, max_size=3)
    optional = {
        "type": st.one_of(TYPES, st.lists(TYPES, min_size=1, max_size=2, unique=True)),
        "enum": st.lists(VALUES, min_size=1, max_size=3), "const": VALUES, "minimum": NUMBERS,
        "exclusiveMaximum": NUMBERS, "multipleOf": st.sampled_from([1, 2, 3, 0.5]), "minLength": COUNTS,
        "maxLength": COUNTS, "pattern": PATTERNS, "items": sub, "prefixItems": some, "contains": sub,
        "minContains": COUNTS, "maxContains": COUNTS, "minItems": COUNTS, "maxItems": COUNTS,
        "uniqueItems": st.booleans(), "properties": st.dictionaries(NAMES, sub, min_size=1, max_size=3),
        "required": st.lists(NAMES, min_size=1, max_size=2, unique=True), "additionalProperties": sub,
        "patternProperties": st.dictionaries(PATTERNS, sub, min_size=1, max_size=2),
        "propertyNames": st.one_of(PATTERNS.map(lambda p: {"pattern": p}), sub), "minProperties": COUNTS,
        "maxProperties": COUNTS,
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=1), max_size=1),
        "dependentSchemas": st.dictionaries(NAMES, sub, max_size=1), "unevaluatedProperties": sub,
        "unevaluatedItems": sub, "allOf": some, "anyOf": some, "oneOf": some, "not": sub, "if": sub,
        "then": sub, "else": sub,
    }  # fmt: skip
    return st.lists(st.sampled_from(sorted(optional)), min_size=1, max_size=3, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({keyword: optional[keyword] for keyword in chosen})
    )


SCHEMAS = st.recursive(LEAVES, keywords, max_leaves=8).filter(lambda schema: isinstance(schema, dict))
RECURSIVE = {
    "type": ["object", "array", "integer"],
    "properties": {"a": {"$ref": "#/$defs/r"}},
    "items": {"$ref": "#/$defs/r"},
}


def compiled(schema: dict[str, object]) -> tuple[Rules | None, bool]:
    """The rules, and whether the schema can be enforced; no rules if nothing matches."""
    try:
        return JsonSchemaCompiler(any_order=True).compile(schema), True
    except GrammarError as error:
        return None, "no value meets" in str(error)


def check_every_rule(rules: Rules) -> None:
    """Each deferred rule that matches something can be built alone."""
    for name in rules.deferred & analysis_of(rules).productive:
        Grammar.from_rules(Rules(name, rules.rules))


def plain(value: object) -> object:
    """The value as it is written where values are told apart: integers without ".0"."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def has_order(value: object, in_list: bool = False) -> bool:
    """Whether there is an object of several properties in a list: where items differ it has one order."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    inside = in_list or isinstance(value, list)
    return (in_list and isinstance(value, dict) and len(value) > 1) or any(
        has_order(v, inside) for v in below
    )


def orders(value: object) -> Iterator[object]:
    """The value with the properties of its objects in each order."""
    if isinstance(value, list):
        for items in product(*map(orders, value)):
            yield list(items)
    elif isinstance(value, dict):
        for names in permutations(value):
            for items in product(*(orders(value[name]) for name in names)):
                yield dict(zip(names, items, strict=True))
    else:
        yield value


@settings(max_examples=200, deadline=None)
@given(SCHEMAS, st.lists(VALUES, min_size=5, max_size=15))
def test_each_valid_value_has_an_order_that_the_schema_gives(
    schema: dict[str, object], values: list[object]
) -> None:
    schema = {**schema, "$defs": {"r": RECURSIVE}}
    validator = jsonschema.Draft202012Validator(schema)
    try:
        grammar = Grammar.from_json_schema(schema)
    except GrammarError:
        return
    for value in values:
        accepted = [
            grammar.matches(json.dumps(plain(one), ensure_ascii=False)) for one in islice(orders(value), 200)
        ]
        valid = validator.is_valid(value)
        assert any(accepted) <= valid, value
        assert any(accepted) == valid or len(accepted) == 200 or '"uniqueItems": true' in json.dumps(schema)


@settings(max_examples=300, deadline=None)
@given(SCHEMAS, st.lists(VALUES, min_size=5, max_size=25), st.integers(0, 2**32))
def test_accepted_if_and_only_if_valid(schema: dict[str, object], values: list[object], seed: int) -> None:
    schema = {**schema, "$defs": {"r": RECURSIVE}}
    validator = jsonschema.Draft202012Validator(schema)
    rules, enforced = compiled(schema)
    if not enforced:
        return
    grammar = lazy = None
    if rules is not None:
        grammar, lazy = Grammar.from_rules(Rules(rules.root, rules.rules)), Grammar.from_rules(rules)
        check_every_rule(rules)
    for value in values:
        texts = json.dumps(value), json.dumps(plain(value), ensure_ascii=False)
        accepted = [grammar is not None and grammar.matches(text) for text in texts]
        for text, one in zip(texts, accepted, strict=True):
            assert one == (lazy is not None and lazy.matches(text)), value
        valid = validator.is_valid(value)
        assert any(accepted) <= valid, value
        assert accepted[-1] == valid or ('"uniqueItems": true' in json.dumps(schema) and has_order(value)), (
            value
        )
    if rules is None or grammar is None:
        return
    sampler = Sampler(rules, random.Random(seed))
    for _ in range(5):
        text = sampler.draw()
        if text == "":
            continue
        assert text is not None and grammar.matches(text)
        if not any(
            mark in text for mark in ("e", "E", "\\n")
        ):  # the validator rounds, and $ is before "\n" too
            assert validator.is_valid(json.loads(text)), text

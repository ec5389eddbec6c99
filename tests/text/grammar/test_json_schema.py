"""JSON Schema to grammars: drafts, orders, spellings, numbers, references, types, refusals and limits."""

from __future__ import annotations

import dataclasses
import datetime
import doctest
import enum
import itertools
import json
import math
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal, Optional, TypedDict

import jsonschema
import pytest

from oxillama._kernels.grammar.parser_states import ParserStates
from oxillama.errors import ConfigError, GrammarError
from oxillama.text.grammar import Grammar, JsonSchemaCompiler
from oxillama.text.grammar.rules import Dfa
from oxillama.text.grammar.schema.formats import FORMATS
from oxillama.text.grammar.schema.numbers import Numbers
from tests.support.automata import accepts
from tests.support.paths import DOCS
from tests.support.schema_samples import Sampler

DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}


def grammar(schema: object, **options: Any) -> Grammar:
    return Grammar.from_json_schema(schema, compiler=JsonSchemaCompiler(**options))


def check(schema: object, valid: list[object], invalid: list[object], **options: Any) -> None:
    """Values are written as they stand: in any order, unless the options say otherwise."""
    made = grammar(schema, **{"any_order": True, **options})
    for value in valid:
        for separators in ((", ", ": "), (",", ":")):
            for ascii_only in (True, False):
                text = json.dumps(value, separators=separators, ensure_ascii=ascii_only)
                assert made.matches(text), text
    for value in invalid:
        assert not made.matches(json.dumps(value)), value


# --------------------------------------------------------------------------- drafts

IN_DRAFTS = [
    (4, {"minimum": 3, "exclusiveMinimum": True}, [3.1, 4], [3, 2.9]),
    (4, {"minimum": 3, "exclusiveMinimum": False}, [3], [2.9]),
    (4, {"type": "integer"}, [1], [1.0, 1.5]),
    (6, {"type": "integer"}, [1, 1.0], [1.5]),
    (4, {"const": 3}, [4, 3], []),
    (6, {"const": 3}, [3, 3.0], [4]),
    (4, {"items": [{"type": "integer"}], "additionalItems": False}, [[1], []], [["a"], [1, 1]]),
    (7, {"items": {"type": "integer"}, "additionalItems": False}, [[1, 2]], [["a"]]),
    (4, {"dependencies": {"b": ["a"]}}, [{}, {"a": 1, "b": 2}], [{"b": 1}]),
    (7, {"dependencies": {"b": {"required": ["a"]}}}, [{}, {"a": 1, "b": 2}], [{"b": 1}]),
    (6, {"if": {"const": 1}, "then": False}, [1, 2], []),
    (7, {"if": {"const": 1}, "then": False}, [2], [1]),
    (4, {"definitions": {"A": {"id": "#foo", "type": "integer"}}, "allOf": [{"$ref": "#foo"}]}, [1], ["a"]),
    (7, {"definitions": {"A": {"$id": "#foo", "type": "integer"}}, "allOf": [{"$ref": "#foo"}]}, [1], ["a"]),
    (7, {"$ref": "#/definitions/a", "definitions": {"a": {"type": "integer"}}, "maximum": 3}, [5], ["a"]),
    (2019, {"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}, "maximum": 3}, [2], ["a", 5]),
    (2019, {"items": [{"type": "integer"}, True], "unevaluatedItems": False}, [[1, 2]], [[1, 2, 3]]),
    (2019, {"contains": {"const": 1}, "unevaluatedItems": False}, [], [[1]]),
    (2020, {"contains": {"const": 1}, "unevaluatedItems": False}, [[1], [1, 1]], [[1, 2]]),
    (2019, {"prefixItems": [{"type": "string"}]}, [[1]], []),
    (2020, {"prefixItems": [{"type": "string"}]}, [["a", 1]], [[1]]),
    (7, {"format": "date"}, ["2024-02-29", 3], ["2023-02-29"]),
    (2020, {"format": "date"}, ["2023-02-29"], []),
    (
        2019,
        {
            "$id": "http://localhost/t",
            "$recursiveAnchor": True,
            "properties": {"a": {"$recursiveRef": "#"}},
            "additionalProperties": False,
        },
        [{"a": {"a": {}}}],
        [{"a": {"b": 1}}, {"b": 1}],
    ),
]


@pytest.mark.parametrize(("draft", "schema", "valid", "invalid"), IN_DRAFTS)
def test_the_draft_decides(draft: int, schema: dict, valid: list[object], invalid: list[object]) -> None:
    check({"$schema": DRAFTS[draft], **schema}, valid, invalid)
    check(schema, valid, invalid, default_schema=DRAFTS[draft])


def test_recursive_references_look_for_the_outermost_anchor() -> None:
    for outer, inner in itertools.product((True, False), repeat=2):
        schema = {
            "$schema": DRAFTS[2019],
            "$id": "http://localhost/s.json",
            "$recursiveAnchor": outer,
            "$defs": {
                "o": {
                    "$id": "o.json",
                    "$recursiveAnchor": inner,
                    "anyOf": [
                        {"type": "string"},
                        {"type": "object", "additionalProperties": {"$recursiveRef": "#"}},
                    ],
                }
            },
            "anyOf": [{"type": "integer"}, {"$ref": "#/$defs/o"}],
        }
        check(schema, [{"a": "x"}, {"a": {"b": "x"}}, 1], [True])
        assert grammar(schema).matches('{"a": 1}') == (outer and inner)


def test_schemas_without_a_draft_understand_the_older_words() -> None:
    check({"items": [{"type": "integer"}], "additionalItems": False}, [[1]], [[1, 2], ["a"]])
    check({"minimum": 3, "exclusiveMinimum": True}, [4], [3])
    check({"dependencies": {"a": ["b"]}}, [{}], [{"a": 1}])
    check({"format": "date"}, ["2024-02-29"], ["2023-02-29"])
    check({"format": "date"}, ["x"], [], formats=False)
    check({"$schema": DRAFTS[2020], "format": "date"}, [], ["x"], formats=True)


def test_not_exactly_one() -> None:
    alternatives = [{"minimum": 5}, {"maximum": 10}, {"multipleOf": 7, "minimum": 20}]
    check({"type": "number", "oneOf": alternatives}, [2, 4, 11, 22], [5, 7, 10, 21, 28])
    check({"type": "number", "not": {"oneOf": alternatives}}, [5, 7, 10, 21, 28], [2, 4, 11, 22])
    check({"type": "number", "not": {"oneOf": alternatives[2:]}}, [2, 14, 20], [21, 28])


def test_an_alternative_that_is_named_twice_is_none() -> None:
    twice = [{"$ref": "#/$defs/word"}, {"$ref": "#/$defs/word"}, {"type": "object", "required": ["a"]}]
    check({"oneOf": twice, "$defs": {"word": {"type": ["string", "null"]}}}, [{"a": 1}], ["x", None, {}])


# --------------------------------------------------------------------------- objects

SMALL = {"properties": {"a": {"type": "integer"}, "b": {}, "c": {}}, "required": ["a", "c"]}


def test_properties_may_come_in_any_order_with_others_between() -> None:
    made = grammar({"type": "object", **SMALL}, any_order=True)
    for names in itertools.permutations(["a", "b", "c", "x"]):
        assert made.matches(json.dumps(dict.fromkeys(names, 1)))
    assert not made.matches('{"a": 1, "b": 1}') and not made.matches('{"a": "s", "c": 1}')
    assert not made.matches('{"a": 1, "c": 1, "a": 1}'), "a known name comes once"
    assert not made.matches('{"\\u0061": "s", "a": 1, "c": 1}'), "nor hides behind an escape"


@pytest.mark.parametrize("numbers", [(0, 3, 4, 8), range(9)])
def test_properties_come_in_the_order_of_the_schema(numbers: Sequence[int]) -> None:
    names = [f"n{i}" for i in numbers]
    schema = {"type": "object", "properties": dict.fromkeys(names, True), "required": ["n3", "n4"]}
    made = grammar(schema)
    value = dict.fromkeys(names, 1)
    assert made.matches(json.dumps(value))
    assert made.matches(json.dumps({"n0": 1, "x": 1, "n3": 1, "y": 1, "n4": 1, "n8": 1, "z": 1}))
    assert made.matches('{"n3": 1, "n4": 1}') and made.matches('{"x": 1, "n3": 1, "n4": 1}')
    assert not made.matches('{"n4": 1, "n3": 1}')
    assert not made.matches('{"n3": 1}') and not made.matches("{}") and not made.matches('{"n3": 1,}')


def test_orders_can_be_those_of_the_schema() -> None:
    made = grammar({"type": "object", **SMALL, "additionalProperties": False})
    assert made.matches('{"a": 1, "b": 1, "c": 1}') and made.matches('{"a": 1, "c": 1}')
    assert not made.matches('{"c": 1, "a": 1}') and not made.matches('{"a": 1, "c": 1, "x": 1}')


def test_objects_can_be_closed_unless_they_say_otherwise() -> None:
    check({"type": "object", **SMALL}, [{"a": 1, "c": 1}], [{"a": 1, "c": 1, "x": 1}], open_objects=False)
    check({"type": "object"}, [{"x": 1}], [], open_objects=False)
    check({"properties": {"a": {}}, "additionalProperties": True}, [{"x": 1}], [], open_objects=False)
    by_pattern = {"properties": {"a": {}}, "patternProperties": {"^x": {}}}
    check(by_pattern, [{"xy": 1, "a": 1}], [{"y": 1}], open_objects=False)
    split = {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}
    check(split, [{"a": 1, "b": 1}], [{"c": 1}], open_objects=False)


def test_optional_properties_leave_no_comma_behind() -> None:
    for any_order in (False, True):
        schema = {"properties": {n: {} for n in "abc"}, "additionalProperties": False, "type": "object"}
        made = grammar(schema, any_order=any_order)
        for picked in itertools.product([0, 1], repeat=3):
            assert made.matches(json.dumps({n: 1 for n, there in zip("abc", picked) if there}))
        for text in ('{"a": 1,}', '{,"a": 1}', '{"a": 1 "b": 1}', '{"a": 1,, "b": 1}', "{,}"):
            assert not made.matches(text)


def test_numbers_of_properties() -> None:
    closed = {"properties": {n: {} for n in "abcd"}, "additionalProperties": False, "type": "object"}
    for any_order in (False, True):
        two = {**closed, "minProperties": 2, "maxProperties": 3}
        values = [dict.fromkeys("abcd"[:n]) for n in range(5)]
        check(two, values[2:4], [values[0], values[1], values[4]], any_order=any_order)
        few = [dict.fromkeys(picked) for picked in ("bc", "bcd", "abc", "ac", "bd", "c", "abcd")]
        check({**closed, "required": ["b", "c"], "maxProperties": 3}, few[:3], few[3:], any_order=any_order)
    names = [f"n{i}" for i in range(8)]
    ordered = {"type": "object", "properties": dict.fromkeys(names, True), "required": names[2:4]}
    check(
        {**ordered, "maxProperties": 3},
        [dict.fromkeys(names[2:5]), dict.fromkeys(names[1:4])],
        [dict.fromkeys(names[3:5]), dict.fromkeys(names[4:6]), {"n2": 1}, dict.fromkeys(names[1:5])],
    )
    check({"maxProperties": 2}, [{}, {"x": 1, "y": 1}], [{"x": 1, "y": 1, "z": 1}])
    check({"minProperties": 1}, [{"x": 1}, 3], [{}])
    check({"minProperties": 2}, [{"x": 1, "y": 1}, dict.fromkeys("xyz")], [{}, {"x": 1}])


ABCDE = {"properties": {name: {"type": "integer"} for name in "abcde"}, "required": ["e", "a"]}
SAID_ELSEWHERE: dict[str, dict[str, Any]] = {
    "allOf": {"allOf": [{"properties": {"e": {"maximum": 5}}}]},
    "if": {"if": {"properties": {"e": {"maximum": 5}}, "required": ["e"]}, "then": {"required": ["b"]}},
    "oneOf": {"oneOf": [{"properties": {"e": {"maximum": 5}}, "required": ["e"]}, {"required": ["d", "c"]}]},
    "not": {"not": {"properties": {"e": {"maximum": 2}}, "required": ["e"]}},
    "$ref": {"$defs": {"x": {"properties": {"e": {"maximum": 5}}}}, "$ref": "#/$defs/x"},
    "dependentSchemas": {"dependentSchemas": {"e": {"properties": {"e": {"maximum": 5}}}}},
    "dependentRequired": {"dependentRequired": {"e": ["b"]}},
}


@pytest.mark.parametrize("keyword", SAID_ELSEWHERE)
def test_the_schemas_own_properties_give_the_order(keyword: str) -> None:
    made = grammar({"type": "object", **SAID_ELSEWHERE[keyword], **ABCDE}, open_objects=False)
    assert made.matches('{"a": 1, "b": 2, "e": 3}') and not made.matches('{"e": 3, "a": 1, "b": 2}')


@pytest.mark.parametrize(
    ("own", "other", "order"),
    [
        ("c", "abcd", "abcd"),
        ("ac", "bcd", "abcd"),
        ("ad", "bc", "adbc"),
        ("ba", "axb", "xba"),
        ("ab", "xbya", "yaxb"),
    ],
)
def test_properties_of_other_schemas_stand_before_those_that_they_precede(
    own: str, other: str, order: str
) -> None:
    above, below = ({"properties": dict.fromkeys(names, True)} for names in (own, other))
    made = grammar(
        {"type": "object", **above, "$ref": "#/$defs/x", "$defs": {"x": below}}, open_objects=False
    )
    for a, b in itertools.combinations(order, 2):
        assert made.matches(json.dumps({a: 1, b: 1})) and not made.matches(json.dumps({b: 1, a: 1}))


def test_many_properties_may_come_in_any_order() -> None:
    names = [f"n{i}" for i in range(140)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "null"} for name in names},
        "required": names[:70],
        "maxProperties": 80,
    }
    rng = random.Random(2)
    for closed in ({}, {"additionalProperties": False}):
        made = grammar({**schema, **closed}, any_order=True)
        for count in (70, 80, 81):
            chosen = names[:70] + rng.sample(names[70:], count - 70)
            rng.shuffle(chosen)
            assert made.matches(json.dumps(dict.fromkeys(chosen))) == (count <= 80)
        states = ParserStates(made.program, 1 << 26, 1 << 24)  # room is left for what is required
        ten = json.dumps(dict.fromkeys(names[70:80]))[:-1] + ", "
        assert states.advance(states.start(), (ten + '"n0').encode())
        assert not states.advance(states.start(), (ten + '"n80').encode())
        assert not made.matches(json.dumps(dict.fromkeys(names[1:80])))
        assert not made.matches(json.dumps(dict.fromkeys(names[:70]))[:-1] + ', "n3": null}')
        assert made.matches(json.dumps({**dict.fromkeys(names[:70]), "x": 1})) == (not closed)


def test_the_same_properties_in_another_order_lead_to_the_same_parser_state() -> None:
    made = grammar(
        {"type": "object", "properties": {name: {"type": "null"} for name in "abcd"}}, any_order=True
    )
    states = ParserStates(made.program, 1 << 26, 1 << 24)
    found = set()
    for names in itertools.permutations("abd"):
        text = json.dumps(dict.fromkeys(names))[:-1] + ', "'
        found.add(states.advance(states.start(), text.encode()))
    assert len(found) == 1 and states.advance(found.pop(), b"c")


def test_unknown_names_are_counted_once() -> None:
    made = grammar({"type": "object", "minProperties": 2, "maxProperties": 3, "additionalProperties": {}})
    assert made.matches('{"é": 1, "f": 2}') and made.matches('{"a": 1, "b": 2, "c": 3}')
    assert not made.matches('{"a": 1, "a": 2}') and not made.matches('{"a": {"a": 1, "b": 2}}')
    assert not made.matches(json.dumps(dict.fromkeys("abcd")))
    both = {"properties": {"k": {}}, "required": ["k"], "minProperties": 3}
    check(
        both, [{"k": 1, "x": 1, "y": 1}, {"x": 1, "y": 1, "k": 1}], [{"k": 1, "x": 1}, dict.fromkeys("xyz")]
    )
    kinds = {"patternProperties": {"^a": {"type": "integer"}, "^b": {"type": "string"}}}
    two = {"type": "object", **kinds, "not": {"patternProperties": {"^a": False}}, "minProperties": 2}
    check(
        {**two, "allOf": [{"not": {"patternProperties": {"^b": False}}}]},
        [{"ax": 1, "bx": "s"}, {"bx": "s", "c": None, "ay": 2}],
        [{"ax": 1, "ay": 1}, {"ax": "s", "bx": "s"}, {"bx": "s", "c": 1}],
    )


def test_names_that_are_few_are_told_apart_as_if_they_were_known() -> None:
    one_of = (
        {"propertyNames": {"not": {"enum": ["1", "3"]}}},
        {"propertyNames": {"not": {"enum": ["2", "3"]}}},
    )
    digits = {"type": "object", "patternProperties": {"^[0-9]$": {}}, "additionalProperties": False}
    check(
        {**digits, "not": {"anyOf": list(one_of)}, "maxProperties": 2},
        [{"1": 0, "2": 0}, {"3": 0}, {"3": 0, "9": 0}],
        [{"1": 0}, {"1": 0, "4": 0}, {"1": 0, "2": 0, "4": 0}, {"x": 0}],
        any_order=True,
    )
    check({**digits, "minProperties": 10}, [{str(i): 0 for i in range(10)}], [{str(i): 0 for i in range(9)}])
    with pytest.raises(GrammarError, match="no value meets"):
        grammar({**digits, "minProperties": 11})


def test_names_that_come_twice_do_not_undo_what_must_exist() -> None:
    made = grammar({"type": "object", "not": {"additionalProperties": {"type": "integer"}}})
    assert made.matches('{"x": 1, "y": "s"}') and made.matches('{"y": "s", "x": "t"}')
    assert not made.matches('{"x": "s", "x": 1}') and not made.matches('{"x": 1}')


# --------------------------------------------------------------------------- strings


def test_strings_count_characters_however_they_are_written() -> None:
    made = grammar({"type": "string", "minLength": 2, "maxLength": 2})
    for text in ('"ab"', '"\\u0061b"', '"\\n\\/"', '"😀é"', '"\\ud83d\\uDE00\\u00e9"', '"\\"\\\\"'):
        assert made.matches(text) and len(json.loads(text)) == 2
    for text in ('"a"', '"abc"', '"\\ud83d\\ude00"', '"a\n"', '"a\\x"', '"\\ud83da"', '"""'):
        assert not made.matches(text), text
    long = grammar({"type": "string", "maxLength": 5000})
    assert long.matches(json.dumps("x" * 5000)) and not long.matches(json.dumps("x" * 5001))


def test_patterns_see_characters_not_their_spelling() -> None:
    made = grammar({"type": "string", "pattern": '^["\\\\é\\n😀/]{2}$'})
    for text in ('"\\"\\\\"', '"é\\n"', '"\\u00e9\\u000a"', '"\\ud83d\\ude00/"'):
        assert made.matches(text), text
    assert not made.matches('"\\""') and not made.matches('"éa"')
    made = grammar({"type": "string", "pattern": "^[\\u{10001}-\\u{107fe}]$"})
    for point in (0x10000, 0x10001, 0x103FF, 0x10400, 0x107FE, 0x107FF):
        for ascii_only in (True, False):
            text = json.dumps(chr(point), ensure_ascii=ascii_only)
            assert made.matches(text) == (0x10001 <= point <= 0x107FE), text
    made = grammar({"type": "string", "pattern": "^[\\u{10001}\\u{10003}-\\u{10005}]$"})  # one high surrogate
    for point in range(0x10000, 0x10007):
        assert made.matches(json.dumps(chr(point))) == (point in (0x10001, 0x10003, 0x10004, 0x10005))


def test_literals_are_spelled_as_json_dumps_does() -> None:
    check({"const": 'a"\\/é\n😀\x7f'}, ['a"\\/é\n😀\x7f'], ["a"])
    controls = "".join(map(chr, range(32)))
    check({"const": controls}, [controls], ["", controls[:-1]])
    check({"type": "string", "maxLength": 32}, [controls], [controls + "a"])
    check({"properties": {'é"': {"const": 1}}, "additionalProperties": False}, [{'é"': 1}], [{'é"': 2}])
    check({"enum": [f"v{i}é" for i in range(40)]}, ["v0é", "v39é"], ["v40é", "v", ""])


def test_patterns_lengths_and_exclusions_together() -> None:
    check({"type": "string", "pattern": "^a[b-y]*z$", "minLength": 4}, ["abbz", "abcdz"], ["az", "abz"])
    check(
        {"type": "string", "pattern": "^[a-z]+$", "maxLength": 40_000},
        ["a", "b" * 40_000],
        ["", "b" * 40_001, "A"],
    )
    check({"type": "string", "pattern": "^ab*$", "maxLength": 3}, ["a", "abb"], ["", "abbb", "b"])
    check({"type": "string", "not": {"maxLength": 2}}, ["abc"], ["", "ab"])
    check(
        {"type": "string", "pattern": "[0-9]", "minLength": 3, "maxLength": 5},
        ["a1b", "12345"],
        ["1", "abc", "123456"],
    )
    check(
        {"allOf": [{"pattern": "a"}, {"pattern": "b$"}], "not": {"enum": ["ab", "aab"]}, "type": "string"},
        ["aaab", "abb"],
        ["ab", "aab", "a", "b"],
    )


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        ("date", ["2000-02-29", "2024-02-29"], ["1900-02-29", "2023-02-29", "2024-02-30", "2024-04-31"]),
        ("date-time", ["2024-02-29T23:59:59.5Z", "1998-12-31T23:59:60Z"], ["2023-02-29T00:00:00Z", "x"]),
        ("time", ["08:30:06+00:20"], ["08:30:06", "24:00:00Z"]),
        ("duration", ["P4DT12H30M5S", "P4W"], ["P", "PT", "P1D2H"]),
        ("email", ["joe.bloggs@example.com"], [".a@b.c", "a@b c"]),
        ("hostname", ["a.b-c.d", "a" * 63], ["-a", "a" * 64, "a..b", "xn--X"]),
        ("ipv4", ["127.0.0.1"], ["127.0.0.01", "256.1.1.1"]),
        ("ipv6", ["::", "1::d6:192.168.0.1"], ["1:2:3", "::1::"]),
        ("uuid", ["2eb8aa08-AA98-11ea-b4aa-73b441d16380"], ["2eb8aa08aa9811eab4aa73b441d16380"]),
        ("uri", ["http://x.y/?q#f", "urn:a:b"], ["//x", "http://a b"]),
        ("json-pointer", ["", "/a~1b"], ["a", "/~2"]),
    ],
)
def test_formats(name: str, valid: list[object], invalid: list[object]) -> None:
    check({"type": "string", "format": name}, valid, invalid)


@pytest.mark.parametrize(
    ("name", "unsure", "others"),
    [
        ("hostname", ["a.xn--ngba1o", "XN--4dbc5h", "xn--X", "ab--c"], ["-a", "a_b", "xn---", "a..b"]),
        ("email", ["a@xn--ngba1o", "a@[tag:x]"], ["a", "a@", "a@b_c"]),
        ("idn-email", ["ក@ក.ខ", "a@xn--ngba1o"], ["a", "@"]),
        ("time", ["15:59:60-08:00", "23:58:60Z"], ["15:59:61Z", "15:60:60Z"]),
        ("date-time", ["1998-12-31T15:59:60.1-08:00"], ["1998-12-32T15:59:60Z", "1998-12-31T15:59:60"]),
    ],
)
def test_strings_that_may_be_of_a_format_are_in_neither(
    name: str, unsure: list[object], others: list[object]
) -> None:
    """No regular expression says which: taking one for the other would be wrong."""
    check({"type": "string", "format": name}, [], [*unsure, *others])
    check({"type": "string", "not": {"format": name}}, others, unsure)
    check({"if": {"format": name}, "then": False, "else": {"type": "string"}}, others, unsure)


def test_every_format_has_strings() -> None:
    for name in FORMATS:
        rules = JsonSchemaCompiler().compile({"type": "string", "format": name})
        text = Sampler(rules, random.Random(1)).draw()
        assert text is not None and Grammar.from_rules(rules).matches(text)
    check({"format": "nobody knows"}, ["x"], [])


# --------------------------------------------------------------------------- numbers


def number_texts(rng: random.Random) -> list[str]:
    found = []
    for _ in range(400):
        whole = rng.choice(
            ["0", str(rng.randint(1, 9)), str(rng.randint(1, 2000)), "1" + "0" * rng.randint(1, 20)]
        )
        part = rng.choice(["", ".0", ".00", ".5", ".25", ".50", ".001", f".{rng.randint(0, 9999)}"])
        found.append(rng.choice(["", "-"]) + whole + part)
        digits = rng.choice("123456789") + rng.choice(["", ".0", ".5", ".275"])
        power = rng.choice(["", "+", "-"]) + rng.choice(["0", "00", "1", "3", "05", "16", "20", "100"])
        found.append(rng.choice(["", "-"]) + digits + rng.choice("eE") + power)
    return found


def reads(numbers: Numbers, text: str) -> bool:
    """Whether the double of a text meets the bounds, as doubles."""

    def rounded(value: Fraction) -> Fraction:
        return Fraction(float(value))

    bounds = Numbers(
        None if numbers.low is None else rounded(numbers.low),
        None if numbers.high is None else rounded(numbers.high),
        numbers.low_open,
        numbers.high_open,
        excluded=frozenset(map(rounded, numbers.excluded)),
    )
    return bounds.contains(Fraction(float(text)))


def test_texts_of_numbers_are_compared_exactly() -> None:
    rng = random.Random(5)
    texts = number_texts(rng)
    bounds = [
        "0", "1", "-1", "10", "99", "100", "-5", "0.5", "-0.25", "12.75", "1e3", "1e-3", "-123.4", "1e16",
    ]  # fmt: skip
    steps = ["1", "5", "0.5", "0.01", "7", "100", "2.5", "0.3"]
    for _ in range(120):
        low, high = (Fraction(rng.choice(bounds)) if rng.random() < 0.6 else None for _ in range(2))
        step = Fraction(rng.choice(steps)) if rng.random() < 0.3 else None
        numbers = Numbers(
            low,
            high,
            rng.random() < 0.5,
            rng.random() < 0.5,
            step,
            frozenset({Fraction(rng.choice(steps))} if rng.random() < 0.2 else ()),
            None,
            frozenset({Fraction(rng.choice(bounds))} if rng.random() < 0.3 else ()),
        )
        settled = numbers.settled()
        node = settled.node() if settled else None
        for text in texts:
            wanted = numbers.contains(Fraction(text)) and (step is not None or reads(numbers, text))
            if settled and settled.low is not None and settled.low >= 0 > math.copysign(1, float(text)):
                wanted = False  # "-0" is only written where less than 0 is
            accepted = isinstance(node, Dfa) and accepts(node, text)
            assert accepted <= wanted, (numbers, text)
            plain = "e" not in text.lower() and (step is None or "." not in text)
            if plain or (step is None and not numbers.not_steps):
                assert accepted == wanted, (numbers, text)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"exclusiveMinimum": 0},
            "1 0.1 1e-5 1e-300 0.00000001",
            "0 -0 0.0 1e-400 1e-301 0." + "0" * 330 + "1",
        ),
        ({"exclusiveMaximum": 0}, "-1 -1e-300", "0 -0 -1e-400 -0." + "0" * 330 + "1"),
        ({"minimum": 0}, "0 0.0 1e-400 1", "-0 -0.0 -0e1 -1e-400"),
        ({"type": "integer", "minimum": 0}, "0 7", "-0 -0.0"),
        ({"minimum": -1}, "0 -0 -0.0 -1", "-1.1"),
        (
            {"exclusiveMaximum": 1},
            "0.9999999999999999 -5 -0",
            "0.99999999999999999999 1 0.99999999999999999 1e0",
        ),
        ({"exclusiveMinimum": 0.1}, "0.10000000000000002 1", "0.1 0.10000000000000000001 1e-1"),
        (
            {"not": {"const": 5}},
            "4 5.000000000000001 4.999999999999999",
            "5 5.00000000000000000001 4.9999999999999999999",
        ),
        ({"not": {"const": 0}}, "1 -1 1e-9 -1e-300", "0 -0 0.0 1e-400 -1e-400 0e5"),
        ({"exclusiveMinimum": 0.3, "exclusiveMaximum": 0.30000000000000004}, "", "0.3 0.30000000000000002"),
    ],
)
def test_numbers_are_read_as_doubles_that_meet_the_bounds(schema: dict, good: str, bad: str) -> None:
    if not good:  # there is no double between the bounds
        with pytest.raises(GrammarError):
            Grammar.from_json_schema({"type": "number"} | schema)
        return
    made = Grammar.from_json_schema({"type": "number"} | schema)
    assert [text for text in good.split() if not made.matches(text)] == []
    assert [text for text in bad.split() if made.matches(text)] == []
    validator = jsonschema.Draft202012Validator(schema)
    assert all(validator.is_valid(json.loads(text)) for text in good.split())


def test_integers_and_multiples() -> None:
    check({"type": "integer", "minimum": -3, "maximum": 12}, [-3, 0, 12, 7.0], [-4, 13, 0.5])
    check({"type": "integer"}, [10**30, -(10**30)], [1.5])
    assert not grammar({"type": "integer"}, plain_integers=True).matches("1.0")
    assert not grammar({"type": "integer", "minimum": 0}, plain_integers=True).matches("1.0")
    check({"multipleOf": 0.01}, [0, 1.5, 4.02, 100], [0.001, 1.999])
    check({"multipleOf": 12}, [0, 144, -36], [13, 6, 2.4])
    check({"type": "number", "not": {"type": "integer"}}, [0.5], [1, 1.0])
    check({"type": "number", "not": {"minimum": 3}}, [2.9, -5], [3, 3.1])
    check({"type": "number", "not": {"exclusiveMaximum": 3}}, [3, 4], [2.9])
    check({"type": "number", "not": {"exclusiveMinimum": 3, "multipleOf": 2}}, [3, 1, 5, 2], [4, 6])
    check({"minimum": 0, "maximum": 1}, [0, 1, 0.25, 1e-07], [1.0000001, -1e-07, 2])
    check({"enum": [1, 2.5, 1e20]}, [1, 1.0, 2.5, 1e20, 10**20], [2, 1e21, True])


def test_of_equal_bounds_the_open_one_counts() -> None:
    for end, beyond, outside in (("minimum", 5.5, 4), ("maximum", 4.5, 6)):
        closed, opened = {end: 5}, {f"exclusive{end.capitalize()}": 5}
        for schema in (closed | opened, opened | closed, {"allOf": [opened, closed]}):
            check({"type": "number", **schema}, [beyond], [5, 5.0, outside])


# --------------------------------------------------------------------------- arrays


def test_arrays_that_count() -> None:
    check(
        {"contains": {"const": 1}, "minContains": 2, "maxContains": 3}, [[1, 1], [1, 0, 1, 1]], [[1], [1] * 4]
    )
    check(
        {"prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 3},
        [[1, 2, 2]],
        [[1, 2], [2, 2, 2]],
    )
    check({"items": {"type": "integer"}, "maxItems": 900}, [[1] * 900, []], [[1] * 901, ["a"]])
    check({"items": False, "prefixItems": [True]}, [[], [1]], [[1, 2]])
    pair = {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}
    values: list[object] = [[], [1], [1, "a"], [1, "a", None], [1, "a", None, 0]]
    for least in range(5):
        check({**pair, "minItems": least}, values[least:], [*values[:least], ["a", "a", 0, 0]])
    check(
        {"type": "array", "items": {"enum": [1, "a", None]}, "uniqueItems": True},
        [[], ["a", 1, None]],
        [[1, 1.0]],
    )
    check(
        {"uniqueItems": True, "prefixItems": [{"type": "string"}, {"type": "null"}], "items": False},
        [["a", None]],
        [["a", "a"]],
    )
    check(
        {"type": "array", "uniqueItems": True},
        [
            [1, "1", True, None, [1], {"a": 1}],
            [{"a": 1, "b": 2}, {"a": 2, "b": 1}],
            [[1, 2], [2, 1]],
            [0, False],
        ],
        [[1, 1.0], [{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}], ["a", 1, "a"], [[], {}, []], [None, None]],
    )
    made = grammar({"type": "array", "uniqueItems": True})
    assert not made.matches('[{"a": "x"}, {"\\u0061": "\\u0078"}]') and not made.matches("[[1e2], [100]]")
    assert not made.matches('["\\u0061", "a"]') and made.matches('["é", "\\n", [1e2], [1e3]]')
    records = {"type": "object", "properties": {"k": {"type": "string"}, "n": {"type": "integer"}}}
    closed = {**records, "required": ["k"], "additionalProperties": False}
    check(
        {"type": "array", "uniqueItems": True, "items": closed},
        [[{"k": "a"}, {"k": "b"}], [{"k": "a", "n": 1}, {"k": "a", "n": 2}, {"k": "a"}]],
        [[{"k": "a"}, {"k": "a"}], [{"k": "a", "n": 1}, {"k": "b"}, {"k": "a", "n": 1}]],
    )
    check(
        {"type": "array", "uniqueItems": True, "items": {"type": "integer", "minimum": 3, "maximum": 5}},
        [[3, 4, 5], [5, 3]],
        [[3, 3], [3, 4, 5, 3], [6]],
    )
    words = [f"w{i}" for i in range(300)]
    check({"uniqueItems": True, "items": {"enum": words}}, [words[::-1]], [[*words, "w7"], ["w1", "w1"]])
    with pytest.raises(GrammarError, match="no value meets"):
        grammar({"type": "array", "uniqueItems": True, "items": {"type": "boolean"}, "minItems": 3})
    apart = {"type": "array", "uniqueItems": True, "items": {"type": "object"}}
    one, same = {"a": 1, "b": 2}, {"b": 2, "a": 1.0}
    for items, wrap in (
        (apart, lambda v: [v]),
        ({"type": "array", "items": apart}, lambda v: [[v], []]),
        ({"type": "object", "additionalProperties": apart}, lambda v: {"k": [v]}),
    ):
        check(
            {"type": "array", "uniqueItems": True, "items": items},
            [[wrap(one), wrap({**one, "a": 2})]],
            [[wrap(one), wrap(same)]],
        )
    places = {"prefixItems": [{"enum": [1, 2]}, {"enum": [2, 3]}], "items": {"enum": [3, 4]}}
    check(
        {"type": "array", "uniqueItems": True, **places},
        [[], [1, 2, 3], [2, 3, 4], [1, 3, 4]],
        [[2, 2], [3], [1, 4], [1, 2, 3, 3]],
    )
    check(
        {"type": "array", "contains": {"const": 1}, "minItems": 3},
        [[0, 0, 1], [1, 0, 0, 0]],
        [[1, 1], [1, 0], [0, 0, 0]],
    )
    check(
        {"type": "array", "contains": {"const": 1}, "minContains": 0, "maxContains": 1},
        [[], [0], [0, 1]],
        [[1, 1], [1, 0, 1]],
    )
    beyond = {"prefixItems": [True], "items": {"type": "integer"}}
    check({"type": "array", "not": beyond}, [[1, "a"], ["a", 1, "b"]], [[], ["a"], ["a", 1]])
    counted = {"allOf": [{"prefixItems": [True, True]}], "prefixItems": [True], "unevaluatedItems": False}
    check({"type": "array", **counted}, [[], [1, 2]], [[1, 2, 3]])


# --------------------------------------------------------------------------- references


def test_references_into_a_registry() -> None:
    registry = {
        "http://x/int": {"type": "integer"},
        "http://x/list": {"items": {"$ref": "int"}, "type": "array"},
    }
    check({"$ref": "http://x/list"}, [[1]], [["a"], 1], registry=registry)
    check({"$ref": "http://x/list"}, [[1]], [["a"], 1], registry=registry.get)
    with pytest.raises(GrammarError, match="'http://y' is neither in the schema nor in the registry"):
        grammar({"$ref": "http://y"}, registry=registry)


def test_pointers_are_unescaped() -> None:
    names = {"a~1b": {"type": "null"}, "a/b": {"type": "string"}, "a b%": {"type": "integer"}}
    for pointer, value in (("a~01b", None), ("a~1b", "s"), ("a%20b%25", 1)):
        others = [one for one in (None, "s", 1) if one is not value]
        check({"$defs": names, "$ref": f"#/$defs/{pointer}"}, [value], others)


def test_recursion_and_equal_parts() -> None:
    tree = {
        "$defs": {
            "n": {
                "type": "object",
                "properties": {
                    "v": {"type": "integer"},
                    "kids": {"type": "array", "items": {"$ref": "#/$defs/n"}},
                },
                "required": ["v"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/n",
    }
    value: dict[str, object] = {"v": 1}
    for _ in range(50):
        value = {"v": 1, "kids": [value, {"v": 2}]}
    check(tree, [value], [{"v": 1, "kids": [{}]}])
    part = {"type": "object", "properties": {"x": {"type": "integer"}}}
    same = {"type": "object", "properties": {f"p{i}": part for i in range(20)}}
    check(same, [{"p3": {"x": 1}, "p7": {"x": 2}}], [{"p3": {"x": ""}}, {"p7": 1}])


def test_a_schema_that_nothing_meets() -> None:
    for schema in (
        False,
        {"enum": []},
        {"type": "string", "minLength": 2, "maxLength": 1},
        {"allOf": [{"const": 1}, {"const": 2}]},
        {
            "type": "object",
            "propertyNames": {"pattern": "a"},
            "not": {"propertyNames": {"$ref": "#/$defs/a"}},
            "$defs": {"a": {}},
        },
        {"type": "object", "maxProperties": 0, "not": {"enum": [{}]}},
        {"type": ["integer"], "enum": [17.5]},
        {"type": "array", "contains": {"uniqueItems": True}, "maxContains": 0},
        {"type": "array", "contains": {"uniqueItems": True}, "minContains": 2, "maxItems": 1},
        {
            "type": "object",
            "maxProperties": 1,
            "not": {"additionalProperties": {"type": "string"}},
            "allOf": [{"not": {"additionalProperties": {"not": {"type": "string"}}}}],
        },
    ):
        with pytest.raises(GrammarError, match="no value meets"):
            grammar(schema)
    endless = {
        "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}},
        "$ref": "#/$defs/a",
    }
    with pytest.raises(GrammarError, match="no value meets"):
        grammar(endless)


def test_counts_that_exclude_what_must_be_there() -> None:
    check(
        {"if": {"not": {"enum": [{}]}}, "then": {"maxProperties": 0}}, [{}, 1], [{"": 1.5}, {"a": 1, "b": 2}]
    )
    check({"contains": {"uniqueItems": True}, "maxContains": 0}, [{}, 1], [[], [1], [[1, 1]]])
    check({"not": {"contains": {"uniqueItems": True}, "maxContains": 0}}, [[], [1], [[1, 1]]], [{}, 1])


def test_an_alternative_may_evaluate_nothing_though_it_could() -> None:
    test = {"if": {"required": ["a"]}, "then": {"properties": {"a": {"type": "null"}}}}
    schema = {"unevaluatedProperties": False, "properties": {"b": True}, "anyOf": [test]}
    check(schema, [{}, {"a": None}, {"b": 1}, {"a": None, "b": 1}, 1], [{"a": 1}, {"c": 1}])


# --------------------------------------------------------------------------- layout, options, determinism


def test_white_space() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {}}}
    value = {"a": [1, 2], "b": {"c": []}}
    dense, spaced = json.dumps(value, separators=(",", ":")), json.dumps(value)
    pretty = json.dumps(value, indent=2)
    accepted = {
        w: [grammar(schema, whitespace=w).matches(t) for t in (dense, spaced, pretty)]
        for w in ("compact", "single", "flexible")
    }
    assert accepted == {
        "compact": [True, False, False],
        "single": [True, True, False],
        "flexible": [True] * 3,
    }
    assert not grammar(schema).matches('{"a":  [1]}') and not grammar(schema).matches(" {}")


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="whitespace"):
        JsonSchemaCompiler(whitespace="lots")
    with pytest.raises(ConfigError, match="any_order"):
        JsonSchemaCompiler(any_order=6)  # type: ignore[arg-type]
    with pytest.raises(GrammarError, match="neither a known draft"):
        grammar({}, default_schema="http://x")


def test_lenient_lists_what_it_lets_go() -> None:
    integer = {"type": "integer"}
    differ = {"uniqueItems": True, "prefixItems": [integer], "items": integer, "contains": {"minimum": 1}}
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": r"(x)\1"}, "b": differ},
    }
    with pytest.raises(GrammarError, match=r"#/properties/a/pattern: cannot be enforced: .* backreference"):
        grammar(schema)
    compiler = JsonSchemaCompiler()
    made = Grammar.from_json_schema(schema, strict=False, compiler=compiler)
    assert made.matches('{"a": "x", "b": [1, 1]}') and not made.matches('{"a": 1}')
    assert not made.matches('{"b": ["s"]}')
    assert [entry.split(":")[0] for entry in compiler.unenforced] == [
        "#/properties/a/pattern",
        "#/properties/b",
    ]
    negated = {"not": {"pattern": r"(x)\1"}}
    assert Grammar.from_json_schema(negated, strict=False).matches('"x"')


SCRIPT = """
import json, sys
from oxillama.text.grammar import Grammar
s = json.load(sys.stdin)
print(Grammar.from_json_schema(s).digest.hex())
"""


def test_the_same_schema_is_the_same_grammar_in_every_process() -> None:
    schema = {
        "oneOf": [
            {"properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]},
            {"patternProperties": {"^b": {"type": "integer"}}},
        ],
        "dependentRequired": {"q": ["r"]},
        "not": {"enum": ["s", "t", "u"]},
    }
    found = set()
    for seed in "012":
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            input=json.dumps(schema),
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)
    assert len(found) == 1


# --------------------------------------------------------------------------- refusals and limits


def nested(depth: int, wrap: Any) -> dict[str, object]:
    schema: dict[str, object] = {"type": "integer"}
    for _ in range(depth):
        schema = wrap(schema)
    return schema


HOSTILE = {
    "alternatives": {"allOf": [{"anyOf": [{"required": [f"a{i}{j}"]} for j in range(8)]} for i in range(12)]},
    "dependencies": {"dependentRequired": {f"a{i}": [f"b{i}"] for i in range(40)}},
    "chain of dependencies": {
        "properties": {f"a{i}": True for i in range(1000)},
        "dependentRequired": {f"a{i}": [f"a{i + 1}"] for i in range(999)},
    },
    "depth": nested(300, lambda s: {"items": s}),
    "depth of one value": nested(100, lambda s: {"allOf": [s]}),
    "depth of text": "[" * 100_000,
    "negations": nested(40, lambda s: {"not": {"properties": {"a": s, "b": s}}}),
    "chain": {"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(300)}, "$ref": "#/$defs/d0"},
    "pattern and length": {
        "type": "string",
        "pattern": "^(a|bb)*c$",
        "minLength": 50_000,
        "maxLength": 10**5,
    },
    "pattern": {"type": "string", "pattern": "(a|b)*a(a|b){20}", "minLength": 3},
    "counting": {"contains": {"type": "string"}, "minContains": 500, "maxItems": 5000},
    "names": {"patternProperties": {f"{c}.*{c}": {"maximum": i} for i, c in enumerate("abcdefghi")}},
    "multiple": {"multipleOf": 0.123456789},
    "unevaluated": {
        "anyOf": [{"properties": {f"a{i}": True}} for i in range(12)],
        "unevaluatedProperties": False,
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_limits_raise_soon(name: str) -> None:
    begin = time.process_time()
    with pytest.raises(GrammarError, match=r"^(#|schema:)"):
        grammar(HOSTILE[name])
    assert time.process_time() - begin < 5


def test_large_schemas_stay_small() -> None:
    names = [f"p{i}" for i in range(200)]
    large = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": names[:1],
    }
    assert grammar(large).matches(json.dumps(dict.fromkeys(names, "x")))
    assert grammar({"enum": [f"value {i}" for i in range(5000)]}).matches('"value 4999"')
    union = {
        "oneOf": [{"properties": {"k": {"const": i}}, "required": ["k"], "type": "object"} for i in range(60)]
    }
    check(union, [{"k": 59}], [{"k": 60}, {}])


# --------------------------------------------------------------------------- Python types


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


class Point(TypedDict, total=False):
    x: float
    label: str


@dataclasses.dataclass
class Node:
    name: str
    colour: Colour
    when: datetime.date
    key: uuid.UUID | None = None
    kids: list[Node] = dataclasses.field(default_factory=list)
    pair: tuple[int, str] = (1, "")
    kind: Literal["a", 3] = "a"
    size: Annotated[int, {"minimum": 0, "maximum": 9}] = 0
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    point: Optional[Point] = None  # noqa: UP045
    tags: set[Literal["u", "v"]] = dataclasses.field(default_factory=set)


def test_dataclasses_and_typed_dicts() -> None:
    least = {"name": "n", "colour": "red", "when": "2024-02-29"}
    full = {
        **least,
        "key": str(uuid.UUID(int=7)),
        "kids": [{**least, "colour": 2}],
        "pair": [1, "x"],
        "kind": 3,
        "size": 9,
        "extra": {"q": [1]},
        "point": {"x": 1.5},
        "tags": ["v", "u"],
    }
    wrong = [
        {"name": "n"},
        {**least, "when": "2023-02-29"},
        {**least, "size": 10},
        {**least, "pair": [1]},
        {**least, "pair": [1, "x", 2]},
        {**least, "tags": ["u", "u"]},
        {**least, "point": {"y": 1}},
        {**least, "other": 1},
        {**least, "kids": [{}]},
    ]
    check(Node, [least, full], wrong)
    check(list[int], [[], [1]], [["a"]])
    check(Optional[bool], [None, True], [1])  # noqa: UP045


class Model:
    """As pydantic's models look."""

    @classmethod
    def model_json_schema(cls) -> dict[str, object]:
        item = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        return {"$defs": {"Item": item}, "type": "object", "properties": {"item": {"$ref": "#/$defs/Item"}}}


@dataclasses.dataclass
class HasModel:
    model: Model


def test_models_give_their_own_schema() -> None:
    check(Model, [{"item": {"n": 1}}], [{"item": {}}, {"other": 1}, {"item": {"n": 1, "m": 1}}])
    check(HasModel, [{"model": {"item": {"n": 1}}}], [{"model": {"item": {}}}])


def test_types_name_all_their_properties() -> None:
    check(Model, [{}], [{"other": 1}, {"item": {"n": 1, "other": 1}}])
    schema = Model.model_json_schema()
    check(schema, [{"other": 1}], [])
    assert not grammar(HasModel).matches('{"model": {"item": {"n": 1.0}}}')
    assert grammar(schema).matches('{"item": {"n": 1.0}}')


def test_types_without_a_schema_are_refused() -> None:
    for kind in (complex, bytes, dict[int, str], object()):
        with pytest.raises(GrammarError, match="no JSON schema is known"):
            grammar(kind)


def test_the_documentation_shows_what_happens() -> None:
    page = DOCS / "json-schema.md"
    if not page.is_file():
        pytest.skip("only the package was unpacked")
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert (failed, tried > 7) == (0, True)


# --------------------------------------------------------------------------- meta-schemas

DRAFT_7 = "http://json-schema.org/draft-07/schema"


def test_schemas_may_refer_to_published_meta_schemas() -> None:
    count = Grammar.from_json_schema({"$ref": f"{DRAFT_7}#/definitions/nonNegativeInteger"})
    assert count.matches("3") and not count.matches("-3")
    schema = Grammar.from_json_schema({"$schema": DRAFT_7, "$ref": f"{DRAFT_7}#"}, strict=False)
    assert schema.matches('{"minLength": 2, "properties": {"a": {"not": true}}, "type": "string"}')
    assert not schema.matches('{"type": "strin"}') and not schema.matches('{"allOf": []}')
    mine = JsonSchemaCompiler(registry={DRAFT_7: {"definitions": {"nonNegativeInteger": {"const": 1}}}})
    one = Grammar.from_json_schema({"$ref": f"{DRAFT_7}#/definitions/nonNegativeInteger"}, compiler=mine)
    assert one.matches("1") and not one.matches("3")  # the user's documents come first


def test_without_the_package_of_meta_schemas_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_specifications", None)
    with pytest.raises(GrammarError, match=r"#/items/\$ref: .* need the package jsonschema-specifications"):
        Grammar.from_json_schema({"items": {"$ref": DRAFT_7}})


def test_a_list_of_items_has_its_meaning_in_drafts_that_have_it() -> None:
    schema: dict[str, object] = {"type": "array", "items": [{"const": 1}], "minItems": 1, "maxItems": 1}
    for draft in ({}, {"$schema": DRAFT_7}):
        made = Grammar.from_json_schema(draft | schema)
        assert made.matches("[1]") and not made.matches("[2]")
    with pytest.raises(GrammarError, match=r"#/items: expected a schema, got \["):
        Grammar.from_json_schema({"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema)


class Told:
    """Says what its schema is."""

    @classmethod
    def json_schema(cls) -> dict[str, object]:
        return {"const": "told"}


def test_a_class_that_says_its_schema_is_asked() -> None:
    made = Grammar.from_json_schema(Told)
    assert made.matches('"told"') and not made.matches('"other"')

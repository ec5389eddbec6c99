"""Rules of schemas that are written and built when a parser first comes to them."""

from __future__ import annotations

import json
from collections import UserDict
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from oxillama.errors import GrammarError
from oxillama.text.grammar import Grammar, GrammarState, JsonSchemaCompiler, Vocabulary

TEXTS = [bytes([byte]) for byte in range(0x20, 0x7F)] + ["é".encode(), b'": "', b'"}', b"</s>"]
VOCABULARY = Vocabulary(TEXTS, [len(TEXTS) - 1])

TREE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "size": {"type": ["integer", "null"], "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1},
        "shape": {"anyOf": [{"type": "string", "pattern": "^x+$"}, {"type": "object", "required": ["name"]}]},
        "left": {"$ref": "#"},
        "right": {"allOf": [{"$ref": "#"}]},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def follow(state: GrammarState, text: str) -> GrammarState:
    """The state after a text, character by character, with the mask of each on the way."""
    for char in text:
        state.mask()
        state.advance(TEXTS.index(char.encode()))
    return state


def built(grammar: Grammar) -> int:
    assert grammar.program.pieces is not None
    return len(grammar.program.pieces.built)


CIRCLE = {
    "type": "object",
    "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}},
    "required": ["kind", "r"],
}
SQUARE = {
    "type": "object",
    "properties": {"kind": {"const": "square"}, "a": {"type": "number"}},
    "required": ["kind"],
}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"oneOf": [CIRCLE, SQUARE]}, {"kind": "square", "a": 1}, {"kind": "circle", "a": 1}),
        ({"oneOf": [{"type": "string"}, {"minimum": 3, "type": "number"}, SQUARE]}, 4, {"kind": "circle"}),
        ({"allOf": [CIRCLE, {"properties": {"r": {"minimum": 3}}}]}, {"kind": "circle", "r": 3}, {"r": 2}),
        ({"if": {"required": ["kind"]}, "then": CIRCLE}, {"kind": "circle", "r": 3}, {"kind": "circle"}),
        ({"type": "object", "minProperties": 1, "not": {"required": ["a"]}}, {"b": 1}, {"a": 1}),
        ({"anyOf": [SQUARE, {"items": SQUARE, "minItems": 1}]}, [{"kind": "square"}], [{"kind": 1}]),
        ({"anyOf": [{"not": {}}, {"type": "null"}]}, None, 1),
        (
            {"patternProperties": {"^x": SQUARE}, "additionalProperties": False},
            {"x": {"kind": "square"}},
            {"y": 1},
        ),
        (
            {"patternProperties": {"a": {"type": "null"}, "b$": {"type": "null"}}},
            {"ab": None, "c": 1},
            {"bb": 1},
        ),
        (
            {"patternProperties": {"^[ab]": {"minimum": 2}, "^[bc]": {"maximum": 3}}},
            {"b": 3, "a": 5},
            {"b": 5},
        ),
        (
            {"properties": {"ab": {"minimum": 2}}, "patternProperties": {"^ab$": {"maximum": 2}}},
            {"ab": 2},
            {"ab": 1},
        ),
        ({"propertyNames": {"pattern": "^[a-c]+$"}, "required": ["a"]}, {"a": 1, "cc": 2}, {"a": 1, "d": 2}),
        (
            {"type": "object", "not": {"additionalProperties": {"type": "string"}}},
            {"a": "", "b": 1},
            {"a": ""},
        ),
        ({"minProperties": 2, "maxProperties": 3, "required": ["a"]}, {"a": 1, "b": 1}, {"a": 1}),
        ({"contains": SQUARE, "minContains": 2}, [{"kind": "square"}] * 2, [{"kind": "square"}, 1]),
        ({"contains": {"type": "null"}, "maxContains": 1, "minItems": 2}, [1, None], [None, None]),
        ({"type": "array", "not": {"contains": {"type": "null"}}}, [1], [None]),
        ({"multipleOf": 7, "minimum": 10}, 14, 10),
        ({"not": {"multipleOf": 0.25}, "type": "number", "maximum": 3}, 2.9, 2.75),
    ],
    ids=[
        *("discriminator", "types", "allOf", "if", "not", "anyOf", "false"),
        *("pattern", "patterns", "overlap", "one name"),
        *("names", "other names", "counted", "contains", "at most", "none", "multiple", "no multiple"),
    ],
)
def test_combinations_are_built_on_demand(schema: dict[str, Any], right: object, wrong: object) -> None:
    grammar = Grammar.from_json_schema({"items": schema})
    assert built(grammar) == 0
    assert grammar.matches(json.dumps([right]))
    assert not grammar.matches(json.dumps([wrong]))


def test_a_later_change_of_the_schema_changes_nothing() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}
    grammar = Grammar.from_json_schema(schema)
    schema["properties"]["a"]["enum"][0] = "y"
    schema["required"].append("b")
    assert grammar.matches('{"a": "x"}')
    assert not grammar.matches('{"a": "y"}')
    assert not Grammar.from_rules(grammar.rules).matches('{"a": "y"}')


class Constants(Mapping[str, Any]):
    """Schemas of constants by name, each of which is made when it is asked for."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __getitem__(self, name: str) -> Any:
        return UserDict(const=name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def test_a_schema_may_be_made_while_it_is_read() -> None:
    names = [f"p{i}" for i in range(50)]
    schema = {"type": "object", "properties": Constants(names), "required": names}
    grammar = Grammar.from_json_schema(schema)
    assert grammar.matches(json.dumps({name: name for name in names}))
    assert not grammar.matches(json.dumps(dict.fromkeys(names, names[0])))


@pytest.mark.parametrize(
    "value",
    [
        {"type": "object", "properties": {"b": {"$ref": "#/properties/a"}}, "required": ["b"]},
        {"type": "array", "items": {"$ref": "#/properties/a"}, "minItems": 1},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "array", "items": {"enum": ["x"], "type": "integer"}, "minItems": 2},
        {"anyOf": [{"allOf": [{"type": "null"}, {"type": "boolean"}]}, {"$ref": "#/properties/a"}]},
        {"type": "object", "properties": {"b": False}, "required": ["b"]},
        {"type": "string", "enum": ["\ud800"]},
        {"allOf": [{"type": "object", "required": ["b"]}, {"properties": {"b": {"allOf": [{"not": {}}]}}}]},
        {"oneOf": [{"type": "array", "minItems": 1, "items": {"allOf": [{"enum": [1]}, {"enum": [2]}]}}]},
        {"type": "array", "contains": {"allOf": [{"enum": [1]}, {"enum": [2]}]}},
        {"type": "array", "contains": {"type": "null"}, "maxContains": 0},
        {"type": "array", "items": {"type": "null"}, "not": {"contains": {"type": "null"}}, "minItems": 1},
        {"type": "number", "multipleOf": 2, "not": {"multipleOf": 3}, "minimum": 6, "maximum": 6},
        {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {"allOf": [{"enum": [1]}, {"enum": [2]}]},
        },
        {"type": "object", "patternProperties": {"^b": {"$ref": "#/properties/a"}}, "required": ["b"]},
        {
            "type": "object",
            "minProperties": 2,
            "maxProperties": 2,
            "additionalProperties": {"$ref": "#/properties/a"},
        },
    ],
    ids=json.dumps,
)
def test_nothing_leads_to_a_value_that_cannot_be_finished(value: object) -> None:
    if value == {"anyOf": [{"allOf": [{"type": "null"}, {"type": "boolean"}]}, {"$ref": "#/properties/a"}]}:
        with pytest.raises(GrammarError, match="applies itself"):
            Grammar.from_json_schema({"type": "object", "properties": {"a": value}})
        return
    schema = {"type": "object", "properties": {"a": value, "c": {"type": "null"}}, "required": ["c"]}
    grammar = Grammar.from_json_schema(schema)
    assert grammar.program.pieces is not None
    state = follow(GrammarState(grammar, VOCABULARY), '{"')
    assert state.allows_token(TEXTS.index(b"c"))
    follow(state, "ab")
    assert not grammar.matches('{"a": null, "c": null}')
    fresh = follow(GrammarState(grammar, VOCABULARY), '{"a')
    assert not fresh.allows_token(TEXTS.index(b'"'))
    assert not fresh.allows_token(TEXTS.index(b'": "'))


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"type": "string"}, "allOf": [{"items": {"type": "null"}}]},
        {"items": {"type": "string"}, "$ref": "#/$defs/list", "$defs": {"list": {"items": {"const": None}}}},
        {
            "not": {"not": {"prefixItems": [{"type": "string"}]}},
            "items": {"type": "null"},
            "prefixItems": [{"const": 1}],
        },
        {"properties": {"a": {"type": "string"}}, "allOf": [{"properties": {"a": {"type": "null"}}}]},
        {"additionalProperties": {"type": "string"}, "allOf": [{"additionalProperties": {"type": "null"}}]},
    ],
    ids=["items", "reference", "negations", "properties", "others"],
)
def test_what_two_schemas_exclude_below_is_left_out(schema: dict[str, Any]) -> None:
    grammar = Grammar.from_json_schema(schema)
    assert grammar.matches("[]")
    assert grammar.matches("{}")
    value = {"a": None} if "properties" in schema or "additionalProperties" in schema else [None]
    assert not grammar.matches(json.dumps(value))


@pytest.mark.parametrize(
    ("below", "message"),
    [
        ({"enum": [f"v{i:06}-" + "x" * 20 for i in range(15_000)]}, "#/properties/a: expected at most"),
        ({"const": "x" * 400_000}, "#/properties/a: expected at most"),
        (
            {
                "properties": {
                    f"o{j}": {"properties": {f"p{j}-{i}": {} for i in range(600)}} for j in range(30)
                }
            },
            "#/properties/a/properties/o[0-9]+: the schema needs more than 30000 rules",
        ),
    ],
    ids=["enum", "const", "objects"],
)
def test_what_is_over_a_limit_is_an_error_at_once(below: object, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        Grammar.from_json_schema({"type": "object", "properties": {"a": below, "b": {"type": "null"}}})


def test_what_is_let_go_is_listed_at_once() -> None:
    compiler = JsonSchemaCompiler()
    schema = {"properties": {"a": {"type": "object", "properties": {"b": {"format": "regex"}}}}}
    grammar = Grammar.from_json_schema(schema, strict=False, compiler=compiler)
    assert compiler.unenforced == ["#/properties/a/properties/b/format: the format 'regex' is not regular"]
    assert grammar.matches('{"a": {"b": "("}}')
    assert len(compiler.unenforced) == 1


def test_states_move_to_new_tables_while_the_network_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = Grammar.from_json_schema(TREE, compiler=JsonSchemaCompiler(any_order=True))
    monkeypatch.setattr("oxillama.text.grammar.constraint.TABLE_BYTES", 20_000)
    text = '{"name": "ab", "tags": ["a", "b"], "left": {"name": "c", "shape": "xx", "size": 7}}'
    state = follow(GrammarState(grammar, VOCABULARY), text)
    assert state.is_complete
    state.rollback(30)
    assert follow(state, text[-30:]).is_complete


def test_bytes_that_a_new_piece_tells_apart_were_alike_before() -> None:
    """The classes of bytes split when the pattern is built; what was found before stays right."""
    schema = {
        "type": "array",
        "prefixItems": [{"type": "string"}],
        "items": {"type": "string", "pattern": "^[a-c][é-ü]q*$"},
    }
    grammar = Grammar.from_json_schema({"type": "array", "items": {"anyOf": [{"type": "null"}, schema]}})
    state = follow(GrammarState(grammar, VOCABULARY), '[["abé", "bé')
    assert state.allows_token(TEXTS.index(b"q"))
    assert not state.allows_token(TEXTS.index(b"r"))
    assert grammar.matches('[["zzé", "cüqq"], null]')
    assert not grammar.matches('[["zzé", "düqq"], null]')


def test_nothing_follows_the_dead_state_of_a_program_that_began_without_labels() -> None:
    vocabulary = Vocabulary([bytes([i]) for i in range(256)] + [b"<end>"], [256])
    for _ in range(8):
        state = GrammarState(Grammar.from_json_schema({"type": "object"}), vocabulary)
        state.advance(ord("{"))
        assert [state._tables.matcher.advance(0, token) for token in range(256)] == [0] * 256

"""What is wrong with a schema is said with the path in the schema and the keyword."""

from __future__ import annotations

import json

import pytest

from oxillama.errors import GrammarError
from oxillama.text.grammar import (
    Grammar,
    GrammarState,
    JsonSchemaCompiler,
    Vocabulary,
    parse_lark,
    structural_tag_rules,
)
from tests.support.interpreter import COUNTS_TOGETHER

LARGE = "(a|b)*a(a|b){20}"  # its automaton has a million states
AUTOMATON = "expected an automaton of at most 50000 states, got more"
TOO_LARGE = "cannot be enforced: " + AUTOMATON

SOME_CLOSED = {"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "array"}}
"""Arrays without an end in an array that has one: some are written in several ways."""

CASES: list[tuple[object, str]] = [
    ({"type": "strin"}, "/type: expected names of types, got 'strin'"),
    ({"type": []}, "/type: expected names of types"),
    ({"$ref": "#/nope"}, "/$ref: there is no '/nope'"),
    ({"$ref": "#nope"}, "/$ref: there is no anchor 'nope'"),
    ({"$ref": 3}, "/$ref: expected a reference"),
    ({"$id": "http://[", "$ref": "z"}, "/$ref: expected URI references, got 'z' in 'http://['"),
    ({"$id": "a:b", "items": {"$id": "http://[a"}}, "/items/$id: expected URI references"),
    ({"$id": "a:b", "items": {"$ref": "http://[a"}}, "/items/$ref: expected URI references"),
    ({"$schema": "http://x/y"}, "/$schema: 'http://x/y' is neither a known draft nor in the registry"),
    ({"minLength": -1}, "/minLength: expected a count, got -1"),
    ({"minLength": 1.5}, "/minLength: expected a count"),
    ({"maxLength": 10**12}, "/maxLength: expected at most"),
    ({"properties": []}, "/properties: expected an object"),
    ({"properties": {5: {}}}, "/properties: expected an object, got {5: {}}"),
    ({"properties": {"a": 3}}, "/properties/a: expected a schema"),
    ({"items": 5}, "/items: expected a schema, got 5"),
    ({"allOf": []}, "/allOf: expected a list of schemas"),
    ({"required": True}, "/required: expected a list of strings"),
    ({"uniqueItems": "x"}, "/uniqueItems: expected true or false"),
    ({"multipleOf": 0}, "/multipleOf: expected more than 0"),
    ({"type": "string", "minimum": "3"}, "/minimum: expected a number"),
    ({"anyOf": [{"type": "string"}, {"enum": ["x"], "maximum": []}]}, "/anyOf/1/maximum: expected a number"),
    ({"maximum": float("nan")}, "/maximum: expected a finite number"),
    ({"maximum": 10**500}, "/maximum: expected a number of at most"),
    ({"enum": 5}, "/enum: expected a list"),
    ({"const": object()}, "/const: expected a JSON value"),
    ({"format": 3}, "/format: expected a name"),
    ({"format": "regex"}, "/format: cannot be enforced: the format 'regex'"),
    ({"pattern": 5}, "/pattern: expected a regular expression, got 5"),
    ({"pattern": r"(a)\1"}, "/pattern: cannot be enforced: regex '(a)\\\\1', position 3: a backreference"),
    ({"pattern": LARGE, "minLength": 3}, f"/pattern: {TOO_LARGE}"),
    ({"allOf": [{"pattern": "c"}, {"pattern": LARGE}]}, f"/allOf/0/pattern: {TOO_LARGE}"),
    ({"not": {"pattern": LARGE}}, f"/not/pattern: {TOO_LARGE}"),
    (
        {"pattern": "(a{200}){200}", "minLength": 3},
        "/pattern: cannot be enforced: regex: expected at most 10000",
    ),
    (
        {"pattern": "^(a|bb)*c$", "minLength": 50_000},
        "/minLength: cannot be enforced: minLength: expected an automaton",
    ),
    (
        {"type": "number", "multipleOf": 123456.789, "minimum": 0},
        "/multipleOf: cannot be enforced: multipleOf: expected at most 40000 remainders, got 493827156",
    ),
    (
        {"multipleOf": 9991, "not": {"multipleOf": 7.77}},
        f"/multipleOf: cannot be enforced: number: {AUTOMATON}",
    ),
    (
        {"patternProperties": {LARGE: {}, "b": {}}, "additionalProperties": False},
        f"/patternProperties: {AUTOMATON}",
    ),
    ({"patternProperties": {"a.{20}$": {"type": "null"}}}, "/patternProperties: expected an automaton of"),
    ({"patternProperties": {f"^{c}": {} for c in "abcdefghi"}}, "/patternProperties: more than 8 patterns"),
    (
        {"contains": {"type": "string"}, "minContains": 500, "maxItems": 5000},
        "/contains: its arrays need more than 2000 states",
    ),
    (
        {"uniqueItems": True, "prefixItems": [True], "contains": {"type": "string"}},
        "/uniqueItems: cannot be enforced: uniqueItems, together with contains and prefixItems",
    ),
    (
        {"uniqueItems": True, "allOf": [{"contains": {"minimum": 1}}, {"contains": {"type": "number"}}]},
        "/uniqueItems: cannot be enforced: uniqueItems, with several contains that an item may meet",
    ),
    (
        {"uniqueItems": True, "items": {"maxItems": 2, "uniqueItems": True}},
        "/uniqueItems: cannot be enforced: uniqueItems, over arrays of which some can be written in several",
    ),
    ({"type": "array", "uniqueItems": True, "items": SOME_CLOSED}, "/uniqueItems: cannot be enforced"),
    (
        {"type": "array", "items": SOME_CLOSED, "allOf": [{"uniqueItems": True}]},
        "/allOf/0/uniqueItems: cannot be enforced",
    ),
    (
        {
            "uniqueItems": True,
            "items": {"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(13)]} for i in range(3)]},
        },
        "/uniqueItems: expected at most 2000 combinations",
    ),
    ({"enum": []}, ": no value meets enum"),
    (
        {"type": "string", "minLength": 3, "maxLength": 2},
        ": no value meets type, minLength, maxLength together",
    ),
    (
        {"type": "string", "pattern": "^a$", "minLength": 2},
        ": no value meets type, pattern, minLength together",
    ),
    ({"type": "integer", "minimum": 0.1, "maximum": 0.9}, ": no value meets type, minimum, maximum t"),
    ({"type": "array", "items": False, "minItems": 1}, ": no value meets type, items, minItems together"),
    ({"allOf": [{"type": "string"}, {"type": "null"}]}, ": no value meets allOf"),
]


def placed(schema: object, place: str) -> tuple[str, object]:
    """The path of a schema at a place, and the schema around it. No text need come to what is optional."""
    if place == "alone":
        return "#", schema
    must = int(place == "required")
    items = {"type": "object", "properties": {"a": schema}, "required": ["a"] * must}
    array = {"type": "array", "items": items, "minItems": 1}
    whole = {"type": "object", "properties": {"list": array}, "required": ["list"] * must}
    return "#/properties/list/items/properties/a", whole


@pytest.mark.parametrize("place", ["alone", "required", "optional"])
@pytest.mark.parametrize(("schema", "message"), CASES)
def test_errors_name_the_path_and_the_keyword(schema: object, message: str, place: str) -> None:
    path, whole = placed(schema, place)
    if place == "optional" and "no value meets" in message:
        assert Grammar.from_json_schema(whole).matches("{}")
        return
    with pytest.raises(GrammarError) as caught:
        Grammar.from_json_schema(whole)
    assert str(caught.value).startswith(path + message)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ('{"a":', "#: schema: is not JSON"),
        ("[1]", "#: expected a schema"),
        ({"$ref": "#"}, "#: the schema applies itself to the same value for ever"),
        ({"type": "string", "const": 1}, "#: no value meets type, const together"),
        (False, "#: no value meets the schema"),
        (
            placed(False, "required")[1],
            "#/properties/list/items: no value meets type, properties, required tog",
        ),
    ],
)
def test_errors_of_whole_schemas(schema: object, message: str) -> None:
    with pytest.raises(GrammarError) as caught:
        Grammar.from_json_schema(schema)
    assert str(caught.value).startswith(message)


def test_arrays_too_deep_to_be_told_apart_name_the_keyword() -> None:
    schema: dict[str, object] = {"type": "null"}
    for _ in range(190):
        schema = {"type": "array", "uniqueItems": True, "items": schema}
    if not COUNTS_TOGETHER:
        grammar = Grammar.from_json_schema(below_t(schema))
        assert grammar.matches('{"t": [[], [[]]]}') and not grammar.matches('{"t": [[], []]}')
        return
    with pytest.raises(GrammarError, match=r"^#/properties/t/uniqueItems: nested too deeply$"):
        Grammar.from_json_schema(below_t(schema))


def test_a_lenient_compilation_lists_the_keyword() -> None:
    compiler = JsonSchemaCompiler()
    schema = {"items": {"type": "string", "allOf": [{"pattern": LARGE}, {"maxLength": 40}]}}
    assert Grammar.from_json_schema(schema, strict=False, compiler=compiler).matches('["c"]')
    assert compiler.unenforced == [f"#/items/allOf/0/pattern: {AUTOMATON}"]


# --------------------------------------------------------------------------- while a text is followed

VOCABULARY = Vocabulary([*(bytes([byte]) for byte in range(0x20, 0x7F)), b"</s>"], [0x7F - 0x20])
DIFFERENT = {"type": "array", "uniqueItems": True, "items": {"type": "array"}}
MANY = ", ".join(f"[{i}]" for i in range(5000))
WORDS = {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}}
BY_NAME = {"items": {"$ref": "#/$defs/d"}, "$defs": {"d": DIFFERENT}}


def below_t(schema: object) -> dict[str, object]:
    return {"type": "object", "properties": {"t": schema}, "required": ["t"]}


def followed(state: GrammarState, text: str) -> GrammarState:
    for char in text:
        state.advance(ord(char) - 0x20)
    return state


@pytest.mark.parametrize(
    ("schema", "text", "message"),
    [
        (below_t(DIFFERENT), '{"t": [' + MANY, "#/properties/t: expected at most 1 MB of parser states, got"),
        (below_t({}), '{"t": ' + "[" * 50_000, "#: expected at most 1 MB of parser states, got more"),
        ({"items": DIFFERENT}, "[[], [" + MANY, "#/items: expected at most 1 MB of parser states, got more"),
        (BY_NAME, "[[" + MANY, "#/$defs/d: expected at most 1 MB of parser states, got more"),
    ],
    ids=["memory", "common rules", "below arrays", "by name"],
)
def test_a_limit_met_by_a_text_has_the_path_of_where_it_is(
    schema: object, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oxillama.text.grammar.grammar.HARD_BYTES", 1 << 20)
    with pytest.raises(GrammarError) as caught:
        Grammar.from_json_schema(schema).matches(text)
    assert str(caught.value).startswith(message)


def test_a_limit_met_below_a_registry_has_the_path_of_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grammar holds a copy of the documents, too."""
    monkeypatch.setattr("oxillama.text.grammar.grammar.HARD_BYTES", 1 << 20)
    documents = {"http://x/y": {"$defs": {"d": dict(DIFFERENT)}}}
    schema = {"$ref": "http://x/y#/$defs/d"}
    for registry in (documents, documents.get):
        grammar = Grammar.from_json_schema(schema, compiler=JsonSchemaCompiler(registry=registry))
        documents["http://x/y"]["$defs"]["d"]["uniqueItems"] = False
        with pytest.raises(GrammarError, match=r"^http://x/y#/\$defs/d: expected at most 1 MB"):
            grammar.matches("[" + MANY)
        assert not Grammar.from_rules(grammar.rules).matches("[[], []]")
        documents["http://x/y"]["$defs"]["d"]["uniqueItems"] = True


def test_a_mask_of_too_much_work_has_the_path_of_where_it_is() -> None:
    schema = {"type": "object", "properties": {"a": WORDS, "t": {"items": WORDS}}}
    state = followed(GrammarState(Grammar.from_json_schema(schema), VOCABULARY), '{"a": ["b"], "t": [["abc')
    state._tables.states.budget = 10
    with pytest.raises(GrammarError, match=r"^#/properties/t/items/items: expected at most 10 units of work"):
        state.mask()


def test_a_state_too_wide_has_the_path_of_where_it_is() -> None:
    """1,500 rules are built in one step; the work of its beginnings does not add up."""
    many = {"anyOf": [{"type": "array", "minItems": i, "items": {"type": "null"}} for i in range(1500)]}
    state = GrammarState(Grammar.from_json_schema(below_t({"items": many})), VOCABULARY)
    with pytest.raises(GrammarError, match=r"^#/properties/t/items: expected at most 4096 items"):
        followed(state, '{"t": [[null')


def test_a_sequence_of_too_much_work_has_the_path_of_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oxillama.text.grammar.state.REQUEST_WORK", 0)
    monkeypatch.setattr("oxillama.text.grammar.state.TOKEN_WORK", 10**6)
    state = followed(GrammarState(Grammar.from_json_schema(below_t(WORDS)), VOCABULARY), '{"t": ["abc')
    monkeypatch.setattr("oxillama.text.grammar.state.TOKEN_WORK", 0)
    state._left = 0
    with pytest.raises(GrammarError, match=r"^#/properties/t/items: expected at most 0 units of work, and 0"):
        state.mask()


def test_a_unit_that_cannot_be_built_has_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oxillama.text.grammar.program.MAX_STATES", 400)
    grammar = Grammar.from_json_schema(below_t({"items": {"enum": ["x" * 1000, "y"]}}))
    assert grammar.matches('{"t": 1}')
    with pytest.raises(GrammarError, match=r"^#/properties/t/items: expected at most 400 states, got more$"):
        grammar.matches('{"t": ["y"]}')


def test_the_path_of_a_schema_within_a_larger_text_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oxillama.text.grammar.grammar.HARD_BYTES", 1 << 20)
    content = {"type": "json_schema", "json_schema": below_t(DIFFERENT)}
    tag = Grammar.from_rules(
        structural_tag_rules({"format": {"type": "tag", "begin": "<", "content": content, "end": ">"}})
    )
    with pytest.raises(
        GrammarError, match=r"^format\.content\.json_schema: #/properties/t: expected at most 1"
    ):
        tag.matches('<{"t": [' + MANY)
    lark = Grammar.from_rules(
        parse_lark(f'start: "(" x ")"\nx: %json {json.dumps(below_t(DIFFERENT))} | x x')
    )
    with pytest.raises(GrammarError, match=r"^line 2, column 4: #/properties/t: expected at most 1 MB"):
        lark.matches('({"t": [' + MANY)
    other = Grammar.from_rules(parse_lark('start: y | %json {"type": "null"}\ny: "(" y ")" | "x"'))
    with pytest.raises(GrammarError, match=r"^grammar: expected at most 1 MB"):
        other.matches("(" * 100_000)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"tpye": "string"}, "#/tpye: 'tpye' is no keyword, it has no effect; did you mean 'type'?"),
        ({"properties": {"a": {"min_length": 3}}}, "#/properties/a/min_length: .*did you mean 'minLength'?"),
        ({"anyof": [True]}, "did you mean 'anyOf'?"),
        ({"type": "string", "format": "date_time"}, "'date_time' is no format, .*did you mean 'date-time'?"),
    ],
)
def test_a_misspelled_name_is_a_warning(schema: dict[str, object], message: str) -> None:
    with pytest.warns(UserWarning, match=message.replace("?", r"\?")):
        Grammar.from_json_schema(schema, compiler=JsonSchemaCompiler(formats=True))


def test_annotations_and_other_names_are_no_misspellings() -> None:
    names = ("title", "description", "example", "nullable", "x-order", "unit", "order", "label", "$comment")
    Grammar.from_json_schema({"type": "string", "format": "int32", **dict.fromkeys(names, "a")})
    Grammar.from_json_schema({"properties": {"tpye": {"type": "string"}}})  # names of properties are free

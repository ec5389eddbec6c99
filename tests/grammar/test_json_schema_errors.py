"""What is wrong with a schema is said with the path in the schema and the keyword."""

from __future__ import annotations

import pytest

from oxillama.errors import GrammarError
from oxillama.grammar import Grammar, JsonSchemaCompiler

LARGE = "(a|b)*a(a|b){20}"  # its automaton has a million states
AUTOMATON = "expected an automaton of at most 50000 states, got more"
TOO_LARGE = "cannot be enforced: " + AUTOMATON

CASES: list[tuple[object, str]] = [
    ({"pattern": r"(a)\1"}, "/pattern: cannot be enforced: regex '(a)\\\\1', position 3: a backreference"),
    ({"pattern": 5}, "/pattern: expected a regular expression, got 5"),
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
    ({"minLength": -1}, "/minLength: expected a count, got -1"),
    ({"format": "regex"}, "/format: cannot be enforced: the format 'regex'"),
    (
        {"patternProperties": {LARGE: {}, "b": {}}, "additionalProperties": False},
        f"/patternProperties: {AUTOMATON}",
    ),
    (
        {"contains": {"type": "string"}, "minContains": 500, "maxItems": 5000},
        "/contains: its arrays need more than 2000 states",
    ),
    ({"enum": []}, ": no value meets enum"),
    (False, "a: no value meets type, properties, required together"),
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


@pytest.mark.parametrize(("schema", "message"), CASES)
def test_errors_name_the_path_and_the_keyword(schema: object, message: str) -> None:
    outer = {
        "type": "object",
        "properties": {"list": {"type": "array", "items": {"type": "object", "properties": {"a": schema}}}},
        "required": ["list"],
    }
    item = outer["properties"]["list"]  # type: ignore[index]
    item["items"]["required"] = ["a"]
    item["minItems"] = 1
    begin = "#/properties/list/items" + ("" if schema is False else "/properties/a")
    with pytest.raises(GrammarError) as caught:
        Grammar.from_json_schema(outer)
    assert str(caught.value).startswith(begin + message.removeprefix("a" if schema is False else ""))


def test_a_schema_that_no_value_meets_says_so_at_the_root() -> None:
    with pytest.raises(GrammarError, match=r"^#: no value meets type, const together$"):
        Grammar.from_json_schema({"type": "string", "const": 1})
    with pytest.raises(GrammarError, match=r"^#: no value meets the schema$"):
        Grammar.from_json_schema(False)


def test_a_lenient_compilation_lists_the_keyword() -> None:
    compiler = JsonSchemaCompiler()
    schema = {"items": {"type": "string", "allOf": [{"pattern": LARGE}, {"maxLength": 40}]}}
    assert Grammar.from_json_schema(schema, strict=False, compiler=compiler).matches('["c"]')
    assert compiler.unenforced == [f"#/items/allOf/0/pattern: {AUTOMATON}"]

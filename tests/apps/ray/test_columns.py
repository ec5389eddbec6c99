"""From a dataset's columns to requests, and from answers to columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from oxillama import ConfigError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
from oxillama.apps.ray.columns import Columns, arrow_type  # noqa: E402

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": ["integer", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "more": {},
    },
    "required": ["name"],
}


def answer(**fields: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    return {"text": "t", "tokens": [1], "finish_reason": "stop", "usage": usage, "error": None, **fields}


def test_rows_of_prompts_and_options() -> None:
    table = pa.table({"prompt": ["a", "b"], "seed": [1, None], "label": [1.5, 2.5]})
    columns = Columns(options={"max_tokens": 4, "seed": 9}, option_columns=("seed",))
    assert columns.rows(table) == [
        {"prompt": "a", "max_tokens": 4, "seed": 1},
        {"prompt": "b", "max_tokens": 4, "seed": 9},
    ]
    found = columns.extended(table, [answer(), answer(text=None, error={"message": "m", "code": "c"})])
    names = ["prompt", "seed", "label", "text", "tokens", "finish_reason", "usage", "error"]
    assert found.column_names == names
    assert found["label"].to_pylist() == [1.5, 2.5]
    assert found["error"].to_pylist() == [None, {"message": "m", "type": None, "param": None, "code": "c"}]


def test_a_column_of_another_name() -> None:
    table = pa.table({"question": [[{"role": "user", "content": "x", "name": None}]]})
    columns = Columns(column="question", kind="messages", prefix="out_")
    assert columns.rows(table) == [{"messages": [{"role": "user", "content": "x"}]}]
    found = columns.extended(table, [answer(tool_calls=[{"id": "1"}])])
    assert found["out_tool_calls"].to_pylist() == ['[{"id": "1"}]']
    assert found.column_names[-1] == "out_error"


def test_embeddings() -> None:
    table = pa.table({"input": ["a"]})
    found = Columns().extended(table, [{"embedding": [0.5, 1.0], "usage": None, "error": None}])
    assert found.column_names == ["input", "embedding", "usage", "error"]
    assert found["embedding"].type == pa.list_(pa.float32())


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({"top_logprobs": 2}, ["top_logprobs", "logprobs"]),
        ({"logprobs": True}, ["logprobs"]),
        ({"logprobs": False}, []),
        ({"json_schema": {}}, ["parsed"]),
    ],
)
def test_columns_of_options(options: dict[str, Any], more: list[str]) -> None:
    assert Columns(options=options).answer_names("prompt")[4:] == more


def test_properties_of_a_schema_are_columns() -> None:
    table = pa.table({"prompt": ["a", "b", "c"]})
    columns = Columns(schema=PERSON)
    assert columns.rows(table)[0] == {"prompt": "a", "json_schema": PERSON}
    full = {"name": "n", "age": 5, "tags": ["x", "y"], "more": {"k": [1]}}
    huge = {"name": "m", "age": 1 << 70}
    found = columns.extended(table, [answer(parsed=full), answer(parsed=None), answer(parsed=huge)])
    assert found["name"].to_pylist() == ["n", None, "m"]
    assert found["age"].to_pylist() == [5, None, None]
    assert found["tags"].to_pylist() == [["x", "y"], None, None]
    assert found["more"].to_pylist() == ['{"k": [1]}', None, None]
    errors = found["error"].to_pylist()
    assert errors[:2] == [None, None]
    assert errors[2]["message"].startswith("age: expected a value of type int64")
    assert found.column_names[-5:] == ["name", "age", "tags", "more", "error"]


def test_types_do_not_depend_on_the_values() -> None:
    table = pa.table({"prompt": ["a"]})
    columns = Columns(schema=PERSON)
    none = columns.extended(table, [answer(text=None, tokens=None)]).schema
    assert none == columns.extended(table, [answer(parsed={"name": "n", "age": 1})]).schema


def test_a_schema_of_a_python_type() -> None:
    @dataclass
    class Person:
        name: str
        age: int

    assert set(Columns(schema=Person).properties) == {"name", "age"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "number"}, pa.float64()),
        ({"type": ["null", "boolean"]}, pa.bool_()),
        ({"type": ["string", "integer"]}, pa.string()),
        ({"type": "array"}, pa.string()),
        ({"type": "array", "items": {"type": "integer"}}, pa.list_(pa.int64())),
        (True, pa.string()),
        ({"type": "object", "properties": {"a": {"type": "number"}}}, pa.string()),
        (
            {"type": "object", "properties": {"a": {"type": "number"}}, "additionalProperties": False},
            pa.struct([("a", pa.float64())]),
        ),
    ],
)
def test_types_of_schemas(schema: Any, expected: Any) -> None:
    assert arrow_type(schema) == expected


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "text"}, "kind: expected one of prompt, messages, input, got 'text'"),
        ({"column": "question"}, "kind: expected one of prompt, messages, input for column 'question'"),
        ({"options": {"temprature": 1}}, "options: temprature: is no option; did you mean temperature?"),
        ({"options": {"temperature": -1}}, "temperature: "),
        ({"option_columns": ("label",)}, "option_columns: expected names of options, got 'label'"),
        ({"schema": {"type": "string"}}, "schema: expected that of an object with properties"),
        ({"schema": "{"}, "schema: expected JSON"),
        ({"schema": {"properties": {"text": {}}}}, "schema: expected properties other than .* got 'text'"),
        ({"schema": PERSON, "options": {"json_schema": {}}}, "schema: cannot be combined with json_schema"),
    ],
)
def test_what_cannot_be_is_said_at_once(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Columns(**fields)


@pytest.mark.parametrize(
    ("columns", "names", "said"),
    [
        (Columns(), ["a"], "column: expected one of prompt, messages, input, got a"),
        (Columns(), ["prompt", "messages"], "column: expected one of"),
        (Columns(column="x", kind="prompt"), ["a"], "column: expected 'x' in the dataset, got a"),
        (
            Columns(option_columns=("seed",)),
            ["prompt"],
            "option_columns: expected a column 'seed', got prompt",
        ),
    ],
)
def test_columns_that_are_missing(columns: Columns, names: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        columns.rows(pa.table({name: ["x"] for name in names}))


def test_a_column_that_answers_have_needs_a_prefix() -> None:
    table = pa.table({"prompt": ["a"], "text": ["b"]})
    with pytest.raises(ConfigError, match="expected none called 'text' in the dataset"):
        Columns().extended(table, [answer()])
    assert Columns(prefix="new_").extended(table, [answer()])["text"].to_pylist() == ["b"]

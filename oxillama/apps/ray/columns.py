"""The columns of a dataset: which hold requests, and which are made from the answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from oxillama.apps.batch.plain import COLUMNS as KINDS, OWN, TEMPLATE
from oxillama.apps.batch.tables import answer_arrays
from oxillama.apps.server.errors import ApiError
from oxillama.apps.server.options import HARMLESS, OF_THE_MODEL, OPTIONS, options_of
from oxillama.base.config import EngineConfig
from oxillama.errors import ConfigError
from oxillama.text.grammar.python_types import schema_of_type

TEXT = ("text", "tokens", "finish_reason", "usage")
MORE = {"logprobs": "logprobs", "top_logprobs": "top_logprobs", "receipt": "receipt", "json_schema": "parsed"}
"""Options, and the columns that they add."""

SCALARS = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """How rows of a dataset become requests.

    Attributes:
        column: the column with the prompts, the messages, or the texts to embed; None: the column named
            "prompt", "messages" or "input".
        kind: which of the three the column has; None: by its name.
        options: options of all rows, by the names in the server's request bodies.
        option_columns: columns with options of single rows, by the same names; null: the option of all rows.
        schema: JSON schema of an object, as a mapping, a text or a Python type. The texts match it, and each
            of its properties becomes a column.
        prefix: prefix of the names of all new columns.

    Raises:
        ConfigError: an option is unknown or outside its range, or a column is not possible.
    """

    column: str | None = None
    kind: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    option_columns: tuple[str, ...] = ()
    schema: Any = None
    prefix: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "option_columns", tuple(self.option_columns))
        if self.kind not in (None, *KINDS):
            raise ConfigError(f"kind: expected one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.column is not None and self.kind is None and self.column not in KINDS:
            raise ConfigError(
                f"kind: expected one of {', '.join(KINDS)} for column {self.column!r}, got none"
            )
        if self.column is None and self.kind is not None:
            object.__setattr__(self, "column", self.kind)
        for name in self.option_columns:
            if name not in (*OPTIONS, *HARMLESS, *OF_THE_MODEL, *OWN, TEMPLATE, "pooling"):
                raise ConfigError(f"option_columns: expected names of options, got {name!r}")
        if "json_schema" in (*self.options, *self.option_columns) and self.schema is not None:
            raise ConfigError("schema: cannot be combined with json_schema")
        if self.schema is not None:
            object.__setattr__(self, "schema", object_schema(self.schema))
        others = (*OWN, TEMPLATE, "pooling", *OF_THE_MODEL)
        checked = {name: value for name, value in self.options.items() if name not in others}
        try:
            fixed = {name: self.options[name] for name in OWN if name in self.options}
            without_model: Any = SimpleNamespace(config=EngineConfig())
            options_of(checked, without_model, **fixed)
        except ApiError as error:
            raise ConfigError(f"options: {error}") from error

    @property
    def properties(self) -> dict[str, Any]:
        """The properties of the schema; {} without one."""
        return {} if self.schema is None else dict(top_of(self.schema)["properties"])

    def input_of(self, names: Sequence[str]) -> tuple[str, str]:
        """The column of the requests and its kind. Raises ConfigError if columns are missing or ambiguous."""
        for name in self.option_columns:
            if name not in names:
                raise ConfigError(f"option_columns: expected a column {name!r}, got {', '.join(names)}")
        if self.column is not None:
            if self.column not in names:
                raise ConfigError(f"column: expected {self.column!r} in the dataset, got {', '.join(names)}")
            return self.column, self.kind or self.column
        found = [name for name in KINDS if name in names]
        if len(found) != 1:
            raise ConfigError(f"column: expected one of {', '.join(KINDS)}, got {', '.join(names)}")
        return found[0], found[0]

    def rows(self, table: Any) -> list[dict[str, Any]]:
        """The requests of a table, as rows for `oxillama.apps.batch`."""
        column, kind = self.input_of(table.column_names)
        chosen = table.select([column, *self.option_columns]).to_pylist()
        base = dict(self.options)
        if self.schema is not None:
            base["json_schema"] = self.schema
        rows = []
        for row in chosen:
            own = {name: as_json(row[name]) for name in self.option_columns if row[name] is not None}
            rows.append({**base, **own, kind: as_json(row[column])})
        return rows

    def extended(self, table: Any, answers: Sequence[Mapping[str, Any]]) -> Any:
        """The table with the answers' columns added. Raises ConfigError if a name already exists."""
        _, kind = self.input_of(table.column_names)
        found: list[dict[str, Any]] = [dict(answer) for answer in answers]
        own: dict[str, Any] = {}
        for name, schema in self.properties.items():
            own[name] = property_array(name, arrow_type(schema), found)
        arrays = {**answer_arrays(found), **own}
        names = [*self.answer_names(kind), *own, "error"]
        for name in names:
            if self.prefix + name in table.column_names:
                message = (
                    f"column: expected none called {self.prefix + name!r} in the dataset, which answers have"
                )
                raise ConfigError(f"{message} (give a prefix)")
            table = table.append_column(self.prefix + name, arrays[name])
        return table

    def answer_names(self, kind: str) -> list[str]:
        """The names of the answers' columns, without the schema's columns and "error"."""
        if kind == "input":
            return ["embedding", "usage"]
        chats = ("reasoning", "tool_calls") if kind == "messages" else ()
        asked = {name for name, value in self.options.items() if value is not None and value is not False}
        more = [made for name, made in MORE.items() if name in asked or name in self.option_columns]
        if "top_logprobs" in more and "logprobs" not in more:
            more.append("logprobs")
        return [*TEXT, *chats, *more]


def as_json(value: Any) -> Any:
    """A column's value as JSON data: NumPy arrays, which Ray makes of lists, become lists again."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: as_json(each) for name, each in value.items() if each is not None}
    return [as_json(each) for each in value] if isinstance(value, list) else value


def object_schema(schema: Any) -> dict[str, Any]:
    """A schema as a mapping. Raises ConfigError if it is not of an object with properties."""
    try:
        found = json.loads(schema) if isinstance(schema, str) else schema
    except ValueError as error:
        raise ConfigError(f"schema: expected JSON, got {error}") from error
    if not isinstance(found, Mapping):
        found = schema_of_type(found)
    if not isinstance(found, Mapping) or not isinstance(top_of(found).get("properties"), Mapping):
        raise ConfigError("schema: expected that of an object with properties, got another")
    clash = sorted({*TEXT, "error"} & set(top_of(found)["properties"]))
    if clash:
        raise ConfigError(f"schema: expected properties other than the columns of answers, got {clash[0]!r}")
    return dict(found)


def top_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema, or the definition that it refers to, as in schemas of Python types."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    found = schema.get("$defs", {}).get(name, schema)
    return found if isinstance(found, Mapping) else {}


def arrow_type(schema: Any) -> Any:
    """The Arrow type of a schema's values; text with their JSON if there is no single type.

    A union of a type and "null" is that type.
    """
    if not isinstance(schema, Mapping):
        return pa.string()
    kind = schema.get("type")
    if isinstance(kind, list) and len(kind) == 2 and "null" in kind:
        kind = next(each for each in kind if each != "null")
    if isinstance(kind, str) and kind in SCALARS:
        return SCALARS[kind]
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        return pa.list_(arrow_type(schema["items"]))
    if kind == "object" and schema.get("properties") and schema.get("additionalProperties") is False:
        return pa.struct([(name, arrow_type(each)) for name, each in schema["properties"].items()])
    return pa.string()


def property_array(name: str, type: Any, answers: list[dict[str, Any]]) -> Any:
    """The values of a property; null where absent. A value that the type cannot hold, such as an integer of
    more than 64 bits, becomes null, and the answer gets an error."""
    values = []
    for answer in answers:
        parsed = answer.get("parsed")
        value = parsed.get(name) if isinstance(parsed, dict) else None
        try:
            found = held(value, type)
            pa.array([found], type)
        except (pa.ArrowException, OverflowError, TypeError) as error:
            found = None
            fault = ApiError(
                400, f"{name}: expected a value of type {type}, got {error}"[:300], code="no_column"
            )
            answer["error"] = answer["error"] or fault.body()["error"]
        values.append(found)
    return pa.array(values, type)


def held(value: Any, type: Any) -> Any:
    """A value for an Arrow type; a value that is not text becomes JSON if the type is text."""
    if value is None:
        return None
    if pa.types.is_string(type) and not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if pa.types.is_list(type) and isinstance(value, list):
        return [held(each, type.value_type) for each in value]
    if pa.types.is_struct(type) and isinstance(value, dict):
        return {field.name: held(value.get(field.name), field.type) for field in type}
    return value

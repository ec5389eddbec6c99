"""Converts answers to Arrow columns with fixed types."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oxillama.base.atomic_file import replaced_file
from oxillama.errors import ConfigError, ModelFileError

ROWS_AT_A_TIME = 4096

JSON_TEXT = ("tool_calls", "parsed", "receipt", "metadata", "response", "answers")
"""Columns with values of any shape, which are stored as JSON texts."""


def answer_types() -> dict[str, Any]:
    import pyarrow as pa

    token = pa.struct([("token", pa.int32()), ("logprob", pa.float64())])
    return {
        "text": pa.string(),
        "tokens": pa.list_(pa.int32()),
        "finish_reason": pa.string(),
        "usage": pa.struct([("prompt_tokens", pa.int64()), ("completion_tokens", pa.int64())]),
        "reasoning": pa.string(),
        "tool_calls": pa.string(),
        "logprobs": pa.list_(pa.float64()),
        "top_logprobs": pa.list_(pa.list_(token)),
        "receipt": pa.string(),
        "parsed": pa.string(),
        "embedding": pa.list_(pa.float32()),
        "answers": pa.string(),
        "error": pa.struct([(name, pa.string()) for name in ("message", "type", "param", "code")]),
    }


def answer_arrays(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The columns of answers as Arrow arrays; null where an answer has no value."""
    return {name: column(name, answers, type) for name, type in answer_types().items()}


def write_parquet(lines: Path, target: Path, *, overwrite: bool = True) -> None:
    """Write a file of answer lines as a Parquet table; the copied columns come first.

    Raises:
        ConfigError: pyarrow is not installed, or a copied column has no common type.
        ModelFileError: the lines cannot be read; the file cannot be written, or exists without ``overwrite``.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    types = answer_types()
    carried: dict[str, Any] = {}
    for answers in batches(lines):  # first pass: find the type of each copied column
        for name in dict.fromkeys(name for answer in answers for name in answer if name not in types):
            try:
                found = column(name, answers).type
                before = carried.get(name, found)
                carried[name] = pa.unify_schemas(
                    [pa.schema([(name, before)]), pa.schema([(name, found)])], promote_options="permissive"
                )[0].type
            except pa.ArrowException as error:
                raise ConfigError(
                    f"{name}: expected values of one type for Parquet: {error}"[:300]
                ) from error
    schema = pa.schema([*carried.items(), *types.items()])
    with replaced_file(target, overwrite=overwrite) as file, parquet.ParquetWriter(file, schema) as writer:
        for answers in batches(lines):
            columns = {name: column(name, answers, type) for name, type in carried.items()}
            writer.write_table(pa.table({**columns, **answer_arrays(answers)}, schema))


def column(name: str, answers: Sequence[Mapping[str, Any]], type: Any = None) -> Any:
    """A column as an Arrow array; columns of `JSON_TEXT` as JSON texts."""
    import pyarrow as pa

    values = [answer.get(name) for answer in answers]
    if name in JSON_TEXT:
        values = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
    return pa.array(values, type)


def batches(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the objects of a file of JSON lines in batches. Raises ModelFileError."""
    found: list[dict[str, Any]] = []
    try:
        with path.open("rb") as file:
            for line in file:
                found.append(json.loads(line))
                if len(found) == ROWS_AT_A_TIME:
                    yield found
                    found = []
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror or error}") from error
    if found:
        yield found

"""Python types as JSON schemas: dataclasses, TypedDicts, enumerations, annotations, and pydantic by its shape."""

from __future__ import annotations


def schema_of_type(kind: object) -> object:
    method = getattr(kind, "model_json_schema", None)
    return method()

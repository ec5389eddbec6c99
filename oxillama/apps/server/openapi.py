"""``/openapi.json``: the server's interface, as an OpenAPI document (https://spec.openapis.org/oas/v3.1.1).

The document is made from the objects that check requests: the table of paths, the classes of bodies, the
table of options and their declarations. Answers are described by media types and statuses; the interface of a
path documents their fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server.bodies import REQUEST, Body
from oxillama.apps.server.errors import ApiError, ErrorBody
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.options import (
    DECLARED,
    DRAFTERS,
    HARMLESS,
    OF_THE_MODEL,
    OPTIONS,
    SEVERAL,
    STRUCTURED,
)
from oxillama.apps.server.paths import JSON, Interface, Path
from oxillama.base.config.checks import ABOVE_ZERO, BELOW_ONE, FLOAT_MAX, MAX_SEED
from oxillama.base.config.option import Option
from oxillama.base.config.sampler import ORDER
from oxillama.base.version import __version__

SCHEMAS = "#/components/schemas/"

ANY_PATH = (400, 401, 403, 404, 429, 500, 503)
"""Statuses of errors on every path: of the gate, of the model that is asked, and of what nobody foresaw."""
WITH_BODY = (408, 413, 415)
"""Further ones of those that take a body."""

PLAIN = {
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "str": {"type": "string"},
}
"""Of an option's type."""

TEXT, OBJECT, SWITCH, TOKEN = {"type": "string"}, {"type": "object"}, {"type": "boolean"}, {"type": "integer"}
FILE: dict[str, Any] = {"type": "string", "format": "binary"}
TOKENS: dict[str, Any] = {"type": "array", "items": {**TOKEN, "minimum": 0}}
TEXTS: dict[str, Any] = {"type": "array", "items": TEXT, "minItems": 1}
SCALES: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"id": {**TOKEN, "minimum": 0}, "scale": {"type": "number"}},
        "required": ["id", "scale"],
        "additionalProperties": False,
    },
}
"""The scales of adapters."""

FORMS: dict[str, dict[str, Any]] = {
    "max_tokens": {**TOKEN, "minimum": -2},
    "reasoning_budget": {**TOKEN, "minimum": -2},
    "top_k": {**TOKEN, "minimum": -1},
    "top_n_sigma": {"anyOf": [{"const": -1}, {"type": "number", "minimum": 0}]},
    "seed": {**TOKEN, "minimum": -(2**63), "maximum": MAX_SEED},
    "stop": {"anyOf": [{**TEXT, "minLength": 1}, {"type": "array", "items": {**TEXT, "minLength": 1}}]},
    "speculate": {"enum": list(DRAFTERS)},
    "logit_bias": {"anyOf": [OBJECT, {"type": "array", "items": {"type": "array"}}]},
    "banned_tokens": TOKENS,
    "allowed_tokens": {**TOKENS, "minItems": 1},
    "dry_sequence_breakers": {"type": "array", "items": {"anyOf": [{**TEXT, "minLength": 1}, TOKENS]}},
    "order": {"anyOf": [TEXT, {"type": "array", "items": {"enum": [*ORDER, "typ_p"]}}]},
    "grammar": TEXT,
    "json_schema": {"anyOf": [OBJECT, SWITCH, {**TEXT, "minLength": 1}]},
    "regex": TEXT,
    "choices": TEXTS,
    "structural_tag": {"anyOf": [{**OBJECT, "minProperties": 1}, {**TEXT, "minLength": 1}]},
    "lora": SCALES,
    "response_format": {**OBJECT, "properties": {"type": TEXT}, "required": ["type"]},
    "structured_outputs": {
        **OBJECT,
        "properties": {key: {} for key in STRUCTURED},
        "additionalProperties": False,
    },
    "guided_json_object": SWITCH,
    "cache_prompt": SWITCH,
}
"""Of options whose values in a body are not what their declared types say."""


async def openapi(request: Request) -> Response:
    """This document."""
    return JsonAnswer(request.app.state.document())


def document(interfaces: Iterable[Interface], has_keys: bool) -> dict[str, Any]:
    """The OpenAPI document of some interfaces.

    Args:
        has_keys: whether requests need a key.
    """
    interfaces = list(interfaces)
    schemas = {**option_schemas(), **body_schemas(interfaces), **error_schemas(interfaces)}
    paths: dict[str, dict[str, Any]] = {}
    for interface in interfaces:
        for path in interface.routes:
            paths.setdefault(plain_path(path), {})[path.method.lower()] = operation(interface, path)
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "oxillama", "version": __version__},
        "tags": [{"name": interface.name} for interface in interfaces],
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if has_keys:
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"key": []}]
    return made


def plain_path(path: Path) -> str:
    """A path in OpenAPI's form."""
    return path.path.replace(":path}", "}")


def operation(interface: Interface, path: Path) -> dict[str, Any]:
    """The OpenAPI operation of a path's method: its inputs and statuses."""
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": TEXT}
        for name in re.findall(r"{(\w+)", path.path)
    ]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in path.queries]
    words = re.findall(r"\w+", plain_path(path))
    made: dict[str, Any] = {
        "operationId": "_".join([path.method.lower(), *words]),
        "summary": (path.endpoint.__doc__ or "").partition("\n")[0],
        "tags": [interface.name],
        "parameters": parameters,
        "responses": answers(interface, path),
    }
    if path.body is not None:
        schema = path.body if isinstance(path.body, dict) else {"$ref": SCHEMAS + path.body.__name__}
        content = {path.takes: {"schema": schema}}
        if path.takes_form:
            form = {"properties": {REQUEST: schema}, "required": [REQUEST], "additionalProperties": FILE}
            content["multipart/form-data"] = {"schema": {**OBJECT, **form}}
        made["requestBody"] = {"content": content, "required": path.needs_body}
    return made


def answers(interface: Interface, path: Path) -> dict[str, Any]:
    """The statuses of a path, with the media types of their answers."""
    errors = {*ANY_PATH, *path.statuses, *(() if path.body is None else WITH_BODY)}
    right = {"description": "OK", "content": {kind: {} for kind in path.answers}}
    found = {200: right} if path.method == "HEAD" or path.answers else {}
    shape = {"content": {JSON: {"schema": {"$ref": SCHEMAS + error_name(interface.error_body)}}}}
    for status in errors:
        content = {} if status < 400 or path.method == "HEAD" else shape
        found[status] = {"description": HTTPStatus(status).phrase, **content}
    return {str(status): found[status] for status in sorted(found)}


def error_name(body: ErrorBody) -> str:
    """The name of the schema of an interface's errors."""
    return "error" if body is ApiError.body else f"error.{body.__module__.split('.')[-2]}"


def error_schemas(interfaces: Iterable[Interface]) -> dict[str, Any]:
    """The schema of each shape of errors, from the fields of an error with nothing but a message."""
    bodies = {error_name(each.error_body): each.error_body for each in interfaces}
    return {name: shape_of(body(ApiError(400, "message"))) for name, body in bodies.items()}


def shape_of(value: Any) -> dict[str, Any]:
    """The schema of values with the fields, and the types, of one of them; None stands for a text or null."""
    if isinstance(value, Mapping):
        inner = {name: shape_of(item) for name, item in value.items()}
        return {"type": "object", "properties": inner, "required": list(inner)}
    return TEXT if isinstance(value, str) else {"type": ["string", "null"]}


def option_schemas() -> dict[str, Any]:
    """The schema of each option that a body can name, and of objects of them (`Body.inner_options`)."""
    others = {*SEVERAL, *OF_THE_MODEL}
    fields = [field for name, field in OPTIONS.items() if name not in others]
    found = {f"option.{field}": schema_of(DECLARED[field]) for field in fields}
    known = named_options()
    harmless = {name: known[name] for name in HARMLESS}
    context = {"num_ctx": {"anyOf": [{**TOKEN, "minimum": 1}, {"type": "null"}]}}
    for name, options in (("text", known), ("vectors", harmless)):
        properties = {**options, **context}
        found[f"options.{name}"] = {**OBJECT, "properties": properties, "additionalProperties": False}
    return found


def named_options() -> dict[str, dict[str, Any]]:
    """The schema of each name of the table of options; null is as good as absent."""
    found: dict[str, dict[str, Any]] = {
        name: {} if values is None else {"enum": list(values)} for name, values in HARMLESS.items()
    }
    found |= {name: {"$ref": f"{SCHEMAS}option.{field}"} for name, field in OPTIONS.items()}  # except for:
    found |= {name: FORMS[name] for name in (*SEVERAL, *OF_THE_MODEL)}
    return {name: or_null(schema) for name, schema in found.items()}


def or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of values that may be null."""
    return {"anyOf": [schema, {"type": "null"}]} if schema else schema


def schema_of(option: Option) -> dict[str, Any]:
    """The schema of an option's values in a body."""
    found = FORMS.get(option.name)
    if found is None:
        found = {**PLAIN[option.kind], **range_of(option)}
        if option.choices:
            found["enum"] = list(option.choices)
    return {**found, "description": option.help}


def range_of(option: Option) -> dict[str, Any]:
    """The range of a number, in the words of JSON Schema."""
    most = FLOAT_MAX if option.kind == "float" else float("inf")
    found: dict[str, float] = {}
    for value, special, closed, opened in (
        (max(option.low, -most), ABOVE_ZERO, "minimum", "exclusiveMinimum"),
        (min(option.high, most), BELOW_ONE, "maximum", "exclusiveMaximum"),
    ):
        if option.kind in ("int", "float") and abs(value) != float("inf"):
            found |= {opened: round(value)} if value == special else {closed: value}
    return found


def body_schemas(interfaces: Iterable[Interface]) -> dict[str, Any]:
    """The schema of each class of bodies, and of their parts."""
    kinds = {path.body for each in interfaces for path in each.routes if isinstance(path.body, type)}
    names, made = models_json_schema(
        [(kind, "validation") for kind in sorted(kinds, key=lambda kind: kind.__name__)],
        ref_template=SCHEMAS + "{model}",
    )
    found: dict[str, Any] = made["$defs"]
    for kind in kinds:
        name = names[kind, "validation"]["$ref"].removeprefix(SCHEMAS)
        found[kind.__name__] = whole_body(kind, found.pop(name))
    return found


def whole_body(kind: type[Body], schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a class with the options that a body of it may have, and nothing else."""
    own, required = schema.get("properties", {}), schema.get("required", [])
    properties = {name: own[name] if name in required else or_null(own[name]) for name in own}
    options = named_options() if kind.takes_options else {}
    if kind.inner_options:
        properties["options"] = or_null({"$ref": f"{SCHEMAS}options.{kind.inner_options}"})
    return {**schema, "properties": {**options, **properties}, "additionalProperties": False}

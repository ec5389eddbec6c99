"""The OpenAPI document names what the server takes: every path, field and option, and no other."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given, strategies as st
from starlette.applications import Starlette

from oxillama.apps.server import bodies
from oxillama.apps.server.openapi import document
from oxillama.apps.server.options import NAMES
from oxillama.apps.server.paths import Path
from oxillama.apps.server.routes import INTERFACES, PAGE, ROUTES
from tests.support.server import Client
from tests.support.server_bodies import BRIEFLY, PATHS, SEEDS, Application, Reply, fault, route_of
from tests.support.spread import each

MODEL = {"context_length": 64}
DOCUMENT: dict[str, Any] = json.loads(json.dumps(document(INTERFACES, False)))
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def schema_at(path: str) -> dict[str, Any]:
    """The schema of the bodies of a path, with the definitions that it refers to."""
    content = DOCUMENT["paths"][route_of(path)]["post"]["requestBody"]["content"]
    return {**content["application/json"]["schema"], "components": {"schemas": SCHEMAS}}


def body_of(path: str) -> dict[str, Any]:
    """The properties of the bodies of a path."""
    name = schema_at(path)["$ref"].rpartition("/")[2]
    found: dict[str, Any] = SCHEMAS[name]["properties"]
    return found


CHECKED = [path for path in PATHS if "$ref" in schema_at(path) and not path.endswith("erase")]
"""Paths whose bodies a class checks."""


def is_unknown(reply: Reply) -> bool:
    """Whether an answer says that the body has a field that nobody knows, or that is always refused."""
    error = json.loads(reply.body).get("error") if reply.status == 400 else None
    message = error["message"] if isinstance(error, dict) else str(error)
    return "is no option" in message or "expected no such field" in message


def test_the_server_publishes_it(client: Client) -> None:
    answer = client.ask("/openapi.json")
    assert answer.status == 200 and answer.json == DOCUMENT


def test_a_key_is_needed_and_named() -> None:
    assert "security" not in DOCUMENT
    made = document(INTERFACES, True)
    (wanted,) = made["security"]
    assert set(wanted) == set(made["components"]["securitySchemes"])


def test_it_names_every_path_that_the_application_has(application: Application) -> None:
    app: Starlette = application.app
    listed = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    known = {
        (next(iter(route.methods - {"HEAD"} or {"HEAD"})), route.path.replace(":path", ""))  # type: ignore[attr-defined]
        for route in app.routes
    }
    assert listed == known
    without_page = document([each for each in INTERFACES if each is not PAGE], False)["paths"]
    assert "/page/pdf" not in without_page and set(without_page) < set(DOCUMENT["paths"])


def test_it_refers_to_what_it_has() -> None:
    found = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(DOCUMENT)))
    assert found == set(SCHEMAS)
    ids = [each["operationId"] for path in DOCUMENT["paths"].values() for each in path.values()]
    assert len(ids) == len(set(ids)) == len(ROUTES)
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_each_path_reads_the_class_that_the_table_says(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    checked = bodies.checked_body

    def spy(kind: Any, value: Any) -> Any:
        read.append(kind)
        return checked(kind, value)

    monkeypatch.setattr(bodies, "checked_body", spy)
    for path in PATHS:
        (row,) = [each for each in ROUTES if (each.method, each.path) == ("POST", route_of(path))]
        read.clear()
        application.ask(path, SEEDS[path][0])
        kinds = [row.body] if isinstance(row.body, type) and not path.endswith("erase") else []
        assert read == kinds, path


def test_it_names_the_paths_that_take_forms(application: Application) -> None:
    for path in [name for name in PATHS if not name.endswith("erase")]:  # whose body is not read
        part = b'--x\r\nContent-Disposition: form-data; name="request"\r\n\r\n%s\r\n--x--\r\n'
        form = part % json.dumps(SEEDS[path][0]).encode()
        status = application.ask(path, form, kind="multipart/form-data; boundary=x").status
        content = DOCUMENT["paths"][route_of(path)]["post"]["requestBody"]["content"]
        assert (status == 415) == ("multipart/form-data" not in content), (path, status)
    assert "multipart/form-data" in DOCUMENT["paths"]["/v1/systemone"]["post"]["requestBody"]["content"]


@pytest.mark.parametrize("path", each(CHECKED, 3))
def test_it_names_every_field_that_is_taken_and_no_other(application: Application, path: str) -> None:
    listed, right = body_of(path), SEEDS[path][0]
    everywhere = {name for other in CHECKED for name in body_of(other)}
    for name in sorted({*everywhere, *NAMES, "nonsense"}):
        reply = application.ask(path, {**right, name: []})
        assert is_unknown(reply) is (name not in listed), (name, reply)


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/embed", "/api/embeddings"])
def test_options_of_ollama(application: Application, path: str) -> None:
    options = body_of(path)["options"]["anyOf"][0]["$ref"].rpartition("/")[2]
    listed, right = SCHEMAS[options]["properties"], SEEDS[path][0]
    for name in sorted({*NAMES, "num_ctx", "nonsense"}):
        reply = application.ask(path, {**right, "options": {name: {}}})
        assert is_unknown(reply) is (name not in listed), (name, reply)


def test_bodies_that_are_right_fit_it() -> None:
    for path in (path for path in PATHS if not path.endswith("erase")):  # which needs no body
        for body in SEEDS[path]:
            jsonschema.validate(body, schema_at(path))


BAD = [[], {}, -3, 0, 1.5, 10**30, "", "nonsense", True, {"a": 1}, [[]]]
"""Values of which each is wrong for some option."""


@pytest.mark.parametrize("name", sorted(NAMES))
def test_values_that_do_not_fit_are_refused(application: Application, name: str) -> None:
    """What the schema of an option rules out is an error, so the schema takes all that the server takes."""
    schema = {**body_of("/completion")[name], "components": {"schemas": SCHEMAS}}
    validator = jsonschema.Draft202012Validator(schema)
    for value in BAD:
        body = {"prompt": "hello", "n_predict": 1, name: value}
        if not validator.is_valid(value):
            reply = application.ask("/completion", body)
            assert reply.status == 400, (value, reply)


VALUES = st.sampled_from([None, True, False, 0, 1, -1, 2, 0.5, 2**31, 1e300, "", "a", [], ["a"], [5], {}])
LONG = ("n", "best_of", "timeout", "n_predict", "num_predict", "max_completion_tokens", "min_tokens")
"""Fields that decide how long an answer takes."""
SHORT = ("max_tokens", "max_output_tokens")
"""Those of them with which the bodies say that it is short."""


def drawn(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema takes, small ones; any others where it says nothing."""
    if "$ref" in schema:
        return drawn(SCHEMAS[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return st.one_of([drawn(each) for each in schema["anyOf"]])
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "integer":
        low = schema.get("minimum", -5)
        return st.integers(low, max(low, min(schema.get("maximum", low + 40), low + 40)))
    if kind == "number":
        return st.floats(max(schema.get("minimum", -2), -2), min(schema.get("maximum", 2), 2))
    if kind == "array":
        return st.lists(drawn(schema.get("items", {})), min_size=schema.get("minItems", 0), max_size=3)
    if kind == "object" and "properties" in schema:
        inner = {name: drawn(each) for name, each in schema["properties"].items() if name not in LONG}
        needed = {name: inner.pop(name) for name in schema.get("required", [])}
        needed |= {name: st.just(2) for name in SHORT if inner.pop(name, None) is not None}
        names = st.lists(st.sampled_from(sorted(inner)), max_size=3, unique=True) if inner else st.just([])
        return names.flatmap(
            lambda chosen: st.fixed_dictionaries({**needed, **{name: inner[name] for name in chosen}})
        )
    if kind == "object":
        return st.dictionaries(st.sampled_from(["type", "role", "content", "text"]), VALUES, max_size=3)
    plain = {"string": st.text(max_size=6), "boolean": st.booleans(), "null": st.none()}
    return plain[kind] if isinstance(kind, str) else VALUES


@pytest.mark.parametrize("path", [path for path in PATHS if not path.endswith("erase")])
@BRIEFLY
@given(data=st.data())
def test_bodies_drawn_from_it(application: Application, path: str, data: st.DataObject) -> None:
    """No such body is a fault of the server, and each answer has a status that the document names."""
    body = data.draw(drawn(schema_at(path)))
    reply = application.ask(path, body)
    assert not (wrong := fault(path, body, reply)), wrong
    assert str(reply.status) in DOCUMENT["paths"][route_of(path)]["post"]["responses"]


def test_rows_say_what_their_kinds_need() -> None:
    for row in ROUTES:
        assert isinstance(row, Path)
        assert row.endpoint.__doc__, row.path  # the summary of the document
        assert row.body is None or row.method in ("POST", "DELETE"), row.path

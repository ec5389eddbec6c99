"""Whatever becomes of a body that a client sends, it gets an answer that is right, or says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from oxillama.apps.server.routes import RERANK
from tests.support.server_bodies import (
    PATHS,
    POSTS,
    SEEDS,
    Application,
    bodies,
    fault,
    route_of,
    tiny_application,
)

EXAMPLES = 30
"""Bodies for each path; `tools/server_fuzz.py` sends as many as are wanted."""


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    with tiny_application(tmp_path_factory.mktemp("tiny")) as found:
        yield found


@pytest.mark.parametrize("path", PATHS)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_bodies_of_clients(application: Application, path: str, data: st.DataObject) -> None:
    body = data.draw(bodies(SEEDS[path]))
    reply = application.ask(path, json.dumps(body).encode())
    assert not (wrong := fault(path, body, reply)), wrong


def test_bytes_that_are_no_body(application: Application) -> None:
    for path in (path for path in PATHS if not path.endswith("erase")):  # which needs none
        for data in (b"", b"[", b'"a"', b"\xff\xfe", b"[" * 100_000, b'{"a": NaN}', b"null", b'{"a": 1e999}'):
            reply = application.ask(path, data)
            assert 400 <= reply.status < 500, (path, data[:20], reply)
            assert not fault(path, "", reply)


def test_an_error_can_name_what_is_no_text(application: Application) -> None:
    """Half a surrogate pair, which JSON can spell and UTF-8 cannot."""
    for body in (
        {"model": "\ud800", "prompt": "a"},
        {"prompt": "a", "\ud800": 1},
        {"prompt": "a", "stop": 5},
    ):
        reply = application.ask("/v1/completions", json.dumps(body).encode())
        assert 400 <= reply.status < 500
        assert not fault("/v1/completions", body, reply)


def test_the_seeds_are_right(application: Application) -> None:
    """Bodies that nobody changed are answered, but for those of a model that has what this one lacks."""
    lacks = (
        "/infill",
        "/v1/rerank",
        "/mcp/call",
        "/lora-adapters",
        "/slots/0?action=save",
        "/slots/0?action=restore",
        *("/v1/decisions", "/v1/systemone"),  # a context for a question
    )
    for path in PATHS:
        for body in SEEDS[path]:
            reply = application.ask(path, json.dumps(body).encode())
            right = reply.status == 200 or path in lacks or "tools" in json.dumps(body)
            assert right, (path, body, reply)


def test_each_path_has_seeds() -> None:
    second_names = {"/completions", *RERANK[1:], "/responses", "/embeddings"}
    second_names |= {"/chat/completions", "/chat/completions/input_tokens"}
    refused = {"/api/create", "/api/copy", "/api/push"}
    of_bytes = {"/page/pdf"}  # its body is no JSON: tests/apps/server/test_page_pdf.py
    assert POSTS - {route_of(path) for path in PATHS} <= second_names | refused | of_bytes

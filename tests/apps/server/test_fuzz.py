"""Whatever becomes of a body that a client sends, it gets an answer that is right, or says what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from oxillama.apps.server.routes import RERANK
from tests.support.server_bodies import BRIEFLY, PATHS, POSTS, SEEDS, Application, bodies, fault, route_of

EXAMPLES = 30
"""Bodies for each path; `tools/server_fuzz.py` sends as many as are wanted."""


@pytest.mark.parametrize("path", PATHS)
@settings(BRIEFLY, max_examples=EXAMPLES)
@given(data=st.data())
def test_bodies_of_clients(application: Application, path: str, data: st.DataObject) -> None:
    body = data.draw(bodies(SEEDS[path]))
    assert not (wrong := fault(path, body, application.ask(path, body))), wrong


def test_bytes_that_are_no_body(application: Application) -> None:
    for path in (path for path in PATHS if not path.endswith("erase")):  # which needs none
        for data in (b"", b"[", b'"a"', b"\xff\xfe", b"[" * 100_000, b'{"a": NaN}', b"null", b'{"a": 1e999}'):
            reply = application.ask(path, data)
            assert 400 <= reply.status < 500, (path, data[:20], reply)
            assert not fault(path, "", reply)
    for prompt in (b'"a", "prompt": "b"', b'"\\u0000"'):
        assert application.ask("/v1/completions", b'{"prompt": %b, "max_tokens": 1}' % prompt).status == 200


def test_hostile_bodies_end_soon(application: Application) -> None:
    """Large numbers, deep values and patterns that cost much: an answer, and the server goes on."""
    deep: Any = {}
    for _ in range(300):
        deep = {"a": deep}
    base = {"prompt": "hello", "max_tokens": 2}
    for more in (
        {"json_schema": deep},
        {"regex": "(a{1000}){1000}"},
        {"regex": "(" * 500},
        {"grammar": "root ::= " + "( " * 1000},
        {"choices": ["a" * 1000] * 500},
        {"stop": ["x"] * 5000},
        {"logit_bias": {str(i): 1 for i in range(5000)}},
        {"dry_sequence_breakers": ["\ud800"]},
        {"samplers": ["top_k"] * 1000},
        {"user": deep},
        {"prompt": [[5]] * 1025},
        {"n": 1024, "best_of": 1024, "prompt": ["a"] * 2},
        {"model": "x" * 10**5},
        {"x" * 10**5: 1},
    ):
        reply = application.ask("/v1/completions", {**base, **more})
        assert reply.status in (200, 400, 404), (str(more)[:100], reply.body[:500])
        assert len(reply.body) < 5000
    messages = [{"role": "user", "content": "x", "extra": deep}]
    assert application.ask("/v1/chat/completions", {"messages": messages}).status == 400
    assert application.ask("/v1/completions", base).status == 200


def test_the_seeds_are_right(application: Application) -> None:
    """Bodies that nobody changed are answered, but for those of a model that has what this one lacks."""
    lacks = ["/infill", "/v1/rerank", "/mcp/call", "/lora-adapters"]
    lacks += [f"/slots/0?action={action}" for action in ("save", "restore")]
    lacks += ["/v1/decisions", "/v1/systemone"]  # a context for a question
    for path in PATHS:
        for body in SEEDS[path]:
            reply = application.ask(path, body)
            right = reply.status == 200 or path in lacks or "tools" in json.dumps(body)
            assert right, (path, body, reply)


def test_each_path_has_seeds() -> None:
    second_names = {"/completions", *RERANK[1:], "/responses", "/embeddings"}
    second_names |= {"/chat/completions", "/chat/completions/input_tokens"}
    refused = {"/api/create", "/api/copy", "/api/push"}
    of_bytes = {"/page/pdf"}  # its body is no JSON: tests/apps/server/test_page_pdf.py
    assert POSTS - {route_of(path) for path in PATHS} <= second_names | refused | of_bytes

"""Whatever a body holds, the answer is right or says what is wrong: never a fault of the server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from oxillama.apps.server.anthropic.bodies import MessagesBody
from oxillama.apps.server.bodies import (
    ChatBody,
    CompletionBody,
    EmbeddingBody,
    InfillBody,
    NativeBody,
    TokenizeBody,
)
from oxillama.apps.server.options import HARMLESS, OPTIONS
from oxillama.apps.server.responses.bodies import ResponsesBody
from tests.support.server import Client
from tests.support.spread import leading

MODEL = {"context_length": 64}
BODIES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "/v1/completions": (CompletionBody, {"prompt": "hello"}),
    "/v1/chat/completions": (ChatBody, {"messages": [{"role": "user", "content": "hello"}]}),
    "/completion": (NativeBody, {"prompt": "hello"}),
    "/infill": (InfillBody, {"input_prefix": "a", "input_suffix": "b"}),
    "/v1/embeddings": (EmbeddingBody, {"input": "hello"}),
    "/v1/messages": (MessagesBody, {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}),
    "/v1/responses": (ResponsesBody, {"input": "hello", "max_output_tokens": 2}),
    "/tokenize": (TokenizeBody, {"content": "hello"}),
}
"""Paths with their classes, and a body that is right."""

NUMBERS = st.sampled_from([0, 1, -1, 2, 3, 0.5, 1.0, -0.5, 2**31, 2**63, 2**64, 10**30, 1e300, -(2**63) - 1])
PLAIN = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.text(max_size=5), st.sampled_from(["auto", "none", "text"])
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("path", leading(BODIES, 3))
@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_body(client: Client, path: str, data: st.DataObject) -> None:
    kind, right = BODIES[path]
    names = st.sampled_from([*kind.model_fields, *OPTIONS, *HARMLESS, "response_format", "nonsense"])
    drawn = data.draw(st.dictionaries(names, VALUES, max_size=3))
    drawn = {name: value for name, value in drawn.items() if name not in ("n", "best_of", "timeout")}
    answer = client.ask(
        path, {**right, "max_tokens": 2, **drawn} if "completion" in path else {**right, **drawn}
    )
    assert answer.status in (200, 400, 404), (drawn, answer.text)
    if answer.status == 200 and drawn.get("stream") is not True:
        assert isinstance(answer.json, (dict, list))
    elif answer.status != 200:
        assert answer.error["message"] and len(answer.text) < 3000


def test_hostile_bodies_end_soon(client: Client) -> None:
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
        answer = client.ask("/v1/completions", {**base, **more})
        assert answer.status in (200, 400, 404), (str(more)[:100], answer.text[:500])
        assert len(answer.text) < 5000
    messages = [{"role": "user", "content": "x", "extra": deep}]
    assert client.ask("/v1/chat/completions", {"messages": messages}).status == 400
    assert client.ask("/health").status == 200


def test_bytes_that_are_no_body(client: Client) -> None:
    for text in ('{"prompt": "a", "prompt": "b", "max_tokens": 1}', '{"prompt": "\\u0000", "max_tokens": 1}'):
        assert client.ask("/v1/completions", text.encode()).status == 200
    assert client.ask("/v1/completions", json.dumps({"prompt": 1e400}).encode()).status == 400

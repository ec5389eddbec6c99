"""Answers are bounded before they are made, and written piece by piece."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oxillama import demo
from oxillama.apps.server import answer_size, json_text
from oxillama.apps.server.json_text import encoded
from oxillama.apps.server.openai import logprobs
from oxillama.apps.server.pieces import ENCODER, Mapped
from oxillama.engine.sampling.logprobs import Likeliest
from tests.support.server import Client
from tests.support.waiting import idle

MODEL = demo.STORY
CHAT = {"messages": [{"role": "user", "content": "Once"}], "logprobs": True, "temperature": 0}
TEXT = {"prompt": "Once", "temperature": 0}
ONE: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {**TEXT, "logprobs": 5, "max_tokens": 12}),
    ("/v1/completions", {**TEXT, "logprobs": 5, "max_tokens": 12, "echo": True, "n": 2}),
    ("/v1/chat/completions", {**CHAT, "top_logprobs": 5, "max_tokens": 12}),
    ("/completion", {**TEXT, "n_probs": 5, "n_predict": 12}),
    ("/completion", {**TEXT, "n_probs": 5, "n_predict": 12, "post_sampling_probs": True}),
    ("/api/generate", {**TEXT, "logprobs": True, "top_logprobs": 5, "stream": False}),
    ("/v1/responses", {"input": "Once", "top_logprobs": 5, "max_output_tokens": 16, "temperature": 0}),
    ("/embedding", {"content": ["Once", "Once upon a time"], "pooling": "none"}),
    ("/v1/embeddings", {"input": ["Once", "Once upon a time"], "dimensions": 20}),
    ("/api/embed", {"input": ["Once", "Once upon a time"]}),
]


def numbers(value: Any) -> Any:
    """An answer without ids and times."""
    if isinstance(value, dict):
        measured = (
            "id", "created", "created_at", "completed_at", "timings", "tokens_cached", "usage",
            "tokens_evaluated", "generation_settings", "context",
        )  # fmt: skip
        return {k: numbers(v) for k, v in value.items() if k not in measured and "duration" not in k}
    return [numbers(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("path", "body"), ONE)
def test_what_is_made_when_it_is_written_is_the_same(
    client: Client, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = client.ask(path, body, status=200)
    monkeypatch.setattr(logprobs, "PARTS", 0)
    monkeypatch.setattr(json_text, "PARTS", 2)
    monkeypatch.setattr(json_text, "LARGE", 100)
    found = client.ask(path, body)
    assert numbers(found.json) == numbers(usual.json)
    assert len(found.text) > 100


@pytest.mark.parametrize(("path", "body"), ONE)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_grows_too_large_is_an_error(
    client: Client, path: str, body: dict[str, Any], stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_size, "MOST_BYTES", 900)
    if stream and "embed" in path:
        return  # such an answer is no stream
    answer = client.ask(path, {**body, "stream": True} if stream else body)
    assert "expected an answer of at most 0 MiB" in answer.text
    if not stream:
        assert answer.status == 400
        assert "answer_too_large" in answer.text or path.startswith("/api")
    idle(client.hosted.ready())


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        (
            "/v1/completions",
            {**TEXT, "n": 128, "logprobs": 100, "max_tokens": 400},
            "n, max_tokens, top_logprobs",
        ),
        (
            "/v1/completions",
            {**TEXT, "n": 1, "best_of": 900, "logprobs": 100, "max_tokens": 400},
            "n, max_tokens",
        ),
        ("/v1/completions", {"prompt": ["Once"] * 128, "logprobs": 100, "max_tokens": 400}, "n, max_tokens"),
        ("/v1/completions", {"prompt": "Once " * 100, "echo": True, "n": 512, "logprobs": 100}, "prompt, n"),
        ("/v1/completions", {"prompt": "." * 400_000, "suffix": "x", "echo": True, "n": 1000}, "prompt"),
        ("/v1/chat/completions", {**CHAT, "n": 128, "top_logprobs": 100, "max_tokens": 400}, "n, max_tokens"),
        ("/completion", {"prompt": ["Once"] * 128, "n_probs": 100, "n_predict": 400}, "n, max_tokens"),
        ("/embedding", {"content": ["Once upon a time " * 80] * 128, "pooling": "none"}, "content, pooling"),
    ],
)
def test_what_would_be_too_large_does_not_begin(client: Client, path: str, body: Any, fields: str) -> None:
    answer = client.ask(path, body, status=400)
    assert answer.error["message"].startswith(fields)
    assert not client.hosted.ready().model.scheduler.running


def test_values_that_are_made_when_they_are_written() -> None:
    value = {"a": Mapped(str, [1, 2]), "b": [Mapped(str, [])], "c": Mapped(lambda n: [n] * 3000, range(2))}
    plain = {"a": ["1", "2"], "b": [[]], "c": [[0] * 3000, [1] * 3000]}
    assert "".join(encoded(value)) == ENCODER.encode(value) == ENCODER.encode(plain)
    assert json.loads("".join(encoded(value))) == plain
    with pytest.raises(TypeError, match="got set"):
        ENCODER.encode({1})
    assert value["a"][1] == "2" and len(value["a"]) == 2


def test_the_likeliest_tokens_equal_a_tuple() -> None:
    import numpy as np

    found = Likeliest(np.array([3, 1]), np.array([-0.5, -2.0]))
    assert found == ((3, -0.5), (1, -2.0)) and found == ((3, -0.5), (1, -2.0))
    assert found != ((3, -0.5),) and hash(found) == hash(((3, -0.5), (1, -2.0)))
    assert (found[1], found[-2:], len(found), dict(found)) == ((1, -2.0), tuple(found), 2, {3: -0.5, 1: -2.0})
    assert repr(found) == "((3, -0.5), (1, -2.0))"

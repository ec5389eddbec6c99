"""The answer to a row holds what follows from the row: runs of a file are equal, byte for byte."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from oxillama import InferenceEngine
from oxillama.apps.batch import api
from oxillama.apps.batch.job import Job, with_engine
from oxillama.apps.batch.plain import Settings
from oxillama.apps.batch.reproducible import ANSWERS, reproducible
from oxillama.apps.batch.rows import Rows
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.openai import chat, vectors
from oxillama.apps.server.openai.completions import usage_of

SETTINGS = Settings(model_name="tiny")
MESSAGES = [{"role": "user", "content": "hello world"}]
SCHEMA = {"type": "object", "properties": {"up": {"const": True}}, "required": ["up"]}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
CHATS: list[dict[str, Any]] = [
    {},
    {"n": 2, "seed": 3},
    {"logprobs": True, "top_logprobs": 2, "verbose": True, "return_progress": True},
    {"timings_per_token": True, "receipt": True, "cache_prompt": False},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    {"tools": TOOLS, "tool_choice": "required", "max_tokens": 60, "verbose": True},
    {"id_slot": 0, "store": True, "user": "ann", "metadata": {"a": "b"}},
    {"max_tokens": "many"},
    {"messages": [{"role": "user", "content": "hello " * 3000}]},
]
COMPLETIONS: list[dict[str, Any]] = [
    {},
    {"n": 2, "best_of": 3, "logprobs": 2, "echo": True},
    {"receipt": True, "return_progress": True},
    {"prompt": [5, 6, 7]},
    {"prompt": ["once", "upon"]},
]
EMBEDDINGS: list[dict[str, Any]] = [
    {"input": "once"},
    {"input": ["once", "upon"], "encoding_format": "base64", "dimensions": 4},
    {"messages": MESSAGES},
]
QUESTION = {"instructions": "Is it so?"}
DECISIONS = [{"model": "tiny", "input": "once", "questions": [{"type": "predicate", **QUESTION}]}]
SYSTEM_ONE = [{"state": {"a": 1}, "questions": {"a": {"type": "noul", **QUESTION}}}]
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [{"messages": MESSAGES, "max_tokens": 6, **more} for more in CHATS],
    "/v1/completions": [{"prompt": "once upon a time", "max_tokens": 6, **more} for more in COMPLETIONS],
    "/v1/embeddings": EMBEDDINGS,
    "/v1/decisions": DECISIONS,
    "/v1/systemone": SYSTEM_ONE,
}
PLAIN: list[dict[str, Any]] = [
    {"prompt": "once", "max_tokens": 6, "logprobs": True, "top_logprobs": 2, "receipt": True},
    {"messages": MESSAGES, "max_tokens": 6, "json_schema": SCHEMA},
    {"input": "once"},
    SYSTEM_ONE[0],
]
LEFT_OUT = {
    "/v1/chat/completions": {"system_fingerprint", "timings", "__verbose", "usage.prompt_tokens_details"},
    "/v1/completions": {"system_fingerprint", "usage.prompt_tokens_details"},
    "/v1/embeddings": set[str](),
    "/v1/decisions": {"usage.input_tokens_details", "usage.output_tokens_details"},
    "/v1/systemone": set[str](),
}
"""Fields of the server's answers that are in no answer of a job."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file with a row of every url and of every kind."""
    rows: list[dict[str, Any]] = [
        {"custom_id": "a", "method": "POST", "url": url, "body": body}
        for url, bodies in BODIES.items()
        for body in bodies
    ]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in [*rows, *PLAIN, {"prompt": "a", "input": "b"}]))
    return path


def test_every_url_has_rows_here() -> None:
    assert BODIES.keys() == ANSWERS.keys() == LEFT_OUT.keys()


def test_runs_are_equal_also_when_they_are_interrupted(engine: InferenceEngine, source: Path) -> None:
    def run(name: str) -> Job:
        rows = Rows(engine, SETTINGS)  # the prefix cache is another one each time
        job = Job(source, source.with_name(name), {"model": "tiny"})
        job.run(with_engine(rows, 3), lambda tally: stop(name, tally.n_done - tally.n_known))
        return job

    def stop(name: str, n_new: int) -> None:
        if name == "cut.jsonl" and n_new == 2:
            raise KeyboardInterrupt

    whole, again = (run(name).target.read_bytes() for name in ("whole.jsonl", "again.jsonl"))
    assert whole == again
    n = len(whole.splitlines())
    for _ in range(n // 2 + 1):
        try:
            run("cut.jsonl")
        except KeyboardInterrupt:
            continue
        break
    assert source.with_name("cut.jsonl").read_bytes() == whole
    errors = [json.loads(line)["error"] for line in whole.splitlines()]
    assert [error is not None for error in errors] == [False] * (n - 1) + [True]


@pytest.mark.parametrize("url", BODIES)
def test_what_is_left_out_is_known(engine: InferenceEngine, url: str) -> None:
    """A new field of the server must be named in the tables, or here."""
    app = api.Api(engine, SETTINGS)._app
    gone: set[str] = set()
    for body in BODIES[url]:
        _, data = asyncio.run(api.call(app, url, json.dumps(body).encode(), "req_1"))
        found = json.loads(data)
        gone |= missing(found, reproducible(url, 1, found))
    assert gone == LEFT_OUT[url]


def missing(value: Any, kept: Any, at: str = "") -> set[str]:
    """The paths of fields of a value that are not in ``kept``."""
    if isinstance(value, list):
        return set().union(*(missing(one, other, at) for one, other in zip(value, kept, strict=True)))
    if not isinstance(value, dict):
        return set()
    gone = {f"{at}{name}" for name in value.keys() - kept.keys()}
    return gone.union(*(missing(value[name], kept[name], f"{at}{name}.") for name in kept))


def test_a_new_field_with_a_time_does_not_get_in(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "times_of", lambda generations: {"seconds": 1.5})
    monkeypatch.setattr(chat, "usage_of", lambda *given: {**usage_of(*given), "ms": 2.5})
    monkeypatch.setattr(chat, "receipt_of", lambda generation: {"at": 3.5})
    monkeypatch.setattr(vectors, "JsonAnswer", lambda value: JsonAnswer({**value, "spent": 4.5}))
    rows = Rows(engine, SETTINGS)
    for number, (url, bodies) in enumerate(BODIES.items()):
        row = {"custom_id": "a", "method": "POST", "url": url, "body": bodies[0]}
        found = json.dumps(asyncio.run(rows.answer(number, row)))
        assert '"status_code": 200' in found
        assert not any(name in found for name in ('"seconds"', '"ms"', '"at"', '"spent"'))

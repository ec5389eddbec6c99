"""Decisions over HTTP: both formats to the field, their errors, and clients' bodies."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from oxillama import EngineConfig
from oxillama.apps.batch.plain import Settings
from oxillama.apps.batch.rows import Rows
from oxillama.apps.cli import main
from oxillama.apps.server.models import Hosted
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.features.decisions import answers
from tests.support.decision_models import chat_file, decision_file
from tests.support.paths import SHARED
from tests.support.server import Answer, Client, bearer, serving, serving_models

CLIENTS = SHARED / "parity-decisions" / "decision_clients.py"
STATE = "The parcel was due on Monday and came on Thursday."
SYSTEM_ONE: dict[str, Any] = {
    "model": "m",
    "state": {"z": STATE, "a": [1, None]},
    "questions": {
        "z": {"type": "noul", "instructions": "Late?", "criteria": {"true": "after the day", "false": None}},
        "a": {"type": "choice", "instructions": {"ask": "Which?"}, "criteria": {"b": None, "a": {"k": [1]}}},
        "s": {"type": "score", "instructions": "How bad?", "criteria": ["low", {"high": 1}]},
    },
}
OPENAI: dict[str, Any] = {
    "model": "m",
    "input": STATE,
    "questions": [
        {"type": "predicate", "name": "late", "instructions": "Late?"},
        {
            "type": "choice",
            "instructions": [
                {"type": "input_text", "text": "Which?"},
                {"type": "input_json", "data": {"a": 1}},
            ],
            "choices": [{"value": True}, {"value": "true", "description": "the text"}, {"value": "b"}],
        },
        {
            "type": "score",
            "name": "late",
            "instructions": "How bad?",
            "levels": [{"label": "low"}, {"label": "high", "description": "today"}],
        },
    ],
}


def engine_of(kind: str = "openjev") -> InferenceEngine:
    engine = InferenceEngine(EngineConfig(num_threads=1, kv_type="f32"))
    engine.load_model_from_bytes(decision_file(kind) if kind else chat_file())
    return engine


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving(engine_of(), "m") as client:
        yield client


def system_one(client: Client, status: int | None = None, **fields: Any) -> Answer:
    return client.ask("/v1/systemone", {**SYSTEM_ONE, **fields}, status=status)


def openai(client: Client, status: int | None = None, **fields: Any) -> Answer:
    return client.ask("/v1/decisions", {**OPENAI, **fields}, status=status)


def user(*content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(content)}]


def test_system_one(client: Client) -> None:
    found = system_one(client)
    assert found.status == 200 and found.headers["x-typesafe-request-id"]
    body = found.json
    assert list(body) == ["model", "answers", "usage"] and body["model"] == "m"
    assert list(body["answers"]) == ["z", "a", "s"] and body["usage"]["output_tokens"] == 0
    late, which, bad = body["answers"].values()
    assert set(late) - {"x_label_mass"} == {"type", "noul"} and late["type"] == "noul"
    assert set(which) - {"x_label_mass"} == {"type", "choice", "probabilities", "confidence"}
    assert list(which["probabilities"]) == ["b", "a"]
    assert which["choice"] == max(which["probabilities"], key=which["probabilities"].__getitem__)
    assert bad["legend"] == {"0": "low", "1": {"high": 1}} and list(bad["probabilities"]) == ["0", "1"]
    assert bad["score"] == bad["probabilities"]["1"]
    assert answers.peak_of_score(list(bad["probabilities"].values())) == bad["confidence"]
    alone = system_one(client, questions={"a": SYSTEM_ONE["questions"]["a"]}).json
    assert alone["answers"]["a"] == which and alone["usage"]["input_tokens"] < body["usage"]["input_tokens"]


def test_the_model_of_the_sdk_is_the_first_unless_one_has_the_name(client: Client) -> None:
    found = system_one(client, model="jev-latest")
    assert found.status == 200 and found.json["model"] == "m"
    assert system_one(client, model="jev-late").status == 404
    assert openai(client, model="jev-latest").status == 404  # another SDK
    with serving_models(Hosted("m", engine_of()), Hosted("jev-latest", engine_of(""))) as both:
        assert system_one(both, model="jev-latest").json["model"] == "jev-latest"


def test_openai(client: Client) -> None:
    more = {"safety_identifier": "u", "prompt_cache_key": "k", "prompt_cache_options": {"mode": "implicit"}}
    body = openai(client, status=200, **more).json
    assert list(body) == ["model", "answers", "usage"]
    assert [(each["type"], each["name"]) for each in body["answers"]] == [
        ("predicate", "late"), ("choice", None), ("score", "late"),
    ]  # fmt: skip
    late, which, bad = body["answers"]
    assert 0 < late["probability"] < 1 and "confidence" not in late
    values = [each["value"] for each in which["probabilities"]]
    assert values == [True, "true", "b"] and values[0] is True
    assert sum(each["probability"] for each in which["probabilities"]) == pytest.approx(1)
    assert [(each["value"], each["label"]) for each in bad["probabilities"]] == [(0, "low"), (1, "high")]
    usage = body["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] and usage["output_tokens"] == 0
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    assert usage["input_tokens_details"]["cached_tokens"] >= 0
    again = openai(client).json
    assert again["answers"] == body["answers"]
    cached = [each["input_tokens_details"]["cached_tokens"] for each in (usage, again["usage"])]
    assert cached[0] < cached[1]


def test_both_formats_ask_the_same(client: Client) -> None:
    questions = [{"type": "predicate", "name": "z", "instructions": "Late?"}]
    data = user({"type": "input_json", "data": {"a": [1, None], "b": STATE}})
    found = openai(client, input=data, questions=questions).json["answers"][0]
    asked = {"z": {"type": "noul", "instructions": "Late?"}}
    other = system_one(client, state={"a": [1, None], "b": STATE}, questions=asked)
    assert other.json["answers"]["z"]["noul"] == found["probability"]


def test_items_of_an_input(client: Client) -> None:
    items = [
        {"role": "developer", "content": "Be strict."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "hi"}], "phase": "commentary"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "done"}]},
        {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "done"},
    ]
    assert openai(client, input=items).status == 200
    for wrong, param in (
        ([items[4]], "input[0].call_id"),
        ([{"role": "robot", "content": "x"}], "input[0].role"),
        ([{"type": "computer_call"}], "input[0].type"),
        (user({"type": "input_image", "image_url": "data:,"}), "input[0].content[0]"),
        (user({"type": "input_json", "data": [1]}), "input[0].content[0].data"),
        ([], "input"),
    ):
        found = openai(client, input=wrong)
        assert found.refusal("param") == (400, param)


def choice(*values: Any) -> dict[str, Any]:
    return {"type": "choice", "instructions": "?", "choices": [{"value": value} for value in values]}


def score(*labels: Any) -> dict[str, Any]:
    return {"type": "score", "instructions": "?", "levels": [{"label": label} for label in labels]}


@pytest.mark.parametrize(
    ("question", "param"),
    [
        ({"type": "noul", "instructions": "?"}, "questions[0].type"),
        ({"type": "predicate"}, "questions[0].instructions"),
        ({"type": "predicate", "instructions": "?", "criteria": {}}, "questions[0].criteria"),
        (choice("a"), "questions[0].choices"),
        (choice("a", "a"), "questions[0].choices"),
        (choice(1, "a"), "questions[0].choices[0].value"),
        (choice(*map(str, range(60))), "questions.0"),
        (score("a"), "questions[0].levels"),
        (score(1, 1), "questions[0].levels[0].label"),
    ],
)
def test_wrong_questions_of_openai(client: Client, question: Any, param: str) -> None:
    found = openai(client, questions=[question])
    assert found.refusal("param") == (400, param) and found.error["message"]
    assert found.error["type"] == "invalid_request_error" and set(found.json) == {"error"}


def question(kind: str, criteria: Any) -> dict[str, Any]:
    """The field of a request that asks one question."""
    return {"questions": {"a": {"type": kind, "instructions": "?", "criteria": criteria}}}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"state": None}, ["state"]),
        ({"questions": {}}, ["questions"]),
        ({"questions": []}, ["questions"]),
        ({"questions": {"a.b": {"type": "noul"}}}, ["questions", "a.b", "instructions"]),
        ({"questions": {"a": {"type": "box", "instructions": "?"}}}, ["questions", "a", "type"]),
        (question("noul", ["t"]), ["questions", "a", "criteria"]),
        (question("noul", {"yes": "y"}), ["questions", "a", "criteria", "yes"]),
        (question("score", list("abcdefghijk")), ["questions", "a", "criteria"]),
        (question("choice", dict.fromkeys(map(str, range(256)))), ["questions", "a", "criteria"]),
        (question("choice", dict.fromkeys(map(str, range(60)))), ["questions", "a"]),
        ({"images": ["data:image/png;base64,AA=="]}, ["images"]),
        ({"videos": "x"}, ["videos"]),
        ({"state": user({"type": "image_url", "image_url": "data:,"})}, ["state"]),
        ({"stream": True}, ["stream"]),
        ({"temperature": 1}, ["temperature"]),
    ],
)
def test_wrong_requests_of_system_one(client: Client, fields: Any, place: list[str]) -> None:
    found = system_one(client, **fields)
    (fault,) = found.json["detail"]
    assert found.status == 422 and fault["loc"] == ["body", *place] and fault["msg"] and fault["type"]
    assert found.error["message"] == fault["msg"]


def test_prompts_that_are_too_long(client: Client) -> None:
    for found in (system_one(client, state="word " * 3000), openai(client, input="word " * 3000)):
        assert found.status == 400 and found.error["code"] == "context_length_exceeded"


def test_names_of_models_and_keys() -> None:
    with serving(engine_of(), "m", api_keys=("secret",)) as client:
        found = system_one(client)
        assert found.status == 401 and found.json["detail"] == found.error["message"]
        key = bearer("secret")
        assert client.ask("/v1/systemone", {**SYSTEM_ONE, "model": "other"}, headers=key).status == 404
        assert client.ask("/v1/decisions", OPENAI, headers=key).status == 200


def test_compressed_bodies(client: Client) -> None:
    data = json.dumps(SYSTEM_ONE).encode()
    expected = system_one(client).json["answers"]
    found = client.ask("/v1/systemone", gzip.compress(data), headers={"Content-Encoding": "gzip"})
    assert found.json["answers"] == expected
    zstd = pytest.importorskip("backports.zstd")
    found = client.ask("/v1/systemone", zstd.compress(data), headers={"Content-Encoding": "zstd"})
    assert found.json["answers"] == expected


def test_many_at_a_time(client: Client) -> None:
    expected = openai(client).json["answers"]
    with ThreadPoolExecutor(8) as threads:
        found = list(
            threads.map(lambda i: openai(client) if i % 2 else system_one(client, state="x" * i), range(24))
        )
    assert all(each.json["answers"] == expected for each in found[1::2])


def test_lists_of_models(client: Client) -> None:
    found = client.ask("/v1/models").json
    (card,), (named,) = found["data"], found["models"]
    assert card["architecture"]["output_modalities"] == ["decisions"]
    assert named["capabilities"] == ["decision"] and named["name"] == "m"
    assert named["description"] and len(named["release_date"]) == 10


def test_chat_models_and_others() -> None:
    with serving(engine_of(""), "m") as client:
        found = system_one(client).json["answers"]
        assert found["z"]["x_label_mass"] < 0.1 and found["s"]["legend"]["0"] == "low"
    with serving(engine_of("clef"), "m") as client:
        found = system_one(client).json["answers"]
        assert list(found["a"]["probabilities"]) == ["a", "b"]  # which it is shown sorted
        which = openai(client).json["answers"][1]
        assert [each["value"] for each in which["probabilities"]] == [True, "true", "b"]
    with serving(engine_of("lfm2-d1-omni"), "m") as client:
        questions = {"a": {"type": "noul", "instructions": "?", "criteria": {"yes": "y", "no": "n"}}}
        assert system_one(client, questions=questions, state=None).status == 200


def test_the_sdk_of_openai(client: Client) -> None:
    sdk = pytest.importorskip("openai")
    if not hasattr(sdk.OpenAI, "decisions"):
        pytest.skip("an older SDK")
    with sdk.OpenAI(base_url=f"{client.server.url}/v1", api_key="k", max_retries=0) as found:
        answer = found.decisions.create(**OPENAI)
        assert [each.type for each in answer.answers] == ["predicate", "choice", "score"]
        assert answer.answers[1].probabilities[0].value is True
        assert answer.usage.total_tokens == answer.usage.input_tokens
        with pytest.raises(sdk.BadRequestError, match="array of 1 to 400"):
            found.decisions.create(**{**OPENAI, "questions": []})


@pytest.mark.slow
@pytest.mark.skipif(not CLIENTS.exists(), reason="the clients' script is not here")
def test_clients_that_are_installed(client: Client) -> None:
    ran = subprocess.run(
        [sys.executable, str(CLIENTS), client.server.url, "m"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout
    assert "FAIL" not in ran.stdout and "ok    openai" in ran.stdout


# --- files ------------------------------------------------------------------------------------------------


def test_rows_of_a_batch() -> None:
    engine = engine_of()
    rows = Rows(engine, Settings(model_name="m"))
    expected = engine.decide(STATE, {"q": {"type": "noul", "instructions": "Late?"}})["q"]

    async def answered(row: dict[str, Any]) -> dict[str, Any]:
        return await rows.answer(0, row)

    plain = {"id": 7, "state": STATE, "questions": {"q": {"type": "noul", "instructions": "Late?"}}}
    found = asyncio.run(answered(plain))
    assert found["id"] == 7 and found["error"] is None
    assert found["answers"]["q"]["noul"] == expected.probability
    assert found["usage"]["prompt_tokens"] > 0
    fault = asyncio.run(answered({"state": STATE, "questions": {}}))["error"]
    assert "non-empty object" in fault["message"]
    for url, body in (("/v1/systemone", {**plain, "model": "m"}), ("/v1/decisions", OPENAI)):
        body = {name: value for name, value in body.items() if name != "id"}
        row = {"custom_id": "a", "method": "POST", "url": url, "body": body}
        response = asyncio.run(answered(row))["response"]
        assert response["status_code"] == 200 and response["body"]["answers"]
        assert set(response["body"]["usage"]) - {"total_tokens"} == {"input_tokens", "output_tokens"}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, requests = tmp_path / "m.gguf", tmp_path / "requests.jsonl"
    model.write_bytes(decision_file("openjev"))
    lines = [SYSTEM_ONE, {"state": "s"}, OPENAI]
    requests.write_text("\n".join(map(json.dumps, lines)))
    options = ["--kv-type", "f32", "--num-threads", "1", "-q"]
    assert main(["decide", str(model), str(requests), *options]) == 1
    first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    assert list(first["answers"]) == ["z", "a", "s"] and len(third["answers"]) == 3
    assert second == {"error": "questions: must be provided"}
    requests.write_text(json.dumps(SYSTEM_ONE, indent=2))
    assert main(["decide", str(model), str(requests), "--confidence", "entropy", *options]) == 0
    (again,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert again["answers"]["z"] == first["answers"]["z"]
    requests.write_text("no JSON")
    assert main(["decide", str(model), str(requests), *options]) == 2
    assert "expected JSON in line 1" in capsys.readouterr().err

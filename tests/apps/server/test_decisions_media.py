"""Pictures in decisions over HTTP, in rows and files: each form asks what `engine.decide` does."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oxillama import ConfigError, InferenceEngine
from oxillama.apps.batch.plain import Settings
from oxillama.apps.batch.rows import Rows
from oxillama.apps.cli import main
from oxillama.apps.decisions.receipt import DecisionReceipt, sealed, verify_decisions
from oxillama.apps.server import media as module
from oxillama.apps.server.models import Hosted
from oxillama.apps.server.raw_bodies import MOST_FORM_PARTS
from tests.apps.server.test_media import encoded, part_of_url, png, said, text, url
from tests.support.decision_models import chat_file, decision_file
from tests.support.media import WIDTH, projector_file
from tests.support.server import Answer, Client, serving_models

pytest.importorskip("PIL.Image", reason="Pillow is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:questions")

TEXT = "It came on Monday."
INSTRUCTIONS = "Is the parcel torn?"
QUESTIONS = {"q": {"type": "noul", "instructions": INSTRUCTIONS}}
PREDICATE = {"type": "predicate", "instructions": INSTRUCTIONS}
BASE64 = encoded(png(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("pictures")
    (found / "plain").mkdir()
    (found / "m.gguf").write_bytes(chat_file(n_embd=WIDTH))
    (found / "mmproj.gguf").write_bytes(projector_file())
    (found / "plain" / "plain.gguf").write_bytes(chat_file())
    (found / "plain" / "lev.gguf").write_bytes(decision_file("lev"))
    for i in range(3):
        (found / f"{i}.png").write_bytes(png(i))
    return found


def opened(folder: Path, name: str = "m") -> InferenceEngine:
    return InferenceEngine.from_gguf(folder / f"{name}.gguf", num_threads=1, kv_type="f32")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[InferenceEngine]:
    with opened(folder) as engine:
        yield engine


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    models = [Hosted(name, opened(folder, path)) for name, path in (
        ("m", "m"), ("plain", "plain/plain"), ("lev", "plain/lev"),
    )]  # fmt: skip
    with serving_models(*models) as found:
        yield found


def wanted(engine: InferenceEngine, state: Any, **question: Any) -> float:
    found = engine.decide(state, {"q": {"type": "noul", "instructions": INSTRUCTIONS, **question}})
    return found["q"].probability  # type: ignore[union-attr]


def image(seed: int) -> dict[str, Any]:
    return {"type": "image", "image": png(seed)}


def system_one(client: Client, state: Any, questions: Any = QUESTIONS, **fields: Any) -> Answer:
    return client.ask("/v1/systemone", {"model": "m", "state": state, "questions": questions, **fields})


def openai(client: Client, input: Any, question: Any = PREDICATE, **fields: Any) -> Answer:
    return client.ask("/v1/decisions", {"model": "m", "input": input, "questions": [question], **fields})


def yes(found: Answer) -> float:
    answers = found.json["answers"]
    return answers["q"]["noul"] if isinstance(answers, dict) else answers[0]["probability"]  # type: ignore[no-any-return]


# --- OpenAI's decisions -----------------------------------------------------------------------------------


def test_parts_of_openai(client: Client, alone: InferenceEngine) -> None:
    picture = {"type": "input_image", "image_url": url(png(1)), "detail": "high"}
    words = {"type": "input_text", "text": TEXT}
    message = {"role": "user", "content": [picture, words]}
    first = openai(client, [message])
    assert yes(first) == wanted(alone, [image(1), text(TEXT)])
    assert first.json["usage"]["input_tokens"] > 16
    again = openai(client, [message], {**PREDICATE, "instructions": "Another?"}).json["usage"]
    assert again["input_tokens_details"]["cached_tokens"] >= 32
    asked = [{"type": "input_text", "text": "So?"}, picture]
    found = openai(client, TEXT, {**PREDICATE, "instructions": asked})
    assert yes(found) == wanted(alone, TEXT, instructions=[text("So?"), image(1)])
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": [words, picture]}
    state = [
        {"role": "user", "content": [image(1), text(TEXT)]},
        {"role": "assistant", "call": "f", "arguments": "{}"},
        {"role": "tool", "content": [text(TEXT), image(1)]},
    ]
    assert yes(openai(client, [message, call, output])) == wanted(alone, state)
    data = [{"type": "image", "name": "x"}]  # JSON is shown as text
    assert openai(client, said({"type": "input_json", "data": data})).status == 200


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"image_url": "https://a.b/c.png"}, ".image_url"),
        ({"image_url": "file:///etc/passwd"}, ".image_url"),
        ({"image_url": "data:image/png;base64,AAAA"}, ".image_url"),
        ({"image_url": 1}, ".image_url"),
        ({"file_id": "f"}, ".file_id"),
        ({}, ".image_url"),
        ({"image_url": url(png()), "detail": "low"}, ".detail"),
    ],
)
def test_pictures_that_openai_refuses(client: Client, part: Any, param: str) -> None:
    message = {"role": "user", "content": [{"type": "input_image", **part}]}
    found = openai(client, [message])
    assert found.refusal("param") == (400, f"input[0].content[0]{param}")
    found = openai(client, "x", {**PREDICATE, "instructions": message["content"]})
    assert found.refusal("param") == (400, f"questions[0].instructions[0]{param}")


# --- System One ---------------------------------------------------------------------------------------------


def test_assets(client: Client, alone: InferenceEngine) -> None:
    """Their placeholders stand anywhere, also inside of texts, and more than once."""
    first = {"type": "image", "format": "png", "data_base64": BASE64}
    assets = {"p1": first, "p12": {"data_base64": encoded(png(2))}}
    found = system_one(client, f"p1\n{TEXT}", assets=dict(list(assets.items())[:1]))
    assert yes(found) == wanted(alone, [image(1), text(TEXT)])
    asked = {"type": "noul", "instructions": {"see": "p12"}, "criteria": {"true": "like p1", "false": None}}
    state = {"a": ["x p12", {"b": None}]}
    found = system_one(client, state, {"q": asked}, assets=assets)
    assert found.status == 200
    turned = {name: assets[other] for name, other in zip(assets, reversed(assets))}
    assert yes(system_one(client, state, {"q": asked}, assets=turned)) != yes(found)
    levels = {"type": "score", "instructions": "?", "criteria": ["p1", {"high": "p12"}]}
    found = system_one(client, TEXT, {"q": levels}, assets=assets)
    assert found.json["answers"]["q"]["legend"] == {"0": "p1", "1": {"high": "p12"}}


def form(*parts: tuple[str, bytes], ending: str = "--") -> bytes:
    head = 'Content-Disposition: form-data; name="{}"; filename="x"\r\nContent-Type: image/png\r\n\r\n'
    pieces = [f"--b-1\r\n{head.format(name)}".encode() + data + b"\r\n" for name, data in parts]
    return b"".join(pieces) + f"--b-1{ending}\r\n".encode()


def send(
    client: Client, data: bytes, kind: str = 'multipart/form-data; boundary="b-1"', **headers: str
) -> Answer:
    return client.ask("/v1/systemone", data, headers={"Content-Type": kind, **headers})


def test_forms(client: Client) -> None:
    body = {"model": "m", "state": "i j", "questions": QUESTIONS}
    assets: dict[str, Any] = {"i": {"type": "image", "part": "asset-0"}, "j": {"part": "asset-1"}}
    parts = [("asset-0", png(1)), ("asset-1", png(2))]
    request = ("request", json.dumps({**body, "assets": assets}).encode())
    found = send(client, form(request, *parts))
    given = {name: {"data_base64": encoded(png(i))} for name, i in (("i", 1), ("j", 2))}
    assert yes(found) == yes(system_one(client, "i j", assets=given))
    plain = ("request", json.dumps(body).encode())
    more = {**body, "assets": {**assets, "i": {"part": "asset-0", "url": 1}}}
    extra = ("request", json.dumps(more).encode())
    found = send(client, gzip.compress(form(request, *parts)), **{"Content-Encoding": "gzip"})
    assert yes(found) == yes(system_one(client, "i j", assets=given))
    assert yes(send(client, form(plain))) == yes(system_one(client, "i j"))
    for wrong, status in (
        (form(request, *parts[:1]), 422),
        (form(extra, *parts), 422),
        (form(request, *parts).replace(b"image/png", b"x/y\r\nContent-Transfer-Encoding: base64"), 400),
        (form(request, *parts, ("asset-2", b"x")), 422),
        (form(plain, *parts), 422),
        (form(*parts), 400),
        (form(request, *parts, parts[0]), 400),
        (form(request, *parts, ending=""), 400),
        (form(("request", b"{")), 400),
        (form(request, *[(f"x{i}", b"") for i in range(MOST_FORM_PARTS + 1)]), 400),
        (b"", 400),
    ):
        found = send(client, wrong)
        assert found.status == status and found.json["detail"], wrong[-60:]
    assert send(client, form(plain), "multipart/form-data").status == 400
    assert send(client, form(plain), Origin="https://elsewhere").status in (403, 415)


def test_files_and_messages(client: Client, alone: InferenceEngine) -> None:
    """llama-server's fields and parts, and Ollama's base64."""
    expected = wanted(alone, [image(1), text(TEXT)])
    for fields in ({"files": [url(png(1))]}, {"images": [url(png(1))]}, {"images": [BASE64]}):
        assert yes(system_one(client, TEXT, **fields)) == expected
    both = system_one(client, {"a": 1}, images=[BASE64, url(png(2))])
    assert yes(both) == wanted(alone, [image(1), image(2), text('{"a": 1}')])
    part = part_of_url(png(1))
    messages = [{"role": "user", "content": [text(TEXT), part]}]
    state = [{"role": "user", "content": [text(TEXT), image(1)]}]
    assert yes(system_one(client, messages)) == wanted(alone, state)
    assert yes(system_one(client, {"messages": messages})) == wanted(alone, {"messages": state})


@pytest.mark.parametrize(
    ("state", "fields", "place"),
    [
        ("x", {"assets": {"i": {"data_base64": BASE64}}}, "assets.i.data_base64"),  # which stands nowhere
        ("i", {"assets": {"i": {"data_base64": "AAAA"}}}, "assets.i.data_base64"),
        ("i", {"assets": {"i": {"data_base64": "?"}}}, "assets.i.data_base64"),
        ("i", {"assets": {"i": {"type": "image"}}}, "assets.i.data_base64"),
        ("i", {"assets": {"i": {"part": "asset-0"}}}, "assets.i.part"),
        ("i", {"assets": {"i": {"type": "video", "data_base64": BASE64}}}, "assets.i.type"),
        ("i", {"assets": {"i": {"format": "heic", "data_base64": BASE64}}}, "assets.i.format"),
        ("i", {"assets": {"i": {"data_base64": BASE64, "url": "x"}}}, "assets.i.url"),
        ("i", {"assets": {"": {"data_base64": BASE64}}}, "assets."),
        ("i", {"assets": ["i"]}, "assets"),
        ("i", {"assets": {f"i{i}": {"data_base64": BASE64} for i in range(65)}}, "assets"),
        ("x", {"images": [BASE64] * 9}, "images"),
        ("x", {"images": BASE64}, "images"),
        ("x", {"images": [1]}, "images.0"),
        ("x", {"files": ["https://a.b/c.png"]}, "files.0"),
        ("x", {"videos": [BASE64]}, "videos"),
        (said({"type": "image", "path": "/etc/passwd"}), {}, "state.0.content.0"),
        ([{"type": "image", "path": "/etc/passwd"}], {}, "state.0"),
        ([{"type": "image_url", "image_url": "data:,"}, "x"], {}, "state.1"),
        (said({"type": "input_audio", "input_audio": {"data": BASE64}}), {}, "state.0.content.0"),
    ],
)
def test_media_that_system_one_refuses(client: Client, state: Any, fields: Any, place: str) -> None:
    found = system_one(client, state, **fields)
    (fault,) = found.json["detail"]
    assert found.status == 422 and ".".join(fault["loc"][1:]) == place and fault["msg"] and fault["type"]


def test_labels_are_texts(client: Client) -> None:
    question = {"type": "choice", "instructions": "?", "criteria": {"b": None, "i c": None}}
    found = system_one(client, "i", {"q": question}, assets={"i": {"data_base64": BASE64}})
    where = ["body", "questions", "q", "criteria", "i c"]
    assert found.status == 422 and found.json["detail"][0]["loc"] == where


@pytest.mark.parametrize("model", ["plain", "lev"])
def test_models_that_take_no_pictures(client: Client, model: str) -> None:
    found = system_one(client, "x", images=[BASE64], model=model)
    assert found.status == 422 and found.json["detail"][0]["loc"][1] == "images"
    assert "take" in found.error["message"] and "picture" in found.error["message"]
    found = openai(client, said({"type": "input_image", "image_url": url(png())}), model=model)
    assert found.refusal("param") == (400, "input[0].content[0]")
    assert found.error["code"] == "unsupported_value"


def test_limits_of_a_request(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [{"type": "input_image", "image_url": url(png())}] * (module.MOST_MEDIA + 1)
    found = openai(client, said(*parts))
    assert found.status == 400 and "at most 64 media" in found.error["message"]
    monkeypatch.setattr(module, "MOST_DECODED", 100)
    assert system_one(client, "x", images=[BASE64]).json["detail"][0]["loc"] == ["body", "images", "0"]


# --- rows and files -----------------------------------------------------------------------------------------


def test_rows_of_a_batch(alone: InferenceEngine) -> None:
    rows = Rows(alone, Settings(model_name="m"))
    row = {"state": f"i\n{TEXT}", "questions": QUESTIONS, "assets": {"i": {"data_base64": BASE64}}}
    found = asyncio.run(rows.answer(0, row))
    assert found["answers"]["q"]["noul"] == wanted(alone, [image(1), text(TEXT)])


def test_receipts(alone: InferenceEngine, folder: Path) -> None:
    from oxillama.engine.features.decisions.deciding import DecisionOptions, decide

    state = [image(1), text(TEXT)]
    asks = [{"type": "predicate", "instructions": [image(seed), text("?")]} for seed in (2, 0)]
    (asked,) = decide(alone.model, [(state, asks)], DecisionOptions())
    decision = asked.result()
    receipt = DecisionReceipt.of(alone, asked.state, asked, decision)
    media = alone.model.feature("media")
    assert list(receipt.media.values()) == [media.decode(png(i)).digest.hex() for i in (1, 2, 0)]
    assert receipt.projector == media.encoder.content.hex() and receipt.preprocessing == media.preprocessing
    assert DecisionReceipt.from_json(receipt.to_json()) == receipt
    assert verify_decisions(alone, [receipt], media=[png(1), png(2), png(0)]) == [[]]
    (changed,) = verify_decisions(alone, [receipt], media=[png(1), png(0), png(0)])
    assert {"media", "scores", "answers"} <= set(changed)  # type: ignore[arg-type]
    for name, value in (("projector", "00"), ("preprocessing", 1), ("media", {})):
        fields: dict[str, Any] = {name: value}
        false = sealed(replace(receipt, **fields))
        given = [png(1), png(2), png(0)] if false.media else []
        (changed,) = verify_decisions(alone, [false], media=given)
        assert isinstance(changed, ConfigError) or name in changed  # type: ignore[operator]
    (error,) = verify_decisions(alone, [receipt], media=[png(1)])
    assert isinstance(error, ConfigError) and "media: expected 3 as in the receipt, got 1" in str(error)


def test_the_commands(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], alone: InferenceEngine
) -> None:
    model, requests, receipts = str(folder / "m.gguf"), tmp_path / "r.jsonl", tmp_path / "receipts"
    lines = [
        {"state": TEXT, "questions": QUESTIONS},
        {"model": "m", "input": TEXT, "questions": [PREDICATE]},
        {"state": "a", "questions": QUESTIONS, "files": ["https://a.b/c.png"]},
    ]
    requests.write_text("\n".join(map(json.dumps, lines)))
    options = ["--kv-type", "f32", "--num-threads", "1", "-q"]
    given = ["--image", str(folder / "1.png"), "--receipts", str(receipts)]
    assert main(["decide", model, str(requests), *given, *options]) == 1
    first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    expected = wanted(alone, [image(1), text(TEXT)])
    assert first["answers"]["q"]["noul"] == second["answers"][0]["probability"] == expected
    assert third["error"].startswith("files[0]: ") and "nothing is fetched" in third["error"]
    path = str(receipts / "000001.json")
    assert main(["verify", path, "--model", model, "--image", str(folder / "1.png")]) == 0
    assert main(["verify", path, "--model", model, "--image", str(folder / "2.png")]) == 1
    assert "this model differs: scores, answers, media" in capsys.readouterr().out
    assert main(["verify", path, "--model", model]) == 2
    assert main(["verify", path, "--model", model, "--reference"]) == 2
    assert main(["decide", model, str(requests), "--image", str(tmp_path / "none.png"), *options]) == 1
    assert "none.png" in capsys.readouterr().out

"""Records of a server on the command line: replay lists them and generates their texts again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oxillama import InferenceEngine, Receipt, demo
from oxillama.reference import CONTRACT
from oxillama.sessions.records.record import read_record, records_in
from tests.support.command_line import error, printed, refused
from tests.support.server import serving
from tests.support.tiny_file import write_tiny_model

BODY = {"prompt": "Once", "max_tokens": 9, "seed": 4}
Folder = tuple[Path, list[str]]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A folder with the records of two requests, and the texts of these."""
    folder, texts = tmp_path_factory.mktemp("records"), []
    with serving(demo.STORY, record=folder) as client:
        for id, more in (("one", {}), ("two", {"n": 2})):
            answer = client.ask("/v1/completions", {**BODY, **more}, headers={"x-request-id": id})
            texts += [choice["text"] for choice in answer.json["choices"]]
    return folder, texts


def edited(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Changes the two lines of a record."""
    head, body = map(json.loads, path.read_text().splitlines())
    change(head, body)
    path.write_text(f"{json.dumps(head)}\n{json.dumps(body)}\n")


@pytest.fixture
def copy(records: Folder, tmp_path: Path) -> Path:
    """A copy of the first record, in a folder of its own."""
    (first, _), path = records_in(records[0]), tmp_path / "copies"
    path.mkdir()
    (path / first.name).write_bytes(first.read_bytes())
    return path / first.name


def test_the_list(records: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = records
    lines = [line.split() for line in printed(capsys, "replay", "--record", folder).splitlines()]
    assert lines[0] == ["time", "id", "path", "status", "model", "texts", "tokens", "finish"]
    assert [line[2:8] for line in lines[1:]] == [
        ["one", "/v1/completions", "200", "story", "1", "9"],
        ["two", "/v1/completions", "200", "story", "2", "18"],
    ]
    found = json.loads(printed(capsys, "replay", "--record", folder, "--json"))
    assert [(each["id"], each["finish_reasons"]) for each in found] == [
        ("one", ["length"]),
        ("two", ["length", "length"]),
    ]


def test_an_empty_folder_is_an_empty_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "replay", "--record", tmp_path) == ""


def test_texts_are_generated_again(records: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder, texts = records
    told = printed(capsys, "replay", "one", "--record", folder, "--text")
    assert told == f"one: the same: 9 tokens, {len(texts[0])} bytes\n{texts[0]}\n"
    lines = [f"two[{i}]: the same: 9 tokens, {len(texts[1 + i])} bytes" for i in range(2)]
    assert printed(capsys, "replay", "two", "--record", folder).splitlines() == lines
    first = records_in(folder)[0].name
    told = printed(capsys, "replay", first, "--record", folder, "--model", demo.STORY, "--sample", "3")
    assert "9 tokens, of which 3 were chosen again" in told


@pytest.mark.slow
def test_texts_are_generated_again_without_a_kernel(
    records: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    told = printed(capsys, "replay", "one", "--record", records[0], "--reference")
    assert "one: the same: 9 tokens" in told


def test_what_differs_is_named(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("one", "--record", copy.parent)
    other = write_tiny_model(tmp_path / "other.gguf")
    told = printed(capsys, "replay", *where, "--model", other, code=1)
    assert "one: differs: another model: expected " in told

    def changed_text(head: dict[str, Any], body: dict[str, Any]) -> None:
        body["texts"][0]["hash"] = "0" * 64

    def changed_token(head: dict[str, Any], body: dict[str, Any]) -> None:
        head["contract"] = 99
        receipt = json.loads(body["texts"][0]["receipt"])
        receipt["tokens"][5] ^= 1
        with_hash(body, json.dumps(receipt))

    edited(copy, changed_text)
    assert "differs: the tokens are the same, their text is not" in printed(capsys, "replay", *where, code=1)
    edited(copy, changed_token)
    said = printed(capsys, "replay", *where, code=1)
    assert "one: differs: token 5: expected " in said
    assert said.endswith(f" (version 99 of the contract made the text, this is {CONTRACT})\n")


def with_hash(body: dict[str, Any], receipt: str) -> None:
    """Puts a receipt into a record."""
    from oxillama.sessions.records.redaction import digest

    body["texts"][0] |= {"receipt": receipt, "receipt_hash": digest(receipt)}


def test_a_record_of_hashes_needs_the_receipt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine, folder = InferenceEngine.from_gguf(demo.STORY, num_threads=1), tmp_path / "records"
    with engine, serving(engine, record=folder, record_texts="hashes") as client:
        choice = client.ask("/v1/completions", {**BODY, "receipt": True}).choice
    (path,) = records_in(folder)
    (kept := tmp_path / "receipt.json").write_text(choice["receipt"])
    where = (read_record(path).head.id, "--record", folder)
    assert "expected one with --receipt" in refused(capsys, "replay", *where)
    told = printed(capsys, "replay", *where, "--receipt", kept)
    assert f"the same: 9 tokens, {len(choice['text'])} bytes" in told
    kept.write_text(
        Receipt.from_json(choice["receipt"]).to_json().replace('"max_tokens": 9', '"max_tokens": 8')
    )
    assert "expected the one that was recorded" in refused(capsys, "replay", *where, "--receipt", kept)


def test_what_cannot_be_replayed(records: Folder, copy: Path, tmp_path: Path) -> None:
    folder = records[0]
    assert "expected one record of three, got none" in error("replay", "three", "--record", folder)
    assert "cannot be read" in error("replay", "one", "--record", tmp_path / "absent")
    assert "expected no ID" in error("replay", "one", "--record", folder, "--json")
    assert "expected 2, one for each text, got 1" in error(
        "replay", "two", "--record", folder, "--receipt", copy
    )
    assert "expected a record of one text" in error("replay", "two", "--record", folder, "--image", "x.png")
    gone = str(tmp_path / "gone.gguf")
    edited(copy, lambda head, body: head.update(model_path=gone))
    assert gone in error("replay", "one", "--record", copy.parent)
    edited(copy, lambda head, body: head.update(model_path=""))
    assert "model: expected one" in error("replay", "one", "--record", copy.parent)
    edited(copy, lambda head, body: head.update(status="x"))
    assert "status" in error("replay", "--record", copy.parent)

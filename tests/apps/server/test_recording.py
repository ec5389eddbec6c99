"""``--record``: what of a request is kept, on every interface, and that no client notices."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oxillama import ConfigError, Generation, InferenceEngine, Receipt, demo
from oxillama.apps.cli import build_parser, serve
from oxillama.apps.server.recording import Recording, held_bytes
from oxillama.base.config.server import ServerConfig
from oxillama.sessions.records.folder import RecordFolder
from oxillama.sessions.records.record import Record, read_record, records_in
from oxillama.sessions.records.redaction import digest
from tests.support.server import serving
from tests.support.tiny_file import write_tiny_model
from tests.support.tool_models import NO_THOUGHTS, ROOM, tool_model
from tests.support.waiting import until

CHAT = {"messages": [{"role": "user", "content": "Once"}]}
ASKED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": "Once", "max_tokens": 6, "n": 2}),
    ("/v1/completions", {"prompt": "Once", "max_tokens": 6, "logprobs": 1, "echo": True}),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 6}),
    ("/v1/messages", {**CHAT, "model": "story", "max_tokens": 6}),
    ("/v1/responses", {"input": "Once", "max_output_tokens": 6}),
    ("/api/generate", {"model": "story", "prompt": "Once", "options": {"num_predict": 6}}),
    ("/completion", {"prompt": "Once", "n_predict": 6}),
    ("/completion", {"prompt": "Once", "n_predict": 6, "id_slot": 0}),
)


@pytest.fixture
def engine() -> Iterator[InferenceEngine]:
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1) as engine:
        yield engine


def recorded(folder: Path, n: int) -> list[Record]:
    """The records of a folder, when there are ``n``."""
    until(lambda: len(records_in(folder)) >= n, 60)
    return [read_record(path) for path in records_in(folder)]


def verified(engine: InferenceEngine, text: Any) -> Any:
    """What the engine finds of the receipt of a text in a record: that its text has been made."""
    assert text.receipt is not None
    found = engine.verify(text.receipt)
    assert found.verified, found.message
    assert digest(found.text) == text.hash
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_every_interface(engine: InferenceEngine, tmp_path: Path, stream: bool) -> None:
    with serving(engine, record=tmp_path) as client:
        headers = {"Authorization": "Bearer t0p-secret", "x-api-key": "t0p-secret"}
        bodies = [{**body, "stream": stream, "seed": 3} for _, body in ASKED]
        for body in bodies[3:5]:
            del body["seed"]
        bodies[5] = {**ASKED[5][1], "stream": stream}
        answers = [
            client.ask(path, body, headers=headers, status=200).text for (path, _), body in zip(ASKED, bodies)
        ]
        records = recorded(tmp_path, len(ASKED))
        for (path, _), body, answer, record in zip(ASKED, bodies, answers, records):
            assert (record.head.path, record.head.status, record.head.model) == (path, 200, "story")
            assert record.head.model_path == str(demo.STORY)
            assert record.request == body and record.request_hash == digest(json.dumps(body))
            assert record.answer == answer and record.answer_hash == digest(answer)
            assert '"receipt": "' not in answer and '"receipt":"' not in answer
            assert len(record.texts) == body.get("n", 1) == record.head.n_texts
            for text in record.texts:
                found = verified(engine, text)
                assert text.receipt_hash == digest(text.receipt or "")
                assert (text.n_tokens, text.n_bytes) == (found.n_tokens, len(found.text.encode()))
    assert all(b"t0p-secret" not in file.read_bytes() for file in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == len(ASKED)


def test_a_receipt_that_was_asked_for_is_in_the_answer(engine: InferenceEngine, tmp_path: Path) -> None:
    plain = {"prompt": "Once", "max_tokens": 6, "seed": 5}
    with serving(engine, record=tmp_path) as client:
        with_one = client.ask("/v1/completions", {**plain, "receipt": True}).choice
        without = client.ask("/v1/completions", plain).choice
        kept = [Receipt.from_json(record.texts[0].receipt or "") for record in recorded(tmp_path, 2)]
    assert kept == [Receipt.from_json(with_one.pop("receipt"))] * 2
    assert with_one == without


def test_texts_that_can_have_no_receipt_are_recorded_without(engine: InferenceEngine, tmp_path: Path) -> None:
    body = {"prompt": "Once", "n_predict": 6, "speculate": "lookup", "draft_acceptance": "rejection"}
    with serving(engine, record=tmp_path) as client:
        content = client.ask("/completion", body).json["content"]
        (record,) = recorded(tmp_path, 1)
        assert client.ask("/completion", {**body, "receipt": True}).status == 400
        assert client.ask("/tokenize", {"content": "Once"}).status == 200
        assert client.ask("/v1/completions", {"prompt": "Once", "top_p": 9}).status == 400
    (text,) = record.texts
    assert text.receipt is None and text.receipt_hash is None
    assert text.without.startswith("receipt: cannot be combined with draft_acceptance rejection")
    assert text.hash == digest(content)
    assert len(records_in(tmp_path)) == 1


def test_hashes_hold_no_word(engine: InferenceEngine, tmp_path: Path) -> None:
    body = {"prompt": "Zebra", "max_tokens": 6, "stop": ["walrus"], "seed": 1, "receipt": True}
    with serving(engine, record=tmp_path, record_texts="hashes") as client:
        answer = client.ask("/v1/completions", body, status=200).text
        (record,) = recorded(tmp_path, 1)
    made = json.loads(answer)["choices"][0]
    (path,) = records_in(tmp_path)
    for word in ("Zebra", "walrus", made["text"], str(Receipt.from_json(made["receipt"]).tokens)[1:-1]):
        assert word not in path.read_text()
    (text,) = record.texts
    assert record.request is record.answer is text.receipt is None
    assert record.request_hash == digest(json.dumps(body)) and record.answer_hash == digest(answer)
    assert text.receipt_hash == digest(made["receipt"]) and text.hash == digest(made["text"])


def test_calls_of_tools_and_reasoning_are_part_of_the_text(tmp_path: Path) -> None:
    engine = InferenceEngine(tool_model(tmp_path / "tools.gguf", NO_THOUGHTS))
    tools = [{"type": "function", "function": ROOM}]
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "tools": tools}
    body |= {"tool_choice": "required", "max_tokens": 300, "seed": 1, "parallel_tool_calls": False}
    with engine, serving(engine, record=tmp_path / "records") as client:
        choice = client.ask("/v1/chat/completions", body).choice
        (record,) = recorded(tmp_path / "records", 1)
        (text,) = record.texts
        found = verified(engine, text)
    assert choice["finish_reason"] == text.finish_reason == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] in found.text


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A model whose texts are too long to end before the test does."""
    return write_tiny_model(tmp_path / "endless.gguf", context_length=1 << 17, ends=False)


BEGUN = {"prompt": "hello world", "max_tokens": 100_000, "seed": 2, "stream": True}


def test_a_text_that_its_client_leaves_is_recorded_so_far(endless: Path, tmp_path: Path) -> None:
    engine = InferenceEngine.from_gguf(endless, num_threads=1)
    with engine, serving(engine, record=tmp_path / "records") as client:
        connection, response = client.open("/v1/completions", BEGUN)
        assert response.read(200)
        response.close()
        connection.close()
        (record,) = recorded(tmp_path / "records", 1)
        (text,) = record.texts
        assert text.finish_reason == "cancelled" and text.n_tokens > 0
        verified(engine, text)


def test_texts_that_the_end_cuts_go_on_from_snapshots(endless: Path, tmp_path: Path) -> None:
    folder = tmp_path / "records"
    options = {"record": folder, "record_snapshots": "stopped", "shutdown_seconds": 0.01}
    with serving(endless, **options) as client:
        connection, response = client.open("/v1/completions", BEGUN)
        assert response.read(200)
        client.server.stop()
        rest = response.read()
        connection.close()
    (record,) = recorded(folder, 1)
    assert b"error" in rest and record.texts[0].finish_reason == "cancelled"
    (name,) = record.snapshots

    def beginning(generation: Generation, n: int) -> str:
        while len(generation.text) < n:
            next(generation)
        return generation.text[:n]

    with InferenceEngine.from_gguf(endless, num_threads=1) as other:
        restored = other.restore(folder / name)
        assert isinstance(restored, Generation)
        n = record.texts[0].n_bytes + 100
        assert beginning(restored, n) == beginning(other.stream("hello world", max_tokens=100_000, seed=2), n)


def test_a_recording_that_fails_is_no_error_of_the_client(
    engine: InferenceEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(Recording, "_text", broken)
    with serving(engine, record=tmp_path) as client:
        assert client.ask("/completion", {"prompt": "Once", "n_predict": 3}).status == 200
        until(lambda: "oxillama:records_lost_total 1\n" in client.ask("/metrics").text, 60)
    assert records_in(tmp_path) == []


def test_the_bytes_of_a_record_are_those_that_its_texts_hold(
    engine: InferenceEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    add = RecordFolder.add
    monkeypatch.setattr(RecordFolder, "add", lambda self, make, n: (counted.append(n), add(self, make, n)))
    with serving(engine, record=tmp_path) as client:
        for n in (1, 8):
            body = {"prompt": "a b " * 200, "n": n, "max_tokens": 1, "stream": n > 1}
            client.ask("/v1/completions", body, status=200)
        recorded(tmp_path, 2)
    n_tokens = len(engine.tokenizer.encode("a b " * 200))
    assert counted[1] - counted[0] > 7 * n_tokens * sys.getsizeof(1000)


def test_the_embeddings_of_a_text_count(engine: InferenceEngine) -> None:
    class Media:
        nbytes = 1 << 20

    generation = engine.stream("Once", max_tokens=1)
    generation.result()
    before = held_bytes(generation)
    generation._request.sequence.embeddings = Media()
    assert held_bytes(generation) == before + (1 << 20)


def test_options_that_need_others(tmp_path: Path) -> None:
    for name, value in (("record_bytes", 5), ("record_days", 1), ("record_texts", "hashes")):
        with pytest.raises(ConfigError, match=f"{name}: expected a folder to record in"):
            ServerConfig(**{name: value})
    with pytest.raises(ConfigError, match="record_snapshots: expected none with record_texts hashes"):
        ServerConfig(record=tmp_path, record_texts="hashes", record_snapshots="stopped")
    line = ["serve", "m.gguf", "--record", str(tmp_path), "--tokenizer", "t.json"]
    with pytest.raises(ConfigError, match="record: cannot be combined with tokenizer"):
        serve.engine_options(build_parser().parse_args(line))


WITHOUT = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "oxillama.sessions.records":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
from oxillama import demo
from oxillama.apps.cli import main
from tests.support.server import serving
with serving(demo.STORY) as client:
    assert client.ask("/completion", {"prompt": "Once", "n_predict": 3}).status == 200
assert main(["serve", "--port", "0", "--record", sys.argv[1]]) == 2
"""


def test_the_server_runs_without_the_room(tmp_path: Path) -> None:
    line = [sys.executable, "-c", WITHOUT, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "record: needs oxillama.sessions.records, which is not installed" in done.stderr

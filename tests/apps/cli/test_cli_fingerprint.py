"""`oxillama fingerprint`: two people with one file get the same hashes, and learn what differs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from oxillama import InferenceEngine, _kernels, demo
from oxillama.sessions.chain import LogitsChain
from oxillama.sessions.fingerprint import fixed_tokens
from tests.support.command_line import called, error, printed, run
from tests.support.tiny_file import write_tiny_model


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write_tiny_model(tmp_path / "tiny.gguf")
    os.utime(path, (1e9, 1e9))
    return path


def test_hashes_of_file_and_logits(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "fingerprint", model, "--json"))
    with InferenceEngine.from_gguf(model) as engine, engine.session() as session:
        chain = LogitsChain()
        for token in fixed_tokens(engine.model.spec.n_vocab, 32):
            chain.add(session.forward(token))
        assert (found["model"], found["logits"]) == (
            engine.model.fingerprint.content.hex(),
            chain.digest.hex(),
        )
    rows = dict(line.split() for line in printed(capsys, "fingerprint", model).splitlines())
    assert {**rows, "quantize": None} == found


@pytest.mark.parametrize("target", [name for name, reason in _kernels.targets().items() if reason is None])
def test_every_target_gives_the_same(model: Path, tmp_path: Path, target: str) -> None:
    mine = tmp_path / "mine.json"
    mine.write_bytes(run("fingerprint", model, "--json").stdout)
    empty = str(tmp_path / "another-cache")
    done = run("fingerprint", model, "--compare", mine, OXILLAMA_TARGET=target, XDG_CACHE_HOME=empty)
    assert done.returncode == 0 and done.stdout.startswith(b"equal: file "), done.stderr


def test_what_differs_is_said(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "fingerprint", model, "--json")
    mine, other = tmp_path / "mine.json", tmp_path / "other.json"
    mine.write_text(text)
    told = printed(capsys, "fingerprint", model, "--kv-type", "q8_0", "--compare", mine, code=1)
    assert told == "another kv_type: expected f16, got q8_0\n"
    told = printed(capsys, "fingerprint", demo.DRAFT, "--compare", mine, code=1)
    assert told.startswith("another model: expected ")
    other.write_text(json.dumps({**json.loads(text), "logits": "00" * 32, "library": "0.0.1"}))
    told = printed(capsys, "fingerprint", model, "--compare", other, code=1)
    assert "other logits of the same file: expected 0000" in told
    other.write_text("[]")
    assert "expected what fingerprint --json wrote" in error("fingerprint", model, "--compare", other)


def test_a_known_model_is_not_loaded(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(model, (1e9, 1e9))
    monkeypatch.setattr("oxillama.gguf.known_hashes.SETTLE_SECONDS", -10.0)
    first = printed(capsys, "fingerprint", model)
    monkeypatch.setattr("oxillama.sessions.fingerprint.logits_hash", None)
    assert printed(capsys, "fingerprint", model) == first
    with pytest.raises(TypeError):
        called("fingerprint", model, "--kv-type", "f32")  # its logits are others

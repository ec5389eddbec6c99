"""Receipts on the command line: run and demo write them, verify checks them."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from oxillama import InferenceEngine, Receipt, _kernels, demo
from tests.support.command_line import (
    ENVIRONMENT,
    called,
    command,
    error,
    printed,
    refused,
    run,
    save_receipt,
)


def test_run_writes_what_verify_checks(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, options = tmp_path / "receipt.json", ["--kv-type", "f32", "--compute", "f32", "-c", "500"]
    asked = ["run", model, "-p", "the fox", "-n", "12", "-s", "3", "--receipt", path, "--regex", "[a-z ]+"]
    text = printed(capsys, *asked, *options, "--quantize", "q8_0", "--compute", "int8")
    receipt = Receipt.load(path)
    assert (receipt.quantize, receipt.kv_type, receipt.context_size) == ("Q8_0", "f32", 500)
    assert printed(capsys, "verify", path, "--model", model, "--text") == "verified: 12 tokens\n" + text
    assert printed(capsys, "verify", path, "--model", model, "-t", "2") == "verified: 12 tokens\n"
    path.write_text(receipt.to_json().replace('"seed": 3', '"seed": 4'))
    found = printed(capsys, "verify", path, "--model", model, code=1)
    assert found.startswith("NOT verified: token ") and ", the sampler chooses " in found
    told = printed(capsys, "verify", path, "--model", demo.STORY, code=1)
    assert told.startswith("NOT verified: another model: expected ")


@pytest.mark.parametrize("target", [name for name, reason in _kernels.targets().items() if reason is None])
def test_every_target_says_the_same(model: Path, tmp_path: Path, target: str) -> None:
    path = tmp_path / "receipt.json"
    with InferenceEngine.from_gguf(model) as engine:
        receipt = save_receipt(engine, path, seed=3, max_tokens=20)
    done = run("verify", path, "--model", model, OXILLAMA_TARGET=target)
    assert (done.returncode, done.stdout) == (0, b"verified: 20 tokens\n"), done.stderr
    wrong = [*receipt.tokens[:7], receipt.tokens[7] ^ 1, *receipt.tokens[8:]]
    replace(receipt, tokens=wrong).save(path)
    done = run("verify", path, "--model", model, OXILLAMA_TARGET=target)
    said = f"NOT verified: token 7: expected {wrong[7]}, the sampler chooses {receipt.tokens[7]}\n"
    assert (done.returncode, done.stdout.decode()) == (1, said), done.stderr


def test_demo_with_its_adapter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "receipt.json"
    assert called("demo", "--pirate", "--seed", "5", "-n", "20", "--receipt", path) == 0
    assert called("verify", path, "--model", demo.STORY, "--lora", demo.PIRATE) == 0
    told = printed(capsys, "verify", path, "--model", demo.STORY, code=1)
    assert told.startswith("NOT verified: another adapter: expected ")


def test_what_cannot_be_done_is_said_in_a_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("run", model, "-p", "the fox")
    assert "receipt: expected a file" in error(*asked, "--receipt", tmp_path)
    assert "rejection" in error(
        *asked, "--receipt", tmp_path / "r.json", "--draft-acceptance", "rejection", "--speculate", "lookup"
    )
    assert "cannot be read" in error("verify", tmp_path / "missing.json", "--model", model)
    assert "expected JSON" in error("verify", model, "--model", model)
    assert list(tmp_path.iterdir()) == []
    path, absent = tmp_path / "receipt.json", tmp_path / "absent"
    assert called("demo", "-n", "2", "-q", "--receipt", path) == 0
    for flags in (["--model", absent], ["--model", tmp_path], ["--model", demo.STORY, "--lora", absent]):
        refused(capsys, "verify", path, *flags)


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is a signal elsewhere too, but not this one")
def test_a_text_that_ctrl_c_ended_has_one(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    process = subprocess.Popen(
        command("run", model, "-p", "the fox", "-n", "4000", "-q", "--receipt", path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    assert process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    if process.returncode == 0:
        pytest.skip("it had ended before")
    assert process.returncode == 130
    receipt = Receipt.load(path)
    assert receipt.finish_reason == "cancelled"
    assert 0 < len(receipt.tokens) < 4000
    with InferenceEngine.from_gguf(model) as engine:
        assert engine.verify(receipt)


def test_a_chat_writes_the_receipt_of_its_last_answer(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    asked = ("chat", model, "-n", "9", "-s", "3", "--receipt", path, "--session", tmp_path / "a")
    first = run(*asked, stdin=b"hello\n")
    receipt = Receipt.load(path)
    assert first.returncode == 0 and len(receipt.tokens) <= 9
    second = run(*asked, stdin=b"once upon\nagain\n")
    assert second.returncode == 0, second.stderr
    assert len(Receipt.load(path).prompt) > len(receipt.prompt) + 2 * len(receipt.tokens)
    done = run("verify", path, "--model", model, "--text")
    assert done.returncode == 0, done.stdout
    assert second.stdout.endswith(done.stdout.partition(b"\n")[2])
    assert b"receipt: expected a file" in run("chat", model, "--receipt", tmp_path, stdin=b"hello\n").stderr


def test_many_receipts(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / f"{i}.json" for i in range(4)]
    with InferenceEngine.from_gguf(model) as engine, InferenceEngine.from_gguf(model, kv_type="f32") as other:
        for i, path in enumerate(paths):
            save_receipt(other if i == 2 else engine, path, seed=i, max_tokens=9)
    lines = printed(capsys, "verify", *paths, "--model", model).splitlines()
    assert sorted(lines) == [f"{path}: verified: 9 tokens" for path in paths]
    lines = printed(capsys, "verify", *paths, "--model", model, "--sample", "3").splitlines()
    said = "verified: 3 of 9 tokens; a change of one token is missed with a probability of 0.667"
    assert sorted(lines) == [f"{path}: {said}" for path in paths]
    wrong = Receipt.load(paths[1])
    replace(wrong, tokens=[wrong.tokens[0] ^ 1, *wrong.tokens[1:]]).save(paths[1])
    told = printed(capsys, "verify", *paths, "--model", model, code=1)
    assert f"{paths[1]}: NOT verified: token 0: expected" in told
    paths[3].write_text("{")
    assert called("verify", *paths, tmp_path / "absent", "--model", model) == 2
    done = capsys.readouterr()
    assert len(done.out.splitlines()) == 3
    assert done.err.count("error: receipt: ") == 2
    assert "expected one receipt" in error("verify", *paths, "--model", model, "--image", "x.png")
    assert "sample: expected" in error("verify", paths[0], "--model", model, "--sample", "0")
    assert "sample: expected none" in error(
        "verify", paths[0], "--model", model, "--sample", "2", "--reference"
    )


def test_signed_chains(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    pytest.importorskip("rfc8785")
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key, chain, paths = (
        tmp_path / "key.pem",
        tmp_path / "chain.jsonl",
        [tmp_path / "a.json", tmp_path / "b.json"],
    )
    private = ed25519.Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw().hex()
    key.write_bytes(private.private_bytes(*form))
    with InferenceEngine.from_gguf(model) as engine:
        for i, path in enumerate(paths):
            save_receipt(engine, path, seed=i, max_tokens=9)
    told = [printed(capsys, "sign", path, "--key", key, "-o", chain) for path in paths]
    assert told[1] == f"signed: 1 receipt, 2 in the chain, key {public}\n"
    said = printed(capsys, "verify", chain, "--model", model, "--signer", public)
    assert said.splitlines() == [f"{chain}[{i}]: verified: 9 tokens" for i in range(2)]
    message = refused(capsys, "verify", chain, "--model", model, "--signer", "00" * 32)
    assert "expected the key 0000" in message
    assert "expected a chain" in error("verify", paths[0], "--model", model, "--signer", public)
    lines = chain.read_text().splitlines()
    chain.write_text("\n".join(lines[::-1]))
    assert "signed receipt 0: does not follow" in refused(capsys, "verify", chain, "--model", model)
    before = chain.read_bytes()
    assert "does not follow" in refused(capsys, "sign", paths[0], "--key", key, "-o", chain)
    assert chain.read_bytes() == before
    assert "ends in .jsonl" in error("sign", paths[0], "--key", key, "-o", tmp_path / "chain.json")

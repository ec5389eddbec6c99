"""Signed receipts: who vouches for a text, and which texts of a conversation come before it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oxillama import ConfigError, InferenceEngine, Receipt, ReceiptError, demo
from oxillama.sessions.signing import SignedReceipt, check_chain, load_chain, load_key, save_chain, sign

ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
rfc8785 = pytest.importorskip("rfc8785")


@pytest.fixture(scope="module")
def receipts() -> list[Receipt]:
    with InferenceEngine.from_gguf(demo.STORY) as engine:
        seeds = (1, 2**64 - 1, 3)
        made = [engine.stream("Once", receipt=True, max_tokens=5, seed=seed).result() for seed in seeds]
    return [one.receipt for one in made if one.receipt is not None]


@pytest.fixture(scope="module")
def key() -> Any:
    return ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@pytest.fixture(scope="module")
def chain(receipts: list[Receipt], key: Any) -> list[SignedReceipt]:
    found: list[SignedReceipt] = []
    for receipt in receipts:
        found.append(sign(receipt, key, found[-1] if found else None))
    return found


def test_a_chain_is_written_and_checked(chain: list[SignedReceipt], tmp_path: Path) -> None:
    check_chain(chain)
    check_chain(chain, chain[0].key)
    save_chain(tmp_path / "chain.jsonl", chain)
    loaded = load_chain(tmp_path / "chain.jsonl")
    assert loaded == chain
    check_chain(loaded)
    assert [signed.number for signed in loaded] == [0, 1, 2]


def test_what_is_signed_is_canonical_json(chain: list[SignedReceipt]) -> None:
    """The keys in order, no spaces, and integers that every reader has alike."""
    for signed in chain:
        found = json.loads(signed.payload())
        assert list(found) == sorted(found)
        assert signed.payload() == rfc8785.dumps(found)
        assert found["receipt"]["tokens"] == signed.receipt.tokens
    assert json.loads(chain[1].payload())["receipt"]["sampler"]["seed"] == str(2**64 - 1)
    public = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(chain[0].key))
    public.verify(bytes.fromhex(chain[0].signature), chain[0].payload())


def test_any_change_is_noticed(chain: list[SignedReceipt]) -> None:
    signed, receipt = chain[1], chain[1].receipt
    sampler = {**receipt.sampler, "seed": 2**64 - 2}
    changes: list[dict[str, Any]] = [
        {"receipt": replace(receipt, tokens=[receipt.tokens[0] ^ 1, *receipt.tokens[1:]])},
        {"receipt": replace(receipt, library="0.0.1")},
        {"receipt": replace(receipt, sampler=sampler)},
        {"number": 2}, {"previous": None}, {"previous": "00" * 32},
        {"signature": chain[0].signature}, {"key": "00" * 32}, {"key": "ff" * 32},
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(ReceiptError, match=r"signed receipt [12]: the signature is not of"):
            replace(signed, **change).check()


def test_the_next_one_names_the_signature_too(chain: list[SignedReceipt]) -> None:
    assert chain[1].previous == chain[0].digest
    assert replace(chain[0], signature=chain[1].signature).digest != chain[0].digest


def test_texts_that_are_missing_or_moved_are_noticed(chain: list[SignedReceipt]) -> None:
    first, second, third = chain
    for wrong, at in (((second, third), 0), ((first, third), 1), ((first, first), 1)):
        with pytest.raises(ReceiptError, match=f"signed receipt {at}: does not follow"):
            check_chain(wrong)
    with pytest.raises(ReceiptError, match="expected at least one"):
        check_chain([])
    other = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32))
    with pytest.raises(ReceiptError, match="expected the chain's key"):
        sign(third.receipt, other, second)
    forged = replace(sign(third.receipt, other), number=2)
    with pytest.raises(ReceiptError, match="signed receipt 2: expected the key"):
        check_chain([first, second, forged])
    with pytest.raises(ReceiptError, match="signed receipt 0: expected the key"):
        check_chain([sign(third.receipt, other)], first.key)
    again = sign(third.receipt, ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32))), first)
    with pytest.raises(ReceiptError, match="signed receipt 2: does not follow"):
        check_chain([first, second, again])


def test_what_is_no_signed_receipt(chain: list[SignedReceipt], tmp_path: Path) -> None:
    good = json.loads(chain[0].to_json())
    receipt = good["receipt"]
    hostile: list[Any] = [
        [], {}, {**good, "format": "x"}, {**good, "version": True}, {**good, "key": "x"},
        {**good, "signature": good["signature"].upper() + "0"}, {**good, "number": -1},
        {**good, "number": 2**70}, {**good, "more": 1}, {**good, "receipt": None},
        {**good, "receipt": {**receipt, "tokens": "x"}}, {**good, "previous": 5},
    ]  # fmt: skip
    for value in hostile:
        with pytest.raises(ReceiptError):
            SignedReceipt.from_json(json.dumps(value))
    for text in ("", "{", "[" * 100_000, '{"a": NaN}', b"\xff\xfe", '{"a": 1, "a": 1}'):
        with pytest.raises(ReceiptError):
            SignedReceipt.from_json(text)
    surrogate = {**good, "receipt": {**receipt, "stop": ["\ud800"]}}
    with pytest.raises(ReceiptError, match="no canonical JSON"):
        SignedReceipt.from_json(json.dumps(surrogate)).check()
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ReceiptError, match="cannot be read"):
            load_chain(path)


def test_keys(key: Any, tmp_path: Path) -> None:
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = tmp_path / "key.pem"
    path.write_bytes(key.private_bytes(*form))
    assert load_key(path).private_bytes_raw() == bytes(range(32))
    x25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.x25519")
    path.write_bytes(x25519.X25519PrivateKey.generate().private_bytes(*form))
    with pytest.raises(ConfigError, match="expected an Ed25519 key, got one of another kind"):
        load_key(path)
    for text in (b"", b"x", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        path.write_bytes(text)
        with pytest.raises(ConfigError, match="expected a PEM file"):
            load_key(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_key(tmp_path / "absent")

"""The form of receipts: what is written is read again, and nothing else is read."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from oxillama import ModelFileError, Receipt, ReceiptError
from oxillama.sessions.chain import START, LogitsChain
from oxillama.sessions.receipt import MOST_BYTES, AdapterUse

RECEIPT = Receipt(
    library="1.0", model="ab" * 32, compute="int8", quantize="Q4_K", kv_type="f16", context_size=10,
    adapters=(AdapterUse("cd" * 32, 0.1, 3),), prompt=[1, 2, 3],
    sampler={"seed": 2**64 - 1, "temperature": 0.1}, grammar="ef" * 32, stop=["é\n", "\U0001f600"],
    max_tokens=None, tokens=[7, 8], finish_reason="stop", points=["01234567", "89abcdef"],
    chain="89abcdef" * 8,
)  # fmt: skip


def changed(**fields: Any) -> str:
    """The JSON of `RECEIPT` with some fields changed, or added, or with ... taken away."""
    pairs = {"format": "oxillama receipt", "version": 1, **asdict(RECEIPT), **fields}
    return json.dumps({name: value for name, value in pairs.items() if value is not ...})


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    assert Receipt.from_json(RECEIPT.to_json()) == RECEIPT
    assert Receipt.from_json(RECEIPT.to_json().encode()) == RECEIPT
    assert Receipt.from_json(changed()) == RECEIPT
    RECEIPT.save(tmp_path / "receipt.json")
    assert Receipt.load(tmp_path / "receipt.json") == RECEIPT
    with pytest.raises(ModelFileError, match="cannot be written"):
        RECEIPT.save(tmp_path / "missing" / "receipt.json")
    with pytest.raises(ReceiptError, match=r"receipt: .*other\.json cannot be read: No such file"):
        Receipt.load(tmp_path / "other.json")
    with pytest.raises(ReceiptError, match="cannot be read"):
        Receipt.load("a\0b")
    with pytest.raises(ReceiptError, match="cannot be read"):
        Receipt.load(tmp_path)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"format": "other"}, "of the format"),
    ({"version": 2}, "expected version 1, got 2"),
    ({"version": True}, "expected version 1, got True"),
    ({"version": ...}, "expected version 1, got None"),
    ({"tokens": ...}, "'tokens': is missing"),
    ({"text": "x"}, "'text': no such field"),
    ({"library": 1}, "library: expected a str"),
    ({"library": "x" * 101}, "library: expected a version"),
    ({"model": "AB" * 32}, "model: expected 64 hexadecimal digits"),
    ({"model": "ab" * 32 + "\n"}, "model: expected 64"),
    ({"model": None}, "model: expected 64"),
    ({"compute": "int4"}, "compute: expected one of"),
    ({"quantize": "q4_k"}, "quantize: expected one of"),
    ({"kv_type": ["f16"]}, "kv_type: expected one of"),
    ({"context_size": 0}, "context_size: expected an integer"),
    ({"context_size": 10**6}, "context_size: expected an integer"),
    ({"context_size": 4}, "tokens: expected 0 to 1 token ids, got 2"),
    ({"max_tokens": 1}, "tokens: expected 0 to 1 token ids, got 2"),
    ({"max_tokens": -1}, "max_tokens: expected an integer"),
    ({"max_tokens": True}, "max_tokens: expected an integer"),
    ({"adapters": {}}, "adapters: expected a list"),
    ({"adapters": [{"fingerprint": "cd" * 32}]}, "adapters: 'scale': is missing"),
    ({"adapters": [{**asdict(RECEIPT.adapters[0]), "x": 1}]}, "adapters: 'x': no such field"),
    ({"adapters": [{"fingerprint": 5, "scale": 1, "start": 0}]}, "adapters: fingerprint: expected 64"),
    ({"adapters": [{"fingerprint": "cd" * 32, "scale": "1", "start": 0}]}, "adapters: scale: expected a"),
    ({"adapters": [{"fingerprint": "cd" * 32, "scale": 1, "start": 11}]}, "adapters: start: expected an"),
    ({"adapters": [asdict(RECEIPT.adapters[0])] * 257}, "adapters: expected at most 256, got 257"),
    ({"prompt": []}, "prompt: expected 1 to 10 token ids, got 0"),
    ({"prompt": [1.0]}, "prompt: expected token ids"),
    ({"prompt": "12"}, "prompt: expected a list, got str"),
    ({"tokens": [-1, 2]}, "tokens: expected token ids"),
    ({"tokens": [2**31, 2]}, "tokens: expected token ids"),
    ({"tokens": [True, 2]}, "tokens: expected token ids"),
    ({"tokens": [1]}, "points: expected 1, got 2"),
    ({"sampler": []}, "sampler: expected a dict"),
    ({"grammar": "ef"}, "grammar: expected 64"),
    ({"stop": "ab"}, "stop: expected a list"),
    ({"stop": [""]}, "stop: expected strings"),
    ({"stop": ["a"] * 257}, "stop: expected at most 256 strings"),
    ({"stop": ["a" * 4097]}, "stop: expected at most 256 strings"),
    ({"finish_reason": "error"}, "finish_reason: expected one of"),
    ({"points": None}, "points: expected a list"),
    ({"points": ["01234567", "0123456"]}, "points: expected 8"),
    ({"chain": "00"}, "chain: expected 64"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=lambda value: str(value)[:30])
def test_a_wrong_field_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ReceiptError, match=f"^receipt: .*{message}"):
        Receipt.from_json(changed(**fields))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected JSON"),
        ("[]", "of the format"),
        ("null", "of the format"),
        (b"\xff\xfe", "expected JSON"),
        ("[" * 100_000, "expected JSON"),
        ('{"context_size": ' + "9" * 5000 + "}", "^receipt: "),
        ('{"scale": NaN}', "NaN is no number of JSON"),
        ('{"scale": -Infinity}', "-Infinity is no number of JSON"),
        ('{"tokens": [], "tokens": [1]}', "a key occurs twice"),
        (" " * (MOST_BYTES + 1), "expected at most"),
        (None, "expected JSON text, got NoneType"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_receipt_is_refused(text: Any, message: str) -> None:
    with pytest.raises(ReceiptError, match=message):
        Receipt.from_json(text)


def test_a_receipt_that_is_made_is_checked_too() -> None:
    with pytest.raises(ReceiptError, match="adapters: expected a tuple"):
        replace(RECEIPT, adapters=[])  # type: ignore[arg-type]
    with pytest.raises(ReceiptError, match="adapters: expected a AdapterUse"):
        replace(RECEIPT, adapters=(1,))  # type: ignore[arg-type]


def test_each_link_hashes_the_one_before_and_a_row_of_little_endian_floats() -> None:
    rows = np.array([[1.0, -2.5, -0.0], [np.inf, 3.0, 1e-40]], np.float32)
    chain, expected = LogitsChain(), START
    for row in rows:
        expected = blake3(expected + row.astype("<f4").tobytes()).digest()
        assert chain.add(row) == chain.digest == expected
    strided = LogitsChain()
    strided.add(np.repeat(rows[0], 2)[::2])
    strided.add(rows[1].astype(">f4"))
    assert strided.digest == expected
    assert LogitsChain().add(np.abs(rows[0])) != LogitsChain().add(rows[0])

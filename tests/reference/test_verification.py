"""Receipts checked by the reference alone, without a kernel."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oxillama import InferenceEngine, Receipt, demo
from oxillama.apps import cli
from oxillama.gguf.model_file import ModelFile
from oxillama.reference.source import Unsupported
from oxillama.reference.verification import verify
from oxillama.sessions.chain import START
from oxillama.sessions.verdict import Verification

OPTIONS: dict[str, Any] = {"seed": 3, "max_tokens": 7}


def receipt_of(engine: InferenceEngine, **options: Any) -> Receipt:
    receipt = engine.stream(demo.PROMPTS[0], receipt=True, **(OPTIONS | options)).result().receipt
    assert receipt is not None
    return receipt


@pytest.fixture(scope="module")
def receipt(engine: InferenceEngine) -> Receipt:
    return receipt_of(engine)


def checked(receipt: Receipt, *adapters: Path, rules: str | None = None) -> Verification:
    with ModelFile.open(demo.STORY) as file:
        return verify(file, receipt, [ModelFile.open(path) for path in adapters], rules)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.0},
        {"mirostat": 2, "temperature": 1.0, "repetition_penalty": 1.2},
        {"stop": ["e"]},
    ],
)
def test_a_receipt_is_verified(engine: InferenceEngine, options: dict[str, Any]) -> None:
    completion = engine.stream(demo.PROMPTS[0], receipt=True, **(OPTIONS | options)).result()
    assert completion.receipt is not None
    found = checked(completion.receipt)
    assert found.verified, found.message
    assert found.text == completion.text


@pytest.mark.parametrize("kv_type", ["q8_0", "q5_1:bf16"])
def test_other_kv_types(kv_type: str) -> None:
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1, kv_type=kv_type) as other:
        assert checked(receipt_of(other, max_tokens=4))


def test_every_change_is_found(receipt: Receipt) -> None:
    other = [*receipt.tokens[:5], receipt.tokens[5] ^ 1, *receipt.tokens[6:]]
    points = [*receipt.points[:4], "00000000", *receipt.points[5:]]
    changes: dict[str, tuple[Receipt, str, int]] = {
        "token": (replace(receipt, tokens=other), "token", 5),
        "seed": (replace(receipt, sampler={**receipt.sampler, "seed": 4}), "token", 0),
        "link": (replace(receipt, points=points), "logits", 4),
        "chain": (replace(receipt, chain="0" * 64), "logits", 6),
        "kv_type": (replace(receipt, kv_type="f32"), "logits", 0),
        "prompt": (replace(receipt, prompt=receipt.prompt[:-1]), "logits", 0),
        "end": (replace(receipt, finish_reason="stop"), "end", 7),
        "model": (replace(receipt, model="0" * 64), "model", 0),
    }
    for name, (changed, cause, at) in changes.items():
        found = checked(changed)
        assert (found.cause, found.at) == (cause, at), name


def test_a_receipt_of_no_tokens_has_the_chain_of_none(receipt: Receipt) -> None:
    nothing = replace(receipt, tokens=[], points=[], finish_reason="timeout", chain=START.hex())
    assert checked(nothing)
    found = checked(replace(nothing, chain="0" * 64))
    assert (found.cause, found.at) == ("logits", 0)


def test_what_is_not_stated_is_named(receipt: Receipt) -> None:
    for changed, named in (
        (replace(receipt, quantize="Q4_0"), "quantize"),
        (replace(receipt, sampler={**receipt.sampler, "order": [{}]}), "order"),
    ):
        with pytest.raises(Unsupported, match=named):
            checked(changed)


ALONE = """
import importlib, pkgutil, sys
from oxillama.apps import cli
import oxillama.reference
for module in pkgutil.iter_modules(oxillama.reference.__path__):
    importlib.import_module(f"oxillama.reference.{module.name}")
code = cli.main(sys.argv[1:])
print(sorted(name for name in sys.modules if name.startswith("oxillama._kernels")))
sys.exit(code)
"""


def test_no_kernel_is_loaded(receipt: Receipt, tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    receipt.save(path)
    arguments = ["verify", str(path), "--model", str(demo.STORY), "--reference"]
    done = subprocess.run([sys.executable, "-c", ALONE, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "verified: 7 tokens\n[]\n"), done.stderr


def test_the_command_line(receipt: Receipt, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "receipt.json"
    replace(receipt, chain="0" * 64).save(path)
    arguments = ["verify", str(path), "--model", str(demo.STORY), "--reference"]
    assert cli.main(arguments) == 1
    assert capsys.readouterr().out == "NOT verified: token 6: the logits differ from here on\n"
    assert cli.main([*arguments, "-t", "2"]) == 2
    assert "--num-threads" in capsys.readouterr().err

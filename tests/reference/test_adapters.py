"""The reference's adapters: the logits of the kernels, bit for bit, and receipts of texts with adapters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import InferenceEngine, LoadedLora, Receipt, demo
from oxillama.apps import cli
from oxillama.errors import LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.reference.adapters import Adapter
from oxillama.reference.decoder import ReferenceModel
from oxillama.reference.source import Unsupported
from oxillama.sessions.receipt import AdapterUse
from tests.reference.test_decoder import STATED, UNSTATED, text_of
from tests.reference.test_verification import checked, receipt_of
from tests.support.adapters import adapter_file, adapter_of
from tests.support.kernels import PRESENT, same_bits
from tests.support.spread import few
from tests.support.tiny_models import Running, Tiny, tokens_of
from tests.support.zoo import VOCAB

CHECKED = (
    "llama", "qwen3moe", "deepseek2", "deepseek32", "gemma3n", "mamba2", "rwkv7", "qwen3next", "olmo2",
    "granitemoe", "gpt2", "bert",
)  # fmt: skip
"""Compared in each run: each kind of block, norms behind blocks, and a residual scale."""
APPLIED = ((3, 0.7, 0), (5, -1.3, 9))
"""Rank, scale and start of each adapter."""


def stated(data: bytes, tokens: list[int], files: list[bytes], **options: Any) -> np.ndarray:
    adapters = [Adapter(ModelFile.open(f), s, start) for f, (_, s, start) in zip(files, APPLIED)]
    model = ReferenceModel(ModelFile.open(data), options.get("compute", "int8"), "f32", adapters)
    return (model.hidden_states if model.facts.encoder else model.logits)(np.array(tokens))


@pytest.mark.filterwarnings("ignore:.*does not change")
@pytest.mark.parametrize("name", few(sorted(set(STATED) - set(UNSTATED)), CHECKED))
def test_every_family(name: str) -> None:
    """One adapter of every matrix, then two, the second from a position on."""
    data, tokens = STATED[name].file(), text_of(STATED[name], 20)
    model = Running(data).model
    files = [adapter_of(ModelFile.open(data), model, rank, seed=rank) for rank, _, _ in APPLIED]
    before = Running(data).outputs(tokens)
    for n in (1, 2):
        loras = [(LoadedLora.load(f), s, start) for f, (_, s, start) in zip(files[:n], APPLIED)]
        found = Running(data, adapters=loras).outputs(tokens)
        assert same_bits(stated(data, tokens, files[:n]), found)
        assert not same_bits(found, before)
        before = found


@pytest.mark.parametrize("target", PRESENT)
@pytest.mark.parametrize("compute", ["int8", "w8a8", "w8a8-128"])
def test_every_target(target: str, compute: str) -> None:
    """The model is quantized, and its embeddings are the output matrix, too."""
    tiny = Tiny(n_embd=64, n_ff=64, formats=("Q8_0", "Q4_0"), tied=True)
    data, tokens = tiny.file(), tokens_of(12, tiny.n_vocab)
    model = Running(data).model
    files = [adapter_of(ModelFile.open(data), model, rank, seed=rank) for rank, _, _ in APPLIED]
    loras = [(LoadedLora.load(f), s, start) for f, (_, s, start) in zip(files, APPLIED)]
    found = Running(data, target=target, compute=compute, adapters=loras).logits(tokens)
    assert same_bits(stated(data, tokens, files, compute=compute), found)


def test_matrices_that_adapters_do_not_change() -> None:
    """Unless they apply everywhere."""
    model = STATED["deepseek2"]
    tokens, rng = tokens_of(5, VOCAB), np.random.default_rng(1)
    shape = model.tensors()["blk.0.attn_q_a.weight"].shape
    pair = tuple(rng.normal(0, 1, s).astype(np.float32) for s in ((2, shape[1]), (shape[0], 2)))
    adapter = adapter_file("deepseek2", {"blk.0.attn_q_a.weight": (pair[0], pair[1])})
    file, plain = ModelFile.open(model.file()), Running(model.file()).logits(tokens)
    for everywhere in (False, True):
        reference = ReferenceModel(
            file, kv_type="f32", adapters=[Adapter(ModelFile.open(adapter), everywhere=everywhere)]
        )
        found = reference.logits(np.array(tokens))
        assert same_bits(found, plain) is not everywhere
        if everywhere:
            lora = LoadedLora.load(adapter, everywhere=True)
            assert same_bits(found, Running(model.file(), adapters=[(lora, 1.0, 0)]).logits(tokens))


def test_what_does_not_fit_is_named() -> None:
    tiny = Tiny()
    file, ones = ModelFile.open(tiny.file()), np.ones
    good = ones((2, tiny.n_embd), np.float32), ones((tiny.n_embd, 2), np.float32)
    for architecture, name, pair, named in (
        ("gpt2", "blk.0.attn_q.weight", good, "expected .'llama', 'lora'."),
        ("llama", "blk.9.attn_q.weight", good, r"no statement of an adapter of blk\.9\.attn_q"),
        ("llama", "blk.0.ffn_up.weight", good, "do not fit"),
    ):
        adapter = Adapter(ModelFile.open(adapter_file(architecture, {name: pair})))
        with pytest.raises((LoadError, Unsupported), match=named):
            ReferenceModel(file, adapters=[adapter])


# --- receipts ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def receipt(engine: InferenceEngine) -> Receipt:
    return receipt_of(engine, adapters=[(str(demo.PIRATE), 0.8)])


def test_a_receipt_is_verified(receipt: Receipt) -> None:
    found = checked(receipt, demo.PIRATE)
    assert found.verified, found.message
    assert found.text


def test_every_change_is_found(receipt: Receipt) -> None:
    (use,) = receipt.adapters
    changes: dict[str, tuple[tuple[AdapterUse, ...], str]] = {
        "none": ((), "logits"),
        "twice": ((use, use), "logits"),
        "scale": ((replace(use, scale=0.9),), "logits"),
        "no scale": ((replace(use, scale=0.0),), "adapters"),
        "start": ((replace(use, start=1),), "adapters"),
        "another": ((replace(use, fingerprint="0" * 64),), "adapters"),
    }
    for name, (adapters, cause) in changes.items():
        found = checked(replace(receipt, adapters=adapters), demo.PIRATE)
        assert (found.cause, found.at) == (cause, 0), name
    assert checked(receipt).cause == "adapters"


def test_an_activated_adapter(engine: InferenceEngine, tmp_path: Path) -> None:
    """An activated adapter applies from its last invocation in the prompt on."""
    with ModelFile.open(demo.STORY) as file:
        shape = file.tensors["blk.0.ffn_up.weight"].shape
        architecture = file.get("general.architecture", str)
    rng = np.random.default_rng(2)
    a, b = (rng.normal(0, 0.5, s).astype(np.float32) for s in ((2, shape[0]), (shape[1], 2)))
    path, wanted = tmp_path / "activated.gguf", engine.tokenizer.encode(demo.PROMPTS[0])[3:5]
    path.write_bytes(adapter_file(architecture, {"blk.0.ffn_up.weight": (a, b)}, invocation_tokens=wanted))
    receipt = receipt_of(engine, max_tokens=3, adapters=[str(path)])
    assert [use.start for use in receipt.adapters] == [receipt.prompt.index(wanted[0])]
    assert checked(receipt, path)
    moved = replace(receipt, adapters=(replace(receipt.adapters[0], start=0),))
    assert checked(moved, path).cause == "adapters"


def test_the_command_line(receipt: Receipt, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "receipt.json"
    receipt.save(path)
    arguments = ["verify", str(path), "--model", str(demo.STORY), "--reference"]
    assert cli.main([*arguments, "--lora", str(demo.PIRATE)]) == 0
    assert capsys.readouterr().out == "verified: 7 tokens\n"
    assert cli.main(arguments) == 1
    assert "another adapter" in capsys.readouterr().out

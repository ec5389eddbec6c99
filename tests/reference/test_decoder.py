"""The reference's models: the logits of the kernels, bit for bit, for every family that it states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oxillama import InferenceEngine, demo
from oxillama.gguf.model_file import ModelFile
from oxillama.reference.decoder import ReferenceModel
from oxillama.reference.families import FAMILIES
from oxillama.reference.source import Unsupported
from tests.support.kernels import NAMES, PRESENT, same_bits
from tests.support.spread import few
from tests.support.tiny_models import Running, Tiny, stated, tokens_of
from tests.support.zoo import MODELS, VARIANTS, VOCAB, Model

UNSTATED = {"gemma-embedding-dense": "dense_2"}
"""Models of stated families that need more than is stated, and what the error names."""
STATED = {name: model for name, model in (MODELS | VARIANTS).items() if model.architecture in FAMILIES}


KV_TYPES = ("f16", "q8_0", "q4_0", "q8_0:f16")
ROUNDED = ("llama", "qwen3moe", "gpt-oss", "gemma3", "mamba2", "rwkv7", "qwen3next", "falcon")
"""Models whose products with one scale per row are compared in each run."""

PAIRED = ("llama", "deepseek2", "gemma2", "gpt-oss", "mpt", "t5encoder")
"""Models whose attention in pairs of bf16 is compared in each run: latent, windows, sinks, biases."""


def loaded(model: Model, kv_type: str = "f32") -> ReferenceModel:
    return ReferenceModel(ModelFile.open(model.file()), kv_type=kv_type)


def text_of(model: Model, n: int = 28) -> list[int]:
    """Tokens for a model: more than a window or a selector of the zoo sees, and fewer for the models of many
    layers, which are there for what their number of layers decides."""
    return tokens_of(10 if model.n_layers > 12 else n, VOCAB, seed=model.seed)


def test_every_stated_family_has_a_model_here() -> None:
    assert set(FAMILIES) == {model.architecture for model in MODELS.values()}
    assert set(UNSTATED) <= set(STATED)


@pytest.mark.parametrize("name", sorted(set(STATED) - set(UNSTATED)))
def test_every_family(name: str) -> None:
    model = STATED[name]
    tokens = text_of(model)
    assert same_bits(stated(model.file(), tokens), Running(model.file()).outputs(tokens))


@pytest.mark.parametrize("kv_type", few(KV_TYPES, KV_TYPES[1:2]))
@pytest.mark.parametrize("name", ["deepseek32", "gemma4"])
def test_keys_that_are_chosen_or_shared(name: str, kv_type: str) -> None:
    """Selectors have keys in the cache, too; layers that share keys read them back as they are stored."""
    data, tokens = MODELS[name].file(), tokens_of(28, VOCAB, seed=MODELS[name].seed)
    found = loaded(MODELS[name], kv_type).logits(np.array(tokens))
    assert same_bits(found, Running(data, kv_type=kv_type).logits(tokens))


def test_keys_of_selectors_that_are_almost_zero() -> None:
    """With such keys the epsilon of their norm decides which positions are chosen."""
    model = MODELS["deepseek32"]
    names = [name for name in model.tensors() if name.endswith("indexer.attn_k.weight")]
    data = model.file(**{name: model.tensors()[name] * np.float32(3e-4) for name in names})
    tokens = tokens_of(40, VOCAB, seed=3)
    found = stated(data, tokens)
    assert same_bits(found, Running(data).logits(tokens))


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("qwen3moe", "attn_q"),
        ("qwen3moe", "ffn_down_exps"),
        ("gpt-oss", "ffn_gate_exps"),
        ("qwen2", "attn_k"),
    ],
)
def test_scales_of_whole_matrices(name: str, tensor: str) -> None:
    """Scales for activations of 4 bits have no effect; some of the matrices have a bias."""
    model, tokens = MODELS[name], tokens_of(16, VOCAB, seed=1)
    n = len(model.tensors()[f"blk.0.{tensor}.weight"]) if tensor.endswith("_exps") else 1
    scale = np.linspace(0.3, 0.7, n, dtype=np.float32)
    data = model.file(**{f"blk.0.{tensor}.scale": scale, f"blk.0.{tensor}.input_scale": scale})
    found = stated(data, tokens)
    assert same_bits(found, Running(data).logits(tokens))
    assert not same_bits(found, stated(model.file(), tokens))


@pytest.mark.parametrize("name", ["qwen3moe", "gpt-oss", "qwen3next"])
def test_blocks_that_draft_are_no_layers(name: str) -> None:
    model = MODELS[name]
    keys = {**model.keys, "nextn_predict_layers": ("u32", 1)}
    data, tokens = replace(model, keys=keys).file(), tokens_of(9, VOCAB, seed=2)
    found = ReferenceModel(ModelFile.open(data), kv_type="f32")
    assert found.n_layers == model.n_layers - 1
    assert same_bits(found.logits(np.array(tokens)), Running(data).logits(tokens))
    assert not same_bits(found.logits(np.array(tokens)), stated(model.file(), tokens))


def test_another_number_of_streams_is_named() -> None:
    model = replace(MODELS["gemma3n"], keys=MODELS["gemma3n"].keys | {"altup.num_inputs": ("u32", 3)})
    with pytest.raises(Unsupported, match="altup"):
        loaded(model)


GROWS: dict[str, Any] = {
    "rope.scaling.factor": ("f32", 3.0),
    "rope.scaling.original_context_length": ("u32", 64),
}


@pytest.mark.parametrize("kind", ["ntk", "dynamic"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_base_that_grows(name: str, kind: str) -> None:
    """The base of windowed layers does not grow if these layers have their own base."""
    model, found = MODELS[name], []
    keys = {**model.keys, **GROWS, "rope.scaling.type": ("str", kind)}
    data, tokens = replace(model, keys=keys).file(), tokens_of(9, VOCAB, seed=2)
    for context in (64, 65, 200):
        found.append(stated(data, tokens, context=context))
        assert same_bits(found[-1], Running(data, context=context).logits(tokens))
    assert same_bits(found[0], found[-1]) == (kind == "ntk")


@pytest.mark.parametrize(("name", "contexts"), [("phi3", (256, 513)), ("minicpm-longrope", (64, 65, 200))])
def test_rotations_that_depend_on_the_context(name: str, contexts: tuple[int, ...]) -> None:
    model, found = STATED[name], []
    tokens = tokens_of(9, VOCAB, seed=model.seed)
    for context in contexts:
        found.append(stated(model.file(), tokens, context=context))
        assert same_bits(found[-1], Running(model.file(), context=context).logits(tokens))
    assert not same_bits(found[0], found[-1])


def test_an_encoder_has_no_logits() -> None:
    with pytest.raises(Unsupported, match="expected a model with logits"):
        loaded(MODELS["bert"]).logits(np.array([1, 2]))


def test_a_norm_that_a_file_lacks_is_named() -> None:
    """Where it is no option of the family; no norm, or one without weights, would be another model."""
    data = MODELS["qwen3"].file().replace(b"blk.1.attn_q_norm.weight", b"blk.1.attn_q_nrom.weight")
    with pytest.raises(Unsupported, match=r"blk\.1\.attn_q_norm\.weight"):
        ReferenceModel(ModelFile.open(data), kv_type="f32").logits(np.array([1, 2, 3]))


@pytest.mark.parametrize("name", UNSTATED)
def test_what_is_not_stated_is_named(name: str) -> None:
    with pytest.raises(Unsupported, match=UNSTATED[name]):
        loaded(STATED[name])


def test_an_option_of_other_families_is_named() -> None:
    """The library ignores it; a reference that read it would give other bits."""
    model = replace(MODELS["llama"], keys={"final_logit_softcapping": ("f32", 2.0)})
    with pytest.raises(Unsupported, match=r"no statement of the key llama\.final_logit_softcapping"):
        loaded(model)


def test_an_unknown_architecture_is_named() -> None:
    data = MODELS["llama"].file().replace(b"llama", b"lammo")
    with pytest.raises(Unsupported, match=r"expected one of .*llama.*, got 'lammo'"):
        ReferenceModel(ModelFile.open(data), kv_type="f32")


def test_a_key_that_nobody_reads_is_named() -> None:
    model = replace(MODELS["llama"], keys={"attention.surprise": ("u32", 1)})
    with pytest.raises(Unsupported, match=r"no statement of the key llama\.attention\.surprise"):
        loaded(model)


@pytest.mark.parametrize("name", NAMES)
def test_every_format(name: str) -> None:
    model = Tiny(n_layers=1, n_embd=256, n_ff=256, key_dim=64, value_dim=64, n_rot=32, formats=(name,))
    tokens = tokens_of(3, model.n_vocab, seed=1)
    found = stated(model.file(), tokens)
    for target in PRESENT:
        assert same_bits(found, Running(model.file(), target=target).logits(tokens))


@pytest.mark.parametrize("name", few(sorted(set(STATED) - set(UNSTATED)), ROUNDED))
def test_rows_that_packing_rounds(name: str) -> None:
    model = STATED[name]
    tokens = text_of(model)
    for compute in ("w8a8", "w8a8-128"):
        found = stated(model.file(), tokens, compute)
        for target in PRESENT:
            run = Running(model.file(), target=target, compute=compute)
            assert same_bits(found, run.outputs(tokens))


@pytest.mark.parametrize("name", few(sorted(set(STATED) - set(UNSTATED)), PAIRED))
def test_keys_and_values_of_bf16(name: str) -> None:
    model = STATED[name]
    tokens = text_of(model)
    found = stated(model.file(), tokens, kv_type="bf16")
    for target in PRESENT:
        run = Running(model.file(), target=target, kv_type="bf16", page_size=8)
        assert same_bits(found, run.outputs(tokens))


def test_the_demo_model() -> None:
    with InferenceEngine.from_gguf(demo.STORY, num_threads=2) as engine, engine.session() as session:
        tokens = engine.tokenizer.encode(demo.PROMPTS[0])
        logits = session.logits(tokens)
    with ModelFile.open(demo.STORY) as file:
        model = ReferenceModel(file, kv_type=engine.config.kv_type)
        assert same_bits(model.logits(np.array(tokens)), logits)
        assert same_bits(model.logits(np.array(tokens), slice(-1, None)), logits[-1:])

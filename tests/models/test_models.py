"""Every architecture and option: the bits of the reference, however a model is run.

`test_real_files.py` compares quantized models with the reference.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from oxillama.apps.cli.facts import describe
from oxillama.errors import ConfigError, GGUFError, LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.models import FAMILIES
from tests.support.kernels import PRESENT, same_bits
from tests.support.spread import few
from tests.support.tiny_models import Running, stated, tokens_of
from tests.support.zoo import ENCODERS, MODELS, VARIANTS, VOCAB, Model

EVERY = MODELS | VARIANTS
SHORT = {name: model for name, model in EVERY.items() if model.n_layers < 20}
DECODERS = {name: model for name, model in SHORT.items() if model.architecture not in ENCODERS}


def test_every_architecture_has_a_model_here() -> None:
    assert {model.architecture for model in MODELS.values()} == set(FAMILIES)


def drawn(draw: st.DrawFn) -> Model:
    """A model of any architecture with other sizes than those above."""
    name = draw(st.sampled_from(sorted(MODELS)))
    model = MODELS[name]
    kv = draw(st.integers(1, 3))
    dim = 2 * draw(st.integers(2, 12))
    sizes = {
        "n_layers": draw(st.integers(model.n_layers, model.n_layers + 2)),
        "n_kv_heads": kv,
        "n_heads": kv * draw(st.integers(1, 3)),
        "key_dim": dim,
        "value_dim": dim,
        "n_rot": 2 * draw(st.integers(1, dim // 2)),
        "n_embd": draw(st.integers(6, 50)),
        "n_ff": draw(st.integers(1, 60)),
        "n_experts": draw(st.integers(3, 9)),
        "n_used": draw(st.integers(1, 3)),
        "expert_ff": draw(st.integers(1, 30)),
        "seed": draw(st.integers(0, 999)),
        "q_rank": draw(st.integers(1, 20)),
        "kv_rank": draw(st.integers(1, 30)),
    }
    if model.latent:
        sizes["key_dim"] = sizes["n_rot"] + draw(st.integers(1, 20))
        sizes["value_dim"] = draw(st.integers(1, 30))
        sizes["n_kv_heads"] = sizes["n_heads"]
    keys = dict(model.keys)
    if name == "qwen2vl":
        keys["rope.dimension_sections"] = ("[i32]", [1, 2, 1, 0])
    if FAMILIES[name].whole_rotation:
        sizes["n_rot"] = dim
    lengths = ("attention.key_length", "attention.value_length")
    if not model.latent:
        keys |= dict.fromkeys(lengths, ("u32", dim))
    return replace(model, keys=keys, **sizes)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_shapes_against_the_reference(data: st.DataObject) -> None:
    model = data.draw(st.composite(drawn)())
    tokens = tokens_of(data.draw(st.integers(1, 40)), VOCAB, seed=model.seed)
    assert same_bits(Running(model.file()).outputs(tokens), stated(model.file(), tokens))


# --- same bits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", few(SHORT))
def test_targets_threads_and_pages_change_no_bit(name: str) -> None:
    model = SHORT[name]
    data, tokens = model.file(), tokens_of(37, VOCAB)
    whole = Running(data).outputs(tokens)
    for i, target in enumerate(PRESENT):
        running = Running(data, target, n_threads=1 + i, page_size=16 << i)
        if model.architecture in ENCODERS:
            assert same_bits(running.hidden_states([tokens], 512)[0], whole), target
            continue
        for chunk in (100, 1 + 4 * i, 7):
            assert same_bits(running.logits(tokens, chunk), whole), (target, chunk)


@pytest.mark.parametrize("name", few(DECODERS))
def test_a_sequence_in_a_batch_gives_the_bits_it_gives_alone(name: str) -> None:
    """Several sequences, each its own length, chunk and place in the batch."""
    model, rng = DECODERS[name], np.random.default_rng(3)
    data = model.file()
    lists = [tokens_of(int(n), VOCAB, seed=i) for i, n in enumerate(rng.integers(1, 50, 4))]
    alone, running = Running(data), Running(data, n_threads=2, page_size=32)
    for tokens, rows in zip(lists, running.in_pieces(lists, rng), strict=True):
        assert same_bits(rows, alone.logits(tokens))


# --- experts ---------------------------------------------------------------------------------------


def test_only_the_experts_that_are_chosen_are_packed() -> None:
    model = MODELS["qwen3moe"]
    running = Running(replace(model, n_experts=16, n_used=2).file())
    running.logits([5])
    feed = running.model.layers[0].feed_forward
    packed = [matrices.packed for matrices in feed.first.members]  # type: ignore[attr-defined]
    assert sum(packed) == 2


TOKENS = tokens_of(20, VOCAB)


def logits(model: Model, **tensors: np.ndarray | None) -> np.ndarray:
    return Running(model.file(**tensors)).logits(TOKENS)


def test_fused_gates_of_experts() -> None:
    model = MODELS["deepseek2"]
    tensors = model.tensors()
    fused: dict[str, np.ndarray | None] = {}
    for i in (1, 2):
        parts = [f"blk.{i}.ffn_{part}_exps.weight" for part in ("gate", "up")]
        fused[f"blk.{i}.ffn_gate_up_exps.weight"] = np.concatenate([tensors[part] for part in parts], axis=1)
        fused |= dict.fromkeys(parts)
    assert same_bits(logits(model, **fused), logits(model))


def test_the_output_matrix_may_be_the_embeddings_too() -> None:
    model = MODELS["codeshell"]
    output = {"output.weight": model.tensors()["token_embd.weight"]}
    assert same_bits(logits(model, **output, **{"token_embd.weight": None}), logits(model, **output))
    with pytest.raises(LoadError, match=r"token_embd\.weight: expected a matrix, got no tensor"):
        Running(model.file(**{"output.weight": None, "token_embd.weight": None}))


def test_sizes_of_experts_may_be_stated_for_each_layer() -> None:
    model = MODELS["qwen3moe"]
    sparse = MODELS["deepseek"]  # whose first layer is dense: no experts are used where there are none
    for usual, same in (
        (model, {"expert_feed_forward_length": [24, 24], "expert_used_count": [2, 2]}),
        (sparse, {"expert_feed_forward_length": [0, 24]}),
        (sparse, {"expert_used_count": [0, 2]}),
    ):
        assert same_bits(logits(replace(usual, keys=usual.keys | same)), logits(usual)), same
    with pytest.raises(LoadError, match=r"expert_used_count: expected 1 to 4 experts, got \[2, 0\]"):
        Running(replace(model, keys={"expert_used_count": [2, 0]}).file())
    fewer = replace(model, keys={"expert_used_count": [2, 1]})
    assert same_bits(logits(fewer), stated(fewer.file(), TOKENS))


def test_a_rank_of_queries_that_are_not_compressed_is_ignored() -> None:
    model = Model("deepseek2", key_dim=20, value_dim=12, q_rank=0)
    stated, unstated = (replace(model, keys={"attention.q_lora_rank": value}) for value in (20, None))
    assert same_bits(logits(stated), logits(unstated))


def test_a_decoder_that_looks_ahead_embeds_and_has_no_logits() -> None:
    model = replace(MODELS["qwen2"], keys={"attention.causal": ("bool", False)})
    running, tokens = Running(model.file()), tokens_of(12, VOCAB)
    first, second = running.hidden_states([tokens, [*tokens[:-1], (tokens[-1] + 1) % VOCAB]], 5)
    assert (first[0] != second[0]).any()
    with pytest.raises(ConfigError, match="it has no logits"):
        running.logits(tokens)


# --- bad files -------------------------------------------------------------------------------------

VALUES: list[tuple[str, object]] = [
    *(("u32", value) for value in (0, 1, 2, 3, 5, 8, 64, 1000, 2**31 - 1, 2**32 - 1)),
    *(("i32", value) for value in (-1, -(2**31))),
    *(("f32", value) for value in (0.0, -1.0, 0.5, 3.0, 1e-30, 1e30, float("nan"), float("inf"))),
    ("bool", True),
    ("bool", False),
    ("str", "yarn"),
    ("str", "dynamic"),
    ("[u32]", [1, 2]),
    ("[u32]", [4, 4, 4, 4, 4, 4]),
    ("[bool]", [True, False] * 3),
    ("[f32]", [1.0]),
]
OPTIONS = (
    "attention.clamp_kqv attention.key_length attention.max_alibi_bias attention.scale "
    "attention.sliding_window attention.sliding_window_pattern attention.temperature_scale "
    "attention.temperature_length attn_logit_softcapping embedding_scale expert_count "
    "expert_feed_forward_length expert_gating_func expert_group_count expert_group_used_count "
    "expert_used_count expert_weights_scale final_logit_softcapping leading_dense_block_count logit_scale "
    "nextn_predict_layers pooling_type residual_scale rope.dimension_sections rope.freq_base_swa "
    "rope.scaling.alpha rope.scaling.attn_factor rope.scaling.factor "
    "rope.scaling.original_context_length rope.scaling.type rope.scaling.yarn_beta_fast "
    "rope.scaling.yarn_ext_factor rope.scaling.yarn_log_multiplier use_parallel_residual"
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_metadata_say_a_file_loads_and_runs_or_is_refused(data: st.DataObject) -> None:
    """The outline says without loading what loading says."""
    name = data.draw(st.sampled_from(sorted(MODELS)))
    model = MODELS[name]
    keys = dict(model.keys)
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted({*model.metadata(), *OPTIONS.split()})))
        keys[key] = data.draw(st.sampled_from([*VALUES, None]))
    changed = replace(model, keys=keys).file_of(model.tensors())
    facts = describe(ModelFile.open(changed))
    json.dumps(facts, allow_nan=False)
    told = [reason for reason in facts["missing"] if "tokenizer" not in reason]
    try:
        running = Running(changed)
    except (LoadError, GGUFError) as error:
        assert told == [str(error)]
        return
    assert told == []
    states = running.hidden_states([[1, 2, 3]], 512)[0]
    assert states.shape == (3, running.model.spec.embedding_width)

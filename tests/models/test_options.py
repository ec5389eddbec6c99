"""Options: metadata keys that count in some architectures, and tensors that files may have or leave out.

What an option does is compared with a reference and with llama.cpp's numbers in `test_models.py` and
`test_parity.py`, for the variants of `zoo.py`; here is what holds for all of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oxillama._kernels import load
from oxillama.errors import LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.models import FAMILIES, Decoder, read_spec
from oxillama.models.metadata import OPTIONS, UNSUPPORTED
from oxillama.models.weights.loader import Weights
from oxillama.reference.decoder import ReferenceModel
from tests.models.test_refusals import SELECTING
from tests.support import zoo
from tests.support.kernels import PRESENT, same_bits
from tests.support.spread import few
from tests.support.tiny_models import Running, load_model, tokens_of
from tests.support.zoo import ENCODERS, MODELS, Model

VALUES: dict[str, Any] = {
    "activation_sparsity_scale": [0.5] * 5, "altup.active_idx": 0, "altup.num_inputs": 4,
    "attention.clamp_kqv": 0.1, "attention.indexer.head_count": 16, "attention.indexer.key_length": 128,
    "attention.indexer.top_k": 300, "attention.indexer.types": [True, False, False],
    "attention.key_length_swa": 6, "attention.max_alibi_bias": 3.0, "attention.output_scale": 0.7,
    "attention.relative_buckets_count": 12, "attention.rope_pattern": 0, "attention.scale": 0.7,
    "attention.shared_kv_layers": 1, "attention.sliding_window": 3, "attention.sliding_window_pattern": 1,
    "attention.temperature_length": 3, "attention.temperature_scale": 0.7, "attention.value_length_swa": 6,
    "attention.value_scale": 0.6, "attn_logit_softcapping": 0.3, "embedding_length_per_layer_input": 4,
    "embedding_scale": 0.7, "expert_feed_forward_length": 12, "expert_gating_func": 2,
    "expert_group_scale": 0.4, "expert_latent_length": 20, "expert_shared_count": 3,
    "expert_shared_feed_forward_length": 12, "expert_weights_norm": True, "expert_weights_scale": 3.0,
    "final_logit_softcapping": 0.3, "interleave_moe_layer_step": 1, "leading_dense_block_count": 0,
    "logit_scale": 0.7, "moe_every_n_layers": 0, "rescale_every_n_layers": 1, "residual_scale": 0.7,
    "rope.dimension_count_swa": 4, "rope.dimension_sections": [1, 1, 0, 2], "rope.freq_base_swa": 77.0,
    "rope.scaling.finetuned": False, "rope.scaling.yarn_attn_factor": 2.0,
    "rope.scaling.yarn_ext_factor": 0.5, "rope.scaling.yarn_log_multiplier": 0.5,
    "router_logit_softcapping": 0.7, "ssm.dt_b_c_rms": True, "swiglu_clamp_exp": 0.3,
    "swiglu_clamp_shexp": 0.3, "use_parallel_residual": False,
}  # fmt: skip
"""Values that would change something, wherever they count."""
VALUES_OF: dict[tuple[str, str], Any] = {
    ("llama4", "attention.sliding_window"): 0, ("phi3", "attention.sliding_window_pattern"): [True, False],
    ("smallthinker", "attention.sliding_window"): 0,
    ("gemma4", "attention.sliding_window_pattern"): [True, False] * 3,
    ("maple", "attention.sliding_window_pattern"): [False, True], ("gemma4", "rope.dimension_count_swa"): 2,
    ("gemma-embedding2", "rope.dimension_count_swa"): 2, ("laguna", "rope.dimension_count_swa"): 2,
    ("spark2_5", "rope.dimension_count_swa"): 2,
    ("spark2_5", "attention.sliding_window_pattern"): [False, True], ("deepseek4", "expert_gating_func"): 4,
    ("dots3note", "attention.sliding_window_pattern"): [False, False, True],
    ("glm5-next", "attention.indexer.types"): [False, True, False, False],
    ("glm5next", "attention.indexer.types"): [False, True, False, False],
    ("minimax-01", "residual_scale"): 0.9, ("minimax-m3", "attention.indexer.head_count"): 2,
    ("qwen4exp", "rope.dimension_sections"): [0, 1, 1, 0],
    ("qwen4exp", "embedding_length_per_layer_input"): 16, ("ernie4_5-moe", "interleave_moe_layer_step"): 1,
}  # fmt: skip
"""Where those would not."""
OTHERS: dict[str, Any] = {
    "expert_gating_func": 1,
    "expert_weights_norm": False,
}
"""Where files usually state the value above."""
WITHOUT_EFFECT = {
    ("stablelm", "use_parallel_residual"),
    ("grok", "router_logit_softcapping"),
    ("ernie4_5-moe", "interleave_moe_layer_step"),
    ("gemma3n", "altup.active_idx"),
    ("gemma3n", "altup.num_inputs"),
    ("deepseek4", "expert_gating_func"),
    ("minimax-m3", "attention.indexer.head_count"),
    ("qwen4exp", "embedding_length_per_layer_input"),
}
"""Known to mean nothing: the tensors say it, nobody uses it, or there is one value."""

SHARED = {"expert_count": 4, "expert_used_count": 2}
RATE = {"attention.temperature_scale": 0.5, "attention.temperature_length": 9}
NEEDED: dict[tuple[str, str], dict[str, Any]] = {  # what an option acts on
    **{
        (name, key): keys
        for name in ("deepseek2", "deepseek32", "glm-dsa", "mistral4")
        for key, keys in (
            ("attention.temperature_length", RATE),
            ("attention.temperature_scale", RATE),
            ("rope.scaling.yarn_log_multiplier", zoo.YARN),
        )
    },
    ("gemma3n", "attention.shared_kv_layers"): {
        "attention.sliding_window_pattern": [True, False, True, True, False]
    },
    ("granite", "expert_shared_feed_forward_length"): SHARED,
    ("granitehybrid", "expert_shared_feed_forward_length"): SHARED,
    ("llama", "attention.sliding_window_pattern"): {"attention.sliding_window": 6},
    ("mistral3", "rope.scaling.yarn_log_multiplier"): zoo.YARN,
    ("olmo2", "attention.sliding_window_pattern"): {"attention.sliding_window": 6},
    ("phi3", "attention.sliding_window"): {"attention.sliding_window_pattern": [True, False]},
    ("phi3", "attention.sliding_window_pattern"): {"attention.sliding_window": 6},
}


VARIANTS_OF = {("gemma4", "expert_feed_forward_length"): zoo.VARIANTS["gemma4-experts"]}
"""Models that have what an option acts on."""

REFUSED = {*UNSUPPORTED, "attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"}
"""Options that change too much to be ignored by other architectures."""


def run(data: bytes) -> np.ndarray:
    """Logits of a decoder, states of an encoder, after each of some tokens."""
    return Running(data).outputs(tokens_of(20, zoo.VOCAB))


def facts(model: Model) -> tuple[Any, ...]:
    """The spec of a model, and its unread options."""
    spec = read_spec(ModelFile.open(model.file()))
    return replace(spec, unread=()), spec.unread


def test_queries_of_llama_4_are_scaled_by_whole_chunks() -> None:
    """The factor is 1 + 0.1 ln(floor((position + 1) / 8192) + 1), which grows at the end of a chunk."""
    positions = np.array([0, 8190, 8191, 16382, 16383], np.int32)
    found = load_model(MODELS["llama4"].file())._temperatures(positions)
    assert found is not None
    assert found[:, 0] == pytest.approx(1 + 0.1 * np.log([1, 1, 2, 2, 3]))


def test_options_are_known() -> None:
    assert {option for family in FAMILIES.values() for option in family.all_options} == OPTIONS
    assert set(VALUES) == OPTIONS


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name in sorted(FAMILIES) for option in FAMILIES[name].all_options]
)
def test_an_option_counts_in_its_architecture(name: str, option: str) -> None:
    model = VARIANTS_OF.get((name, option), MODELS[name])
    usual = replace(model, keys=model.keys | NEEDED.get((name, option), {}))
    values = [VALUES_OF.get((name, option), VALUES[option])]
    values += [OTHERS[option]] if option in OTHERS and (name, option) not in VALUES_OF else []
    found = [facts(replace(usual, keys=usual.keys | {option: value})) for value in values]
    assert all(unread == () for _, unread in found)
    without_effect = all(spec == facts(usual)[0] for spec, _ in found)
    assert without_effect is ((name, option) in WITHOUT_EFFECT)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_options_of_other_architectures_change_nothing_and_are_told(name: str) -> None:
    foreign = sorted(OPTIONS.difference(FAMILIES[name].all_options, REFUSED))
    keys: dict[str, Any] = {option: VALUES[option] for option in foreign}
    keys |= dict.fromkeys(foreign[::3], ("str", "of no kind"))
    model = MODELS[name]
    stated = replace(model, keys=model.keys | keys).file_of(model.tensors())
    told = [option for option in foreign if option not in FAMILIES[name].ignored_keys]
    assert read_spec(ModelFile.open(stated)).unread == tuple(f"{name}.{option}" for option in told)
    assert same_bits(run(stated), run(model.file()))


@pytest.mark.parametrize("option", sorted(OPTIONS & UNSUPPORTED.keys()))
def test_options_that_cannot_be_ignored_are_refused(option: str) -> None:
    model = replace(MODELS["llama"], keys={option: VALUES[option]})
    with pytest.raises(
        LoadError, match=f"llama.{option}: expected .* or no such key|llama.{option}: expected"
    ):
        load_model(model.file())


@pytest.mark.parametrize(
    "key", ["attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"]
)
def test_windowed_layers_of_another_shape_are_refused(key: str) -> None:
    def file(name: str, n: int) -> bytes:
        return replace(zoo.MODELS[name], keys={key: n}).file()

    with pytest.raises(LoadError, match=f"gemma2.{key}: expected .* or no such key, got 4"):
        load_model(file("gemma2", 4))
    load_model(file("gemma2", 8))
    load_model(file("gemma", 4))  # it has no windows


@pytest.mark.parametrize("name", ["qwen2", "command-r", "gemma3", "granitehybrid", "bert"])
def test_matrices_of_q_k_and_v_in_one_with_their_biases_apart(name: str) -> None:
    """The same bits as both apart, and as both in one."""
    model, rng = MODELS[name], np.random.default_rng(4)
    apart = model.tensors()
    fused, both = dict(apart), dict(apart)
    for block in sorted({tensor.rpartition(".attn_q.")[0] for tensor in apart if ".attn_q." in tensor}):
        names = [f"{block}.attn_{part}" for part in "qkv"]
        for part in names:
            apart[f"{part}.bias"] = rng.standard_normal(len(apart[f"{part}.weight"])).astype(np.float32)
            fused[f"{part}.bias"] = apart[f"{part}.bias"]
        for tensors in (fused, both):
            tensors[f"{block}.attn_qkv.weight"] = np.concatenate(
                [tensors.pop(f"{part}.weight") for part in names]
            )
        for part in names:
            both.pop(f"{part}.bias", None)
        both[f"{block}.attn_qkv.bias"] = np.concatenate([apart[f"{part}.bias"] for part in names])

    expected, *others = (run(model.file_of(tensors)) for tensors in (apart, fused, both))
    assert not same_bits(expected, run(model.file()))
    assert all(same_bits(other, expected) for other in others)


@pytest.mark.parametrize("tensor", ["attn_q", "ffn_down_exps"])
def test_products_are_multiplied_with_the_scale_of_a_whole_tensor(tensor: str) -> None:
    """As converted NVFP4 files have it. Powers of two: scaled weights of float32 give the same bits."""
    model, name = MODELS["qwen3moe"], f"blk.1.{tensor}"
    weights = model.tensors()[f"{name}.weight"]
    scale = np.exp2(-1 - np.arange(len(weights) if tensor.endswith("_exps") else 1)).astype(np.float32)
    inputs = {f"{name}.input_scale": np.full(len(scale), 3, np.float32)}  # scales for activations of 4 bits
    expected = run(model.file(**{f"{name}.weight": weights * scale.reshape(-1, *[1] * (weights.ndim - 1))}))
    data = model.file(**{f"{name}.scale": scale}, **inputs)
    used = Weights(ModelFile.open(data), load(PRESENT[0]), 1)
    Decoder(read_spec(used.file), used)
    assert not used.unused()
    assert same_bits(run(data), expected)
    assert not same_bits(run(model.file()), expected)


def test_a_scale_comes_before_the_bias() -> None:
    model, name = MODELS["qwen2"], "blk.0.attn_k"
    weights = model.tensors()[f"{name}.weight"] * np.float32(0.25)
    scaled = run(model.file(**{f"{name}.scale": np.array([0.25], np.float32)}))
    assert f"{name}.bias" in model.tensors()
    assert same_bits(scaled, run(model.file(**{f"{name}.weight": weights})))


@pytest.mark.parametrize(("name", "tensor"), [("qwen3moe", "token_embd"), ("qwen3moe", "blk.0.attn_q_norm")])
def test_scales_of_other_tensors_are_refused(name: str, tensor: str) -> None:
    scale = {f"{tensor}.scale": np.array([0.5], np.float32)}
    with pytest.raises(LoadError, match=f"{tensor}.scale: expected scales of linear layers alone"):
        load_model(MODELS[name].file(**scale))


def test_a_scale_has_a_number_for_each_expert() -> None:
    scale = {"blk.1.ffn_down_exps.scale": np.array([0.5], np.float32)}
    with pytest.raises(LoadError, match=r"blk\.1\.ffn_down_exps\.scale: expected shape \(\d+,\), got \(1,\)"):
        load_model(MODELS["qwen3moe"].file(**scale))


def test_a_bias_for_experts_chosen_by_their_logits_is_refused() -> None:
    bias = {"blk.0.exp_probs_b.bias": np.ones(4, np.float32)}
    with pytest.raises(LoadError, match=r"exp_probs_b\.bias: expected no such tensor for experts chosen"):
        load_model(MODELS["gpt-oss"].file(**bias))


@pytest.mark.parametrize("name", few(name for name in MODELS if name not in (*ENCODERS, *SELECTING)))
def test_any_architecture_may_see_both_ways(name: str) -> None:
    """Such a model has states and no logits; recurrent layers see back, centred convolutions ahead."""
    model = MODELS[name]
    key = "attention.sliding_window"
    window = {key: 99} if key in FAMILIES[model.architecture].options else {}
    model = replace(model, keys=model.keys | window | {"attention.causal": False})
    for n in (20, 1, 2):
        tokens = tokens_of(n, zoo.VOCAB)
        running = Running(model.file())
        found, again = running.hidden_states([tokens, tokens[: n // 2 + 1]], 512)
        reference = ReferenceModel(ModelFile.open(model.file()), kv_type="f32")
        expected = reference.hidden_states(np.array(tokens))
        assert np.abs(found - expected).max() < 2e-4 * np.abs(expected).max()
        assert same_bits(again, running.hidden_states([tokens[: n // 2 + 1]], 512)[0])

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
from oxillama.weights.loader import Weights
from tests.models.test_spec import load_model
from tests.references.transformer import Reference
from tests.support import zoo
from tests.support.kernels import PRESENT, same_bits
from tests.support.spread import few
from tests.support.tiny_models import Running, tokens_of
from tests.support.zoo import ENCODERS, MODELS, Model

VALUES: dict[str, tuple[str, Any]] = {  # that would change something, wherever they count
    "activation_sparsity_scale": ("[f32]", [0.5] * 5),
    "altup.active_idx": ("u32", 0),
    "altup.num_inputs": ("u32", 4),
    "attention.clamp_kqv": ("f32", 0.1),
    "attention.indexer.head_count": ("u32", 16),
    "attention.indexer.key_length": ("u32", 128),
    "attention.indexer.top_k": ("u32", 300),
    "attention.indexer.types": ("[bool]", [True, False, False]),
    "attention.key_length_swa": ("u32", 6),
    "attention.max_alibi_bias": ("f32", 3.0),
    "attention.output_scale": ("f32", 0.7),
    "attention.relative_buckets_count": ("u32", 12),
    "attention.rope_pattern": ("u32", 0),
    "attention.scale": ("f32", 0.7),
    "attention.shared_kv_layers": ("u32", 1),
    "attention.sliding_window": ("u32", 3),
    "attention.sliding_window_pattern": ("u32", 1),
    "attention.temperature_length": ("u32", 3),
    "attention.temperature_scale": ("f32", 0.7),
    "attention.value_length_swa": ("u32", 6),
    "attention.value_scale": ("f32", 0.6),
    "attn_logit_softcapping": ("f32", 0.3),
    "embedding_length_per_layer_input": ("u32", 4),
    "embedding_scale": ("f32", 0.7),
    "expert_feed_forward_length": ("u32", 12),
    "expert_gating_func": ("u32", 2),
    "expert_shared_count": ("u32", 3),
    "expert_shared_feed_forward_length": ("u32", 12),
    "expert_weights_norm": ("bool", True),
    "expert_weights_scale": ("f32", 3.0),
    "final_logit_softcapping": ("f32", 0.3),
    "interleave_moe_layer_step": ("u32", 1),
    "leading_dense_block_count": ("u32", 0),
    "logit_scale": ("f32", 0.7),
    "moe_every_n_layers": ("u32", 0),
    "rescale_every_n_layers": ("u32", 1),
    "residual_scale": ("f32", 0.7),
    "rope.dimension_count_swa": ("u32", 4),
    "rope.dimension_sections": ("[i32]", [1, 1, 0, 2]),
    "rope.freq_base_swa": ("f32", 77.0),
    "rope.scaling.finetuned": ("bool", False),
    "rope.scaling.yarn_attn_factor": ("f32", 2.0),
    "rope.scaling.yarn_ext_factor": ("f32", 0.5),
    "rope.scaling.yarn_log_multiplier": ("f32", 0.5),
    "router_logit_softcapping": ("f32", 0.7),
    "ssm.dt_b_c_rms": ("bool", True),
    "swiglu_clamp_exp": ("f32", 0.3),
    "swiglu_clamp_shexp": ("f32", 0.3),
    "use_parallel_residual": ("bool", False),
}
VALUES_OF: dict[tuple[str, str], tuple[str, Any]] = {  # where those would not
    ("llama4", "attention.sliding_window"): ("u32", 0),
    ("phi3", "attention.sliding_window_pattern"): ("[bool]", [True, False]),
    ("smallthinker", "attention.sliding_window"): ("u32", 0),
    ("gemma4", "attention.sliding_window_pattern"): ("[bool]", [True, False] * 3),
    ("gemma4", "rope.dimension_count_swa"): ("u32", 2),
    ("ernie4_5-moe", "interleave_moe_layer_step"): ("u32", 1),
}
OTHERS: dict[str, tuple[str, Any]] = {  # where files usually state the value above
    "expert_gating_func": ("u32", 1),
    "expert_weights_norm": ("bool", False),
}
WITHOUT_EFFECT = {
    ("stablelm", "use_parallel_residual"),
    ("grok", "router_logit_softcapping"),
    ("ernie4_5-moe", "interleave_moe_layer_step"),
    ("gemma3n", "altup.active_idx"),
    ("gemma3n", "altup.num_inputs"),
}
"""Known to mean nothing: the tensors say it, nobody uses it, or there is one value."""

SHARED = {"expert_count": ("u32", 4), "expert_used_count": ("u32", 2)}
RATE = {"attention.temperature_scale": ("f32", 0.5), "attention.temperature_length": ("u32", 9)}
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
        "attention.sliding_window_pattern": ("[bool]", [True, False, True, True, False])
    },
    ("granite", "expert_shared_feed_forward_length"): SHARED,
    ("granitehybrid", "expert_shared_feed_forward_length"): SHARED,
    ("llama", "attention.sliding_window_pattern"): {"attention.sliding_window": ("u32", 6)},
    ("mistral3", "rope.scaling.yarn_log_multiplier"): zoo.YARN,
    ("olmo2", "attention.sliding_window_pattern"): {"attention.sliding_window": ("u32", 6)},
    ("phi3", "attention.sliding_window"): {"attention.sliding_window_pattern": ("[bool]", [True, False])},
    ("phi3", "attention.sliding_window_pattern"): {"attention.sliding_window": ("u32", 6)},
}


VARIANTS_OF = {("gemma4", "expert_feed_forward_length"): zoo.VARIANTS["gemma4-experts"]}
"""Models that have what an option acts on."""

REFUSED = {*UNSUPPORTED, "attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"}
"""Options that change too much to be ignored by other architectures."""


def run(data: bytes, encoder: bool = False) -> np.ndarray:
    """Logits of a decoder, states of an encoder, after each of some tokens."""
    running, tokens = Running(data), tokens_of(20, zoo.VOCAB)
    return running.hidden_states([tokens], 512)[0] if encoder else running.logits(tokens)


def with_tensors(model: Model, tensors: dict[str, np.ndarray]) -> bytes:
    """A file of the model's metadata and these tensors."""
    return model._file([zoo.stored(name, values, "F32") for name, values in tensors.items()])


def facts(model: Model) -> tuple[Any, ...]:
    """The spec of a model, and its unread options."""
    spec = read_spec(ModelFile.open(model.file()))
    return replace(spec, unread=()), spec.unread


def test_queries_of_llama_4_are_scaled_by_whole_chunks() -> None:
    """By 1 + 0.1 ln(floor((position + 1) / 8192) + 1): from the last position of a chunk on."""
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
    values += [OTHERS[option]] if option in OTHERS else []
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
    stated = with_tensors(replace(model, keys=model.keys | keys), model.tensors())
    told = [option for option in foreign if option not in FAMILIES[name].ignored_keys]
    assert read_spec(ModelFile.open(stated)).unread == tuple(f"{name}.{option}" for option in told)
    encoder = name in ENCODERS
    assert same_bits(run(stated, encoder), run(model.file(), encoder))


@pytest.mark.parametrize("option", sorted(OPTIONS & UNSUPPORTED.keys()))
def test_options_that_cannot_be_ignored_are_refused(option: str) -> None:
    model = replace(MODELS["llama"], keys={option: VALUES[option]})
    with pytest.raises(
        LoadError, match=f"llama.{option}: expected .* or no such key|llama.{option}: expected"
    ):
        load_model(model.file())


@pytest.mark.parametrize(
    ("name", "key", "value", "text"),
    [
        ("granite", "attention.scale", ("f32", float("nan")), "expected 0 or a number from 1e-06"),
        ("mpt", "attention.clamp_kqv", ("f32", -1.0), "expected 0 or a number from 1e-06"),
        ("granite", "embedding_scale", ("f32", float("inf")), "expected 0 or a number from 1e-06"),
        (
            "gemma2",
            "attention.sliding_window_pattern",
            ("[i32]", [1]),
            "expected an integer for each of 2 layers",
        ),
    ],
)
def test_options_that_cannot_be_are_named(name: str, key: str, value: tuple[str, Any], text: str) -> None:
    model = replace(zoo.MODELS[name], keys={key: value})
    with pytest.raises(LoadError, match=f"{name}.{key}: {text}"):
        load_model(model.file())


@pytest.mark.parametrize(
    "key", ["attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"]
)
def test_windowed_layers_of_another_shape_are_refused(key: str) -> None:
    def file(name: str, n: int) -> bytes:
        return replace(zoo.MODELS[name], keys={key: ("u32", n)}).file()

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

    def made(tensors: dict[str, np.ndarray]) -> np.ndarray:
        return run(with_tensors(model, tensors), name in ENCODERS)

    expected = made(apart)
    assert not same_bits(expected, run(model.file(), name in ENCODERS))
    assert same_bits(made(fused), expected)
    assert same_bits(made(both), expected)


@pytest.mark.parametrize("tensor", ["attn_q", "ffn_down_exps"])
def test_products_are_multiplied_with_the_scale_of_a_whole_tensor(tensor: str) -> None:
    """As converted NVFP4 files have it. Powers of two: scaled weights of float32 give the same bits."""
    model, name = MODELS["qwen3moe"], f"blk.1.{tensor}"
    weights = model.tensors()[f"{name}.weight"]
    scale = np.exp2(-1 - np.arange(len(weights) if tensor.endswith("_exps") else 1)).astype(np.float32)
    inputs = {f"{name}.input_scale": np.full(len(scale), 3, np.float32)}  # for activations of 4 bits
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


@pytest.mark.parametrize(
    ("name", "keys", "text"),
    [
        ("gpt-oss", {"expert_group_count": ("u32", 2)}, "expert_group_count: expected 1 group"),
        ("llama4", {"expert_group_count": ("u32", 2)}, "expert_group_count: expected 1 group"),
        (
            "lfm2",
            {"attention.causal": ("bool", False), "shortconv.l_cache": ("u32", 4)},
            "shortconv.l_cache: expected an odd number in an encoder, got 4",
        ),
    ],
)
def test_what_cannot_be_combined_is_refused(name: str, keys: dict[str, Any], text: str) -> None:
    with pytest.raises(LoadError, match=text):
        load_model(replace(MODELS[name], keys=keys).file())


def test_a_bias_for_experts_chosen_by_their_logits_is_refused() -> None:
    bias = {"blk.0.exp_probs_b.bias": np.ones(4, np.float32)}
    with pytest.raises(LoadError, match=r"exp_probs_b\.bias: expected no such tensor for experts chosen"):
        load_model(MODELS["gpt-oss"].file(**bias))


@pytest.mark.parametrize("name", ["deepseek32", "glm-dsa"])
def test_a_selector_chooses_among_earlier_positions_only(name: str) -> None:
    model = replace(MODELS[name], keys=MODELS[name].keys | {"attention.causal": ("bool", False)})
    with pytest.raises(LoadError, match=f"{name}.attention.causal: expected true beside selectors"):
        load_model(model.file())


@pytest.mark.parametrize(
    "name", few(name for name in MODELS if name not in (*ENCODERS, "deepseek32", "glm-dsa"))
)
def test_any_architecture_may_see_both_ways(name: str) -> None:
    """Then it has states and no logits; a recurrent layer sees back as ever, a centred convolution ahead."""
    model = MODELS[name]
    window = {"attention.sliding_window": ("u32", 99)} if model.facts.windows is not None else {}
    model = replace(model, keys=model.keys | window | {"attention.causal": ("bool", False)})
    for n in (20, 1, 2):
        tokens = tokens_of(n, zoo.VOCAB)
        running = Running(model.file())
        found, again = running.hidden_states([tokens, tokens[: n // 2 + 1]], 512)
        expected = Reference(model).hidden_states(tokens)
        assert np.abs(found - expected).max() < 2e-4 * np.abs(expected).max()
        assert same_bits(again, running.hidden_states([tokens[: n // 2 + 1]], 512)[0])

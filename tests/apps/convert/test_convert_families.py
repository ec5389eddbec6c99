"""Every family that is converted: from random Hugging Face weights to logits, against a float64 reference."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from oxillama.compat.engine import InferenceEngine
from oxillama.errors import LoadError, OxiLlamaError
from oxillama.gguf.model_file import ModelFile
from tests.support import huggingface as hf
from tests.support.convert_families import (
    DIM,
    KEYS,
    LAYERS,
    NAMES,
    TIED,
    TOKENS,
    Source,
    check,
    config_of,
    converted,
    reference_of,
    weights_of,
)
from tests.support.tiny_models import Running


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("kind", NAMES)
def test_every_family(tmp_path: Path, kind: str, shards: int) -> None:
    made = weights_of(kind, tied=kind in TIED)
    data = converted(tmp_path, config_of(kind), made, shards=shards)
    check(data, reference_of(kind, made, **KEYS.get(kind, {})))


@pytest.mark.parametrize("kind", ["F16", "BF16", "F64"])
def test_stored_types(tmp_path: Path, kind: str) -> None:
    made = weights_of("llama")
    data = converted(tmp_path, config_of("llama"), made, kind=kind)
    made.reference = {name: hf.as_stored(values, kind) for name, values in made.reference.items()}
    check(data, reference_of("llama", made))


@pytest.mark.parametrize("kind", ["llama", "mixtral", "qwen2_moe", "gemma2", "phi3", "starcoder2"])
@pytest.mark.parametrize(
    "stored, written, tolerance", [("BF16", "BF16", 0.05), ("BF16", "Q8_0", 0.2), ("F16", "F16", 0.02)]
)
def test_types(tmp_path: Path, kind: str, stored: str, written: str, tolerance: float) -> None:
    """Read as bfloat16 or float16; matrices of experts are of the type asked for, routers and vectors F32."""
    made = weights_of(kind, tied=kind in TIED)
    data = converted(tmp_path, config_of(kind), made, written, kind=stored)
    with ModelFile.open(data) as file:
        for name, info in file.tensors.items():
            small = len(info.shape) == 1 or "ffn_gate_inp" in name
            fits = written != "Q8_0" or info.shape[0] % 32 == 0
            assert info.format.name == ("F32" if small else written if fits else "F16"), name
    running = Running(data)
    wanted, found = reference_of(kind, made, **KEYS.get(kind, {})), running.logits(TOKENS)
    errors = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    assert np.median(errors) < tolerance


# --- options ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["qwen2_moe", "olmo2", "olmoe", "qwen3_moe", "phi3", "mistral", "mixtral"])
def test_tied_embeddings(tmp_path: Path, kind: str) -> None:
    """Where GGUF's architecture has no tied output, the table is written twice."""
    made = weights_of(kind, tied=True)
    data = converted(tmp_path, config_of(kind, tie_word_embeddings=True), made)
    check(data, reference_of(kind, made))
    with ModelFile.open(data) as file:
        assert ("output.weight" in file.tensors) == (kind in ("qwen2_moe", "olmo2", "olmoe"))


def test_a_copy_of_the_embedding_is_left_out(tmp_path: Path) -> None:
    made = weights_of("llama", tied=True)
    made.source["lm_head.weight"] = made.source["model.embed_tokens.weight"]
    data = converted(tmp_path, config_of("llama", tie_word_embeddings=True), made)
    check(data, reference_of("llama", made))
    with ModelFile.open(data) as file:
        assert "output.weight" not in file.tensors


@pytest.mark.parametrize("kind", ["gemma3_text", "starcoder2"])
def test_outputs_of_their_own(tmp_path: Path, kind: str) -> None:
    made = weights_of(kind)
    data = converted(tmp_path, config_of(kind, tie_word_embeddings=False), made)
    check(data, reference_of(kind, made, **KEYS.get(kind, {})))


@pytest.mark.parametrize("kind", ["mistral", "starcoder2", "phi3"])
def test_windows_of_all_layers(tmp_path: Path, kind: str) -> None:
    made = weights_of(kind, tied=kind in TIED)
    data = converted(tmp_path, config_of(kind, sliding_window=5), made)
    wanted = reference_of(kind, made, windows=[5] * LAYERS)
    assert np.abs(wanted - reference_of(kind, made)).max() > 0.01 * np.abs(wanted).max()
    check(data, wanted)


def test_a_window_as_long_as_the_context_is_none(tmp_path: Path) -> None:
    made = weights_of("phi3")
    data = converted(tmp_path, config_of("phi3", sliding_window=262144), made)
    check(data, reference_of("phi3", made))


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "olmo3", "mistral"])
@pytest.mark.parametrize("has", [[True, True, False, False], [False, True] * 2, [False] * 4, [True] * 4])
def test_windows_of_some_layers(tmp_path: Path, kind: str, has: list[bool]) -> None:
    made = weights_of(kind, tied=kind in TIED)
    kinds = ["sliding_attention" if windowed else "full_attention" for windowed in has]
    data = converted(tmp_path, config_of(kind, sliding_window=6, layer_types=kinds), made)
    check(data, reference_of(kind, made, windows=[6 * windowed for windowed in has], **KEYS.get(kind, {})))


def test_what_config_classes_fill_in(tmp_path: Path) -> None:
    """Keys that a family's config class has values for, and that published files may leave out."""
    usual: dict[str, dict[str, Any]] = {
        "mixtral": {"rope.freq_base": 1e6},
        "olmo3": {"rope.freq_base": 500000.0, "attention.sliding_window": 4096},
        "gemma3_text": {
            **{"rope.freq_base": 1e6, "rope.freq_base_swa": 10000.0, "attention.sliding_window": 4096},
            **{"context_length": 131072, "attention.scale": 1 / 16},
        },
        "gemma2": {
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "attention.scale": 1 / 16,
        },
    }
    left_out = {
        *("rope_theta", "sliding_window", "max_position_embeddings", "rope_local_base_freq"),
        *("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "rope_scaling"),
    }
    for kind, wanted in usual.items():
        keep = {"max_position_embeddings"} if kind != "gemma3_text" else set()
        config = {key: value for key, value in config_of(kind).items() if key not in left_out - keep}
        data = converted(tmp_path, config, weights_of(kind, tied=kind in TIED))
        with ModelFile.open(data) as file:
            architecture = file.get("general.architecture", str)
            found = {key: file.metadata[f"{architecture}.{key}"] for key in wanted}
        assert found == pytest.approx(wanted), kind


def test_gemma_2_without_caps_and_with_the_usual_scale(tmp_path: Path) -> None:
    made = weights_of("gemma2", tied=True)
    off = {"attn_logit_softcapping": None, "final_logit_softcapping": None, "query_pre_attn_scalar": DIM}
    wanted = reference_of(
        "gemma2", made, attention__sliding_window=6, attn_logit_softcapping=0.0, final_logit_softcapping=0.0
    )
    check(converted(tmp_path, config_of("gemma2", **off), made), wanted)


@pytest.mark.parametrize("kind, normalized", [("qwen2_moe", True), ("olmoe", True), ("olmoe", False)])
def test_weights_of_experts(tmp_path: Path, kind: str, normalized: bool) -> None:
    made = weights_of(kind)
    data = converted(tmp_path, config_of(kind, norm_topk_prob=normalized), made)
    check(data, reference_of(kind, made, expert_weights_norm=normalized))


def test_clipped_values(tmp_path: Path) -> None:
    made = weights_of("olmoe")
    data = converted(tmp_path, config_of("olmoe", clip_qkv=0.4), made)
    check(data, reference_of("olmoe", made, attention__clamp_kqv=0.4))


# --- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, changes, finding",
    [
        ("mixtral", {"num_local_experts": 2**30}, "experts of all layers: 4294967296 are more than the"),
        ("gemma2", {"layer_types": [["full_attention"]] * 4}, "layer_types: expected"),
        ("mixtral", {"num_local_experts": None}, "num_local_experts: expected an integer"),
        ("mixtral", {"num_local_experts": 7}, r"gate\.weight: expected shape \[7, 32\], got \[6, 32\]"),
        ("mixtral", {"num_hidden_layers": 5}, r"layers\.4\.self_attn\.q_proj\.weight: expected a tensor"),
        ("mixtral", {"model_type": "mistral"}, "model_type: 'mistral' is not supported"),
        ("qwen2_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step: 2 is not supported"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, r"mlp_only_layers: \[0\] is not supported"),
        ("qwen3_moe", {"use_sliding_window": True}, "use_sliding_window: True is not supported"),
        ("qwen3_moe", {"norm_topk_prob": 1}, "norm_topk_prob: expected true or false"),
        ("qwen3_moe", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5 is not supported"),
        ("gemma", {"hidden_activation": "relu"}, "hidden_activation: 'relu' is not supported"),
        ("gemma", {"final_logit_softcapping": 30.0}, "final_logit_softcapping: 30.0 is not supported"),
        ("gemma2", {"layer_types": ["full_attention"]}, "layer_types: expected .* for each of 4 layers"),
        ("gemma2", {"layer_types": ["chunked_attention"] * 4}, "layer_types: expected"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: is not supported"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention: True is not"),
        ("phi3", {"partial_rotary_factor": 0.4}, "expected an even share of 8, got 0.4"),
        ("phi3", {"attention_bias": True}, "attention_bias: True is not supported"),
        ("phi3", {"rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}},
         "original_max_position_embeddings: 64 is not supported"),
        ("phi3", {"rope_scaling": {"type": "longrope"}}, "factor: expected a number above 0"),
        ("phi3", {"rope_scaling": {"type": "yarn", "factor": 2.0, "long_factor": [1]}}, "long_factor of"),
        ("olmo2", {"layer_types": ["sliding_attention"] * 4}, "layer_types: .* is not supported"),
        ("olmo2", {"clip_qkv": 8.0}, "clip_qkv: 8.0 is not supported"),
        ("starcoder2", {"mlp_type": "gated"}, "mlp_type: 'gated' is not supported"),
        ("starcoder2", {"hidden_act": "gelu"}, "hidden_act: 'gelu' is not supported"),
        ("mistral", {"residual_multiplier": 0.5}, "residual_multiplier: 0.5 is not supported"),
        ("mistral", {"num_local_experts": 8}, "num_local_experts: 8 is not supported"),
    ],
)  # fmt: skip
def test_options_that_are_refused(tmp_path: Path, kind: str, changes: dict[str, Any], finding: str) -> None:
    made = weights_of(kind, tied=kind in TIED)
    with pytest.raises(LoadError, match=finding):
        converted(tmp_path, config_of(kind, **changes), made)
    assert not (tmp_path / "out.gguf").exists()


ODD: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, 7, -1, 2**31, 10**30, 0.5, 1.5, -2.0, 1e-30, 1e300, math.nan, math.inf),
    *("", "silu", "yarn", [], [1], ["full_attention"] * LAYERS, [[1]], {}, {"rope_type": "longrope"}),
    {"rope_type": "yarn", "factor": 1e300},
    {"rope_type": "dynamic", "factor": 1e-300, "original_max_position_embeddings": 1},
    {"rope_type": "longrope", "factor": 2.0, "long_factor": [1.0] * 4, "short_factor": [1e-30] * 4},
    {"rope_type": "llama3", "factor": 1e-12, "original_max_position_embeddings": 2**31 - 1},
    {"full_attention": {"rope_type": "default"}, "sliding_attention": 3},
]
OTHERS = (
    *("rope_scaling", "rope_parameters", "head_dim", "layer_types", "tie_word_embeddings", "sliding_window"),
    *("original_max_position_embeddings", "partial_rotary_factor", "sliding_window_pattern", "clip_qkv"),
    *("attention_bias", "mlp_bias", "query_pre_attn_scalar", "num_experts", "quantization_config"),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_a_config_says_it_is_refused_or_the_file_runs(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(NAMES)))
    config = config_of(kind)
    for _ in range(data.draw(st.integers(1, 2))):
        key = data.draw(st.sampled_from(sorted({*config, *OTHERS} - {"architectures"})))
        config[key] = data.draw(st.sampled_from(ODD))
    made = SOURCES.setdefault(kind, weights_of(kind, tied=kind in TIED))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of unknown keys
        try:
            raw = converted(tmp_path, config, made)
        except OxiLlamaError:
            return
    assert Running(raw).logits([1, 2, 3]).shape == (3, hf.N_VOCAB)


SOURCES: dict[str, Source] = {}


def test_an_expert_of_another_shape_is_named(tmp_path: Path) -> None:
    made = weights_of("qwen3_moe")
    name = "model.layers.2.mlp.experts.4.up_proj.weight"
    made.source[name] = made.source[name].T
    with pytest.raises(LoadError, match=rf"{name}: expected shape \[24, 32\], got \[32, 24\]"):
        converted(tmp_path, config_of("qwen3_moe"), made)


def test_a_tokenizer_as_gemma_has_it(tmp_path: Path) -> None:
    """Spaces become U+2581 and nothing stands before the text; the cut at spaces then finds none."""
    from tokenizers import normalizers, pre_tokenizers

    tokenizer: Any = hf.sentence_piece_tokenizer()
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made = weights_of("gemma", tied=True)
    converted(tmp_path, config_of("gemma"), made, tokenizer=tokenizer)
    engine = InferenceEngine.from_gguf(tmp_path / "out.gguf")
    for text in ("the hell in there", " the  hell\n", "é"):
        assert engine.tokenize(text) == tokenizer.encode(text).ids

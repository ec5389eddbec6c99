"""Converted models have the logits that `transformers` computes, on tiny models of random weights.

Its numbers are recorded; where torch and transformers are installed, the slow test computes them again.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama.apps.convert import convert
from oxillama.apps.convert.config import Config
from oxillama.apps.convert.families import plan_of
from oxillama.errors import LoadError
from tests.support.newer_configs import CONFIGS
from tests.support.spread import each
from tests.support.tiny_models import Running
from tests.support.transformers_models import LAST, TOKENS, recorded, run_transformers, write_model

OF_TOWERS = (
    *("vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.", "multi_modal_projector.", "visual."),
)


def rows_of(running: Running, chunk: int) -> np.ndarray:
    """Logits, or an encoder's hidden states."""
    if running.model.spec.family.output == "none":
        return running.hidden_states([TOKENS])[0]
    return running.logits(TOKENS, chunk)


def check(folder: Path, target: Path, wanted: np.ndarray) -> None:
    """The folder converts, but for towers, and its logits are the ``wanted`` ones of the last tokens."""
    left_out = convert(folder, target, "F32").left_out
    assert all(name.removeprefix("model.").startswith(OF_TOWERS) for name in left_out)
    running = Running(target.read_bytes())
    assert running.weights.unused() == []
    for chunk in (100, 7):
        found = rows_of(running, chunk)[-len(wanted) :]
        assert np.abs(found - wanted).max() < 1e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_recorded_logits(name: str, tmp_path: Path) -> None:
    config, shapes, wanted = recorded(name)
    assert wanted.shape[0] == LAST
    check(write_model(tmp_path / "model", config, shapes), tmp_path / "out.gguf", wanted)


@pytest.mark.parametrize("case", each(sorted(CONFIGS), 4))
def test_every_tensor_counts(case: str, tmp_path: Path) -> None:
    """The error names the missing tensor, whichever tensor is missing."""
    config, shapes, _ = recorded(case)
    names = sorted(name for name in shapes if not name.removeprefix("model.").startswith(OF_TOWERS))
    for i in {3 * len(names) // 7, 5 * len(names) // 7}:
        less = {key: shape for key, shape in shapes.items() if key != names[i]}
        name = names[i].rpartition("language_model.")[2].removeprefix("model.").removeprefix("backbone.")
        folder = write_model(tmp_path / f"model{i}", config, less)
        with pytest.raises(
            LoadError, match=rf"{name}: expected a tensor that config.json asks for, got none"
        ):
            convert(folder, tmp_path / "out.gguf", "F32")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_logits_of_transformers(name: str, tmp_path: Path) -> None:
    """The installed version of transformers computes the recorded logits of all tokens."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    try:
        config, shapes, wanted = run_transformers(name, tmp_path / "model")
    except LookupError as error:
        pytest.skip(f"this version of transformers has no {error}")
    check(write_model(tmp_path / "again", config, shapes), tmp_path / "out.gguf", wanted)


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("smollm3", {"no_rope_layers": [1, 1, 1, 1]}, r"no_rope_layers: \[1, 1, 1, 1\] is not supported"),
        ("seed_oss", {"attention_out_bias": True}, "attention_out_bias: True is not supported"),
        ("ernie4_5", {"use_bias": True}, "use_bias: True is not supported"),
        ("glm4_moe", {"first_k_dense_replace": 4}, "expected some layers with experts, got 4 dense of 4"),
        ("glm4_moe", {"n_shared_experts": -1}, "n_shared_experts: expected an integer from 0"),
        ("dots1", {"scoring_func": "softmax"}, "scoring_func: 'softmax' is not supported"),
        ("ernie4_5_moe", {"moe_layer_interval": 2}, "moe_layer_interval: 2 is not supported"),
        ("hunyuan_moe", {"moe_topk": [2, 3]}, "moe_topk: expected the same number for all layers"),
        ("qwen3_next", {"layer_types": ["full_attention"]}, "layer_types: expected one of .* for each of 4"),
        ("qwen3_5", {"linear_value_head_dim": 16}, "linear_value_head_dim: 16 is not supported"),
        ("qwen3_5", {"linear_num_key_heads": 4}, "linear_num_value_heads: expected a multiple of 4, got 6"),
        ("lfm2", {"conv_bias": True}, "conv_bias: True is not supported"),
        ("lfm2_moe", {"norm_topk_prob": False}, "norm_topk_prob: False is not supported"),
        ("granitemoehybrid", {"mamba_proj_bias": True}, "mamba_proj_bias: True is not supported"),
        ("granitemoehybrid", {"position_embedding_type": "alibi"}, "position_embedding_type: 'alibi' is not"),
        ("deepseek_v2", {"topk_method": "group_limited_greedy"},
         "topk_method: 'group_limited_greedy' is not"),
        ("deepseek_v3", {"rope_interleave": False}, "rope_interleave: False is not supported"),
        ("deepseek_v3-yarn", {"attention_bias": True}, "attention_bias: True is not supported"),
        ("glm_moe_dsa", {"indexer_types": ["full"]}, "indexer_types: expected full or shared for 4 layers"),
        ("gemma4", {"use_bidirectional_attention": "all"},
         "use_bidirectional_attention: 'all' is not supported"),
        ("gemma4", {"attention_bias": True}, "attention_bias: True is not supported"),
        ("gemma4", {"num_kv_shared_layers": 7}, "expected layers of both kinds before the last 7"),
        ("gemma4", {"num_kv_shared_layers": 8},
         "num_kv_shared_layers: expected an integer from 0 to 7, got 8"),
        ("gemma4", {"vocab_size_per_layer_input": 401}, "vocab_size_per_layer_input: expected at most 400"),
        ("gemma4", {"per_layer_config": {"0": {"head_dim": 4}}},
         "per_layer_config: expected the same head_dim"),
        ("gemma3n", {"altup_num_inputs": 3}, "altup_num_inputs: 3 is not supported"),
        ("gemma3n", {"altup_correct_scale": False}, "altup_correct_scale: False is not supported"),
        ("gemma3n", {"activation_sparsity_pattern": [0.95]},
         "activation_sparsity_pattern: expected 6 numbers"),
        ("gemma3n", {"activation_sparsity_pattern": 0.3}, "activation_sparsity_pattern: expected 0 or 0.5"),
        ("gemma3n", {"intermediate_size": [40, 40, 40, 40, 40, 48]},
         "intermediate_size: expected the same number"),
        ("gpt_oss", {"experts_per_token": 2}, "experts_per_token: 2 is not supported"),
        ("falcon_h1", {"projectors_bias": True}, "projectors_bias: True is not supported"),
        ("falcon_h1", {"time_step_limit": [0.1, 2.0]}, r"time_step_limit: \[0.1, 2.0\] is not supported"),
        ("falcon_h1", {"ssm_multipliers": [1.0]}, "ssm_multipliers: expected 5 numbers above 0"),
        ("falcon_h1-normed", {"mamba_norm_before_gate": True},
         "mamba_norm_before_gate: True is not supported"),
        ("nemotron_h", {"layers_block_type": ["moe", "mlp"]}, "expected dense blocks or experts, got both"),
        ("nemotron_h", {"hybrid_override_pattern": "MX"}, "hybrid_override_pattern: expected some of M, "),
        ("nemotron_h", {"mlp_hidden_act": "silu"}, "mlp_hidden_act: 'silu' is not supported"),
        ("nemotron_h", {"attention_bias": True}, "attention_bias: True is not supported"),
        ("exaone4", {"sliding_window": 6}, "sliding_window: expected a number with 64 layers"),
        ("exaone4-windows", {"sliding_window": None}, "sliding_window: expected a number with 64 layers"),
        ("exaone_moe", {"mlp_layer_types": 4 * ["sparse"]}, "mlp_layer_types: .* is not supported"),
        ("afmoe", {"mup_enabled": False}, "mup_enabled: expected true, got false"),
        ("afmoe", {"layer_types": 4 * ["sliding_attention"]}, "layer_types: expected every fourth"),
        ("afmoe", {"route_norm": False}, "route_norm: False is not supported"),
        ("jais2", {"mlp_bias": False}, "mlp_bias: False is not supported"),
        ("granite_swa", {"layer_rope_theta": [1.0, 2.0, 0, 0]},
         "layer_rope_theta: expected 0 or the same base"),
        ("mimo_v2_flash", {"hybrid_layer_pattern": [0, 0, 0, 0]},
         "hybrid_layer_pattern: .* is not supported"),
        ("mimo_v2_flash", {"norm_topk_prob": False}, "norm_topk_prob: False is not supported"),
        ("mistral4", {"rope_parameters": None}, "rope_parameters: expected those of the model"),
        ("ministral3", {"sliding_window": 5}, "sliding_window: 5 is not supported"),
        ("mistral3-towers", {"text_config": {"model_type": "x"}},
         "model_type: expected mistral, ministral3, "),
        ("kimi_linear", {"q_lora_rank": 8}, "q_lora_rank: 8 is not supported"),
        ("kimi_linear", {"linear_attn_config": {"full_attn_layers": [3]}},
         "kda_layers: expected each of 1 to 4"),
        ("modernbert", {"norm_bias": True}, "norm_bias: True is not supported"),
        ("modernbert", {"hidden_activation": "relu"}, "hidden_activation: 'relu' is not supported"),
        ("gemma_embedding", {"use_bidirectional_attention": False}, "expected true of an encoder, got false"),
        ("minimax_m2", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config: .* is not"),
    ],
)  # fmt: skip
def test_options_that_are_not_supported_are_named(
    name: str, changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    config, shapes, _ = recorded(name)
    folder = write_model(tmp_path / "model", config | changes, shapes)
    with pytest.raises(LoadError, match=text):
        convert(folder, tmp_path / "out.gguf", "F32")


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5", "nemotron_h-moe", "exaone_moe"])
def test_drafting_beside_the_layers_is_left_out(name: str, tmp_path: Path) -> None:
    config, shapes, wanted = recorded(name)
    extra = {"mtp.fc.weight": (32, 64), "mtp.layers.0.input_layernorm.weight": (32,)}
    said = {} if name.startswith("qwen") else {"num_nextn_predict_layers": 1}
    folder = write_model(tmp_path / "model", config | said, shapes | extra)
    assert sorted(convert(folder, tmp_path / "out.gguf", "F32").left_out) == sorted(extra)
    found = Running((tmp_path / "out.gguf").read_bytes()).logits(TOKENS)[-LAST:]
    assert np.abs(found - wanted).max() < 1e-3 * np.abs(wanted).max()


def test_blocks_for_drafting_are_left_out(tmp_path: Path) -> None:
    """The conversion lists the blocks that it leaves out."""
    config, shapes, wanted = recorded("glm4_moe")
    extra = {
        key.replace(".layers.3.", ".layers.4."): shape for key, shape in shapes.items() if ".layers.3." in key
    }
    folder = write_model(tmp_path / "model", config | {"num_nextn_predict_layers": 1}, shapes | extra)
    made = convert(folder, tmp_path / "out.gguf", "F32")
    assert sorted(made.left_out) == sorted(extra)
    found = Running((tmp_path / "out.gguf").read_bytes()).logits(TOKENS)[-LAST:]
    assert np.abs(found - wanted).max() < 1e-3 * np.abs(wanted).max()


@pytest.mark.parametrize(
    "name", ["gpt_oss", "gemma4-moe", "mistral4", "granitemoe", "granitemoe_swa", "qwen3_vl_moe"]
)
def test_many_experts_in_few_tensors(name: str) -> None:
    """Stacked experts may be more than the source has tensors."""
    config, shapes, _ = recorded(name)
    key = next(
        key for key in ("num_local_experts", "n_routed_experts", "num_experts") if config_of(config).get(key)
    )
    config_of(config)[key] = 600
    plan = plan_of(Config(config), len(shapes))
    assert plan.metadata["expert_count"] == 600


def config_of(config: dict[str, Any]) -> dict[str, Any]:
    """The config of the text model."""
    found: dict[str, Any] = config.get("text_config", config)
    return found


JUNK: tuple[Any, ...] = (
    *("x", "", -1, 0, 1, 7, 2**40, 1e99, math.nan, -0.5, True, False, [], [1], ["x"], 4 * [None], 4 * [-1]),
    *({}, {"a": 1}, {"0": {"head_dim": 3}}, [[1]], [{}]),
)


@pytest.mark.parametrize("name", each(sorted(CONFIGS), 4))
def test_configs_that_cannot_be(name: str) -> None:
    """Whatever a key holds, a config is understood, or the error says what is wrong with it."""
    config, shapes, _ = recorded(name)

    def places(values: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
        for key, value in list(values.items()):
            if key != "architectures":
                yield values, key
            if isinstance(value, dict):
                yield from places(value)

    rng = np.random.default_rng(len(name))
    changed = copy.deepcopy(config)
    for holder, key in places(changed):
        before = holder[key]
        for i in rng.integers(0, len(JUNK), 3):
            holder[key] = JUNK[i]
            with contextlib.suppress(LoadError):
                plan_of(Config(copy.deepcopy(changed)), len(shapes))
        holder[key] = before

"""Converted models have the logits that `transformers` computes, on tiny models of random weights.

Its numbers are recorded; where torch and transformers are installed, the slow test computes them again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama.convert import convert
from oxillama.errors import LoadError
from tests.support.newer_configs import CONFIGS
from tests.support.tiny_models import Running
from tests.support.transformers_models import LAST, RECORDED, TOKENS, run_transformers, write_model

OF_TOWERS = ("vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.", "multi_modal_projector.")


def check(folder: Path, target: Path, wanted: np.ndarray) -> None:
    """The folder converts, but for towers, and its logits are the ``wanted`` ones of the last tokens."""
    left_out = convert(folder, target, "F32").left_out
    assert all(name.removeprefix("model.").startswith(OF_TOWERS) for name in left_out)
    running = Running(target.read_bytes())
    assert running.weights.unused() == []
    for chunk in (100, 7):
        found = running.logits(TOKENS, chunk)[-len(wanted) :]
        assert np.abs(found - wanted).max() < 1e-3 * np.abs(wanted).max()


def recorded(name: str) -> tuple[dict[str, Any], dict[str, tuple[int, ...]], np.ndarray]:
    """The config, the shapes and the logits of a model."""
    with np.load(RECORDED) as data:
        facts = json.loads(str(data[f"{name}.json"]))
        return facts["config"], {key: tuple(shape) for key, shape in facts["shapes"].items()}, data[name]


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_recorded_logits(name: str, tmp_path: Path) -> None:
    config, shapes, wanted = recorded(name)
    assert wanted.shape[0] == LAST
    check(write_model(tmp_path / "model", config, shapes), tmp_path / "out.gguf", wanted)


@pytest.mark.parametrize("case", sorted(CONFIGS))
def test_every_tensor_counts(case: str, tmp_path: Path) -> None:
    """One that is missing is named, whichever it is."""
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
    """Those that the installed version computes, of all tokens."""
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
        (
            "deepseek_v2",
            {"topk_method": "group_limited_greedy"},
            "topk_method: 'group_limited_greedy' is not",
        ),
        ("deepseek_v3", {"rope_interleave": False}, "rope_interleave: False is not supported"),
        ("deepseek_v3-yarn", {"attention_bias": True}, "attention_bias: True is not supported"),
        ("glm_moe_dsa", {"indexer_types": ["full"]}, "indexer_types: expected full or shared for 4 layers"),
        ("minimax_m2", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config: .* is not"),
    ],
)
def test_options_that_are_not_supported_are_named(
    name: str, changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    config, shapes, _ = recorded(name)
    folder = write_model(tmp_path / "model", config | changes, shapes)
    with pytest.raises(LoadError, match=text):
        convert(folder, tmp_path / "out.gguf", "F32")


def test_blocks_for_drafting_are_left_out(tmp_path: Path) -> None:
    """And listed."""
    config, shapes, wanted = recorded("glm4_moe")
    extra = {
        key.replace(".layers.3.", ".layers.4."): shape for key, shape in shapes.items() if ".layers.3." in key
    }
    folder = write_model(tmp_path / "model", config | {"num_nextn_predict_layers": 1}, shapes | extra)
    made = convert(folder, tmp_path / "out.gguf", "F32")
    assert sorted(made.left_out) == sorted(extra)
    found = Running((tmp_path / "out.gguf").read_bytes()).logits(TOKENS)[-LAST:]
    assert np.abs(found - wanted).max() < 1e-3 * np.abs(wanted).max()

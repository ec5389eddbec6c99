"""Files of architectures that llama.cpp refuses too: what their metadata and tensors may not say."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oxillama.engine.features.media.feature import check_widths
from oxillama.errors import LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.models import FAMILIES, read_spec
from tests.support.tiny_models import Running
from tests.support.zoo import MODELS, VARIANTS, YARN

WHOLE = sorted(name for name, family in FAMILIES.items() if family.whole_rotation)
REFUSING = sorted(name for name, family in FAMILIES.items() if family.refuses)
SELECTING = (
    "deepseek32", "glm-dsa", "hy_v4", "dots3note", "minimax-m3", "glm5-next", "glm5next", "qwen4exp",
    "deepseek4",
)  # fmt: skip
"""Architectures with selectors of positions or blocks, which choose among earlier positions only."""
MAGNITUDE = "scaling.attn_factor, yarn_attn_factor and yarn_log_multiplier"


def refusal(name: str, tensors: dict[str, np.ndarray | None], **keys: Any) -> str:
    """The message with which a model of the zoo is refused after these changes."""
    model = (MODELS | VARIANTS)[name]
    changed = replace(model, keys=model.keys | keys).file_of(model.tensors() | tensors)
    with pytest.raises(LoadError) as caught:
        Running(changed)
    return str(caught.value)


@pytest.mark.parametrize("name", WHOLE)
def test_heads_that_rotate_in_part(name: str) -> None:
    found = refusal(name, {}, **{"rope.dimension_count": 4})
    assert found.startswith(f"{name}.rope.dimension_count") and "the width of a head, got 4" in found


@pytest.mark.parametrize("name", REFUSING)
def test_tensors_that_the_architecture_does_not_know(name: str) -> None:
    for pattern in FAMILIES[name].refuses:
        tensor = pattern.replace("*", "long")
        found = refusal(name, {tensor: np.ones(4, np.float32)})
        assert found == f"{tensor}: expected no such tensor in a model of {name}"


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("pangu-embedded", "blk.1.attn_output.bias"),
        *(("jais", f"blk.0.{each}.bias") for each in ("attn_qkv", "attn_output", "ffn_up", "ffn_norm")),
        ("cogvlm", "blk.0.attn_qkv.weight"),
        ("graniteswitch", "blk.1.attn_qkv.weight"),
        ("graniteswitch", "blk.1.ffn_up.lora_b"),
        ("talkie", "blk.1.layer_output_scale.weight"),
        ("arctic", "blk.0.ffn_norm_exps.weight"),
        ("grovemoe", "blk.0.ffn_down_chexps.weight"),
        ("hrm_text", "hrm.z_l_init"),
        ("bitnet", "blk.0.ffn_sub_norm.weight"),
        ("gemma-embedding2", "output.weight"),
        ("rwkv7", "blk.0.time_mix_ln.weight"),
        ("deepseek4", "blk.0.ffn_gate_tid2eid.weight"),
        ("k2-horizon", "blk.1.attn_v_exps.weight"),
        ("kimi-k3", "blk.0.ffn_res_score.weight"),
        ("hy_v4", "blk.1.hc_ffn_base.weight"),
        ("minimax-m3", "blk.1.indexer.k_norm.weight"),
    ],
)
def test_tensors_that_must_be_there(name: str, tensor: str) -> None:
    assert refusal(name, {tensor: None}).startswith(f"{tensor}: expected ")


@pytest.mark.parametrize(
    ("name", "keys", "text"),
    [
        ("chameleon", {}, "token_embd.weight: expected at least 8196 rows, got 8000"),
        ("deepseek2-ocr", {"rope.freq_base": 5000.0}, "rope.freq_base: expected 10000 or no such key"),
        ("talkie", {"logit_scale": None}, "logit_scale: expected a value other than 0, got no such key"),
        ("maple", {"swiglu_clamp_exp": None}, "swiglu_clamp_exp: expected a value other than 0"),
        ("maple", {"attention.sliding_window_pattern": 2}, "sliding_window_pattern: expected a list"),
        ("bailingmoe", {"expert_shared_count": None}, "expert_shared_count: expected a value other than 0"),
        ("grovemoe", {"experts_per_group": 3}, "experts_per_group: expected a divisor of 4, got 3"),
        ("nanbeige", {"num_loops": 257}, "num_loops: expected at most 256 for 2 layers, got 257"),
        ("hrm_text", {"hrm.l_cycles": 5}, "block_count: expected 6 layers of all passes, got 3"),
        ("rwkv6qwen2", {"token_shift_count": 2}, "token_shift_count: expected 1 or no such key, got 2"),
        ("rwkv6qwen2", {"token_shift_count": None}, "token_shift_count: expected a value other than 0"),
        ("graniteswitch", {"adapters.count": 3}, "adapters.token_ids_activate: expected 3 tokens"),
        ("graniteswitch", {"adapters.token_ids_substitute": [1, 48]}, "expected 2 tokens below 48"),
        ("graniteswitch", {"adapters.lora_rank": 5000}, "adapters.lora_rank: expected 1 to 4096, got 5000"),
        ("laguna", {"leading_dense_block_count": None}, "leading_dense_block_count: expected a value"),
        ("spark2_5", {"attention.sliding_window_pattern": 2}, "sliding_window_pattern: expected a list"),
        ("muse-glimmer", {"logit_scale": None}, "logit_scale: expected a value other than 0"),
        ("k2-horizon", {"attention.group_norm_groups": 5}, "groups: expected a divisor of 32, got 5"),
        ("k2-horizon", {"attention.value_expert_used_count": 6}, "at least the 6 that a token uses, got 5"),
        ("minimax-01", {"residual_scale": None}, "residual_scale: expected a value other than 0"),
        ("minimax-m3", {"attention.indexer.local_blocks": 4}, "local_blocks: expected at most 3, got 4"),
        ("hy_v4", {"hyper_connection.count": 17}, "connection.count: expected at most 16 streams, got 17"),
        ("bailingmoe3", {"kda.safe_gate": False}, "kda.safe_gate: expected true or no such key, got false"),
        ("bailingmoe3", {"kda.gate_lower_bound": None}, "kda.gate_lower_bound: expected a number below 0"),
        ("glm5-next", {"attention.indexer.kpool_select_tail": False}, "kpool_select_tail: expected True"),
        ("glm5-next", {"attention.indexer.top_k": 10}, "top_k: expected a multiple of 3, got 10"),
        ("glm5-next", {"hyper_connection.count": 3}, "hyper_connection.count: expected 4, got 3"),
        ("qwen4exp", {"ple.head_offsets": [0, 40]}, "ple.head_vocab_sizes: expected rows of the 68"),
        ("qwen4exp", {"ple.layers": [3]}, "ple.layers: expected one layer with linear attention"),
        ("qwen4exp", {"attention.compress_ratios": [0, 3, 0, 4]}, "expected one size of blocks, got [3, 4]"),
        ("deepseek4", {"attention.compress_ratios": [4, 0, 8]}, "compress_ratios: expected 0, 4 or 128"),
        ("deepseek4", {"attention.output_group_count": 3}, "output_group_count: expected a divisor of 4"),
        ("deepseek4", {"expert_gating_func": 2}, "expert_gating_func: expected 4"),
        *(
            ("deepseek2", {"expert_group_count": n, "expert_group_used_count": used},
             f"got 2 of 4 experts from {used} of {n} groups")
            for n, used in ((3, 1), (2, 3), (4, 1))
        ),
        ("deepseek2", {"expert_gating_func": 9}, "expert_gating_func: expected one of 1, 2, 3, 4, got 9"),
        ("deepseek2", {"expert_used_count": 0}, "expert_used_count: expected 1 to 4 experts, got [0"),
        ("deepseek2", {"expert_used_count": 5}, "expert_used_count: expected 1 to 4 experts, got [5"),
        ("deepseek2", {"attention.kv_lora_rank": 0}, "attention.kv_lora_rank: expected an integer from 1"),
        ("deepseek2", {"attention.key_length_mla": 21}, "blk.0.attn_q_b.weight: expected shape"),
        ("deepseek2", {"attention.key_length_mla": 8},
         "rope.dimension_count: expected an even number below 8, got 8"),
        ("glm-dsa", {"attention.indexer.top_k": 0}, "top_k: expected an integer from 1"),
        ("glm-dsa", {"attention.indexer.head_count": 0}, "head_count: expected an integer from 1"),
        ("glm-dsa", {"attention.indexer.key_length": 6}, "key_length: expected at least the 8 dimensions"),
        ("glm-dsa", {"attention.indexer.key_length": 1 << 17},
         "key_length: expected an integer from 1 to 65536"),
        ("glm-dsa", {"attention.indexer.types": [False, True, True]}, "types: expected a selector"),
        ("glm-dsa", {"attention.indexer.types": [True, False]}, "types: expected an integer for each of 3"),
        ("glm-dsa", {"attention.indexer.types": [True] * 3},
         "blk.1.indexer.attn_q_b.weight: expected a tensor of shape"),
        ("granite", {"attention.scale": float("nan")},
         "granite.attention.scale: expected 0 or a number from 1e-06"),
        ("mpt", {"attention.clamp_kqv": -1.0}, "mpt.attention.clamp_kqv: expected 0 or a number from 1e-06"),
        ("granite", {"embedding_scale": float("inf")}, "embedding_scale: expected 0 or a number from 1e-06"),
        ("gemma2", {"attention.sliding_window_pattern": [1]},
         "pattern: expected an integer for each of 2 layers"),
        ("gpt-oss", {"expert_group_count": 2}, "expert_group_count: expected 1 group"),
        ("llama4", {"expert_group_count": 2}, "expert_group_count: expected 1 group"),
        ("lfm2", {"attention.causal": False, "shortconv.l_cache": 4},
         "shortconv.l_cache: expected an odd number in an encoder, got 4"),
        *(
            ("grok", {f"rope.{key}": value for key, value in keys.items()}, f"grok.rope.{named}: expected")
            for named, keys in (
                ("freq_base", {"freq_base": 1.0, "scaling.yarn_ext_factor": 1.0}),
                (MAGNITUDE, {"scaling.attn_factor": 1e6}),
                (MAGNITUDE, {"scaling.attn_factor": 1e3, "scaling.yarn_attn_factor": 1e3}),
            )
        ),
        *(
            ("qwen2vl", YARN | {key: value}, f"qwen2vl.{key}: expected {text}")
            for key, value, text in (
                ("rope.scaling.factor", -1.0, "0 or a number from 1e-06"),
                ("rope.scaling.factor", float("nan"), "0 or a number from 1e-06"),
                ("rope.scaling.attn_factor", 0.0, "a number from 1e-06"),
                ("rope.scaling.yarn_beta_fast", 0.0, "a number from 1e-06"),
                ("rope.freq_base", 1.0, "another base than 1 for YaRN"),
                ("rope.scaling.original_context_length", ("i32", -5), "an integer from 0"),
                ("rope.dimension_sections", [1, 2, 3, 4, 5], "up to four integers"),
                ("rope.dimension_sections", [1, -2], "up to four integers"),
            )
        ),
        *(
            (name, {"expert_count": None, "expert_used_count": None},
             "expert_count: expected a value other than 0")
            for name in ("qwen2moe", "qwen3moe", "phimoe", "dbrx", "grok", "deepseek", "gpt-oss")
        ),
        *(
            (name, {"attention.causal": False}, f"{name}.attention.causal: expected true")
            for name in SELECTING
        ),
    ],
)  # fmt: skip
def test_metadata_that_cannot_be(name: str, keys: dict[str, Any], text: str) -> None:
    tensors: dict[str, np.ndarray | None] = {}
    if name == "chameleon":
        tensors = {"token_embd.weight": MODELS[name].tensors()["token_embd.weight"][:8000]}
    assert text in refusal(name, tensors, **keys)


@pytest.mark.parametrize("name", ["cogvlm", "graniteswitch"])
def test_projectors_of_models_that_take_text_alone(name: str) -> None:
    file = ModelFile.open(MODELS[name].file())
    model: Any = SimpleNamespace(file=file, spec=read_spec(file))
    with pytest.raises(LoadError, match=f"mmproj: expected no projector file for {name}"):
        check_widths(None, model)  # type: ignore[arg-type]

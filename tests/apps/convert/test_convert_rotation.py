"""Rotations of a config.json: what the logits of the converted file are, against a float64 reference."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import InferenceEngine
from oxillama.errors import LoadError
from tests.support.convert_families import (
    DIM,
    GEMMA3_KEYS,
    KEYS,
    check,
    config_of,
    converted,
    reference_of,
    weights_of,
)

FACTORS = {"short": [1.0, 1.5, 2.0, 3.0], "long": [1.0, 2.5, 4.0, 9.0]}


def longrope(kind: str, original: int, n: int = 4, **more: Any) -> dict[str, Any]:
    factors = {f"{length}_factor": values[:n] for length, values in FACTORS.items()}
    scaling = {"rope_type": "longrope", **factors, **more}
    return config_of(kind, rope_scaling=scaling, original_max_position_embeddings=original)


@pytest.mark.parametrize("name", ["longrope", "su"])
@pytest.mark.parametrize("original, length", [(64, "long"), (256, "short")])
def test_longrope(tmp_path: Path, original: int, length: str, name: str) -> None:
    """The context of 256 is beyond the first one of 64: long factors, and larger cosines."""
    made = weights_of("phi3")
    stretch = 256 / original
    gain = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    data = converted(tmp_path, longrope("phi3", original, rope_type=name), made)
    made.reference["rope_factors_long.weight"] = made.reference["rope_factors_short.weight"] = np.array(
        FACTORS[length]
    )
    keys = {"rope__scaling__original_context_length": original, "rope__scaling__attn_factor": gain}
    check(data, reference_of("phi3", made, **keys))


def test_longrope_switches_with_the_context(tmp_path: Path) -> None:
    made = weights_of("phi3")
    converted(tmp_path, longrope("phi3", 64), made)
    found = {}
    for context in (64, 65):
        engine = InferenceEngine.from_gguf(tmp_path / "out.gguf", context_size=context)
        found[context] = engine.model.runner.model.frequencies[0]
    plain = 100.0 ** (-np.arange(0, DIM, 2) / DIM)
    assert np.allclose(found[64], plain / FACTORS["short"])
    assert np.allclose(found[65], plain / FACTORS["long"])


def test_longrope_of_a_share_of_each_head(tmp_path: Path) -> None:
    made = weights_of("phi3")
    config = longrope("phi3", 64, n=3, attention_factor=1.5) | {"partial_rotary_factor": 0.75}
    data = converted(tmp_path, config, made)
    factors = np.array(FACTORS["long"][:3])
    made.reference["rope_factors_long.weight"] = made.reference["rope_factors_short.weight"] = factors
    keys = {"rope__scaling__original_context_length": 64, "rope__scaling__attn_factor": 1.5}
    check(data, reference_of("phi3", made, n_rot=6, **keys))


def test_dynamic(tmp_path: Path) -> None:
    """Up to the context of training nothing is scaled; beyond it the base is, by the engine's context."""
    made = weights_of("mistral")
    scaling = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 256}
    check(
        converted(tmp_path, config_of("mistral", rope_scaling=scaling), made), reference_of("mistral", made)
    )
    with pytest.warns(UserWarning, match="context_size: 1024 is more than the 256"):
        engine = InferenceEngine.from_gguf(tmp_path / "out.gguf", context_size=1024)
    base = 100.0 * (2.0 * 1024 / 256 - 1) ** (DIM / (DIM - 2))
    found = engine.model.runner.model.frequencies[0]
    assert np.allclose(found, base ** (-np.arange(0, DIM, 2) / DIM), rtol=1e-12)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_llama_3(tmp_path: Path, key: str) -> None:
    made = weights_of("llama")
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    changes = {key: {**scaling, "original_max_position_embeddings": 64}}
    data = converted(tmp_path, config_of("llama", **changes), made)
    factors = []
    for i in range(6):  # of 12 dimensions
        wavelength = 2 * math.pi * 100.0 ** (2 * i / 12)
        share = (64 / wavelength - 1.0) / (4.0 - 1.0)
        factors.append(1.0 if share > 1 else 8.0 if share < 0 else 1 / ((1 - share) / 8 + share))
    assert len({round(f, 3) for f in factors}) > 2  # some kept, some divided, some between
    made.reference["rope_freqs.weight"] = np.array(factors)
    check(data, reference_of("llama", made))


def test_linear(tmp_path: Path) -> None:
    made = weights_of("llama")
    data = converted(tmp_path, config_of("llama", rope_scaling={"type": "linear", "factor": 4.0}), made)
    check(data, reference_of("llama", made, rope__scaling__factor=4.0))


@pytest.mark.parametrize("kind", ["mixtral", "qwen3", "qwen3_moe", "olmo3"])
@pytest.mark.parametrize(
    ("more", "gain"),
    [
        ({}, 1 + 0.1 * math.log(4)),
        ({"attention_factor": 1.25, "beta_fast": 16.0}, 1.25),
        ({"mscale": 1.0, "mscale_all_dim": 0.5}, (1 + 0.1 * math.log(4)) / (1 + 0.05 * math.log(4))),
        ({"mscale": 0.7}, 1 + 0.1 * math.log(4)),
        ({"factor": None}, 1 + 0.1 * math.log(4)),  # the context of 256 over the original one
    ],
)
def test_yarn(tmp_path: Path, kind: str, more: dict[str, float], gain: float) -> None:
    made = weights_of(kind)
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, **more}
    data = converted(tmp_path, config_of(kind, rope_scaling=scaling), made)
    keys = {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 4.0,
        "rope__scaling__original_context_length": 64,
        "rope__scaling__attn_factor": gain / (1 + 0.1 * math.log(4)),
        "rope__scaling__yarn_beta_fast": more.get("beta_fast", 32.0),
    }
    check(data, reference_of(kind, made, **keys, **KEYS.get(kind, {})))


# --- two rotations ----------------------------------------------------------------------------------


def test_gemma_3_may_say_its_period_and_both_rotations(tmp_path: Path) -> None:
    made = weights_of("gemma3_text", tied=True)
    both = {
        "full_attention": {"rope_type": "linear", "rope_theta": 100.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    }
    config = config_of("gemma3_text", rope_parameters=both, rope_scaling=None, rope_local_base_freq=None)
    del config["rope_theta"]
    wanted = reference_of("gemma3_text", made, windows=[6, 0, 6, 0], **GEMMA3_KEYS)
    check(converted(tmp_path, {**config, "sliding_window_pattern": 2}, made), wanted)


@pytest.mark.parametrize("local", [None, 50.0])
def test_olmo_3_may_say_both_rotations(tmp_path: Path, local: float | None) -> None:
    made = weights_of("olmo3")
    inner = {"rope_type": "default", **({"rope_theta": local} if local else {})}
    full = {"rope_type": "linear", "rope_theta": 100.0, "factor": 8.0}
    both = {"full_attention": full, "sliding_attention": inner}
    keys = {"rope__scaling__type": "linear", "rope__scaling__factor": 8.0, "attention__sliding_window": 6}
    wanted = reference_of("olmo3", made, rope__freq_base_swa=local or 100.0, **keys)
    check(converted(tmp_path, config_of("olmo3", rope_parameters=both), made), wanted)


@pytest.mark.parametrize(
    "both, finding",
    [
        ({"full_attention": {}, "chunked_attention": {}}, "chunked_attention is not supported"),
        ({"sliding_attention": {"rope_type": "linear", "factor": 2.0}},
         "rope_type: 'linear' is not supported"),
        ({"sliding_attention": {"rope_type": "default", "factor": 2.0}}, "factor is not supported"),
        ({"full_attention": {"rope_type": "spiral"}}, "'spiral' is not supported"),
        ({"full_attention": 3}, "full_attention: expected an object, got 3"),
    ],
)  # fmt: skip
def test_rotations_that_are_refused(tmp_path: Path, both: dict[str, Any], finding: str) -> None:
    made = weights_of("olmo3")
    with pytest.raises(LoadError, match=finding):
        converted(tmp_path, config_of("olmo3", rope_parameters=both), made)


def test_factors_that_are_not_as_many(tmp_path: Path) -> None:
    made = weights_of("phi3")
    with pytest.raises(LoadError, match=r"long_factor: expected 4 numbers above 0, got \[1.0, 2.5, 4.0\]"):
        converted(tmp_path, longrope("phi3", 64, n=3), made)

"""`EngineConfig(compute=...)`: the same bits as a file that holds what the codes stand for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oxillama import ConfigError, EngineConfig, demo, quantize_model
from oxillama.compat.engine import InferenceEngine

TOKENS = list(range(5, 45))


@pytest.mark.parametrize("compute", ["f32", "bf16"])
def test_equals_a_file_of_floats(compute: str, tmp_path: Path) -> None:
    floats = tmp_path / "floats.gguf"
    quantize_model(demo.DRAFT, floats, compute.upper(), allow_requantize=True)
    expected = InferenceEngine.from_gguf(floats).logits(TOKENS)
    found = InferenceEngine.from_gguf(demo.DRAFT, compute=compute).logits(TOKENS)
    if compute == "bf16":  # such a file's embeddings are rounded too
        assert np.abs(found - expected).max() < 0.2
    else:
        assert (found == expected).all()


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_matrices_of_floats_stay(name: str, tmp_path: Path) -> None:
    floats = tmp_path / "floats.gguf"
    quantize_model(demo.DRAFT, floats, name, allow_requantize=True)
    expected = InferenceEngine.from_gguf(floats).logits(TOKENS)
    for compute in ("bf16", "f32"):
        assert (InferenceEngine.from_gguf(floats, compute=compute).logits(TOKENS) == expected).all()


def test_int8_is_near_the_reference_and_not_it() -> None:
    exact = InferenceEngine.from_gguf(demo.DRAFT, compute="f32").logits(TOKENS)
    fast = InferenceEngine.from_gguf(demo.DRAFT).logits(TOKENS)
    assert 0 < np.abs(fast - exact).max() < 0.5


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="compute: expected one of int8, bf16, f32"):
        EngineConfig(compute="fp4")
    with pytest.raises(ConfigError, match="compute: f32 cannot be combined with quantize"):
        EngineConfig(compute="f32", quantize="Q8_0")

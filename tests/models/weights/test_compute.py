"""`EngineConfig(compute=...)`: the same bits as a file that holds what the codes stand for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import oxillama
from oxillama import ConfigError, EngineConfig, GGUFError, LoadError, demo, quantize_model
from oxillama._kernels import best
from oxillama.compat.engine import InferenceEngine
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, read_spec
from oxillama.models.weights import loader
from oxillama.models.weights.loader import Weights
from tests.support.kernels import PRESENT, same_bits
from tests.support.tiny_file import write_tiny_model
from tests.support.tiny_models import Running, tokens_of
from tests.support.zoo import MODELS, VOCAB

PACKAGE = Path(oxillama.__file__).parent
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
    """But "f32" takes those of BF16 as F32, whose products do not round activations."""
    floats = tmp_path / "floats.gguf"
    quantize_model(demo.DRAFT, floats, name, allow_requantize=True)
    expected = InferenceEngine.from_gguf(floats).logits(TOKENS)
    assert (InferenceEngine.from_gguf(floats, compute="bf16").logits(TOKENS) == expected).all()
    exact = InferenceEngine.from_gguf(floats, compute="f32").logits(TOKENS)
    assert (exact == expected).all() == (name == "F16")
    quantize_model(floats, tmp_path / "f32.gguf", "F32", allow_requantize=True)
    assert (InferenceEngine.from_gguf(tmp_path / "f32.gguf").logits(TOKENS) == exact).all()


def test_int8_is_near_the_reference_and_not_it() -> None:
    exact = InferenceEngine.from_gguf(demo.DRAFT, compute="f32").logits(TOKENS)
    fast = InferenceEngine.from_gguf(demo.DRAFT).logits(TOKENS)
    assert 0 < np.abs(fast - exact).max() < 0.5


@pytest.mark.parametrize("model", [demo.STORY, demo.DRAFT], ids=["story", "draft"])
def test_one_scale_per_row_is_near_the_reference(model: Path) -> None:
    exact = InferenceEngine.from_gguf(model, compute="f32").logits(TOKENS)
    rounded = InferenceEngine.from_gguf(model, compute="w8a8").logits(TOKENS)
    assert 0 < np.abs(rounded - exact).max() < 1
    assert (rounded != InferenceEngine.from_gguf(model).logits(TOKENS)).any()


def test_one_scale_per_row_of_a_file_of_floats(tmp_path: Path) -> None:
    """Rounding a file's floats is rounding what its formats stand for."""
    floats = tmp_path / "floats.gguf"
    quantize_model(demo.DRAFT, floats, "F32", allow_requantize=True)
    expected = InferenceEngine.from_gguf(demo.DRAFT, compute="w8a8").logits(TOKENS)
    assert (InferenceEngine.from_gguf(floats, compute="w8a8").logits(TOKENS) == expected).all()


@pytest.mark.parametrize("name", ["llama", "qwen3moe"])
def test_one_scale_per_row_gives_the_same_bits_in_any_chunks(name: str) -> None:
    """Of experts, too; in one pass or in many, on any number of threads, on every instruction set."""
    model = MODELS[name]
    tokens = tokens_of(45, VOCAB, seed=1)
    expected = Running(model.file(), compute="w8a8").logits(tokens)
    assert (expected != Running(model.file()).logits(tokens)).any()
    for target in PRESENT:
        for n_threads, chunk in ((2, 45), (1, 1), (3, 7), (1, 19)):
            run = Running(model.file(), target=target, n_threads=n_threads, compute="w8a8")
            assert same_bits(run.logits(tokens, chunk), expected), (target, n_threads, chunk)


def formats_of(path: Path) -> dict[str, str]:
    """The formats that the matrices of a model have in memory with one scale per row, by tensor."""
    with ModelFile.open(path) as file:
        decoder = Decoder(read_spec(file), Weights(file, best(), 1, compute="w8a8"))
        return {source.info.name: source.format.name for m in decoder.linears() for source in m.sources}


def test_what_is_rounded_to_one_scale_per_row(tmp_path: Path) -> None:
    """Matrices of a Q8_0 file, of floats, of experts; not routers, nor rows that are no multiple of 32."""
    assert set(formats_of(demo.STORY).values()) == {"W8A8"}
    odd = formats_of(write_tiny_model(tmp_path / "odd.gguf", format="F16", n_ff=72))
    assert {name for name, fmt in odd.items() if fmt != "W8A8"} == {
        f"blk.{i}.ffn_down.weight" for i in (0, 1)
    }
    experts = tmp_path / "experts.gguf"
    experts.write_bytes((PACKAGE / "reference" / "data" / "qwen3moe.gguf").read_bytes())
    found = formats_of(experts)
    assert any("_exps" in name and fmt == "W8A8" for name, fmt in found.items())
    assert {name.split(".")[2] for name, fmt in found.items() if fmt != "W8A8"} == {"ffn_gate_inp"}


def rounded_engine(path: Path) -> InferenceEngine:
    return InferenceEngine.from_gguf(path, compute="w8a8")


def test_rows_that_are_too_long_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_model(tmp_path / "m.gguf")
    monkeypatch.setattr(loader, "LONGEST_ROW", 64)
    with pytest.raises(LoadError, match=r"ffn_down\.weight: expected rows of at most 64 for w8a8, got 96"):
        rounded_engine(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_has_no_scale(tmp_path: Path, value: float) -> None:
    w = np.ones((96, 64), np.float32)
    w[3, 5] = value
    path = write_tiny_model(tmp_path / "m.gguf", tensors={"blk.1.ffn_up.weight": w})
    with pytest.raises(
        GGUFError, match=f"blk.1.ffn_up.weight: expected values from -3.* for W8A8, got {value}"
    ):
        rounded_engine(path).logits(TOKENS)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="compute: expected one of int8, w8a8, bf16, f32"):
        EngineConfig(compute="fp4")
    for compute in ("f32", "w8a8"):
        with pytest.raises(ConfigError, match=f"compute: {compute} cannot be combined with quantize"):
            EngineConfig(compute=compute, quantize="Q8_0")

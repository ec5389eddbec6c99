"""`EngineConfig(compute=...)`: the same bits as a file that holds what the codes stand for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import oxillama
from oxillama import ConfigError, EngineConfig, GGUFError, LoadError, demo, quantize_model
from oxillama._kernels import best
from oxillama.base.formats import ROUNDED
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
    """ "f32" alone changes BF16 matrices: it multiplies as F32, without rounding activations."""
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
def test_rounded_rows_are_near_the_reference(model: Path) -> None:
    """Spans of 128 columns are nearer than whole rows."""
    exact = InferenceEngine.from_gguf(model, compute="f32").logits(TOKENS)
    row, span = (InferenceEngine.from_gguf(model, compute=compute).logits(TOKENS) for compute in ROUNDED)
    assert 0 < np.abs(row - exact).max() < 1
    assert 0 < np.abs(span - exact).mean() < np.abs(row - exact).mean()
    assert (row != InferenceEngine.from_gguf(model).logits(TOKENS)).any()


@pytest.mark.parametrize("compute", ROUNDED)
def test_rounded_rows_of_a_file_of_floats(tmp_path: Path, compute: str) -> None:
    """Rounding a file's floats is rounding what its formats stand for."""
    floats = tmp_path / "floats.gguf"
    quantize_model(demo.DRAFT, floats, "F32", allow_requantize=True)
    expected = InferenceEngine.from_gguf(demo.DRAFT, compute=compute).logits(TOKENS)
    assert (InferenceEngine.from_gguf(floats, compute=compute).logits(TOKENS) == expected).all()


@pytest.mark.parametrize("compute", ROUNDED)
@pytest.mark.parametrize("name", ["llama", "qwen3moe"])
def test_rounded_rows_give_the_same_bits_in_any_chunks(name: str, compute: str) -> None:
    """Experts included; any number of passes and threads, every instruction set."""
    model = MODELS[name]
    tokens = tokens_of(45, VOCAB, seed=1)
    expected = Running(model.file(), compute=compute).logits(tokens)
    assert (expected != Running(model.file()).logits(tokens)).any()
    for target in PRESENT:
        for n_threads, chunk in ((2, 45), (1, 1), (3, 7), (1, 19)):
            run = Running(model.file(), target=target, n_threads=n_threads, compute=compute)
            assert same_bits(run.logits(tokens, chunk), expected), (target, n_threads, chunk)


def formats_of(path: Path, compute: str) -> dict[str, str]:
    """The formats that the matrices of a model have in memory, by tensor."""
    with ModelFile.open(path) as file:
        decoder = Decoder(read_spec(file), Weights(file, best(), 1, compute=compute))
        return {source.info.name: source.format.name for m in decoder.linears() for source in m.sources}


@pytest.mark.parametrize(("compute", "name"), [(key, fmt.name) for key, fmt in ROUNDED.items()])
def test_what_is_rounded(tmp_path: Path, compute: str, name: str) -> None:
    """Matrices of a Q8_0 file, of floats, of experts; not routers, nor rows that are no multiple of 32."""
    assert set(formats_of(demo.STORY, compute).values()) == {name}
    odd = formats_of(write_tiny_model(tmp_path / "odd.gguf", format="F16", n_ff=72), compute)
    assert {tensor for tensor, fmt in odd.items() if fmt != name} == {
        f"blk.{i}.ffn_down.weight" for i in (0, 1)
    }
    experts = tmp_path / "experts.gguf"
    experts.write_bytes((PACKAGE / "reference" / "data" / "qwen3moe.gguf").read_bytes())
    found = formats_of(experts, compute)
    assert any("_exps" in tensor and fmt == name for tensor, fmt in found.items())
    assert {tensor.split(".")[2] for tensor, fmt in found.items() if fmt != name} == {"ffn_gate_inp"}


def rounded_engine(path: Path, compute: str = "w8a8") -> InferenceEngine:
    return InferenceEngine.from_gguf(path, compute=compute)


def test_rows_that_are_too_long_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_model(tmp_path / "m.gguf")
    monkeypatch.setattr(loader, "LONGEST_ROW", 64)
    with pytest.raises(LoadError, match=r"ffn_down\.weight: expected rows of at most 64 for w8a8, got 96"):
        rounded_engine(path)
    assert len(rounded_engine(path, "w8a8-128").logits(TOKENS))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_has_no_scale(tmp_path: Path, value: float) -> None:
    w = np.ones((96, 64), np.float32)
    w[3, 5] = value
    path = write_tiny_model(tmp_path / "m.gguf", tensors={"blk.1.ffn_up.weight": w})
    for compute, fmt in ROUNDED.items():
        text = f"blk.1.ffn_up.weight: expected values from -3.4.* to 3.4.* for {fmt.name}, got {value}"
        with pytest.raises(GGUFError, match=text):
            rounded_engine(path, compute).logits(TOKENS)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="compute: expected one of int8, w8a8, w8a8-128, bf16, f32"):
        EngineConfig(compute="fp4")
    for compute in ("f32", "w8a8", "w8a8-128"):
        with pytest.raises(ConfigError, match=f"compute: {compute} cannot be combined with quantize"):
            EngineConfig(compute=compute, quantize="Q8_0")

"""`EngineConfig(quantize=...)`: the same bits as a file that was quantized with ``pure``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, EngineConfig, GGUFError, demo, quantize_model
from oxillama._kernels import best, load
from oxillama.base.formats import FORMATS, WRITABLE
from oxillama.compat.engine import InferenceEngine
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, read_spec
from oxillama.models.weights import requantize
from oxillama.models.weights.loader import Weights
from tests.support.file_type_cases import pure_type
from tests.support.kernels import PRESENT
from tests.support.tiny_models import WIDE, Running, Tiny, tokens_of

IDS = [1, *range(40, 60)]


def loaded(data: bytes | Path, name: str, n_threads: int = 1) -> Weights:
    """The weights of a file, quantized to the format ``name``."""
    return Weights(ModelFile.open(data), load(PRESENT[0]), n_threads, None, FORMATS[name])


def quantized_file(model: Tiny, name: str, folder: Path) -> bytes:
    """A model's file, quantized to the format ``name``."""
    (folder / "floats.gguf").write_bytes(model.file())
    quantize_model(folder / "floats.gguf", folder / "out.gguf", name, pure=True)
    return (folder / "out.gguf").read_bytes()


def logits(data: bytes, weights: Weights | None = None, seed: int = 0) -> np.ndarray:
    """Logits of some tokens with a file's weights, or with others for the same file."""
    running = Running(data)
    if weights is not None:
        running.runner.model = Decoder(read_spec(weights.file), weights)
    return running.logits(tokens_of(20, running.runner.model.spec.n_vocab, seed))


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("floats") / "draft.gguf"
    quantize_model(demo.DRAFT, path, "F32", allow_requantize=True)
    return path


@pytest.mark.parametrize("name", WRITABLE)
def test_an_engine_equals_one_of_a_quantized_file(name: str, floats: Path, tmp_path: Path) -> None:
    quantize_model(floats, tmp_path / "out.gguf", pure_type(name), pure=True)
    expected = InferenceEngine.from_gguf(tmp_path / "out.gguf").logits(IDS)
    found = InferenceEngine.from_gguf(floats, quantize=name.lower(), num_threads=2).logits(IDS)
    assert (found == expected).all()
    if name != "F32":
        assert (found != InferenceEngine.from_gguf(floats).logits(IDS)).any()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("source", ["F32", "F16", "BF16"])
def test_every_format_of_floats_is_quantized(source: str, tied: bool, tmp_path: Path) -> None:
    model = WIDE.but(formats=(source,), tied=tied)
    data = quantized_file(model, "Q4_K", tmp_path)
    for n_threads in (1, 3):
        assert (logits(data, loaded(model.file(), "Q4_K", n_threads)) == logits(data)).all()


@pytest.mark.parametrize(
    ("n_embd", "name", "expected"),
    [
        (64, "Q2_K", "Q4_0"), (64, "Q4_K", "Q5_0"), (64, "Q5_K", "Q5_1"), (64, "Q6_K", "Q8_0"),
        (48, "Q4_K", "F16"), (48, "Q8_0", "F16"), (48, "BF16", "BF16"), (256, "Q4_K", "Q4_K"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_fall_back(n_embd: int, name: str, expected: str, tmp_path: Path) -> None:
    model = Tiny(n_embd=n_embd)
    weights = loaded(model.file(), name)
    linear = weights.linear([("blk.0.attn_q", model.n_heads * model.key_dim)], n_embd)
    assert [source.format.name for source in linear.sources] == [expected]
    data = quantized_file(model, name, tmp_path)
    assert ModelFile.open(data).tensors["blk.0.attn_q.weight"].format.name == expected
    assert (logits(data, loaded(model.file(), name)) == logits(data)).all()


def test_experts_are_quantized_and_routers_stay(tmp_path: Path) -> None:
    model = Tiny(architecture="llama4", n_experts=4, n_embd=64, n_ff=96, formats=("BF16",))
    data = quantized_file(model, "Q4_K", tmp_path)
    formats = {name: tensor.format.name for name, tensor in ModelFile.open(data).tensors.items()}
    assert formats["blk.1.ffn_up_exps.weight"] == "Q5_0"  # rows of 64
    assert formats["blk.1.ffn_down_exps.weight"] == "F16"  # rows of 48
    assert formats["blk.1.ffn_gate_inp.weight"] == "BF16"
    weights = loaded(model.file(), "Q4_K", 2)
    for linear in Decoder(read_spec(weights.file), weights).linears():
        for source in linear.sources:
            assert source.format.name == formats[source.info.name], source.info.name
    assert (logits(data, weights) == logits(data)).all()


def test_rows_of_an_embedding_are_quantized_when_looked_up(tmp_path: Path) -> None:
    data = quantized_file(WIDE, "Q3_K", tmp_path)
    ids = np.array([0, 63, 5, 5], np.int64)
    found, expected, plain = (np.empty((4, 256), np.float32) for _ in range(3))
    loaded(WIDE.file(), "Q3_K").embedding("token_embd.weight", 64, 256).lookup(ids, found)
    Weights(ModelFile.open(data), best(), 1).embedding("token_embd.weight", 64, 256).lookup(ids, expected)
    Weights(ModelFile.open(WIDE.file()), best(), 1).embedding("token_embd.weight", 64, 256).lookup(ids, plain)
    assert (found == expected).all()
    assert (found != plain).any()
    loaded(WIDE.file(), "Q3_K").embedding("token_embd.weight", 64, 256).lookup(ids[:0], found[:0])


@pytest.mark.parametrize("n_rows", [48, 40, 1])  # rows of a chunk, which fill panels of 16
def test_matrices_of_many_chunks_are_packed_whole(
    n_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = quantized_file(WIDE, "Q5_K", tmp_path)
    monkeypatch.setattr(requantize, "CHUNK_ELEMENTS", 256 * n_rows)
    assert (logits(data, loaded(WIDE.file(), "Q5_K")) == logits(data)).all()


def test_quantized_matrices_stay() -> None:
    plain = InferenceEngine.from_gguf(demo.DRAFT).logits(IDS)
    assert (InferenceEngine.from_gguf(demo.DRAFT, quantize="Q2_K").logits(IDS) == plain).all()


def test_nvfp4_cannot_hold_large_values() -> None:
    rows = WIDE.tensors["blk.0.attn_q.weight"][1].copy()
    rows.view(np.float32)[3, 7] = -2689
    data = WIDE.file(**{"blk.0.attn_q.weight": ("F32", rows)})
    with pytest.raises(GGUFError, match=r"expected values from -2688 to 2688 for NVFP4, got -2689\.0"):
        logits(data, loaded(data, "NVFP4"))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e5, -1e5])
@pytest.mark.parametrize("name", ["blk.0.attn_q.weight", "token_embd.weight"])
def test_values_that_a_format_cannot_hold_are_refused(name: str, value: float) -> None:
    rows = WIDE.tensors[name][1].copy()
    rows.view(np.float32)[3, 7] = value
    data = WIDE.file(**{name: ("F32", rows)})
    found = rf"{name}: expected values from -65504 to 65504 for Q8_0, got {value}"
    with pytest.raises(GGUFError, match=found.replace("+", r"\+")):
        weights = loaded(data, "Q8_0")
        if name == "token_embd.weight":
            weights.embedding(name, 64, 256).lookup(np.array([2, 3]), np.empty((2, 256), np.float32))
        else:
            weights.linear([("blk.0.attn_q", 256)], 256).pack()


@pytest.mark.parametrize("value", ["MXFP4", "Q4_K_M", "I32", "fp4", "", 8, True, FORMATS["Q8_0"]])
def test_formats_that_cannot_be_written_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"quantize: expected one of F32, .*, Q6_K, .*, got "):
        EngineConfig(quantize=value)

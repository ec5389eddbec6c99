"""Random models are sound: files that the gguf package reads, of weights of the wanted size."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import lcm
from pathlib import Path

import gguf
import numpy as np
import pytest

from benchmarks import make_model
from benchmarks.__main__ import main
from benchmarks.make_model import vocabulary, write_model
from benchmarks.random_blocks import RANDOM_FORMATS, random_rows
from benchmarks.shape import Shape
from benchmarks.shapes import BASE_FORMATS, SHAPES, tensors
from oxillama.base.formats import FORMATS
from oxillama.compat.engine import InferenceEngine
from oxillama.errors import ConfigError
from oxillama.gguf.model_file import ModelFile
from tests.support.kernels import dequantized
from tests.support.spread import few

TINY = Shape(n_embd=256, n_ff=512, n_layer=2, n_head=4, n_head_kv=2, n_vocab=1000, context=64)


OFTEN = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4")
READABLE = [
    name for name in RANDOM_FORMATS if name != "Q8_1" and name in gguf.GGMLQuantizationType.__members__
]
"""The `gguf` package takes a block of Q8_1 for 40 bytes, which it was in 2023."""
TOLERANCE = {"MXFP4": 1.42, "NVFP4": 1.08 * 17 / 16}
"""How far the deviation of weights may be off: a scale that is a power of two misses the wanted one by up to
sqrt(2), one with three bits of fraction by a 16th."""


@pytest.mark.parametrize("name", few(READABLE, OFTEN))
def test_a_random_model_is_read_back_with_weights_of_the_right_size(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    size = write_model(path, TINY, name, pure=True)
    assert path.stat().st_size == size
    plan = {tensor.name: tensor for tensor in tensors(TINY, name, pure=True)}
    tolerance = TOLERANCE.get(name, 1.08)
    found = gguf.GGUFReader(path).tensors
    assert [tensor.name for tensor in found] == list(plan)
    for tensor in found:
        wanted = plan[tensor.name]
        assert tensor.tensor_type.name == wanted.format
        assert list(tensor.shape) == list(reversed(wanted.dims))
        data = np.ascontiguousarray(tensor.data)
        weights = dequantized(wanted.format, data.reshape(wanted.n_out, -1).view(np.uint8))
        assert np.isfinite(weights).all()
        if wanted.is_vector:
            assert weights.mean() == pytest.approx(1, abs=0.05)
        else:
            unit = weights * np.sqrt(wanted.n_in)
            assert 1 / tolerance < unit.std() < tolerance
            assert abs(unit.mean()) < 0.05
            assert np.abs(unit).max() < 8
            assert len(np.unique(unit, axis=0)) == wanted.n_out


@pytest.mark.parametrize("name", ["Q2_0", "Q2_0_G128"])
def test_a_format_that_the_package_need_not_know(name: str, tmp_path: Path) -> None:
    size = write_model(tmp_path / "model.gguf", TINY, name, pure=True)
    with ModelFile.open(tmp_path / "model.gguf") as file:
        found = {tensor: info.format.name for tensor, info in file.tensors.items()}
        assert {tensor.name: tensor.format for tensor in tensors(TINY, name, pure=True)} == found
        last = max(file.tensors.values(), key=lambda info: info.offset)
        assert name in found.values() and size - 32 < last.offset + last.nbytes <= size


@pytest.mark.parametrize("name", RANDOM_FORMATS)
def test_rows_have_no_offset_of_their_own(name: str) -> None:
    """A common offset of many rows would pass through all layers and make a model's logits alike."""
    rng = np.random.default_rng(5)
    rows = random_rows(name, 256, 512, 1.0, rng)
    weights = dequantized(name, rows)
    # The mean of n independent weights has a deviation of n ** -0.5; those of a block share a scale.
    assert weights.mean(axis=1).std() < 2 * 512**-0.5
    slack = 1.5 if name == "Q3_K" else 1.2  # its codes, -4 to 3, are not centred, but their scales are
    assert weights.reshape(-1, 16).mean(axis=1).std() < slack * 16**-0.5


@pytest.mark.parametrize(
    "shape, mix, counts",
    [
        # As llama.cpp reports of the published TinyLlama 1.1B and Llama 3.2 1B files.
        ("1.1B", "Q4_K_M", {"F32": 45, "Q4_K": 135, "Q6_K": 21}),
        ("1.1B", "Q4_0", {"F32": 45, "Q4_0": 155, "Q6_K": 1}),
        ("1.1B", "Q8_0", {"F32": 45, "Q8_0": 156}),
        ("1B-128k", "Q4_K_M", {"F32": 33, "Q4_K": 96, "Q6_K": 17}),
        ("8B", "Q4_K_M", {"F32": 65, "Q4_K": 193, "Q6_K": 33}),
        ("1.1B", "IQ4_XS", {"F32": 45, "IQ4_XS": 131, "Q5_K": 24, "Q6_K": 1}),
        ("15M", "F16", {"F32": 13, "F16": 43}),
    ],
)
def test_mixes_are_those_of_published_files(shape: str, mix: str, counts: dict[str, int]) -> None:
    assert Counter(tensor.format for tensor in tensors(SHAPES[shape], mix)) == counts


def test_a_shape_with_all_of_its_layers_has_the_mix_of_the_published_file() -> None:
    """gpt-oss 20B, as llama.cpp reports of it."""
    whole = replace(SHAPES["gpt-oss"], n_layer=24)
    found = Counter(tensor.format for tensor in tensors(whole, "MXFP4_MOE"))
    assert found == {"F32": 289, "Q8_0": 98, "MXFP4": 72}


@pytest.mark.parametrize(
    "shape, low, high",
    [
        ("15M", 14e6, 16e6),
        ("1.1B", 1.09e9, 1.11e9),
        ("8B", 8.02e9, 8.04e9),
        *((family, 0.95e9, 1.3e9) for family in ("mixtral", "qwen3moe", "deepseek2", "gemma2", "phi3")),
    ],
)
def test_shapes_have_the_parameters_of_their_names(shape: str, low: float, high: float) -> None:
    assert low < sum(tensor.n_out * tensor.n_in for tensor in tensors(SHAPES[shape], "F32")) < high


@pytest.mark.parametrize("name", SHAPES)
def test_a_file_of_every_shape_loads_and_its_logits_are_of_size_one(name: str, tmp_path: Path) -> None:
    """The model with a few layers of every kind, and with 8 experts."""
    shape = SHAPES[name]
    n_layer = 3 if shape.family == "lfm2moe" else 2  # the third is the first that attends
    if shape.windows is not None:
        shares = shape.windows.shared > 0
        n_layer = 6 if shares else 2
        shape = replace(shape, windows=replace(shape.windows, every=2, shared=2 * shares))
    if shape.delta is not None:
        shape = replace(shape, delta=replace(shape.delta, every=2))
    if shape.experts is not None:
        shape = replace(shape, experts=replace(shape.experts, count=min(shape.experts.count, 16)))
    n_embd = min(shape.n_embd, lcm(256, shape.n_head))
    shape = replace(shape, n_layer=n_layer, n_vocab=1000, n_embd=n_embd)
    write_model(tmp_path / "model.gguf", shape, "Q4_K_M")
    engine = InferenceEngine.from_gguf(tmp_path / "model.gguf", num_threads=1, context_size=16)
    logits = engine.logits([1, 5, 9])
    assert engine.model.spec.family.name == shape.family
    assert 0.3 < logits.std() < 10
    assert np.abs(logits[1] - logits[2]).max() > 0.1


def test_every_shape_fits_every_format() -> None:
    for shape in SHAPES.values():
        for mix in BASE_FORMATS:
            for tensor in tensors(shape, mix):
                assert tensor.n_in % FORMATS[tensor.format].block_len == 0


def test_the_vocabulary_is_one_that_spells_any_byte() -> None:
    pieces, scores, types = vocabulary(32000)
    assert len(pieces) == len(scores) == len(types) == 32000
    assert len(set(pieces)) == 32000
    assert pieces[3:259] == [f"<0x{byte:02X}>" for byte in range(256)]
    assert Counter(types) == {2: 1, 3: 2, 6: 256, 1: 32000 - 259}


def test_a_seed_decides_every_byte(tmp_path: Path) -> None:
    contents = []
    for number, seed in enumerate((1, 1, 2)):
        path = tmp_path / f"{number}.gguf"
        write_model(path, TINY, "Q4_K_M", seed=seed)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    n_end = 10_000  # bytes of the last tensor; the metadata's name also has the seed
    assert contents[0][-n_end:] != contents[2][-n_end:]


def test_a_large_tensor_is_written_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_model, "SLICE_ELEMENTS", 1000)
    path = tmp_path / "model.gguf"
    write_model(path, TINY, "Q8_0")
    embedding = gguf.GGUFReader(path).tensors[0]
    weights = gguf.quants.dequantize(embedding.data, embedding.tensor_type)
    assert weights.shape == (1000, 256)
    assert np.abs(weights).max(axis=1).min() > 0
    assert len(np.unique(weights, axis=0)) == 1000


def test_rows_that_are_not_whole_blocks_are_refused(tmp_path: Path) -> None:
    odd = Shape(n_embd=96, n_ff=512, n_layer=1, n_head=2, n_head_kv=1, n_vocab=1000)
    with pytest.raises(ConfigError, match=r"token_embd.*multiple of 256 values for Q4_K, got 96"):
        write_model(tmp_path / "model.gguf", odd, "Q4_K", pure=True)
    assert not (tmp_path / "model.gguf").exists()
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="multiple of 32"):
        random_rows("Q8_0", 1, 33, 1.0, rng)
    with pytest.raises(ValueError, match="expected one of"):
        random_rows("I8", 1, 32, 1.0, rng)


def test_a_model_is_made_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.gguf"
    assert main(["make-model", "15M", "Q8_0", str(path), "--layers", "1"]) == 0
    assert str(path) in capsys.readouterr().out
    with ModelFile.open(path) as file:
        assert len(file.tensors) == 11
        assert file.metadata["llama.block_count"] == 1

"""Loading a model: what cannot be run is named, and what a file may leave out has its defaults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxillama._kernels import load
from oxillama.errors import GGUFError, LoadError
from oxillama.formats import FORMATS
from oxillama.modelfile import ModelFile
from oxillama.models import FAMILIES, Decoder, read_spec
from oxillama.tensor import Weights
from tests.floor import NAMES, PRESENT, matrix, same_bits
from tests.tinymodels import WIDE, Running, Tiny, tokens_of

# --- what cannot be loaded -------------------------------------------------------------------------


def load_model(data: bytes) -> Decoder:
    file = ModelFile.open(data)
    return Decoder(read_spec(file), Weights(file, load(PRESENT[0]), 1))


REQUIRED = [name for name in Tiny(n_layers=1).tensors if name != "output.weight"]
ALL_KINDS = Tiny(n_layers=1, biases=True, rope_freqs=True)


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_tensor_is_named(name: str) -> None:
    with pytest.raises(LoadError, match=f"{name}: the file has no such"):
        load_model(Tiny(n_layers=1).file(**{name: None}))


@pytest.mark.parametrize("name", ALL_KINDS.tensors)
def test_a_tensor_of_another_shape_is_named(name: str) -> None:
    fmt, rows = ALL_KINDS.tensors[name]
    if name == "token_embd.weight":
        name, wider = "token_embd.weight", np.hstack([rows, rows])  # its rows are the vocabulary
    else:
        wider = np.hstack([rows, rows[:, :4]])
    with pytest.raises(LoadError, match=rf"{name}: needs the shape \(.*\), the file has \(.*\)"):
        load_model(ALL_KINDS.file(**{name: (fmt, wider)}))
    if len(rows) > 1 and name != "token_embd.weight":
        with pytest.raises(LoadError, match=rf"{name}: needs the shape"):
            load_model(ALL_KINDS.file(**{name: (fmt, rows[:-1])}))


@pytest.mark.parametrize("fmt", [f for f in FORMATS.values() if f.layout is None], ids=lambda fmt: fmt.name)
def test_a_tensor_without_kernels_is_named(fmt: Any) -> None:
    rows = np.zeros((256, fmt.nbytes(256)), np.uint8)
    for name in ("blk.1.ffn_down.weight", "blk.0.ffn_norm.weight"):
        data = rows[:1] if "norm" in name else rows
        with pytest.raises(LoadError, match=f"{name}: format {fmt.name} has no kernels; there are: F32, "):
            load_model(WIDE.file(**{name: (fmt.name, data)}))


def test_formats_with_kernels_are_taken_anywhere() -> None:
    for name in NAMES:
        load_model(WIDE.file(**{"blk.1.ffn_down.weight": (name, matrix(name, 256, 256))}))


@pytest.mark.parametrize("architecture", ["gpt2", "LLAMA", "", "llama5"])
def test_an_unknown_architecture_is_named(architecture: str) -> None:
    with pytest.raises(
        LoadError, match=f"architecture '{architecture}' is not supported; these are: llama, "
    ):
        load_model(Tiny(architecture=architecture).file())


@pytest.mark.parametrize("family", FAMILIES)
def test_options_that_are_not_implemented_are_refused(family: str) -> None:
    tiny = Tiny(architecture=family, n_experts=4 if FAMILIES[family].experts else 0)
    for key, harmless in (FAMILIES[family].refuses or {}).items():
        full = f"{family}.{key}"
        for value in harmless:
            kind = {bool: "bool", int: "u32", float: "f32"}[type(value)]
            load_model(tiny.but(metadata={full: (kind, value)}).file())
        kind, value = {bool: ("bool", not harmless[0]), int: ("u32", 7), float: ("f32", 0.5)}[
            type(harmless[0])
        ]
        with pytest.raises(LoadError, match=f"{full}: .* is not supported"):
            load_model(tiny.but(metadata={full: (kind, value)}).file())
        with pytest.raises(GGUFError, match=f"{full}: expected a single value"):
            load_model(tiny.but(metadata={full: ("[u32]", [1, 2])}).file())


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (
            "attention.head_count_kv",
            ("u32", 3),
            "llama.attention.head_count: 4 is not a multiple of 3 key heads",
        ),
        ("attention.head_count", ("u32", 0), "llama.attention.head_count: needs a number from 1"),
        ("attention.head_count_kv", ("u32", 0), "llama.attention.head_count_kv: needs a number from 1"),
        ("block_count", ("u32", 0), "llama.block_count: needs a number from 1"),
        ("block_count", ("i32", -1), "llama.block_count: needs a number from 1"),
        ("block_count", ("u32", 2**32 - 1), "llama.block_count: needs a number from 1"),
        ("block_count", ("u32", 2**31 - 1), "blk.2.attn_norm.weight: the file has no such"),
        ("embedding_length", ("u32", 0), "llama.embedding_length: needs a number from 1"),
        ("embedding_length", ("u32", 64), "token_embd.weight: needs the shape"),
        ("feed_forward_length", ("u64", 2**40), "llama.feed_forward_length: needs a number from 1"),
        ("feed_forward_length", ("u32", 81), "ffn_gate.weight: needs the shape"),
        ("context_length", ("u32", 0), "llama.context_length: needs a number from 1"),
        ("attention.key_length", ("u32", 26), "attn_q.weight: needs the shape"),
        ("rope.dimension_count", ("u32", 15), "rope.dimension_count: needs an even number up to 24, got 15"),
        ("rope.dimension_count", ("u32", 26), "rope.dimension_count: needs an even number up to 24, got 26"),
        ("rope.freq_base", ("f32", 0.0), "rope.freq_base: needs a number above 0"),
        ("rope.freq_base", ("f32", -1.0), "rope.freq_base: needs a number above 0"),
        ("rope.freq_base", ("f32", float("nan")), "rope.freq_base: needs a number above 0"),
        ("rope.freq_base", ("f32", float("inf")), "rope.freq_base: needs a number above 0"),
        ("attention.layer_norm_rms_epsilon", ("f32", 0.0), "rms_epsilon: needs a number above 0"),
        (
            "rope.scaling.type",
            ("str", "yarn"),
            "rope.scaling.type: 'yarn' is not supported; these are: none, linear",
        ),
        ("rope.scaling.type", ("str", "longrope"), "rope.scaling.type: 'longrope' is not supported"),
        ("rope.scaling.factor", ("f32", -1.0), "rope.scaling.factor: needs a number from 0 on"),
        ("rope.scaling.factor", ("f32", float("nan")), "rope.scaling.factor: needs a number from 0 on"),
        ("rope.scaling.factor", ("f32", float("inf")), "rope.scaling.factor: needs a number from 0 on"),
    ],
)
def test_sizes_that_cannot_be_are_named(key: str, value: tuple[str, Any], text: str) -> None:
    with pytest.raises(LoadError, match=text):
        load_model(Tiny(metadata={f"llama.{key}": value}).file())


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "context_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(GGUFError, match=f"llama.{key}: the key is missing"):
        load_model(Tiny(metadata={f"llama.{key}": None}).file())
    with pytest.raises(GGUFError, match=f"llama.{key}: expected"):
        load_model(Tiny(metadata={f"llama.{key}": ("str", "8")}).file())


def test_heads_that_do_not_divide_the_width() -> None:
    lengths = {"llama.attention.key_length": None, "llama.attention.value_length": None}
    with pytest.raises(LoadError, match="embedding_length: 48 is not a multiple of 5 heads"):
        load_model(Tiny(n_heads=5, n_kv_heads=5, metadata=lengths).file())


def test_more_query_heads_than_a_tile_holds() -> None:
    load_model(Tiny(n_heads=64, n_kv_heads=1).file())
    with pytest.raises(
        LoadError, match=r"attention\.head_count: needs at most 64 heads to a key head, got 65 to 1"
    ):
        load_model(Tiny(n_heads=65, n_kv_heads=1).file())


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_rotary_factors_that_are_no_numbers_above_zero(value: float) -> None:
    factors = np.array([[1, 2, 3, value, 5, 6, 7, 8]], "<f4").view(np.uint8)
    with pytest.raises(LoadError, match=r"rope_freqs\.weight: needs finite numbers above 0"):
        load_model(Tiny().file(**{"rope_freqs.weight": ("F32", factors)}))


# --- what a file may leave out ---------------------------------------------------------------------


def test_defaults_of_what_a_file_leaves_out() -> None:
    """As many key heads as heads, widths by division, the whole head rotating, a base of 10000."""
    tiny = Tiny(n_embd=64, n_heads=4, n_kv_heads=4, key_dim=16, value_dim=16, n_rot=16)
    keys = ("attention.head_count_kv", "attention.key_length", "attention.value_length")
    keys += ("rope.dimension_count", "rope.freq_base")
    bare = tiny.but(metadata={f"llama.{key}": None for key in keys})
    tokens = tokens_of(20, 50)
    assert same_bits(Running(bare.file()).logits(tokens), Running(tiny.file()).logits(tokens))


def test_an_embedding_with_more_rows_than_tokens_has_logits_for_all() -> None:
    padded = Tiny(metadata={"llama.vocab_size": ("u32", 40)})
    tokens = [*tokens_of(20, 40), 49]
    found = Running(padded.file()).logits(tokens)
    assert found.shape == (21, 50)
    assert same_bits(found, Running(Tiny().file()).logits(tokens))


@pytest.mark.parametrize(
    ("metadata", "factor"),
    [
        ({"llama.rope.scale_linear": ("f32", 4.0)}, 4.0),  # the older name
        ({"llama.rope.scaling.factor": ("f32", 4.0)}, 4.0),
        ({"llama.rope.scaling.type": ("str", "none"), "llama.rope.scaling.factor": ("f32", 4.0)}, None),
        ({"llama.rope.scaling.type": ("str", "linear")}, None),
        ({"llama.rope.scaling.factor": ("f32", 0.0)}, None),
    ],
)
def test_how_a_file_may_ask_for_linear_scaling(metadata: dict[str, Any], factor: float | None) -> None:
    tokens = tokens_of(20, 50)
    found = Running(Tiny(metadata=metadata).file()).logits(tokens)
    assert same_bits(found, Running(Tiny(rope_factor=factor).file()).logits(tokens))
    assert same_bits(found, Running(Tiny().file()).logits(tokens)) is (factor is None)


def test_the_loader_tells_what_it_took_and_what_it_left() -> None:
    tiny = Tiny(n_layers=1, tied=True)
    heard: list[tuple[str, int]] = []
    file = ModelFile.open(tiny.file(**{"blk.0.attn_sinks.weight": ("F32", np.zeros((1, 16), np.uint8))}))
    weights = Weights(file, load(PRESENT[0]), 1, lambda name, n: heard.append((name, n)))
    model = Decoder(read_spec(file), weights)
    assert not any("attn_q" in name or "ffn_up" in name for name, _ in heard)  # not packed before it is used
    for matrices in model.matrices():
        matrices.pack()
        matrices.pack()
    assert len(heard) == len(tiny.tensors) + 1  # the tied table is an embedding and a matrix
    assert weights.unused() == ["blk.0.attn_sinks.weight"]
    assert {name for name, _ in heard} == set(tiny.tensors)
    assert all(n == tiny.tensors[name][1].nbytes for name, n in heard)


def test_llama4_may_do_without_its_exceptions() -> None:
    """A window of 0 leaves attention plain, 128 experts come without head norms; both change the logits."""
    tiny = Tiny(architecture="llama4", n_layers=4, n_experts=4, key_dim=16)
    usual = read_spec(ModelFile.open(tiny.file()))
    assert [usual.rotates(i) for i in range(4)] == [True, True, True, False]
    assert [usual.has_experts(i) for i in range(4)] == [False, True, False, True]
    assert (usual.family.chunk, usual.family.head_norm) == (8192, True)
    plain = tiny.but(metadata={"llama4.attention.sliding_window": ("u32", 0)})
    spec = read_spec(ModelFile.open(plain.file()))
    assert all(spec.rotates(i) for i in range(4))
    assert (spec.family.chunk, spec.family.query_temperature) == (0, 0)
    many = read_spec(ModelFile.open(tiny.but(n_experts=128).file()))
    assert not many.family.head_norm


def test_more_experts_used_than_there_are() -> None:
    tiny = Tiny(architecture="llama4", n_experts=4, metadata={"llama4.expert_used_count": ("u32", 5)})
    with pytest.raises(LoadError, match="expert_used_count: needs at most 4"):
        load_model(tiny.file())

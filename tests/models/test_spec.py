"""Loading a model: what cannot be run is named, and what a file may leave out has its defaults."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oxillama._kernels import load
from oxillama.base.formats import FORMATS
from oxillama.errors import GGUFError, LoadError
from oxillama.gguf.model_file import ModelFile
from oxillama.models import FAMILIES, Decoder, read_spec
from oxillama.models.weights.loader import Weights
from tests.support import zoo
from tests.support.kernels import NAMES, PRESENT, matrix, same_bits
from tests.support.spread import few
from tests.support.tiny_models import WIDE, Running, Tiny, load_model, tokens_of

# --- what cannot be loaded -------------------------------------------------------------------------


REQUIRED = [name for name in Tiny(n_layers=1).tensors if name != "output.weight"]
ALL_KINDS = Tiny(n_layers=1, biases=True, rope_freqs=True)


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_tensor_is_named(name: str) -> None:
    with pytest.raises(LoadError, match=f"{name}: expected a"):
        load_model(Tiny(n_layers=1).file(**{name: None}))


@pytest.mark.parametrize("name", ALL_KINDS.tensors)
def test_a_tensor_of_another_shape_is_named(name: str) -> None:
    fmt, rows = ALL_KINDS.tensors[name]
    if name == "token_embd.weight":
        name, wider = "token_embd.weight", np.hstack([rows, rows])  # its rows are the vocabulary
    else:
        wider = np.hstack([rows, rows[:, :4]])
    with pytest.raises(LoadError, match=rf"{name}: expected shape \(.*\), got \(.*\)"):
        load_model(ALL_KINDS.file(**{name: (fmt, wider)}))
    if len(rows) > 1 and name != "token_embd.weight":
        with pytest.raises(LoadError, match=rf"{name}: expected shape"):
            load_model(ALL_KINDS.file(**{name: (fmt, rows[:-1])}))


@pytest.mark.parametrize("fmt", [f for f in FORMATS.values() if f.layout is None], ids=lambda fmt: fmt.name)
def test_a_tensor_without_kernels_is_named(fmt: Any) -> None:
    rows = np.zeros((256, fmt.nbytes(256)), np.uint8)
    for name in ("blk.1.ffn_down.weight", "blk.0.ffn_norm.weight"):
        data = rows[:1] if "norm" in name else rows
        with pytest.raises(LoadError, match=rf"{name}: expected a format .*F32, .*\), got {fmt.name}"):
            load_model(WIDE.file(**{name: (fmt.name, data)}))


def test_formats_with_kernels_are_taken_anywhere() -> None:
    for name in NAMES:
        load_model(WIDE.file(**{"blk.1.ffn_down.weight": (name, matrix(name, 256, 256))}))


@pytest.mark.parametrize("architecture", ["gpt3", "LLAMA", "", "llama5", "gptj"])
def test_an_unknown_architecture_is_named(architecture: str) -> None:
    with pytest.raises(LoadError, match=f"architecture: expected one of afmoe, .*, got '{architecture}'"):
        load_model(Tiny(architecture=architecture).file())


@pytest.mark.parametrize(
    ("key", "value", "harmless"),
    [
        ("expert_group_scale", ("f32", 2.0), ("f32", 1.0)),
        ("expert_latent_length", ("u32", 8), ("u32", 0)),
        ("altup.num_inputs", ("u32", 4), ("u32", 0)),
    ],
)
def test_options_that_are_not_implemented_are_refused(
    key: str, value: tuple[str, Any], harmless: tuple[str, Any]
) -> None:
    full = f"qwen2.{key}"
    with pytest.raises(LoadError, match=f"{full}: expected .*no such key, got"):
        load_model(Tiny(architecture="qwen2", metadata={full: value}).file())
    load_model(Tiny(architecture="qwen2", metadata={full: harmless}).file())
    with pytest.raises(GGUFError, match=full):
        load_model(Tiny(architecture="qwen2", metadata={full: ("[u32]", [1, 2])}).file())


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("attention.head_count_kv", 3, "attention.head_count: expected a multiple of 3 key heads, got 4"),
        *(
            (key, 0, f"llama.{key}: expected an integer from 1")
            for key in ("attention.head_count", "attention.head_count_kv", "block_count", "embedding_length",
                        "context_length")
        ),
        ("block_count", ("i32", -1), "llama.block_count: expected an integer from 1"),
        ("block_count", 2**32 - 1, "llama.block_count: expected an integer from 1"),
        ("block_count", 2**31 - 1, "llama.block_count: expected 1 to 21 "),
        ("block_count", 3, "blk.2.attn_norm.weight: expected a tensor"),
        ("nextn_predict_layers", 2, "llama.block_count: expected 1 to 21 .*, got 0"),
        ("embedding_length", 64, "token_embd.weight: expected shape"),
        ("feed_forward_length", ("u64", 2**40), "llama.feed_forward_length: expected an integer from 1"),
        ("feed_forward_length", 81, "ffn_gate.weight: expected shape"),
        ("attention.key_length", 26, "attn_q.weight: expected shape"),
        *(
            ("rope.dimension_count", n, f"rope.dimension_count: expected an even number up to 24, got {n}")
            for n in (15, 26)
        ),
        *(
            ("rope.freq_base", base, "rope.freq_base: expected a number from 1 to 1e")
            for base in (0.0, -1.0, float("nan"), float("inf"))
        ),
        ("attention.layer_norm_rms_epsilon", 0.0, "rms_epsilon: expected a number from 1e-30 to 1,"),
        ("attention.sliding_window", ("i32", -1), "attention.sliding_window: expected an integer from 0"),
        ("attention.head_count", [4], "head_count: expected an integer for each of 2 layers, got 1"),
        ("attention.head_count_kv", [2, 0], "head_count_kv: expected integers from 1 to"),
        ("feed_forward_length", ("[i32]", [80, -1]), "feed_forward_length: expected integers from 1 to"),
        ("feed_forward_length", [80, 81], "blk.1.ffn_gate.weight: expected shape"),
        ("expert_count", 2000, "expert_count: expected at most 1024"),
        ("pooling_type", 9, "pooling_type: expected one of 0, 1, 2, 3, 4, got 9"),
    ],
)  # fmt: skip
def test_sizes_that_cannot_be_are_named(key: str, value: Any, text: str) -> None:
    experts = {"llama.expert_used_count": ("u32", 2)} if key == "expert_count" else {}
    with pytest.raises(LoadError, match=text):
        load_model(Tiny(metadata={f"llama.{key}": zoo.of_kind(key, value), **experts}).file())


@pytest.mark.parametrize(
    "key",
    ["block_count", "embedding_length", "feed_forward_length", "context_length", "attention.head_count",
     "attention.layer_norm_rms_epsilon"],
)  # fmt: skip
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(GGUFError, match=f"llama.{key}: expected .*, got no such key"):
        load_model(Tiny(metadata={f"llama.{key}": None}).file())
    with pytest.raises(GGUFError, match=f"llama.{key}: expected"):
        load_model(Tiny(metadata={f"llama.{key}": ("str", "8")}).file())


def test_heads_that_do_not_divide_the_width() -> None:
    lengths = {"llama.attention.key_length": None, "llama.attention.value_length": None}
    with pytest.raises(LoadError, match="embedding_length: expected a multiple of 5 heads, got 48"):
        load_model(Tiny(n_heads=5, n_kv_heads=5, metadata=lengths).file())


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_rotary_factors_that_are_no_numbers_above_zero(value: float) -> None:
    factors = np.array([[1, 2, 3, value, 5, 6, 7, 8]], "<f4").view(np.uint8)
    with pytest.raises(LoadError, match=r"rope_freqs\.weight: expected finite numbers above 0"):
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


def test_the_loader_tells_what_it_took_and_what_it_left() -> None:
    tiny = Tiny(n_layers=1, tied=True)
    heard: list[tuple[str, int]] = []
    file = ModelFile.open(tiny.file(**{"blk.0.attn_sinks.weight": ("F32", np.zeros((1, 16), np.uint8))}))
    weights = Weights(file, load(PRESENT[0]), 1, lambda name, n: heard.append((name, n)))
    model = Decoder(read_spec(file), weights)
    assert not any("attn_q" in name or "ffn_up" in name for name, _ in heard)  # not packed before it is used
    for matrices in model.linears():
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
    assert [layer.rope is None for layer in usual.layers] == [False, False, False, True]
    assert [layer.experts for layer in usual.layers] == [0, 2, 0, 2]
    assert [layer.chunk for layer in usual.layers] == [8192, 8192, 8192, 0]
    assert [layer.scaled_queries for layer in usual.layers] == [False, False, False, True]
    assert usual.family.qk_norm == "unit"
    plain = tiny.but(metadata={"llama4.attention.sliding_window": ("u32", 0)})
    spec = read_spec(ModelFile.open(plain.file()))
    assert all((layer.rope, layer.chunk, layer.scaled_queries) == (0, 0, False) for layer in spec.layers)
    assert spec.temperature is None
    many = read_spec(ModelFile.open(tiny.but(n_experts=128).file()))
    assert many.family.qk_norm == ""


@pytest.mark.parametrize(("name", "n_layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemmas_scale_by_their_width_unless_the_file_says(name: str, n_layers: int) -> None:
    model = replace(zoo.MODELS[name], n_layers=n_layers, n_embd=40, n_heads=2, n_kv_heads=1, n_ff=8)
    usual = read_spec(ModelFile.open(model.file()))
    assert usual.score_scale == pytest.approx(20**-0.5)
    stated = replace(model, keys={**model.keys, "attention.scale": ("f32", 0.25)})
    assert read_spec(ModelFile.open(stated.file())).score_scale == 0.25
    fewer = replace(model, n_layers=n_layers - 1)
    assert read_spec(ModelFile.open(fewer.file())).score_scale == pytest.approx(8**-0.5)


def test_scores_of_deepseek_ocr_grow_with_the_scaling() -> None:
    """As in llama.cpp, although the model rotates without scaling: by the square of
    attn_factor (1 + 0.1 ln(factor))."""
    names = ("deepseek2-ocr", "deepseek2-ocr-scaled")
    plain, scaled = (read_spec(ModelFile.open(EVERY[name].file())) for name in names)
    assert scaled.score_scale == pytest.approx(plain.score_scale * (1.2 * (1 + 0.1 * math.log(4))) ** 2)


def test_a_window_that_a_family_leaves_alone_counts_where_layers_have_it() -> None:
    """Files of Phi 3 state a window that no layer has; the layers that have one are another key."""
    model = replace(zoo.MODELS["phi3"], keys={"attention.sliding_window": ("u32", 5)})
    assert [layer.window for layer in read_spec(ModelFile.open(model.file())).layers] == [0, 0]
    which = {"attention.sliding_window_pattern": ("[bool]", [False, True])}
    stated = replace(model, keys={**model.keys, **which})
    assert [layer.window for layer in read_spec(ModelFile.open(stated.file())).layers] == [0, 5]


# --- every architecture ----------------------------------------------------------------------------


EVERY = {name: model for name, model in (zoo.MODELS | zoo.VARIANTS).items() if model.n_layers < 20}
# left out, these leave another model that is sound: a bias that may be there, a table that can be tied
OPTIONAL = ("output.weight", "output.bias", "token_types.weight", "rope_f", ".act.scales", "exp_probs_b")


@pytest.mark.parametrize("name", few(sorted(zoo.MODELS)))
def test_a_missing_tensor_of_any_architecture_is_named(name: str) -> None:
    model = zoo.MODELS[name]
    tensors = model.tensors()
    assert set(FAMILIES) >= {model.architecture}
    for tensor in tensors:
        layer = tensor.split(".")[1]
        if tensor.startswith("blk.") and layer != str(model.n_layers - 1):
            continue
        is_norm = "norm" in tensor
        if any(part in tensor for part in OPTIONAL) or (tensor.endswith(".bias") and not is_norm):
            continue
        if any(part in tensor for part in model.facts.optional):
            continue
        with pytest.raises(LoadError, match=r"expected a|expected shape"):
            load_model(model.file(**{tensor: None}))


@pytest.mark.parametrize("name", few(sorted(EVERY)))
def test_every_tensor_is_used_and_checked(name: str) -> None:
    """No tensor of the file is unused, and a tensor of another width is an error."""
    model = EVERY[name]
    file = ModelFile.open(model.file())
    weights, spec = Weights(file, load(PRESENT[0]), 1), read_spec(file)
    Decoder(spec, weights)
    assert weights.unused() == []
    for tensor, values in model.tensors().items():
        if tensor in spec.ignored:
            continue
        if tensor.startswith("blk.") and not tensor.startswith(f"blk.{model.n_layers - 1}."):
            continue
        wider = np.concatenate([values, values], axis=-1)
        with pytest.raises(LoadError, match=r"expected shape \(.*\), got \(.*\)"):
            load_model(model.file(**{tensor: wider}))


def test_a_surplus_tensor_is_told() -> None:
    file = ModelFile.open(
        zoo.MODELS["gemma"].file(**{"output.weight": np.zeros((zoo.VOCAB, 32), np.float32)})
    )
    weights = Weights(file, load(PRESENT[0]), 1)
    Decoder(read_spec(file), weights)
    assert weights.unused() == ["output.weight"]


@pytest.mark.parametrize("name", [a for a, f in FAMILIES.items() if f.output == "own"])
def test_architectures_that_never_share_their_table_need_an_output(name: str) -> None:
    with pytest.raises(LoadError, match=r"output\.weight: expected a tensor"):
        load_model(zoo.MODELS[name].file(**{"output.weight": None}))


@pytest.mark.parametrize("name", ["gpt2", "starcoder", "bert"])
def test_a_context_beyond_the_learned_positions(name: str) -> None:
    found = r"position_embd\.weight: expected 257 positions \(the context size\), got 256"
    with pytest.raises(LoadError, match=found):
        load_model(zoo.MODELS[name].file(), 257)


def test_layers_of_glm_that_share_a_selector() -> None:
    """All have their own unless the file says otherwise, or its context is that of GLM-5.2."""

    def selected_by(**keys: Any) -> list[int | None]:
        model = replace(zoo.MODELS["glm-dsa"], n_layers=8, keys={"attention.indexer.types": None, **keys})
        spec = read_spec(ModelFile.open(model.file()))
        return [layer.selected_by for layer in spec.layers]

    assert selected_by() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert selected_by(context_length=("u32", 1 << 20)) == [0, 1, 2, 2, 2, 2, 6, 6]
    stated = [True, False, False, True, False, True, True, True]
    assert selected_by(**{"attention.indexer.types": ("[bool]", stated)}) == [0, 0, 0, 3, 3, 5, 6, 7]


def test_gates_of_values_that_are_narrower_than_keys() -> None:
    model = replace(zoo.MODELS["qwen3next"], key_dim=16, n_rot=16)
    message = r"qwen3next\.attention\.value_length: expected 16, as keys have, got 8"
    with pytest.raises(LoadError, match=message):
        load_model(model.file())

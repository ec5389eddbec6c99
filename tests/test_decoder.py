"""The decoder: right against its float64 twin, the same bits however it is run, and clear about what it cannot run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama._kernels import load
from oxillama.engine.sequence import Sequence
from oxillama.errors import GGUFError, KvCacheFullError, LoadError
from oxillama.formats import FORMATS
from oxillama.modelfile import ModelFile
from oxillama.models import FAMILIES, Decoder, read_spec
from oxillama.tensor import Weights
from tests.floor import NAMES, PRESENT, activation_of, matrix, same_bits
from tests.tinymodels import Running, Tiny, tokens_of
from tests.twins.linear import activations
from tests.twins.llama import forward

BLOCKS = Tiny(n_embd=256, n_ff=256, n_heads=4, n_kv_heads=2, key_dim=64, value_dim=64, n_rot=64, n_vocab=64)
MODELS = {
    "plain": Tiny(),
    "qwen2": Tiny(architecture="qwen2", biases=True),
    "one layer, one head": Tiny(n_layers=1, n_heads=1, n_kv_heads=1),
    "multi-query": Tiny(n_heads=8, n_kv_heads=1),
    "multi-head": Tiny(n_heads=3, n_kv_heads=3),
    "tied": Tiny(tied=True),
    "fused": Tiny(fused=True),
    "fused with biases": Tiny(fused=True, biases=True),
    "biases everywhere": Tiny(biases=True),
    "rope factors": Tiny(rope_freqs=True),
    "linear rope": Tiny(rope_factor=4.0),
    "another base": Tiny(rope_base=500000.0),
    "whole rotation": Tiny(n_rot=24),
    "f16 norms": Tiny(norm_format="F16"),
    "f16": Tiny(formats=("F16",)),
    "mixed floats": Tiny(formats=("F32", "BF16", "F16")),
    "odd sizes": Tiny(n_embd=37, n_ff=53, n_vocab=61, key_dim=10, n_rot=6, value_dim=32),
}
QUANTIZED = {
    **{name: BLOCKS.but(formats=(name,), seed=i) for i, name in enumerate(NAMES) if FORMATS[name].block_len > 1},
    "mixed": BLOCKS.but(formats=("Q4_K", "Q8_0", "Q6_K", "F16", "Q4_0"), norm_format="F16"),
    "mixed and tied": BLOCKS.but(formats=("Q6_K", "Q4_K", "Q4_K"), tied=True),
}
EVERY = MODELS | QUANTIZED


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    top = x.max(axis=1, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(axis=1, keepdims=True))


def divergence(reference: np.ndarray, found: np.ndarray) -> float:
    """Mean KL(reference || found) over rows of logits."""
    p, q = log_softmax(reference), log_softmax(found)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_twin(name: str) -> None:
    tiny = MODELS[name]
    tokens = tokens_of(70, tiny.n_vocab)
    exact = forward(tiny.sizes, tiny.weights(), tokens)
    found = Running(tiny.file()).logits(tokens)
    assert found.dtype == np.float32
    assert np.abs(found - exact).max() < 3e-5 * np.abs(exact).max()


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_logits_are_near_those_of_the_twin(name: str) -> None:
    """Apart by what rounding activations to 8 bits costs, and by far less from a twin that rounds them too.

    Not by nothing: where a value is all but half way between two codes, float rounding decides.
    """
    tiny = QUANTIZED[name]
    tokens = tokens_of(40, tiny.n_vocab)

    def see(name: str, x: np.ndarray) -> np.ndarray:
        return activations(x.astype(np.float32), activation_of(tiny.tensors[name][0]))

    found = Running(tiny.file()).logits(tokens)
    assert divergence(forward(tiny.sizes, tiny.weights(), tokens), found) < 1e-3
    assert divergence(forward(tiny.sizes, tiny.weights(), tokens, see), found) < 1e-5


@pytest.mark.parametrize("kv_type", ["f16", "bf16"])
def test_shorter_keys_and_values_cost_little(kv_type: str) -> None:
    tiny = MODELS["plain"]
    tokens = tokens_of(60, tiny.n_vocab)
    exact = forward(tiny.sizes, tiny.weights(), tokens)
    found = Running(tiny.file(), kv_type=kv_type).logits(tokens)
    error = np.abs(found - exact).max()
    assert 1e-6 < error < (5e-3 if kv_type == "f16" else 5e-2)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_random_shapes_against_the_twin(data: st.DataObject) -> None:
    draw = data.draw
    kv_heads, key_dim = draw(st.integers(1, 3), label="kv heads"), draw(st.integers(2, 40), label="key dim")
    tiny = Tiny(
        architecture=draw(st.sampled_from(sorted(FAMILIES)), label="family"),
        n_layers=draw(st.integers(1, 3), label="layers"),
        n_embd=draw(st.integers(1, 70), label="width"),
        n_ff=draw(st.integers(1, 90), label="ff"),
        n_vocab=draw(st.integers(2, 70), label="vocab"),
        n_heads=kv_heads * draw(st.integers(1, 4), label="group"),
        n_kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=16 * draw(st.integers(1, 3), label="value dim / 16"),
        n_rot=2 * draw(st.integers(1, key_dim // 2), label="pairs"),
        tied=draw(st.booleans(), label="tied"),
        fused=draw(st.booleans(), label="fused"),
        biases=draw(st.booleans(), label="biases"),
        seed=draw(st.integers(0, 99), label="seed"),
    )
    tokens = tokens_of(draw(st.integers(1, 40), label="tokens"), tiny.n_vocab)
    exact = forward(tiny.sizes, tiny.weights(), tokens)
    found = Running(tiny.file()).logits(tokens, chunk=draw(st.integers(1, 40), label="chunk"))
    assert np.abs(found - exact).max() < 1e-4 * np.abs(exact).max()


# --- same bits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", EVERY)
def test_targets_chunks_threads_and_pages_change_no_bit(name: str, kv_type: str) -> None:
    tiny = EVERY[name]
    data, tokens = tiny.file(), tokens_of(37, tiny.n_vocab)
    whole = Running(data, kv_type=kv_type).logits(tokens)
    for i, target in enumerate(PRESENT):
        running = Running(data, target, n_threads=1 + i, kv_type=kv_type, page_size=16 << i)
        for chunk in (100, 1 + 4 * i, 7):
            assert same_bits(running.logits(tokens, chunk), whole), (target, chunk)


@pytest.mark.parametrize("name", ["plain", "mixed"])
def test_every_chunk_size_gives_the_same_bits(name: str) -> None:
    tiny = EVERY[name]
    running, tokens = Running(tiny.file(), kv_type="f16"), tokens_of(26, tiny.n_vocab)
    whole = running.logits(tokens)
    for chunk in range(1, len(tokens)):
        assert same_bits(running.logits(tokens, chunk), whole), chunk


@pytest.mark.parametrize("page_size", [16, 32, 64, 256, 512])
def test_page_sizes_change_no_bit(page_size: int) -> None:
    tiny = EVERY["plain"]
    data, tokens = tiny.file(), tokens_of(150, tiny.n_vocab)
    assert same_bits(Running(data, page_size=page_size).logits(tokens, 33), Running(data).logits(tokens))


@pytest.mark.parametrize("n_threads", [2, 3, 4])
@pytest.mark.parametrize("target", PRESENT)
def test_threads_change_no_bit_where_the_work_is_large(target: str, n_threads: int) -> None:
    """Every kernel is past the size at which it starts threads."""
    big = BLOCKS.but(n_layers=1, n_ff=1024, formats=("Q8_0", "Q4_K", "Q6_K"))
    data, tokens = big.file(), tokens_of(70, big.n_vocab)
    assert same_bits(Running(data, target, n_threads).logits(tokens), Running(data).logits(tokens))


@pytest.mark.parametrize("name", ["plain", "qwen2", "fused with biases", "mixed"])
@pytest.mark.parametrize("seed", range(4))
def test_a_sequence_in_a_batch_gives_the_bits_it_gives_alone(name: str, seed: int) -> None:
    """Several sequences, each its own length, chunk and place in the batch, some joining or leaving on the way."""
    tiny, rng = EVERY[name], np.random.default_rng(seed)
    data = tiny.file()
    lists = [tokens_of(int(n), tiny.n_vocab, seed=i) for i, n in enumerate(rng.integers(1, 60, 5))]
    alone = Running(data)
    running = Running(data, PRESENT[seed % len(PRESENT)], n_threads=2, page_size=32)
    sequences = [Sequence(running.pool, tokens) for tokens in lists]
    found: list[list[np.ndarray]] = [[] for _ in lists]
    while any(sequence.pending for sequence in sequences):
        going = [i for i in rng.permutation(5) if sequences[i].pending][: rng.integers(1, 6)]
        parts = [(sequences[i], int(rng.integers(1, sequences[i].pending + 1))) for i in going]
        rows = running.runner.forward(parts, all_logits=True)
        for i, piece in zip(going, np.split(rows, np.cumsum([n for _, n in parts])[:-1]), strict=True):
            found[i].append(piece)
    for tokens, pieces in zip(lists, found, strict=True):
        assert same_bits(np.concatenate(pieces), alone.logits(tokens))


def test_the_last_rows_of_a_batch_are_those_of_all_rows() -> None:
    running = Running(Tiny().file())
    lists = [tokens_of(n, 50, seed=n) for n in (3, 17, 1)]
    sequences = [Sequence(running.pool, tokens) for tokens in lists]
    last = running.runner.forward([(s, s.pending) for s in sequences])
    assert last.shape == (3, 50)
    for row, tokens in zip(last, lists, strict=True):
        assert same_bits(row, running.logits(tokens)[-1])


def test_what_comes_after_a_token_does_not_change_its_logits() -> None:
    running, tokens = Running(Tiny().file()), tokens_of(40, 50)
    whole = running.logits(tokens)
    for n in (1, 16, 39):
        assert same_bits(running.logits(tokens[:n]), whole[:n])
        assert same_bits(running.logits(tokens[:n] + [7] * (40 - n))[:n], whole[:n])


def test_a_truncated_sequence_goes_on_as_if_nothing_had_been() -> None:
    running, tokens = Running(Tiny().file()), tokens_of(40, 50)
    sequence = Sequence(running.pool, tokens_of(60, 50, seed=5))
    sequence.tokens[:21] = tokens[:21]
    running.runner.forward([(sequence, 60)])
    sequence.truncate(21)
    sequence.tokens += tokens[21:]
    assert same_bits(running.runner.forward([(sequence, 19)], all_logits=True), running.logits(tokens)[21:])


def test_a_batch_that_finds_no_pages_changes_no_sequence() -> None:
    running = Running(Tiny().file(), max_pages=3)
    first, second = (Sequence(running.pool, tokens_of(n, 50)) for n in (20, 40))
    running.runner.forward([(first, 10)])
    with pytest.raises(KvCacheFullError):
        running.runner.forward([(first, 10), (second, 40)])
    assert (first.cached_len, len(first.pages), second.pages) == (10, 1, [])
    running.pool.check_integrity()
    whole = running.runner.forward([(first, 10)], all_logits=True)
    assert same_bits(whole, Running(Tiny().file()).logits(tokens_of(20, 50))[10:])


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
            load_model(BLOCKS.file(**{name: (fmt.name, data)}))


def test_formats_with_kernels_are_taken_anywhere() -> None:
    for name in NAMES:
        load_model(BLOCKS.file(**{"blk.1.ffn_down.weight": (name, matrix(name, 256, 256))}))


@pytest.mark.parametrize("architecture", ["gpt2", "LLAMA", "", "llama4"])
def test_an_unknown_architecture_is_named(architecture: str) -> None:
    with pytest.raises(LoadError, match=f"architecture '{architecture}' is not supported; these are: llama, "):
        load_model(Tiny(architecture=architecture).file())


@pytest.mark.parametrize("family", FAMILIES)
def test_options_that_are_not_implemented_are_refused(family: str) -> None:
    tiny = Tiny(architecture=family)
    for key, harmless in (FAMILIES[family].refuses or {}).items():
        full = f"{family}.{key}"
        for value in harmless:
            kind = {bool: "bool", int: "u32", float: "f32"}[type(value)]
            load_model(tiny.but(metadata={full: (kind, value)}).file())
        kind, value = {bool: ("bool", not harmless[0]), int: ("u32", 7), float: ("f32", 0.5)}[type(harmless[0])]
        with pytest.raises(LoadError, match=f"{full}: .* is not supported"):
            load_model(tiny.but(metadata={full: (kind, value)}).file())
        with pytest.raises(GGUFError, match=f"{full}: expected a single value"):
            load_model(tiny.but(metadata={full: ("[u32]", [1, 2])}).file())


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("attention.head_count_kv", ("u32", 3), "llama.attention.head_count: 4 is not a multiple of 3 key heads"),
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
        ("attention.value_length", ("u32", 24), "attention.value_length: needs a multiple of 16, got 24"),
        ("rope.dimension_count", ("u32", 15), "rope.dimension_count: needs an even number up to 24, got 15"),
        ("rope.dimension_count", ("u32", 26), "rope.dimension_count: needs an even number up to 24, got 26"),
        ("rope.freq_base", ("f32", 0.0), "rope.freq_base: needs a number above 0"),
        ("rope.freq_base", ("f32", -1.0), "rope.freq_base: needs a number above 0"),
        ("rope.freq_base", ("f32", float("nan")), "rope.freq_base: needs a number above 0"),
        ("rope.freq_base", ("f32", float("inf")), "rope.freq_base: needs a number above 0"),
        ("attention.layer_norm_rms_epsilon", ("f32", 0.0), "rms_epsilon: needs a number above 0"),
        ("rope.scaling.type", ("str", "yarn"), "rope.scaling.type: 'yarn' is not supported; these are: none, linear"),
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
    with pytest.raises(LoadError, match="attention.head_count: needs at most 64 per key head, got 65 for 1"):
        load_model(Tiny(n_heads=65, n_kv_heads=1).file())


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_rotary_factors_that_are_no_numbers_above_zero(value: float) -> None:
    factors = np.array([[1, 2, 3, value, 5, 6, 7, 8]], "<f4").view(np.uint8)
    with pytest.raises(LoadError, match="rope_freqs.weight: needs finite numbers above 0"):
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
    Decoder(read_spec(file), weights)
    assert weights.unused() == ["blk.0.attn_sinks.weight"]
    assert {name for name, _ in heard} == set(tiny.tensors)
    assert all(n == tiny.tensors[name][1].nbytes for name, n in heard)

"""The decoder: the bits of the reference, however a model is run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from oxillama.base.formats import FORMATS
from oxillama.engine.sequence import Sequence
from oxillama.errors import KvCacheFullError
from tests.support.kernels import NAMES, PRESENT, same_bits
from tests.support.spread import each, pairs
from tests.support.tiny_models import WIDE, Running, Tiny, divergence, stated, tokens_of

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
    "linear rope": Tiny(
        metadata={"llama.rope.scaling.type": ("str", "linear"), "llama.rope.scaling.factor": ("f32", 4.0)}
    ),
    "another base": Tiny(metadata={"llama.rope.freq_base": ("f32", 500000.0)}),
    "whole rotation": Tiny(n_rot=24),
    "f16 norms": Tiny(norm_format="F16"),
    "f16": Tiny(formats=("F16",)),
    "mixed floats": Tiny(formats=("F32", "BF16", "F16")),
    "odd sizes": Tiny(n_embd=37, n_ff=53, n_vocab=61, key_dim=10, n_rot=6, value_dim=25),
}
QUANTIZED = {
    **{
        name: WIDE.but(formats=(name,), seed=i) for i, name in enumerate(NAMES) if FORMATS[name].block_len > 1
    },
    "mixed": WIDE.but(formats=("Q4_K", "Q8_0", "Q6_K", "F16", "Q4_0"), norm_format="F16"),
    "mixed and tied": WIDE.but(formats=("Q6_K", "Q4_K", "Q4_K"), tied=True),
}
EXPERTS = {
    "experts": Tiny(architecture="llama4", n_layers=4, n_experts=5, key_dim=16, seed=1),
    "quantized experts": WIDE.but(
        architecture="llama4", n_layers=4, n_ff=512, n_experts=3, formats=("Q4_K", "Q6_K", "Q8_0")
    ),
}
EVERY = MODELS | QUANTIZED | EXPERTS
REFERENCE_FAMILIES = ("llama", "qwen2")


@pytest.mark.parametrize("name", [*MODELS, *each(QUANTIZED, 3)])
def test_logits_are_those_of_the_reference(name: str) -> None:
    tiny = EVERY[name]
    tokens = tokens_of(40 if name in MODELS else 8, tiny.n_vocab)
    assert same_bits(Running(tiny.file()).logits(tokens), stated(tiny.file(), tokens))


@pytest.mark.parametrize("name", each(QUANTIZED, 3))
def test_activations_of_8_bits_cost_little(name: str) -> None:
    tiny = QUANTIZED[name]
    tokens = tokens_of(40, tiny.n_vocab)
    exact = Running(tiny.file(), compute="f32").logits(tokens)
    assert divergence(exact, Running(tiny.file()).logits(tokens)) < 2e-3


@pytest.mark.parametrize("kv_type", ["f16", "bf16", "q8_0"])
def test_shorter_keys_and_values_cost_little(kv_type: str) -> None:
    tiny = MODELS["plain"]
    tokens = tokens_of(60, tiny.n_vocab)
    exact = Running(tiny.file()).logits(tokens)
    error = np.abs(Running(tiny.file(), kv_type=kv_type).logits(tokens) - exact).max()
    assert 1e-6 < error < (5e-3 if kv_type == "f16" else 5e-2)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_random_shapes_against_the_reference(data: st.DataObject) -> None:
    draw = data.draw
    kv_heads, key_dim = draw(st.integers(1, 3), label="kv heads"), draw(st.integers(2, 40), label="key dim")
    tiny = Tiny(
        architecture=draw(st.sampled_from(REFERENCE_FAMILIES), label="family"),
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
    found = Running(tiny.file()).logits(tokens, chunk=draw(st.integers(1, 40), label="chunk"))
    assert same_bits(found, stated(tiny.file(), tokens))


# --- same bits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kv_type"), pairs(EVERY, ["f32", "f16", "bf16", "q8_0"]))
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


@pytest.mark.parametrize("page_size", [1, 2, 4, 8, 16, 32, 64, 256, 512])
def test_page_sizes_change_no_bit(page_size: int) -> None:
    tiny = EVERY["plain"]
    data, tokens = tiny.file(), tokens_of(150, tiny.n_vocab)
    assert same_bits(Running(data, page_size=page_size).logits(tokens, 33), Running(data).logits(tokens))


@pytest.mark.parametrize("n_threads", [2, 3, 4])
@pytest.mark.parametrize("target", PRESENT)
def test_threads_change_no_bit_where_the_work_is_large(target: str, n_threads: int) -> None:
    """Every kernel is past the size at which it starts threads."""
    big = WIDE.but(n_layers=1, n_ff=1024, formats=("Q8_0", "Q4_K", "Q6_K"))
    data, tokens = big.file(), tokens_of(70, big.n_vocab)
    assert same_bits(Running(data, target, n_threads).logits(tokens), Running(data).logits(tokens))


@pytest.mark.parametrize("name", ["plain", "qwen2", "fused with biases", "mixed"])
@pytest.mark.parametrize("seed", range(4))
def test_a_sequence_in_a_batch_gives_the_bits_it_gives_alone(name: str, seed: int) -> None:
    """Several sequences, each its own length, chunk and place in the batch, some joining on the way."""
    tiny, rng = EVERY[name], np.random.default_rng(seed)
    data = tiny.file()
    lists = [tokens_of(int(n), tiny.n_vocab, seed=i) for i, n in enumerate(rng.integers(1, 60, 5))]
    alone = Running(data)
    running = Running(data, PRESENT[seed % len(PRESENT)], n_threads=2, page_size=32)
    for tokens, rows in zip(lists, running.in_pieces(lists, rng), strict=True):
        assert same_bits(rows, alone.logits(tokens))


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
    assert (first.cached_len, len(first.pages[0]), second.pages) == (10, 1, [[]])
    running.pool.check_integrity()
    whole = running.runner.forward([(first, 10)], all_logits=True)
    assert same_bits(whole, Running(Tiny().file()).logits(tokens_of(20, 50))[10:])

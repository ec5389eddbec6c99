"""Embeddings: true states of every token, pooled; the same bits alone, in a batch, and in chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, PoolingMode
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.features.embeddings import pool_hidden_states
from oxillama.errors import LoadError
from oxillama.models.weights.linear import Pass
from tests.support.kernels import normal, same_bits
from tests.support.serving import zoo_engine
from tests.support.spread import few
from tests.support.tiny_file import write_tiny_model
from tests.support.tiny_models import Running, stated, tokens_of
from tests.support.zoo import ENCODERS, MODELS, VARIANTS, VOCAB

TEXTS = ("once upon a time there was a little fox", "hello", "the world said hello and hello again")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def engine(path: Path) -> InferenceEngine:
    return InferenceEngine.from_gguf(path, num_threads=1)


def test_modes_pool_what_they_say() -> None:
    states = normal(7, 5)
    assert same_bits(pool_hidden_states(states, PoolingMode.LAST), states[6])
    assert same_bits(pool_hidden_states(states, PoolingMode.CLS), states[0])
    assert same_bits(pool_hidden_states(states, PoolingMode.MAX), states.max(axis=0))
    assert np.allclose(pool_hidden_states(states, PoolingMode.MEAN), states.mean(axis=0), atol=1e-7)


def test_states_are_those_the_output_matrix_sees(engine: InferenceEngine) -> None:
    tokens = engine.tokenize(TEXTS[0])
    states = engine.hidden_states(tokens)
    assert states.shape == (len(tokens), engine.model.spec.n_embd)
    assert not np.array_equal(states[0], states[1])
    output = engine.model.runner.model.output
    logits = np.empty((len(tokens), engine.model.spec.n_vocab), np.float32)
    assert output is not None
    output.apply(states, logits, Pass(np.empty(output.scratch_bytes(len(tokens)), np.uint8), 1))
    assert same_bits(logits, engine.logits(TEXTS[0]))


@pytest.mark.parametrize("mode", list(PoolingMode))
def test_a_batch_gives_what_each_text_gives_alone(engine: InferenceEngine, mode: PoolingMode) -> None:
    together = engine.embed_batch_with(TEXTS, mode)
    assert together.shape == (3, engine.model.spec.n_embd)
    for text, vector in zip(TEXTS, together):
        assert same_bits(engine.embed_with(text, mode), vector)
        assert same_bits(engine.embed_with(text, mode.value), vector)
    engine.model.runner.pool.check_integrity()


@pytest.mark.parametrize("chunk", [1, 5, 16, 1000])
def test_chunks_change_no_bit(path: Path, engine: InferenceEngine, chunk: int) -> None:
    other = InferenceEngine.from_gguf(path, num_threads=1, prefill_chunk_size=chunk)
    assert same_bits(other.embed_batch(TEXTS), engine.embed_batch(TEXTS))


def test_defaults(engine: InferenceEngine) -> None:
    """A decoder without a word in its file: the last token."""
    assert same_bits(engine.embed(TEXTS[0]), engine.embed_with(TEXTS[0], PoolingMode.LAST))
    assert engine.embed_batch([]).shape == (0, engine.model.spec.n_embd)
    unit = engine.embed(TEXTS[0], normalize=True)
    assert np.linalg.norm(unit) == pytest.approx(1, abs=1e-6)
    assert np.allclose(unit * np.linalg.norm(engine.embed(TEXTS[0])), engine.embed(TEXTS[0]), atol=1e-5)


def test_bad_requests(engine: InferenceEngine) -> None:
    with pytest.raises(ConfigError, match="pooling: expected one of last, mean, max, cls, got 'sum'"):
        engine.embed_with("hello", "sum")
    with pytest.raises(ConfigError, match="texts: expected a list"):
        engine.embed_batch("hello")
    with pytest.raises(ConfigError, match="no model"):
        InferenceEngine().embed("hello")


@pytest.mark.parametrize("name", few(sorted(MODELS)))
def test_every_architecture_embeds(name: str) -> None:
    running = Running(MODELS[name].file())
    texts = [tokens_of(n, VOCAB, seed=n) for n in (3, 20, 1, 9)]
    for tokens, states in zip(texts, running.hidden_states(texts, 16)):
        assert np.isfinite(states).all()
        assert same_bits(running.hidden_states([tokens])[0], states)


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_sees_what_comes_later_and_has_no_logits(name: str) -> None:
    running = Running(MODELS[name].file())
    tokens = tokens_of(12, VOCAB)
    first, second = running.hidden_states([tokens, [*tokens[:-1], (tokens[-1] + 1) % VOCAB]])
    assert (np.abs(first[0] - second[0]) > 0).any()
    with pytest.raises(ConfigError, match=f"{name} is an encoder"):
        running.logits(tokens)


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoders_beginnings_are_not_reused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of an encoder have seen the later tokens of their text."""
    tokens = tokens_of(40, VOCAB)
    found = []
    for texts in ([tokens], [[*tokens[:32], *tokens[:5]], tokens]):
        engine = zoo_engine(monkeypatch, name)
        found.append([engine.embed(text, pooling="last") for text in texts][-1])
    assert same_bits(*found)


def test_matrices_behind_the_pooling(monkeypatch: pytest.MonkeyPatch) -> None:
    """EmbeddingGemma's two, applied to the mean of the hidden states."""
    model, tokens = VARIANTS["gemma-embedding-dense"], tokens_of(20, VOCAB)
    tensors = model.tensors()
    alone = model.file(**{"dense_2.weight": None, "dense_3.weight": None})
    expected = stated(alone, tokens, kv_type="f16")
    wanted = expected.mean(axis=0)
    for name in ("dense_2.weight", "dense_3.weight"):
        wanted = tensors[name] @ wanted
    engine = zoo_engine(monkeypatch, "gemma-embedding-dense")
    found = engine.embed(tokens, normalize=False)
    assert np.abs(found - wanted).max() < 5e-4 * np.abs(wanted).max()
    assert np.linalg.norm(engine.embed(tokens, normalize=True)) == pytest.approx(1)
    states = engine.hidden_states(tokens)  # before the pooling
    assert same_bits(states, expected)
    engine.load_model_from_bytes(model.file(**{"dense_3.weight": None}))
    assert engine.embed(tokens).shape == (96,)


def test_what_the_file_says_of_pooling(tmp_path: Path) -> None:
    for number, mode in ((1, PoolingMode.MEAN), (2, PoolingMode.CLS), (3, PoolingMode.LAST)):
        metadata: dict[str, Any] = {"llama.pooling_type": number}
        path = write_tiny_model(tmp_path / f"{number}.gguf", metadata=metadata)
        engine = InferenceEngine.from_gguf(path, num_threads=1)
        assert same_bits(engine.embed(TEXTS[0]), engine.embed_with(TEXTS[0], mode))
    with pytest.raises(LoadError, match="pooling_type: expected one of 0, 1, 2, 3, 4, got 7"):
        InferenceEngine.from_gguf(write_tiny_model(tmp_path / "7.gguf", metadata={"llama.pooling_type": 7}))

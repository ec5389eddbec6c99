"""Sequences run by hand, many at a time and beside requests: the bits of the whole, forth and back."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import oxillama
from oxillama import ConfigError, KvCacheFullError, PromptError, SamplerConfig, demo
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.sequence import Sequence
from oxillama.sessions.going_on import go_on
from tests.support.kernels import same_bits
from tests.support.serving import zoo_engine
from tests.support.waiting import stopped

GREEDY = SamplerConfig.greedy()
TEXT = "Mia and the little fox went to the sea. They found a boat, and then"


def test_many_sessions_beside_requests(engine: InferenceEngine) -> None:
    tokens = engine.tokenize(TEXT)
    whole = engine.logits(tokens)
    expected = engine.generate(TEXT, sampler=GREEDY, max_tokens=60)
    stream = engine.stream(TEXT, sampler=GREEDY, max_tokens=60)
    sessions = [engine.session() for _ in range(4)]
    for i, session in enumerate(sessions):
        assert same_bits(session.prefill(tokens[: i + 3]), whole[i + 2])
    for i, session in enumerate(sessions):
        assert same_bits(session.forward(tokens[i + 3]), whole[i + 3])
        assert same_bits(session.logits(tokens[i + 4 :]), whole[i + 4 :])
        assert session.tokens == tokens
    assert "".join(stream) == expected
    engine.model.check_integrity()
    for session in sessions:
        session.close()
    assert not engine.model.loop.held


def test_rewind_keeps_the_first_tokens(engine: InferenceEngine) -> None:
    tokens = engine.tokenize(TEXT)
    whole = engine.logits(tokens)
    with engine.session() as session:
        session.prefill(tokens)
        for n in (len(tokens), 9, 4, 1):
            session.rewind(n)
            assert (len(session), session.tokens) == (n, tokens[:n])
            if n < len(tokens):
                assert same_bits(session.prefill(tokens[n:]), whole[-1])
        for wrong in (-1, len(tokens) + 1, 1.5, True, None):
            with pytest.raises(ConfigError, match="n_tokens: expected"):
                session.rewind(wrong)  # type: ignore[arg-type]
        session.rewind(0)
        assert same_bits(session.logits(tokens), whole)


def test_what_is_appended_is_run_by_what_comes_next(engine: InferenceEngine) -> None:
    tokens = engine.tokenize(TEXT)
    whole, expected = engine.logits(tokens), engine.generate(TEXT, sampler=GREEDY, max_tokens=9)
    with engine.session() as session:
        n_run = engine.metrics.prefill_tokens
        session.append(tokens[:6])
        assert (session.tokens, engine.metrics.prefill_tokens) == (tokens[:6], n_run)
        assert same_bits(session.logits(tokens[6:]), whole[6:])
        session.rewind(4)
        session.append(tokens[4:])
        done = session.stream(sampler=GREEDY, max_tokens=9).result()
        assert (done.text, done.usage.cached_tokens) == (expected, 4)
        with pytest.raises(PromptError, match="prompt: expected at most"):
            session.append([5] * engine.context_size)
        assert session.tokens == [*tokens, *done.tokens]
    engine.model.check_integrity()


def test_forks_go_their_own_ways(engine: InferenceEngine) -> None:
    tokens = engine.tokenize(TEXT)
    whole = engine.logits(tokens)
    with engine.session() as session:
        session.prefill(tokens[:10])
        forks = [session.fork() for _ in range(3)]
        forks[0].prefill(tokens[3:8])
        forks[1].rewind(5)
        for way in (session, forks[2]):
            assert same_bits(way.prefill(tokens[10:]), whole[-1])
        assert same_bits(forks[1].prefill(tokens[5:]), whole[-1])
        engine.model.check_integrity()
        for fork in forks:
            fork.close()


def test_generation_goes_on_from_a_session(engine: InferenceEngine) -> None:
    expected = engine.stream(TEXT, sampler=GREEDY, max_tokens=30).result()
    prompt = engine.tokenize(TEXT)
    with engine.session() as session:
        session.prefill(prompt)
        first = session.generate(sampler=GREEDY, max_tokens=10)
        assert session.tokens == prompt + expected.tokens[:10]
        stream = session.stream(sampler=GREEDY, max_tokens=20)
        for call in (
            lambda: session.prefill("x"),
            lambda: session.rewind(0),
            session.fork,
            session.kv_snapshot,
        ):
            with pytest.raises(ConfigError, match="session: a generation goes on from here"):
                call()
        text = next(stream) + "".join(stream)
        assert first + text == expected.text
        assert stream.usage.cached_tokens >= len(prompt) + 8
        whole = engine.logits(session.tokens)
        session.rewind(len(session) - 1)
        assert same_bits(session.forward(expected.tokens[-1]), whole[-1])
        engine.model.check_integrity()
    with (
        engine.session() as session,
        pytest.raises(PromptError, match="session: expected at least one token"),
    ):
        session.generate()


def test_a_cancelled_generation_leaves_what_it_has_run(engine: InferenceEngine) -> None:
    expected = engine.stream(TEXT, sampler=GREEDY, max_tokens=100).result()
    prompt = engine.tokenize(TEXT)
    with engine.session() as session:
        session.prefill(prompt)
        stream = session.stream(sampler=GREEDY, max_tokens=100, window=3)
        next(stream)
        stream.close()
        n = len(session) - len(prompt)
        assert 1 <= n < 20
        assert session.tokens == prompt + expected.tokens[:n]
        rest = session.stream(sampler=GREEDY, max_tokens=100 - n).result()
        assert expected.tokens[n:] == rest.tokens
    engine.model.check_integrity()


def test_a_session_goes_on_behind_a_cancelled_generation(engine: InferenceEngine) -> None:
    """A whole prompt is compared with the tokens of a generation that has not ended when the call begins."""
    prompt, longer = engine.tokenize(TEXT), engine.tokenize(TEXT + " the fox said that")
    with engine.session() as session:
        session.append(prompt)
        stream = session.stream(sampler=GREEDY, max_tokens=100)
        next(stream)
        with pytest.raises(ConfigError, match="a generation goes on"):
            go_on(session, longer)
        calling = threading.Thread(target=go_on, args=(session, longer))
        with stopped(engine):
            stream.cancel()
            calling.start()
            calling.join(0.1)
        calling.join(60)
        assert session.tokens == longer
        stream = session.stream(sampler=GREEDY, max_tokens=20)
        next(stream)
        with stopped(engine):
            stream.cancel()
            looking = threading.Thread(target=lambda: found.append(session.tokens))
            found: list[list[int]] = []
            looking.start()
            looking.join(0.1)
        looking.join(60)
        assert found[0][: len(longer)] == longer and len(found[0]) > len(longer)
        assert session.tokens == found[0] and len(session) == len(found[0])


@pytest.mark.parametrize("name", ["mamba2", "jamba", "rwkv7", "gemma3", "deepseek2", "glm-dsa"])
def test_every_kind_of_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = zoo_engine(monkeypatch, name)
    tokens = [5, 9, 3, 7, 7, 2, 8, 1, 4, 6, 9, 9]
    whole = engine.logits(tokens)
    with engine.session() as session, session.fork() as other:
        session.prefill(tokens[:8])
        session.rewind(5)
        assert same_bits(session.prefill(tokens[5:]), whole[-1])
        snapshot = session.kv_snapshot()
        other.kv_restore(snapshot)
        assert same_bits(other.forward(3), session.forward(3))
        engine.model.check_integrity()


def test_each_snapshot_counts_once(engine: InferenceEngine) -> None:
    n = engine.metrics.snapshot().snapshots
    with engine.session() as session:
        session.prefill(TEXT)
        for _ in range(3):
            session.snapshot()
    assert engine.metrics.snapshot().snapshots == n + 3


def test_snapshots_say_what_they_are_of(engine: InferenceEngine, tmp_path: Path) -> None:
    tokens = engine.tokenize(TEXT)
    with engine.session() as session:
        session.prefill(tokens[:9])
        snapshot = session.kv_snapshot()
    same = InferenceEngine.from_gguf(demo.STORY, num_threads=1, prefill_chunk_size=3)
    with same.session() as session:
        session.kv_restore(snapshot)
        assert same_bits(session.prefill(tokens[9:]), engine.logits(tokens)[-1])
    for page_size in (4, 64):
        with InferenceEngine.from_gguf(demo.STORY, page_size=page_size).session() as session:
            session.kv_restore(snapshot)
            assert same_bits(session.prefill(tokens[9:]), engine.logits(tokens)[-1])
    moved = tmp_path / "moved.gguf"
    moved.write_bytes(demo.STORY.read_bytes())
    InferenceEngine.from_gguf(moved).kv_restore(snapshot)
    changed = bytearray(demo.STORY.read_bytes())
    changed[-70000] ^= 1  # a bit in the middle of a tensor
    (tmp_path / "changed.gguf").write_bytes(changed)
    for path, options, message in (
        (demo.DRAFT, {}, "of model"),
        (tmp_path / "changed.gguf", {}, "of model"),
        (demo.STORY, {"compute": "f32"}, "of model"),
        (demo.STORY, {"kv_type": "bf16"}, "kv_type bf16, got 'f16'"),
    ):
        other = InferenceEngine.from_gguf(path, **options)  # type: ignore[arg-type]
        other.prefill(tokens[:3])
        with pytest.raises(ConfigError, match=f"snapshot: expected .*{message}"):
            other.kv_restore(snapshot)
        assert other.kv_cache_seq_len == 3
    with pytest.raises(ConfigError, match="snapshot: expected a KvSnapshot, got bytes"):
        engine.kv_restore(b"OXISNAP1")  # type: ignore[arg-type]


def test_what_does_not_fit_changes_nothing() -> None:
    small = InferenceEngine.from_gguf(
        demo.STORY, kv_memory_limit=3 * (1 << 20), context_size=64, page_size=16
    )
    stride = small.model.pool.page_stride
    small = InferenceEngine.from_gguf(demo.STORY, kv_memory_limit=2 * stride, context_size=64)
    with small.session() as session:
        session.prefill([5] * 20)
        with pytest.raises(KvCacheFullError):
            session.prefill([6] * 20)
        assert session.tokens == [5] * 20
        with pytest.raises(PromptError, match="expected at most 64 tokens in all, got 80"):
            session.prefill([6] * 60)
        session.forward(6)
    small.check_integrity()


@pytest.mark.parametrize("name", ["llama", "mamba2", "jamba", "gemma3"])
def test_a_session_that_gives_way_goes_on_with_the_same_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = zoo_engine(monkeypatch, name)
    tokens = [5, 9, 3, 7, 7, 2, 8, 1, 4, 6, 9, 9]
    whole, limit = engine.logits(tokens), engine.model.pool.limit
    with engine.session() as session, engine.session() as other:
        session.give_way()
        for n in (4, 6, 9):
            session.prefill(tokens[len(session) : n])
            other.rewind(0)
            other.prefill(tokens)
            assert session._sequence.cached_len == n
            used = limit.used
            engine.model.call(lambda: limit.can_allocate(limit.available + 1))
            assert session._sequence.cached_len == 0 and limit.used < used
            assert other._sequence.cached_len == len(tokens)  # the sequence keeps its pages
        session.recompute()
        assert (session.tokens, session._sequence.cached_len) == (tokens[:9], 9)
        engine.model.call(lambda: limit.can_allocate(limit.available + 1))
        assert same_bits(session.logits(tokens[9:]), whole[9:])
        engine.model.check_integrity()


def test_logits_of_a_session_that_gives_way_meanwhile_are_those_of_the_new_tokens(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = engine.tokenize(TEXT)
    with engine.session() as session:
        session.give_way()
        session.prefill(tokens[:5])
        real = session._run_pending

        def run_pending(sequence: Sequence, all_logits: bool) -> np.ndarray:
            engine.model.call(sequence.forget)
            return real(sequence, all_logits)

        monkeypatch.setattr(session, "_run_pending", run_pending)
        assert same_bits(session.logits(tokens[5:]), engine.logits(tokens)[5:])


def test_a_session_that_gives_way_keeps_its_pages_from_itself() -> None:
    stride = InferenceEngine.from_gguf(demo.STORY, num_threads=1).model.pool.page_stride
    with (
        InferenceEngine.from_gguf(
            demo.STORY, num_threads=1, kv_memory_limit=4 * stride, context_size=96
        ) as small,
        small.session() as session,
    ):
        session.give_way()
        session.prefill([5] * 60)
        with pytest.raises(KvCacheFullError):
            session.prefill([6] * 20)
        assert session.tokens == [5] * 60
        assert small.generate([7] * 40, max_tokens=2, temperature=0)  # which takes its pages
        assert session._sequence.cached_len == 0
        assert same_bits(session.forward(6), small.logits([5] * 60 + [6])[-1])
        small.model.check_integrity()


def test_the_engines_own_names_are_those_of_a_session(engine: InferenceEngine) -> None:
    tokens = engine.tokenize(TEXT)
    whole = engine.logits(TEXT)
    engine.reset()
    assert same_bits(engine.forward_prefill(tokens[:5]), whole[4])
    assert same_bits(engine.forward_decode(tokens[5]), whole[5])
    assert same_bits(engine.forward_one(tokens[6]), whole[6])
    engine.truncate(6)
    for wrong in (-1, 100, True):
        with pytest.raises(ConfigError, match="n_tokens"):
            engine.rewind(wrong)
    engine.rewind(5)
    assert engine.kv_cache_seq_len == 5
    snapshot = engine.kv_snapshot()
    engine.reset()
    assert engine.kv_cache_seq_len == 0
    engine.prefill(tokens[3:9])
    engine.kv_restore(snapshot)
    assert same_bits(engine.prefill(tokens[5:]), whole[-1])
    assert engine.detokenize(tokens) == TEXT
    assert engine.vocab_bytes()[tokens[-1]].decode() == engine.decode_token(tokens[-1])
    assert len(engine.vocab_bytes()) == engine.tokenizer.n_vocab
    assert not engine.is_eos(tokens[-1])
    assert same_bits(engine.embed_with(TEXT, "max"), engine.embed_batch_with([TEXT], "max")[0])
    assert engine.metadata["general.architecture"] == "llama"
    assert engine.metrics_snapshot().steps >= 0
    engine.reset()
    ours = dir(oxillama.InferenceEngine)
    assert not {"forward_one", "embed_with", "kv_snapshot", "resume_from_file"}.intersection(ours)

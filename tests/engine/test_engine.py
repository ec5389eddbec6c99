"""The engine through its public face, on the story model that ships with the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from oxillama import (
    AsyncEngine,
    ConfigError,
    GGUFError,
    LoadError,
    ModelFileError,
    SamplerConfig,
    SamplingError,
    _kernels,
    demo,
)
from oxillama.base.config.generation import WINDOW
from oxillama.compat.engine import InferenceEngine
from oxillama.gguf.model_file import ModelFile
from tests.support.kernels import PRESENT
from tests.support.tiny_models import divergence
from tests.support.waiting import check_all_free, until

GREEDY = SamplerConfig.greedy()
PROMPT = "Once upon a time"


@pytest.fixture(autouse=True)
def no_page_is_lost(engine: InferenceEngine) -> Iterator[None]:
    yield
    engine.reset()
    check_all_free(engine)


def greedy_by_hand(engine: InferenceEngine, tokens: list[int], n: int) -> list[int]:
    """Greedy continuation by full recomputation: no cache, no sampler, no generation loop."""
    tokens = list(tokens)
    start = len(tokens)
    while len(tokens) < start + n and not (len(tokens) > start and engine.is_eos(tokens[-1])):
        tokens.append(int(engine.logits(tokens)[-1].argmax()))
    return tokens[start:]


def test_generate_equals_recomputing_every_token(engine: InferenceEngine) -> None:
    generation = engine.stream(PROMPT, sampler=GREEDY, max_tokens=24)
    text = "".join(generation)
    assert generation.tokens == greedy_by_hand(engine, engine.tokenize(PROMPT), 24)
    assert text == engine.detokenize(generation.prompt_tokens + generation.tokens)[len(PROMPT) :]
    assert len(text) > 24


def test_the_seed_decides_the_text(engine: InferenceEngine) -> None:
    def text(seed: int) -> str:
        return engine.generate(
            PROMPT, sampler=SamplerConfig(temperature=1.5, top_k=0, seed=seed), max_tokens=32
        )

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(6)}) > 3


def test_a_run_without_a_seed_can_be_repeated(engine: InferenceEngine) -> None:
    hot = {"temperature": 1.5, "top_k": 0}
    first = engine.stream(PROMPT, sampler=SamplerConfig(**hot), max_tokens=32)
    text = "".join(first)
    assert engine.generate(PROMPT, sampler=SamplerConfig(**hot, seed=first.seed), max_tokens=32) == text
    other = engine.stream(PROMPT, sampler=SamplerConfig(**hot), max_tokens=1)
    assert other.seed != first.seed
    other.close()


def test_streams_may_alternate(engine: InferenceEngine) -> None:
    alone = [engine.generate(p, sampler=GREEDY, max_tokens=20) for p in ("One day", "The old")]
    streams = [engine.stream(p, sampler=GREEDY, max_tokens=20) for p in ("One day", "The old")]
    texts = ["", ""]
    while any(s.finish_reason is None for s in streams):
        for i, stream in enumerate(streams):
            texts[i] += next(stream, "")
    assert texts == alone


def test_max_tokens_ends_with_length(engine: InferenceEngine) -> None:
    generation = engine.stream(PROMPT, sampler=GREEDY, max_tokens=3)
    list(generation)
    assert (len(generation.tokens), generation.finish_reason) == (3, "length")
    assert engine.generate(PROMPT, max_tokens=0) == ""
    assert engine.finish_reason == "length"


def test_the_models_own_end_is_a_stop(engine: InferenceEngine) -> None:
    generation = engine.stream(PROMPT, sampler=GREEDY, max_tokens=500)
    text = "".join(generation)
    assert generation.finish_reason == "stop"
    assert engine.is_eos(generation.tokens[-1])
    assert engine.detokenize(generation.prompt_tokens + generation.tokens[:-1]) == PROMPT + text


@pytest.mark.parametrize("cut", [1, 3, 9])
def test_stop_strings_end_the_text_wherever_tokens_end(engine: InferenceEngine, cut: int) -> None:
    whole = engine.generate(PROMPT, sampler=GREEDY, max_tokens=60)
    at = 25
    stop = whole[at : at + cut]
    stream = engine.stream(PROMPT, sampler=GREEDY, max_tokens=60, stop=["@never@", stop])
    assert "".join(stream) == whole[: whole.find(stop)]
    assert engine.finish_reason == stream.finish_reason == "stop"


def test_text_that_only_begins_a_stop_string_is_kept(engine: InferenceEngine) -> None:
    whole = engine.generate(PROMPT, sampler=GREEDY, max_tokens=20)
    assert engine.generate(PROMPT, sampler=GREEDY, max_tokens=20, stop=whole[-4:] + "@") == whole


def test_closing_a_stream_stops_the_work(engine: InferenceEngine) -> None:
    generation = engine.stream(PROMPT, sampler=GREEDY)
    next(generation)
    generation.close()
    assert generation.finish_reason == "cancelled"
    assert next(generation, None) is None
    assert len(generation.tokens) < 5
    assert generation._request.n_generated < 100


def test_cancel_stops_between_tokens(engine: InferenceEngine) -> None:
    generation = engine.stream(PROMPT, sampler=GREEDY)
    next(generation)
    generation.cancel()
    list(generation)  # what was there
    assert generation.finish_reason == "cancelled"
    assert len(generation.tokens) <= 1 + WINDOW


def test_a_callback_sees_each_piece_and_may_cancel(engine: InferenceEngine) -> None:
    seen: list[str] = []

    def callback(piece: str) -> bool:
        seen.append(piece)
        return len(seen) < 4

    text = engine.generate(PROMPT, sampler=GREEDY, callback=callback)
    assert len(seen) == 4
    assert "".join(seen) == text
    assert engine.finish_reason == "cancelled"


def test_what_was_run_ahead_of_a_callback_that_cancels_is_dropped(engine: InferenceEngine) -> None:
    seen: list[str] = []

    def callback(piece: str) -> bool:
        seen.append(piece)
        until(lambda: generation._request.finish_reason is not None)  # all of it is there
        return False

    generation = engine.stream(PROMPT, sampler=GREEDY, max_tokens=6, callback=callback)
    assert next(generation) == seen[0]
    assert list(generation) == []
    assert generation.text == seen[0] and len(generation.tokens) == 1
    assert generation.finish_reason == "cancelled"


def test_a_callback_that_raises_ends_the_generation_only(engine: InferenceEngine) -> None:
    with pytest.raises(RuntimeError, match="the caller's own"):
        engine.generate(PROMPT, callback=Mock(side_effect=RuntimeError("the caller's own")))
    assert engine.generate(PROMPT, sampler=GREEDY, max_tokens=4)


def test_an_abandoned_stream_frees_its_pages(engine: InferenceEngine) -> None:
    generation = engine.stream(PROMPT)
    next(generation)
    assert engine.model.pool.limit.used > 0
    del generation  # the fixture looks whether the pages came back


@pytest.mark.parametrize("chunk", [1, 2, 7, 512])
@pytest.mark.parametrize(("page_size", "threads"), [(16, 1), (64, 2), (512, 3), (4, 2)])
def test_logits_depend_on_nothing_but_the_tokens(
    engine: InferenceEngine, chunk: int, page_size: int, threads: int
) -> None:
    tokens = engine.tokenize("Mia and the little fox went to the sea. They found a boat, and then")
    other = InferenceEngine.from_gguf(
        demo.STORY, prefill_chunk_size=chunk, page_size=page_size, num_threads=threads
    )
    assert np.array_equal(other.logits(tokens), engine.logits(tokens))


def test_every_target_gives_the_same_text(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    hot = SamplerConfig(temperature=1.2, top_k=0, seed=5)
    expected = engine.generate(PROMPT, sampler=hot, max_tokens=40)
    assert "portable" in PRESENT
    for target in PRESENT:
        monkeypatch.setenv("OXILLAMA_TARGET", target)
        other = InferenceEngine.from_gguf(demo.STORY)
        assert other.model.kernels.target == target
        assert other.generate(PROMPT, sampler=hot, max_tokens=40) == expected


@pytest.mark.parametrize(
    ("kv_type", "most"),
    [
        *(("f16", 2e-3), ("bf16", 2e-3), ("q8_0", 2e-3), ("q8_0:q8_0", 2e-3), ("q5_1", 0.01), ("q5_0", 0.01)),
        *(("q4_1", 0.04), ("q4_0", 0.04), ("iq4_nl", 0.04), ("q8_0:q4_0", 0.02)),
    ],
)
def test_kv_types_round_and_stay_close(kv_type: str, most: float) -> None:
    text = "Mia and the little fox went to the sea. They found a boat"
    exact = InferenceEngine.from_gguf(demo.STORY, kv_type="f32").logits(text)
    mine = InferenceEngine.from_gguf(demo.STORY, kv_type=kv_type).logits(text)
    assert 0 < divergence(exact, mine) < most  # rounding moves some int8 codes; a wrong value would move all


def test_load_from_bytes_equals_load_from_path(engine: InferenceEngine) -> None:
    other = InferenceEngine()
    assert not other.is_loaded
    with pytest.raises(ConfigError, match="no model is loaded"):
        other.generate(PROMPT)
    with pytest.raises(ConfigError, match="no model is loaded"):
        AsyncEngine(other)
    other.load_model_from_bytes(demo.STORY.read_bytes())
    assert other.is_loaded
    assert np.array_equal(other.logits(PROMPT), engine.logits(PROMPT))


def test_a_failed_load_leaves_the_model_in_place(engine: InferenceEngine, tmp_path: Path) -> None:
    other = InferenceEngine.from_gguf(demo.STORY)
    bad = tmp_path / "cut.gguf"
    bad.write_bytes(demo.STORY.read_bytes()[:100_000])
    with pytest.raises(GGUFError):
        other.load_model(bad)
    assert np.array_equal(other.logits(PROMPT), engine.logits(PROMPT))


def test_a_model_may_be_replaced(engine: InferenceEngine) -> None:
    other = InferenceEngine.from_gguf(demo.DRAFT)
    draft = other.logits(PROMPT)
    other.load_model(demo.STORY)
    assert np.array_equal(other.logits(PROMPT), engine.logits(PROMPT))
    assert not np.array_equal(draft, engine.logits(PROMPT))


def test_progress_names_every_tensor_and_packs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    engine = InferenceEngine.from_gguf(demo.STORY, progress=lambda name, n: seen.append(name))
    with ModelFile.open(demo.STORY) as file:
        assert set(seen) == set(file.tensors)
    monkeypatch.setattr(_kernels.pack, "pack", None)  # nothing is left to do
    engine.logits(PROMPT)


def test_matrices_are_packed_when_they_are_first_used(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    real = _kernels.pack.pack_file
    monkeypatch.setattr(_kernels.pack, "pack_file", lambda *args: (calls.append(1), real(*args))[1])
    other = InferenceEngine.from_gguf(demo.STORY)
    assert not calls
    assert np.array_equal(other.logits(PROMPT), engine.logits(PROMPT))
    n = len(calls)
    assert n > 4 * 7
    other.logits(PROMPT)
    assert len(calls) == n


def test_nul_is_a_character_like_any_other(engine: InferenceEngine) -> None:
    tokens = engine.tokenize("a\0b", add_special=False)
    assert engine.detokenize(tokens) == "a\0b"


def test_unknown_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXILLAMA_TARGET", "sse9")
    with pytest.raises(ConfigError, match="sse9"):
        InferenceEngine()


def test_bad_files(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.gguf"
    foreign.write_bytes(b"PK\3\4" + bytes(1000))
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(demo.STORY.read_bytes()[:-1000])
    for path, error in (
        (tmp_path / "missing.gguf", ModelFileError),
        (tmp_path, ModelFileError),
        (foreign, GGUFError),
        (cut, GGUFError),
        (demo.PIRATE, LoadError),
    ):
        with pytest.raises(error):
            InferenceEngine.from_gguf(path)


def test_a_context_beyond_the_training_is_said() -> None:
    with pytest.warns(UserWarning, match="context_size"):
        InferenceEngine.from_gguf(demo.STORY, context_size=4096)


def test_logits_that_are_not_numbers_are_an_error(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = np.full((1, engine.model.spec.n_vocab), np.nan, np.float32)
    monkeypatch.setattr(engine.model.runner, "complete", lambda *args: [bad])
    for sampler in (GREEDY, SamplerConfig()):
        with pytest.raises(SamplingError, match="NaN"):
            engine.generate(PROMPT, sampler=sampler)

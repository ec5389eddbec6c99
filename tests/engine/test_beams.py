"""Beam search against an exhaustive search, against greedy decoding, and beside requests."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from oxillama import BeamHypothesis, BeamSearchConfig, ConfigError, InferenceEngine, KvCacheFullError, demo
from oxillama.engine.beams import likeliest

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def engine() -> InferenceEngine:
    return InferenceEngine.from_gguf(demo.STORY, num_threads=1)


def log_softmax(row: np.ndarray) -> np.ndarray:
    row = row.astype(np.float64)
    return np.asarray(row - row.max() - np.log(np.exp(row - row.max()).sum()))


def exhaustive(engine: InferenceEngine, allowed: list[int], length: int) -> dict[tuple[int, ...], float]:
    """The log-probability of each continuation by ``allowed`` tokens, which ends or has the full length."""
    prompt = engine.tokenizer.encode(PROMPT)
    ends = engine.tokenizer.eog_ids
    found = {}
    for n in range(1, length + 1):
        for tokens in itertools.product(allowed, repeat=n):
            if any(token in ends for token in tokens[:-1]) or (n < length and tokens[-1] not in ends):
                continue
            rows = engine.logits([*prompt, *tokens])[len(prompt) - 1 : -1][:, sorted(allowed)]
            places = [sorted(allowed).index(token) for token in tokens]
            found[tokens] = sum(log_softmax(row)[at] for row, at in zip(rows, places))
    return found


@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.0, 2.0])
@pytest.mark.parametrize("early_stopping", [True, False])
def test_a_wide_search_finds_the_best_of_all(
    engine: InferenceEngine, length_penalty: float, early_stopping: bool
) -> None:
    (end,) = list(engine.tokenizer.eog_ids)[:1]
    likely = np.argsort(engine.logits(PROMPT)[-1])[::-1][:3].tolist()
    allowed = [*likely, end]
    everything = exhaustive(engine, allowed, 4)
    config = BeamSearchConfig(
        beam_width=200, max_new_tokens=4, length_penalty=length_penalty, early_stopping=early_stopping
    )
    found = engine.beam_search(PROMPT, config, allowed_tokens=tuple(allowed), logit_bias={end: 6.0})
    found_plain = engine.beam_search(PROMPT, config, allowed_tokens=tuple(allowed))
    expected = sorted(everything, key=lambda tokens: -everything[tokens] / len(tokens) ** length_penalty)
    assert found_plain[0].tokens == expected[0]
    assert found_plain[0].logprob_sum == pytest.approx(everything[expected[0]], abs=1e-4)
    assert any(hypothesis.finished for hypothesis in found)
    if not early_stopping:
        assert {h.tokens for h in found_plain} == set(everything)
        for hypothesis in found_plain:
            assert hypothesis.logprob_sum == pytest.approx(everything[hypothesis.tokens], abs=1e-4)
            assert hypothesis.finished == (hypothesis.tokens[-1] == end)
    scores = [hypothesis.score(length_penalty) for hypothesis in found_plain]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.3}, {"grammar": "root ::= [a-z ]+"}])
def test_one_beam_is_greedy_decoding(engine: InferenceEngine, options: dict[str, Any]) -> None:
    (found,) = engine.beam_search(PROMPT, BeamSearchConfig(beam_width=1, max_new_tokens=40), **options)
    greedy = engine.stream(PROMPT, temperature=0, max_tokens=40, **options).result()
    assert list(found.tokens) == greedy.tokens
    assert found.finished == (greedy.finish_reason == "stop")


def test_more_beams_find_likelier_texts(engine: InferenceEngine) -> None:
    best = [
        engine.beam_search(PROMPT, BeamSearchConfig(beam_width=n, max_new_tokens=12, length_penalty=0.0))[0]
        for n in (1, 4, 16)
    ]
    assert best[0].logprob_sum <= best[1].logprob_sum <= best[2].logprob_sum
    assert best[0].logprob_sum < best[2].logprob_sum


def test_a_search_ends_when_no_beam_can_be_better(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (end,) = list(engine.tokenizer.eog_ids)[:1]
    forward, passes = engine.model.runner.forward, []
    monkeypatch.setattr(engine.model.runner, "forward", lambda parts: passes.append(1) or forward(parts))

    def search(early_stopping: bool) -> tuple[int, list[BeamHypothesis]]:
        passes.clear()
        config = BeamSearchConfig(
            beam_width=4, max_new_tokens=60, length_penalty=0.0, early_stopping=early_stopping
        )
        found = engine.beam_search(PROMPT, config, logit_bias={end: 8.0})
        return len(passes), found

    (n_early, early), (n_late, late) = search(True), search(False)
    assert early[0] == late[0]
    assert early[0].finished
    assert n_early < n_late


def test_beams_obey_a_grammar(engine: InferenceEngine) -> None:
    found = engine.beam_search(
        PROMPT, BeamSearchConfig(beam_width=4, max_new_tokens=12), grammar='root ::= (" the" | " a" | " no")+'
    )
    assert found
    for hypothesis in found:
        text = engine.tokenizer.decode(list(hypothesis.tokens))
        rest = text.replace(" the", "").replace(" a", "").replace(" no", "")
        assert rest in ("", " ", " t", " th", " n")


def test_pages_are_shared_and_freed(engine: InferenceEngine) -> None:
    streams = [engine.stream(PROMPT, max_tokens=30, temperature=0, seed=i) for i in range(2)]
    engine.beam_search(PROMPT, BeamSearchConfig(beam_width=5, max_new_tokens=20))
    assert len({stream.result().text for stream in streams}) == 1
    engine.check_integrity()
    engine.model.prefix_cache.clear()
    assert engine.model.pool.n_used == 0
    small = InferenceEngine.from_gguf(demo.STORY, kv_memory_limit=8 * engine.model.pool.stride)
    with pytest.raises(KvCacheFullError):
        small.beam_search(PROMPT, BeamSearchConfig(beam_width=8, max_new_tokens=64))
    small.check_integrity()
    assert small.model.pool.n_used == 0
    prompt = "Once upon a time there was a little fox. " * 4
    n_prompt = len(small.tokenizer.encode(prompt))
    assert len(small.beam_search(prompt, BeamSearchConfig(beam_width=3, max_new_tokens=4))) == 3
    assert 3 * n_prompt > 8 * 16  # three copies would not have had room


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mirostat": 2}, "expected no mirostat, xtc or stage in Python"),
        ({"xtc_probability": 0.5}, "expected no mirostat"),
        ({"order": (lambda ids, logits, history: None,)}, "expected no mirostat"),
        ({"top_k": -3}, "top_k"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    engine: InferenceEngine, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        engine.beam_search(PROMPT, **fields)


@pytest.mark.parametrize(
    "fields", [{"beam_width": 0}, {"max_new_tokens": 0}, {"length_penalty": -1.0}, {"early_stopping": 1}]
)
def test_options_have_ranges(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(fields))):
        BeamSearchConfig(**fields)


def test_likeliest() -> None:
    ids, p = np.array([5, 3, 9, 1], np.int32), np.array([0.2, 0.3, 0.3, 0.0])
    assert likeliest(ids, p, 1) == [(3, 0.3)]
    assert likeliest(ids, p, 2) == [(3, 0.3), (9, 0.3)]
    assert likeliest(ids, p, 9) == [(3, 0.3), (9, 0.3), (5, 0.2)]


def test_scores() -> None:
    hypothesis = BeamHypothesis((1, 2, 3, 4), -8.0, True)
    assert hypothesis.score() == -2.0
    assert hypothesis.score(0.5) == -4.0
    assert math.isclose(BeamHypothesis((), 0.0, False).score(), 0.0)

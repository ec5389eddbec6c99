"""Beam search against an exhaustive search, against greedy decoding, and beside requests."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from oxillama import (
    AsyncEngine,
    BeamHypothesis,
    BeamSearchConfig,
    ConfigError,
    EngineClosed,
    KvCacheFullError,
    PromptError,
    demo,
)
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.features.beam_search import EngineBeams, beam_generate, likeliest
from tests.support.tiny_models import log_softmax
from tests.support.waiting import run

PROMPT = "Once upon a time"


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
            found[tokens] = sum(row[at] for row, at in zip(log_softmax(rows), places))
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
    engine.model.check_integrity()
    engine.model.call(engine.model.prefix_cache.clear)
    assert engine.model.pool.n_used == 0
    small = InferenceEngine.from_gguf(demo.STORY, kv_memory_limit=8 * engine.model.pool.page_stride)
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

    with_prompt = hypothesis.after((7, 8))
    assert with_prompt == BeamHypothesis((7, 8, 1, 2, 3, 4), -8.0, True)
    assert with_prompt.score(1.0, 2) == hypothesis.score(1.0)
    for wrong in (5, -1, True):
        with pytest.raises(ConfigError, match="prompt_len: expected"):
            hypothesis.score(1.0, wrong)


# --- the same search by other ways ----------------------------------------------------------------------


class Rows:
    """Runs one sequence by an engine, and notes what it was asked to run."""

    def __init__(self, engine: InferenceEngine, whole: bool) -> None:
        self.engine, self.whole = engine, whole
        self.tokens: list[int] = []
        self.asked: list[int] = []

    def forward_tokens(self, tokens: list[int]) -> np.ndarray:
        self.asked.append(len(tokens))
        self.tokens = [*self.tokens, *tokens]
        rows = self.engine.logits(self.tokens)[-len(tokens) :]
        return rows if self.whole else rows[-1]

    def reset(self) -> None:
        self.tokens = []


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("width", [1, 3])
def test_any_model_is_searched_alike(engine: InferenceEngine, whole: bool, width: int) -> None:
    prompt = engine.tokenizer.encode(PROMPT)
    config = BeamSearchConfig(beam_width=width, max_new_tokens=8)
    rows = Rows(engine, whole)
    found = beam_generate(config, np.array(prompt), rows, engine.tokenizer.eog_ids)
    assert found == engine.beam_generate(PROMPT, config)
    assert found == [h.after(prompt) for h in engine.beam_search(PROMPT, config)]
    assert found[0].score(1.0, len(prompt)) == engine.beam_search(PROMPT, config)[0].score()
    assert rows.asked[0] == len(prompt)
    assert width > 1 or rows.asked[1:] == [1] * 7  # nothing is run twice


def test_a_search_by_any_model_ends_with_its_token(engine: InferenceEngine) -> None:
    prompt = engine.tokenizer.encode(PROMPT)
    config = BeamSearchConfig(beam_width=2, max_new_tokens=6)
    plain = beam_generate(config, prompt, Rows(engine, False))
    assert not any(h.finished for h in plain)
    end = plain[0].tokens[len(prompt) + 2]
    for ends in (end, [end]):
        found = beam_generate(config, prompt, Rows(engine, False), ends)
        assert any(h.finished and h.tokens[-1] == end for h in found)
    with pytest.raises(PromptError, match="prompt: "):
        beam_generate(config, [], Rows(engine, False))
    with pytest.raises(ConfigError, match="eos_id: expected token ids"):
        beam_generate(config, prompt, Rows(engine, False), "end")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="config: expected"):
        beam_generate(None, prompt, Rows(engine, False))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="config: expected"):
        engine.beam_search(PROMPT, 4)  # type: ignore[arg-type]


def test_a_step_of_a_search_is_one_pass(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, call, counts = engine.model.runner.forward, engine.model.call, Counter[str]()

    def counted(name: str, function: Any) -> Any:
        return lambda *arguments: counts.update([name]) or function(*arguments)

    monkeypatch.setattr(engine.model.runner, "forward", counted("passes", forward))
    monkeypatch.setattr(engine.model, "call", counted("jobs", call))
    engine.beam_search(PROMPT, BeamSearchConfig(beam_width=4, max_new_tokens=10, early_stopping=False))
    assert counts == {"passes": 10, "jobs": 11}  # and one job that frees the pages


def test_searches_in_asyncio(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    config = BeamSearchConfig(beam_width=3, max_new_tokens=10)
    expected = engine.beam_search(PROMPT, config, banned_tokens=(5,))
    long = BeamSearchConfig(beam_width=2, max_new_tokens=450, early_stopping=False)
    rows, steps = EngineBeams.rows, Counter[EngineBeams]()
    monkeypatch.setattr(EngineBeams, "rows", lambda self, beams: steps.update([self]) or rows(self, beams))

    async def main() -> None:
        async with AsyncEngine(engine) as many:
            text = asyncio.ensure_future(many.generate(PROMPT, max_tokens=30, temperature=0))
            assert await many.beam_search(PROMPT, config, banned_tokens=(5,)) == expected
            with pytest.raises(ConfigError):
                await many.beam_search(PROMPT, mirostat=2)
            assert await text == engine.generate(PROMPT, max_tokens=30, temperature=0)
            left = asyncio.ensure_future(many.beam_search(PROMPT, long))
            cut = asyncio.ensure_future(many.beam_search(PROMPT, long))
            while len(engine.model.loop.held) < 4:
                await asyncio.sleep(0.001)
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
            while len(engine.model.loop.held) > 2:
                await asyncio.sleep(0.001)
            assert min([*steps.values()][1:]) < 300
        assert not engine.model.loop.held
        with pytest.raises(EngineClosed):
            await cut
        with pytest.raises(EngineClosed):
            await many.beam_search(PROMPT)
        finishing = AsyncEngine(engine)
        whole = asyncio.ensure_future(finishing.beam_search(PROMPT, config, banned_tokens=(5,)))
        await asyncio.sleep(0)
        await finishing.aclose(finish=True)
        assert await whole == expected

    run(main)


@pytest.mark.parametrize("n", [1, 3, 40])
@pytest.mark.parametrize("size", [1, 63, 64, 200, 3000])
def test_the_likeliest_of_any_number(size: int, n: int) -> None:
    """Also among equals, zeros, and in blocks of which only the largest is looked at first."""
    rng = np.random.default_rng(size)
    for digits in (1, 16):
        p = np.round(rng.random(size) ** 8, digits)
        ids = rng.permutation(size).astype(np.int32)
        order = [i for i in np.lexsort((ids, -p)) if p[i] > 0][:n]
        assert likeliest(ids, p, n) == [(int(ids[i]), float(p[i])) for i in order]

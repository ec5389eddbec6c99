"""Speculation over two engines in asyncio: the target's own text, whatever the draft engine does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from oxillama import (
    AsyncSpecConfig,
    CancellationToken,
    ConfigError,
    EngineClosed,
    GenerationCancelled,
    PromptError,
    SamplerConfig,
    SpecStats,
    SpeculativeDecoder,
    demo,
)
from oxillama.compat.engine import InferenceEngine
from oxillama.speculation import run_ahead
from tests.speculation.test_speculation import OPTIONS
from tests.support.random_use import new_engine
from tests.support.serving import AsManyAsMayBe, use_drafter
from tests.support.tiny_file import write_tiny_model
from tests.support.waiting import check_all_free, idle, run, stopped, until

PROMPT = demo.PROMPTS[0]
GREEDY = SamplerConfig.greedy()


@pytest.fixture(scope="module")
def target() -> InferenceEngine:
    engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1)
    use_drafter(engine.model, AsManyAsMayBe())
    return engine


@pytest.fixture(scope="module")
def draft() -> InferenceEngine:
    return InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)


@pytest.fixture(autouse=True)
def nothing_is_left(target: InferenceEngine, draft: InferenceEngine) -> Iterator[None]:
    yield
    until(lambda: not [t for t in threading.enumerate() if t.name == "oxillama drafter"])
    for engine in (target, draft):
        if engine.model.thread.is_open:
            check_all_free(engine)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target waits for its drafts as long as it takes."""
    monkeypatch.setattr(run_ahead, "SHARE", 1e9)


def decoder(draft: InferenceEngine | None, target: InferenceEngine, **config: Any) -> SpeculativeDecoder:
    return SpeculativeDecoder(draft, target, AsyncSpecConfig(**{"max_tokens": 60, **config}))


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("name", ["greedy", "seeded", "hot", "penalties", "mirostat", "grammar"])
def test_the_text_is_that_of_the_target(target: InferenceEngine, draft: InferenceEngine, name: str) -> None:
    sampler = SamplerConfig(**OPTIONS[name])
    expected = target.stream(PROMPT, sampler=sampler, max_tokens=60).result()
    speculating, pieces = decoder(draft, target, target_sampler=sampler), list[str]()
    steps = target.metrics.steps
    assert run(lambda: speculating.generate(PROMPT, pieces.append)) == expected.text == "".join(pieces)
    steps, stats = target.metrics.steps - steps, speculating.stats
    assert stats.total_output_tokens() == len(expected.tokens)
    assert steps == stats.bonus_tokens
    assert stats.n1_fallbacks == 0
    assert stats.total_elapsed > 0
    if name == "greedy":
        assert stats.acceptance_rate() > 0.4
        assert steps < len(expected.tokens) / 2


def test_without_patience_too(target: InferenceEngine, draft: InferenceEngine) -> None:
    speculating = decoder(draft, target, target_sampler=GREEDY)
    expected = [target.generate(p, sampler=GREEDY, max_tokens=60) for p in demo.PROMPTS]

    async def main() -> list[str]:
        return await asyncio.gather(*(speculating.generate(p) for p in demo.PROMPTS))

    assert run(main) == expected
    speculating.reset_stats()
    assert speculating.stats == SpecStats()


def test_the_drafter_runs_ahead_while_the_target_stands(
    target: InferenceEngine, draft: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafters: list[Any] = []
    speculating = decoder(draft, target, target_sampler=GREEDY)
    make = speculating._drafter
    monkeypatch.setattr(speculating, "_drafter", lambda tokens: drafters.append(make(tokens)) or drafters[0])

    async def main() -> None:
        with stopped(target):
            task = asyncio.ensure_future(speculating.generate(PROMPT))
            await asyncio.sleep(0)
            await asyncio.to_thread(until, lambda: drafters and len(drafters[0]._ahead) == 9)
        assert await task == target.generate(PROMPT, sampler=GREEDY, max_tokens=60)

    run(main)


def test_nothing_is_drafted_where_that_is_asked(target: InferenceEngine, draft: InferenceEngine) -> None:
    expected = target.generate(PROMPT, sampler=GREEDY, max_tokens=60)
    config = AsyncSpecConfig(target_sampler=GREEDY, max_tokens=60)
    for plain in (
        SpeculativeDecoder.new_n1(target, config),
        decoder(draft, target, target_sampler=GREEDY, force_n1=True),
    ):
        assert run(lambda plain=plain: plain.generate(PROMPT)) == expected
        assert (plain.stats.accepted, plain.stats.rejected, plain.stats.n1_fallbacks) == (0, 0, 0)
        assert plain.stats.acceptance_rate() == 0.0
        assert plain.stats.total_output_tokens() == plain.stats.bonus_tokens > 0


@pytest.mark.usefixtures("patient")
def test_a_draft_engine_that_ends_costs_no_text(
    target: InferenceEngine, caplog: pytest.LogCaptureFixture
) -> None:
    expected = target.generate(PROMPT, sampler=GREEDY, max_tokens=60)
    other = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1)
    speculating = decoder(other, target, target_sampler=GREEDY)
    seen: list[str] = []

    def close(piece: str) -> None:
        seen.append(piece)
        if len(seen) == 3:
            other.close()

    assert run(lambda: speculating.generate(PROMPT, close)) == expected
    speculating.reset_stats()
    assert run(lambda: speculating.generate(PROMPT)) == expected
    assert speculating.stats.n1_fallbacks == 1
    assert "cannot draft" in caplog.text


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", ["mamba2", "jamba"])
def test_recurrent_targets(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oxillama.speculation.decoder.same_tokens", lambda *names: True)  # there are none
    models = [new_engine(kind, num_threads=1) for _ in range(2)]
    use_drafter(models[0].model, AsManyAsMayBe())
    speculating = decoder(models[1], models[0], target_sampler=GREEDY, max_tokens=30)
    text = run(lambda: speculating.generate([5, 6, 7]))
    assert text == models[0].generate([5, 6, 7], sampler=GREEDY, max_tokens=30)
    assert speculating.stats.acceptance_rate() == 1.0  # it is the same model
    assert speculating.stats.accepted > 0
    for model in models:
        model.close()


# --- cancelling -----------------------------------------------------------------------------------------


def test_a_token_cancels_before_the_text_and_within_it(
    target: InferenceEngine, draft: InferenceEngine
) -> None:
    speculating = decoder(draft, target, target_sampler=GREEDY, max_tokens=300)
    token = speculating.cancellation_token()
    assert isinstance(token, CancellationToken)
    assert not token.is_cancelled()
    token.cancel()
    with pytest.raises(GenerationCancelled, match="before"):
        run(lambda: speculating.generate(PROMPT))
    within = speculating.cancellation_token()
    assert within is not token
    pieces: list[str] = []

    def cancel(piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == 3:
            threading.Thread(target=within.cancel).start()

    text = run(lambda: speculating.generate(PROMPT, cancel))
    whole = target.generate(PROMPT, sampler=GREEDY, max_tokens=300)
    assert "".join(pieces) == text == whole[: len(text)]
    assert run(lambda: speculating.generate(PROMPT)) == whole

    async def early() -> None:
        with stopped(target):
            task = asyncio.ensure_future(speculating.generate(PROMPT))
            await asyncio.sleep(0)
            speculating.cancellation_token().cancel()
        with pytest.raises(GenerationCancelled):
            await task

    run(early)


def test_a_text_ends_as_its_caller_wants(target: InferenceEngine, draft: InferenceEngine) -> None:
    speculating = decoder(draft, target, target_sampler=GREEDY, max_tokens=300)
    whole = target.generate(PROMPT, sampler=GREEDY, max_tokens=300)
    pieces: list[str] = []

    async def stop(piece: str) -> bool:
        pieces.append(piece)
        return len(pieces) < 4

    text = run(lambda: speculating.generate(PROMPT, stop))
    assert text == "".join(pieces) == whole[: len(text)] != whole
    with pytest.raises(KeyError):
        run(lambda: speculating.generate(PROMPT, Mock(side_effect=KeyError("the caller's"))))

    async def cancelled() -> None:
        task = asyncio.ensure_future(speculating.generate(PROMPT))
        while not target.model.scheduler.running:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        idle(target)

    run(cancelled)


# --- what is refused ------------------------------------------------------------------------------------


def test_wrong_engines_and_prompts_are_refused(
    target: InferenceEngine, draft: InferenceEngine, tmp_path: Any
) -> None:
    with pytest.raises(ConfigError, match="draft: expected another engine"):
        SpeculativeDecoder(target, target)
    with (
        InferenceEngine.from_gguf(write_tiny_model(tmp_path / "other.gguf")) as other,
        pytest.raises(ConfigError, match="draft: expected the tokens of the target"),
    ):
        SpeculativeDecoder(other, target)
    with pytest.raises(ConfigError, match="no model is loaded"):
        SpeculativeDecoder(InferenceEngine(), target)
    speculating = decoder(draft, target)
    with pytest.raises(PromptError):
        run(lambda: speculating.generate(""))
    with pytest.raises(ConfigError, match="on_token: expected a callable"):
        run(lambda: speculating.generate(PROMPT, 3))  # type: ignore[arg-type]
    with InferenceEngine.from_gguf(demo.STORY) as closed:
        gone = decoder(draft, closed)
    with pytest.raises(EngineClosed):
        run(lambda: gone.generate(PROMPT))

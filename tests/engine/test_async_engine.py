"""Many requests at once from asyncio: same text as alone, cancellation, backpressure, a clean end."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from oxillama import (
    AsyncEngine,
    EngineClosed,
    GenerationTimeout,
    QueueFull,
    RequestFailed,
    SamplerConfig,
    SchedulerConfig,
    demo,
)
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.loop import EngineLoop
from oxillama.engine.sampling.sampler import Sampler
from tests.support.interpreter import FREE_THREADED
from tests.support.waiting import check_all_free, in_asyncio, run, stopped, until

GREEDY = SamplerConfig.greedy()
PROMPTS = ["Once upon a time", "The old toad", "In the garden", "Mia and the little fox", "One day", "A boat"]


@pytest.fixture(autouse=True)
def everything_comes_back(engine: InferenceEngine) -> Iterator[None]:
    """After every test no page is held but by the prefix cache, and no thread is left that was not there."""
    before = threading.enumerate()
    yield
    if FREE_THREADED:
        gc.collect()
    until(lambda: not [t for t in threading.enumerate() if t.name == "oxillama" and t not in before])
    check_all_free(engine)


def test_many_requests_share_batches_and_each_gets_its_own_text(engine: InferenceEngine) -> None:
    samplers = [GREEDY, SamplerConfig(temperature=1.3, top_k=0, seed=5)]
    jobs = [(prompt, sampler) for prompt in PROMPTS for sampler in samplers]
    expected = [engine.generate(p, sampler=s, max_tokens=30) for p, s in jobs]
    before = engine.metrics_snapshot().steps

    async def main(many: AsyncEngine) -> None:
        with stopped(engine):  # they arrive together, however long that takes
            tasks = [asyncio.ensure_future(many.generate(p, sampler=s, max_tokens=30)) for p, s in jobs]
            await asyncio.sleep(0)
        assert await asyncio.gather(*tasks) == expected

    in_asyncio(engine, main)
    assert engine.metrics_snapshot().steps - before < 100  # fewer than 12 times 30


def test_streams_yield_pieces_as_they_come(engine: InferenceEngine) -> None:
    expected = engine.generate(PROMPTS[0], sampler=GREEDY, max_tokens=20)

    async def main(many: AsyncEngine) -> None:
        generation = many.stream(PROMPTS[0], sampler=GREEDY, max_tokens=20)
        pieces = [piece async for piece in generation]
        assert len(pieces) > 5
        assert "".join(pieces) == expected == generation.text
        assert generation.finish_reason == "length"
        assert [piece async for piece in many.stream(PROMPTS[0], sampler=GREEDY, max_tokens=20)] == pieces

    in_asyncio(engine, main)


def test_closing_the_generator_cancels(engine: InferenceEngine) -> None:
    async def main(many: AsyncEngine) -> None:
        generation = many.stream(PROMPTS[1], sampler=GREEDY, max_tokens=400)
        await generation.__anext__()
        await generation.aclose()
        assert generation.finish_reason == "cancelled"
        assert len(generation.tokens) < 40
        with stopped(engine):  # or the text might have ended
            task = asyncio.create_task(many.generate(PROMPTS[2], max_tokens=400))
            await asyncio.sleep(0.02)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while engine.model.scheduler.running:
            await asyncio.sleep(0.001)

    in_asyncio(engine, main)


def test_a_dropped_generation_is_cancelled(engine: InferenceEngine) -> None:
    async def main(many: AsyncEngine) -> None:
        generation = many.stream(PROMPTS[0], max_tokens=400)
        await generation.__anext__()
        del generation
        gc.collect()
        await many.generate(PROMPTS[1], max_tokens=3)
        while engine.model.scheduler.running:
            await asyncio.sleep(0.001)

    in_asyncio(engine, main)


def test_a_slow_reader_pauses_its_own_stream_alone(engine: InferenceEngine) -> None:
    expected = engine.generate(PROMPTS[0], sampler=GREEDY, max_tokens=60)

    async def main(many: AsyncEngine) -> None:
        slow = many.stream(PROMPTS[0], sampler=GREEDY, max_tokens=60, window=3)
        await many.generate(PROMPTS[1], sampler=GREEDY, max_tokens=100)
        assert len(slow.tokens) == 0  # only tokens that were read count
        assert slow._request.n_generated < 12  # three pieces, and tokens that show nothing yet
        assert (await slow).text == expected
        assert slow.finish_reason == "length"

    in_asyncio(engine, main)


def test_a_full_queue_is_said() -> None:
    config = SchedulerConfig(max_sequences=1, max_waiting=2)
    small = InferenceEngine.from_gguf(demo.STORY, scheduler=config)

    async def main(many: AsyncEngine) -> None:
        first = many.stream(PROMPTS[0], max_tokens=300)
        await first.__anext__()
        with stopped(small):
            others = [many.stream(p, max_tokens=2) for p in PROMPTS[1:3]]
            with pytest.raises(QueueFull, match="2 requests may wait"):
                many.stream(PROMPTS[3])
        await first.aclose()
        for other in others:
            await other
        await many.generate(PROMPTS[3], max_tokens=1)

    in_asyncio(small, main)


def test_what_one_request_raises_ends_it_alone(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = engine.generate(PROMPTS[1], sampler=GREEDY, max_tokens=30)
    real = Sampler.row

    def row(self: Sampler, logits: Any, history: Any) -> Any:
        if self.config.seed == 666 and self.n_generated > 4:
            raise RuntimeError("a stage of the user's")
        return real(self, logits, history)

    monkeypatch.setattr(Sampler, "row", row)

    async def main(many: AsyncEngine) -> None:
        bad = many.generate(PROMPTS[0], sampler=SamplerConfig(seed=666), max_tokens=30)
        good = many.generate(PROMPTS[1], sampler=GREEDY, max_tokens=30)
        results = await asyncio.gather(bad, good, return_exceptions=True)
        assert isinstance(results[0], RuntimeError)
        assert results[1] == expected

    in_asyncio(engine, main)


def test_when_a_step_fails_every_caller_is_told_and_the_engine_serves_on(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(many: AsyncEngine) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(EngineLoop, "step", Mock(side_effect=SystemError("the end")))
            tasks = [many.generate(prompt) for prompt in PROMPTS]
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} == {RequestFailed}
        assert {type(result.__cause__) for result in results} == {SystemError}  # type: ignore[union-attr]
        assert await many.generate(PROMPTS[0], max_tokens=2)

    in_asyncio(engine, main)


@pytest.mark.parametrize("finish", [False, True])
@pytest.mark.parametrize("owned", [False, True])
def test_closing_the_engine_cancels_or_finishes(engine: InferenceEngine, finish: bool, owned: bool) -> None:
    async def main() -> None:
        many = AsyncEngine.from_gguf(demo.STORY) if owned else AsyncEngine(engine)
        generations = [many.stream(p, sampler=GREEDY, max_tokens=60, window=2) for p in PROMPTS]
        await generations[0].__anext__()
        await many.aclose(finish=finish)
        reasons = {generation._request.finish_reason for generation in generations}
        assert reasons <= ({"length", "stop"} if finish else {"cancelled"})
        for generation in generations:
            if finish:
                assert (await generation).finish_reason in ("length", "stop")
                continue
            with pytest.raises(EngineClosed):
                await generation
            assert generation.finish_reason == "cancelled"
        with pytest.raises(EngineClosed, match="closed"):
            many.stream(PROMPTS[0])

    run(main)


def test_a_text_that_is_cut_is_no_success(engine: InferenceEngine) -> None:
    async def main() -> None:
        many = AsyncEngine(engine)
        with pytest.raises(GenerationTimeout, match="timeout: ") as caught:
            await many.generate(PROMPTS[0], sampler=GREEDY, max_tokens=480, timeout=0.005)
        assert engine.generate(PROMPTS[0], sampler=GREEDY, max_tokens=480).startswith(caught.value.text)
        task = asyncio.create_task(many.generate(PROMPTS[0], max_tokens=480))
        await asyncio.sleep(0.01)
        await many.aclose()
        with pytest.raises(EngineClosed):
            await task

    run(main)


def test_a_request_that_ends_without_having_run_wakes_its_reader(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.model.scheduler.admission, "admit", lambda *args: False)

    async def main(many: AsyncEngine) -> None:
        for _ in range(2):
            waiting = many.stream(PROMPTS[0], max_tokens=5, timeout=0.1)
            assert (await asyncio.wait_for(waiting._result(), 20)).finish_reason == "timeout"

    in_asyncio(engine, main)


def test_embeddings_join_the_batch(engine: InferenceEngine) -> None:
    expected = engine.embed_batch(PROMPTS, pooling="mean", normalize=True)

    async def main(many: AsyncEngine) -> None:
        text = asyncio.create_task(many.generate(PROMPTS[0], sampler=GREEDY, max_tokens=30))
        found = await asyncio.gather(*(many.embed(p, pooling="mean", normalize=True) for p in PROMPTS))
        assert all((mine == other).all() for mine, other in zip(found, expected))
        assert await text == engine.generate(PROMPTS[0], sampler=GREEDY, max_tokens=30)

    in_asyncio(engine, main)


def test_threads_and_coroutines_share_an_engine(engine: InferenceEngine) -> None:
    expected = [engine.generate(p, sampler=GREEDY, max_tokens=40) for p in PROMPTS]
    texts: dict[int, str] = {}

    def work(i: int) -> None:
        texts[i] = engine.generate(PROMPTS[i], sampler=GREEDY, max_tokens=40)

    async def main(many: AsyncEngine) -> None:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        found = await asyncio.gather(*(many.generate(p, sampler=GREEDY, max_tokens=40) for p in PROMPTS))
        assert found == expected
        for thread in threads:
            await asyncio.get_running_loop().run_in_executor(None, thread.join)

    in_asyncio(engine, main)
    assert [texts[i] for i in range(3)] == expected[:3]


@pytest.mark.parametrize("ending", ["", "import os; raise SystemExit(3)", "raise KeyError('user')"])
def test_the_interpreter_exits_while_requests_run(ending: str) -> None:
    program = f"""
import asyncio
from oxillama import AsyncEngine, demo
async def main():
    engine = AsyncEngine.from_gguf(demo.STORY)
    keep.append([engine.stream("Once upon a time", max_tokens=400, window=10**6) for _ in range(4)])
    await keep[0][0].__anext__()
    {ending or "pass"}
keep = []
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True)
    assert done.returncode == (3 if "SystemExit" in ending else 1 if ending else 0)
    assert "oxillama" not in done.stderr.replace("user", "") or "KeyError" in done.stderr
    assert "Fatal" not in done.stderr

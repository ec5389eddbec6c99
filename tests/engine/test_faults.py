"""Faults inside the engine: what fails ends its own request with an error of ours; all else goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest

from oxillama import AsyncEngine, KvCacheFullError, OxiLlamaError, RequestFailed, SamplerConfig, demo
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.cache.pages import PagePool
from oxillama.engine.cache.prefix import PrefixKvCache
from oxillama.engine.features.observability import request_log
from oxillama.engine.features.observability.metrics import EngineMetrics
from oxillama.engine.request import TextRequest
from oxillama.engine.runner import Runner
from oxillama.engine.sampling import batch as batch_module
from oxillama.engine.sampling.sampler import Sampler
from oxillama.engine.scheduler import PrefillBudget
from oxillama.engine.sequence import Sequence
from oxillama.engine.stop_strings import StopStrings
from oxillama.engine.wakers import Waker
from oxillama.models.decoder import Decoder
from oxillama.models.thread_tuner import SizeTuner, ThreadTuner
from oxillama.text.grammar import GrammarState
from oxillama.text.tokenizer.tokenizer import StreamDecoder
from tests.support.kernels import same_bits
from tests.support.waiting import in_asyncio

PROMPTS = ["Once upon a time", "The old toad", "In the garden", "Mia and the little fox"]
SAMPLERS = [
    SamplerConfig.greedy(),
    SamplerConfig(seed=1, temperature=1.2),
    SamplerConfig(seed=2, regex="[a-z ]+"),
    SamplerConfig(seed=3, order=("penalties", "temperature", lambda ids, logits, history: None)),
]
PLACES: dict[str, tuple[Any, str]] = {
    "page allocation": (PagePool, "allocate"), "pages of a sequence": (Sequence, "schedule"),
    "forward pass": (Runner, "complete"), "hidden states": (Decoder, "hidden_states"),
    "logits": (Decoder, "logits"), "sampling kernel": (batch_module, "in_openmp_thread"),
    "row of a sampler": (Sampler, "row"), "choice of a sampler": (Sampler, "take"),
    "grammar's mask": (GrammarState, "mask"), "grammar's step": (GrammarState, "advance"),
    "detokenizing": (StreamDecoder, "push"), "end of a text": (StreamDecoder, "flush"),
    "stop strings": (StopStrings, "push"), "tuning": (ThreadTuner, "begin"),
    "time of a layer": (SizeTuner, "took"), "measuring": (PrefillBudget, "observe"),
    "metrics": (EngineMetrics, "stepped"), "metrics of a token": (EngineMetrics, "_count_tokens"),
    "delivery": (TextRequest, "emit"), "waking a consumer": (Waker, "__call__"),
    "prefix lookup": (PrefixKvCache, "match"), "prefix cache": (PrefixKvCache, "insert"),
    "logging": (request_log.log, "log"),
}  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Iterator[InferenceEngine]:
    engine = InferenceEngine.from_gguf(demo.DRAFT, num_threads=2)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def expected(engine: InferenceEngine) -> list[str]:
    return texts(engine)


def texts(engine: InferenceEngine) -> list[Any]:
    """What four requests that share their steps give: texts, or what they raise."""

    async def main(many: AsyncEngine) -> list[Any]:
        tasks = [
            many.generate(prompt, sampler=sampler, max_tokens=20, ignore_eos=True, stop="zzz")
            for prompt, sampler in zip(PROMPTS, SAMPLERS)
        ]
        return await asyncio.gather(*tasks, return_exceptions=True)

    found: list[Any] = in_asyncio(engine, main)
    return found


class Once:
    """Raises at one call of a function."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, place: str, error: type[BaseException], at: int
    ) -> None:
        where, name = PLACES[place]
        self.real, self.error, self.left = getattr(where, name), error, at

        def call(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise self.error("a fault")
            return self.real(*args, **kwargs)

        monkeypatch.setattr(where, name, call)


@pytest.mark.parametrize(("at", "error"), [(1, MemoryError), (4, RuntimeError), (19, MemoryError)])
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_ends_one_request_at_most(
    place: str,
    at: int,
    error: type[Exception],
    engine: InferenceEngine,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine.model.call(engine.model.prefix_cache.clear)
    engine.model.call(engine.model.pool.shrink_to_fit)
    with monkeypatch.context() as patch, caplog.at_level(logging.DEBUG, "oxillama"):
        once = Once(patch, place, error, at)
        found = texts(engine)
    assert once.left <= 0 or at > 1, "it was not called"
    wrong = [i for i, text in enumerate(found) if text != expected[i]]
    assert len(wrong) <= 1, found
    for i in wrong:
        own = i == 3 and type(found[i]) is error  # a chain with the user's stages passes errors on
        assert own or isinstance(found[i], OxiLlamaError), found[i]
        assert own or isinstance(found[i].__cause__, error) or isinstance(found[i], error)
    engine.model.check_integrity()
    engine.model.call(engine.model.prefix_cache.clear)
    assert engine.model.pool.n_used == 0
    assert texts(engine) == expected


@pytest.mark.parametrize("place", ["forward pass", "row of a sampler", "detokenizing", "page allocation"])
def test_what_always_fails_is_told_to_everybody(
    place: str, engine: InferenceEngine, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.model.call(engine.model.prefix_cache.clear)
    where, name = PLACES[place]
    with monkeypatch.context() as patch:
        patch.setattr(where, name, Mock(side_effect=ZeroDivisionError("a fault")))
        found = texts(engine)
    assert {type(error) for error in found} <= {RequestFailed, ZeroDivisionError}
    assert sum(type(error) is RequestFailed for error in found) >= 3
    engine.model.check_integrity()
    assert texts(engine) == expected


@pytest.mark.parametrize("place", ["page allocation", "forward pass", "hidden states", "logits"])
def test_a_fault_leaves_a_session_as_it_was(
    place: str, engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = engine.logits([5, 6, 7, 8])
    with engine.session() as session:
        session.prefill([5])
        for error in (MemoryError, ZeroDivisionError):
            with monkeypatch.context() as patch:
                Once(patch, place, error, 1)
                with pytest.raises(OxiLlamaError) as caught:
                    session.prefill(range(6, 90))
            assert isinstance(caught.value.__cause__, error)
            assert session.tokens == [5]
        assert same_bits(session.prefill([6, 7, 8]), whole[-1])
    engine.model.check_integrity()


def test_a_filter_that_raises_disturbs_nobody(engine: InferenceEngine, expected: list[str]) -> None:
    class Filter(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise RuntimeError("a filter of the user's")

    logger, broken = logging.getLogger("oxillama.observability.request_log"), Filter()
    before = logger.level
    logger.addFilter(broken)
    logger.setLevel(logging.DEBUG)
    try:
        assert texts(engine) == expected
    finally:
        logger.removeFilter(broken)
        logger.setLevel(before)


def test_samplers_of_a_batch_that_fails_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    from oxillama import Sampler as PublicSampler, sample_batch

    def stage(ids: Any, logits: Any, history: Any) -> None:
        return None

    def samplers() -> list[Any]:
        configs = [SamplerConfig(seed=1, order=(*SamplerConfig().order, stage))]
        configs += [SamplerConfig(seed=2), SamplerConfig(seed=3)]
        return [PublicSampler(config) for config in configs]

    logits = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)
    plain, failed = samplers(), samplers()
    with monkeypatch.context() as patch:
        patch.setattr(batch_module, "in_openmp_thread", Mock(side_effect=MemoryError))
        with suppress(MemoryError):
            sample_batch(failed, logits, [[], [], []])
    assert [s.state() for s in failed] == [s.state() for s in plain]
    assert sample_batch(failed, logits, [[], [], []]) == sample_batch(plain, logits, [[], [], []])


class FailsOnce:
    """A table of pages that has no memory for the first pages it is given."""

    def __init__(self, table: Any) -> None:
        self._table, self._fails = table, True

    def put(self, *arguments: Any) -> None:
        fails, self._fails = self._fails, False
        if fails:
            raise MemoryError
        self._table.put(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


@pytest.mark.parametrize("where", ["memory", "table"])
def test_slabs_are_whole_where_memory_ends(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from oxillama.engine.cache import pages
    from tests.support.serving import Serving

    serving = Serving()
    (group,) = serving.pool.groups
    with monkeypatch.context() as patch:
        if where == "memory":
            patch.setattr(pages, "aligned_empty", Mock(side_effect=MemoryError))
        else:
            group.table = FailsOnce(group.table)  # type: ignore[assignment]
        with pytest.raises(KvCacheFullError, match="expected memory for"):
            serving.pool.allocate([1])
    serving.pool.check_integrity([])
    (page,) = serving.pool.allocate([1])
    assert group.table.has(page[0])
    group.release(page)

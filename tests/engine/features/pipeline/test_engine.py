"""An engine in stages does what an engine does, and survives the end of a stage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxillama import ConfigError, LoadError, Session, StageFailed, demo
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.features.pipeline.engine import StagedEngine
from oxillama.engine.features.pipeline.links import LocalLink, StageLink, connect_here
from oxillama.engine.features.pipeline.messages import StagePlan
from oxillama.engine.features.pipeline.stage import Stage
from oxillama.models.adapters.lora import LoadedLora
from oxillama.models.decoder import Carried
from tests.support.adapters import adapter_of

PROMPTS = ["Once upon a time", "The dog", "A little girl was", "One day Tom", "In the wood there was"]
KIND: dict[str, Any] = {"num_threads": 1, "context_size": 256}
DRAWN: dict[str, Any] = {"max_tokens": 24, "temperature": 0.8, "seed": 4}


@pytest.fixture(scope="module")
def alone() -> Iterator[InferenceEngine]:
    with InferenceEngine.from_gguf(demo.STORY, **KIND) as engine:
        yield engine


@pytest.fixture(scope="module", params=[2, 3])
def staged(request: pytest.FixtureRequest) -> Iterator[StagedEngine]:
    with StagedEngine.from_gguf(demo.STORY, stages=request.param, **KIND) as engine:
        yield engine
        engine.model.check_integrity()


def test_texts_are_those_of_one_process(alone: InferenceEngine, staged: StagedEngine) -> None:
    assert staged.generate_batch(PROMPTS, **DRAWN) == alone.generate_batch(PROMPTS, **DRAWN)
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}},
        "required": ["name"],
    }
    text = staged.generate(PROMPTS[0], max_tokens=60, json_schema=schema, seed=1)
    assert text == alone.generate(PROMPTS[0], max_tokens=60, json_schema=schema, seed=1)
    for engine in (staged, alone):
        engine.generate(PROMPTS[1], max_tokens=8)  # so that pages are cached
    drafted = staged.generate(PROMPTS[1] * 3, speculate="lookup", **DRAWN)
    assert drafted == alone.generate(PROMPTS[1] * 3, **DRAWN)
    assert staged.metrics.snapshot().prefix_hits > 0
    assert (staged.embed(PROMPTS[2]) == alone.embed(PROMPTS[2])).all()
    samples: dict[str, Any] = {"n": 3, "max_tokens": 8, "seed": 2}
    found, wanted = (engine.generate_n(PROMPTS[0], **samples) for engine in (staged, alone))
    assert [each.text for each in found] == [each.text for each in wanted]


def more(session: Session, n: int) -> str:
    """How the text of a session goes on."""
    return "".join(session.stream(max_tokens=n, temperature=0))


def test_sessions_go_on_in_one_process_and_back(alone: InferenceEngine, staged: StagedEngine) -> None:
    with staged.session() as session:
        session.prefill(PROMPTS[0])
        begun = more(session, 10)
        data = session.snapshot()
        rest = more(session, 12)
    with alone.restore(data) as session:
        assert more(session, 12) == rest
    with alone.session() as session:
        session.prefill(PROMPTS[0])
        assert more(session, 10) == begun
        data = session.snapshot()
    with staged.restore(data) as session:
        assert more(session, 12) == rest


class Dying(LocalLink):
    """A stage that fails in a pass of a number, and in everything after that.

    Args:
        dies_at: the number; it is taken out, so that the stage that replaces it lives.
    """

    def __init__(self, stage: Stage, dies_at: list[int]) -> None:
        super().__init__(stage)
        self._at = dies_at.pop(0) if dies_at else -1
        self._n = 0
        self.is_closed = False

    def _check(self) -> None:
        if 0 <= self._at < self._n:
            raise StageFailed("stage 0: its process has ended")

    def facts(self) -> Any:
        self._check()
        return super().facts()

    def run(self, message: Any, given: Any) -> Any:
        self._n += 1
        return None if 0 <= self._at < self._n else super().run(message, given)

    def result(self, handle: Any) -> Carried:
        self._check()
        return super().result(handle)

    def call(self, method: str, *args: Any) -> Any:
        self._check()
        return super().call(method, *args)

    def close(self) -> None:
        self.is_closed = True


def dying(*at: int) -> tuple[list[Dying], Any]:
    """Links that were made, and what makes them."""
    made: list[Dying] = []
    deaths = list(at)

    def connect(number: int, plan: StagePlan) -> StageLink:
        made.append(Dying(Stage.load(plan), deaths))
        return made[-1]

    return made, connect


@pytest.mark.parametrize("at", [0, 1, 2, 7, 20])
def test_texts_go_on_after_the_end_of_a_stage(alone: InferenceEngine, at: int) -> None:
    """The stage ends in a prompt, in a batch, or while others wait; sessions and prefixes continue."""
    made, connect = dying(at, 30)
    with StagedEngine.from_gguf(demo.STORY, connect=connect, **KIND) as engine:
        assert engine.generate_batch(PROMPTS, **DRAWN) == alone.generate_batch(PROMPTS, **DRAWN)
        engine.model.check_integrity()
        assert len(made) >= 2 and made[0].is_closed


def test_a_session_and_a_pinned_prefix_outlive_a_stage(alone: InferenceEngine) -> None:
    made, connect = dying(6)
    with StagedEngine.from_gguf(demo.STORY, connect=connect, **KIND) as engine:
        pin = InferenceEngine.prime_with_prefix(engine, "Once upon a time there")  # type: ignore[arg-type]
        session = engine.session()
        session.prefill(PROMPTS[0])
        assert len(made) == 1
        engine.generate(PROMPTS[1], **DRAWN)
        assert len(made) == 2
        first = more(session, 20)
        assert first == alone.generate(PROMPTS[0], max_tokens=20, temperature=0)
        text = engine.generate("Once upon a time there", **DRAWN)
        assert text == alone.generate("Once upon a time there", **DRAWN)
        pin.release()
        session.close()
        engine.model.check_integrity()


def test_a_job_finds_no_pass_under_way(staged: StagedEngine) -> None:
    streams = staged.stream_batch(PROMPTS, max_tokens=60, ignore_eos=True, window=None)
    scheduler, counts = staged.model.scheduler, []
    while staged.model.call(lambda: bool(scheduler.waiting or scheduler.running)):
        counts.append(staged.model.call(lambda: len(scheduler.in_flight)))
    assert len(counts) > 3 and not any(counts)
    for stream in streams:
        stream.result()


def test_requests_fail_where_they_are_not_to_go_on(alone: InferenceEngine) -> None:
    made, connect = dying(3)
    with StagedEngine.from_gguf(demo.STORY, connect=connect, on_failure="fail", **KIND) as engine:
        with pytest.raises(StageFailed, match="its process has ended"):
            engine.generate(PROMPTS[0], **DRAWN)
        assert engine.generate(PROMPTS[0], **DRAWN) == alone.generate(PROMPTS[0], **DRAWN)
        assert len(made) == 2


def test_a_stage_that_cannot_be_started_again(alone: InferenceEngine) -> None:
    made, connect = dying(2)

    def once(number: int, plan: StagePlan) -> StageLink:
        if made:
            raise StageFailed("stage 0: no machine has room for it")
        return connect(number, plan)  # type: ignore[no-any-return]

    with StagedEngine.from_gguf(demo.STORY, connect=once, **KIND) as engine:
        for _ in range(2):
            with pytest.raises(StageFailed, match="no machine has room"):
                engine.generate(PROMPTS[0], **DRAWN)
        assert not [t for t in threading.enumerate() if t.name == "oxillama" and not t.is_alive()]


def test_what_a_pipeline_refuses(tmp_path: Path) -> None:
    for options, message in (
        ({"stages": 1}, "stages: expected at least 2"),
        ({"speeds": [1]}, "speeds"),
        ({"speeds": [1, 0]}, "speeds"),
        ({"borders": [0]}, "borders"),
        ({"paths": ["a", "b"]}, "paths"),
        ({"on_failure": "wait"}, "on_failure"),
        ({"prefix_cache_dir": tmp_path}, "prefix_cache_dir: cannot be honoured"),
        ({"adapters": ("a.gguf",)}, "adapters: cannot be honoured"),
        ({"stages": 100}, "stages: expected at most"),
    ):
        with pytest.raises(ConfigError, match=message):
            StagedEngine.from_gguf(demo.STORY, **options)  # type: ignore[arg-type]
    with pytest.raises(LoadError, match="expected the tensors of the engine's own file"):
        StagedEngine.from_gguf(demo.STORY, paths=[str(demo.DRAFT)], borders=[1])


def test_adapters_of_a_request_are_refused(alone: InferenceEngine, staged: StagedEngine) -> None:
    adapter = LoadedLora.load(adapter_of(alone.model.file, alone.model.runner.model, 2, 1))
    with pytest.raises(ConfigError, match="adapters: cannot be honoured in a pipeline"):
        staged.generate(PROMPTS[0], adapters=adapter)


def test_a_stage_reads_its_own_tensors() -> None:
    plans: list[StagePlan] = []
    found: list[StageLink] = []

    def connect(number: int, plan: StagePlan) -> StageLink:
        plans.append(plan)
        found.append(connect_here(number, plan))
        return found[-1]

    with StagedEngine.from_gguf(demo.STORY, connect=connect, borders=[1], **KIND) as engine:
        facts = found[0].facts()
        last = engine.model.spec.n_layers - 1
        assert plans[0].part == (0, 1)
        assert "output_norm.weight" in facts.unused and f"blk.{last}.attn_q.weight" in facts.unused
        assert not any(name.startswith("blk.0.") for name in facts.unused)
        assert engine.model.unused_tensors == []
        states = engine.hidden_states(engine.tokenizer.encode(PROMPTS[0]))
    with InferenceEngine.from_gguf(demo.STORY, **KIND) as engine:
        assert np.array_equal(states, engine.hidden_states(engine.tokenizer.encode(PROMPTS[0])))

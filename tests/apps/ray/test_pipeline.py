"""A pipeline over actors: the bits of one process, also after actors were killed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from oxillama import StageFailed, demo
from oxillama.compat.engine import InferenceEngine

ray = pytest.importorskip("ray", reason="Ray is not installed")

from oxillama.apps.ray.pipeline import PipelineEngine  # noqa: E402  # fails without Ray
from oxillama.sessions.restore import restore_session  # noqa: E402

PROMPTS = ["Once upon a time", "The dog", "A little girl was", "One day Tom", "In the wood there was"]
KIND: dict[str, Any] = {"num_threads": 1, "context_size": 256}
DRAWN: dict[str, Any] = {"max_tokens": 40, "temperature": 0.8, "seed": 4, "ignore_eos": True}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=4, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def expected() -> list[str]:
    with InferenceEngine.from_gguf(demo.STORY, **KIND) as engine:
        return engine.generate_batch(PROMPTS, **DRAWN)


def kill(engine: PipelineEngine, stage: int) -> None:
    """Kills the actor of a stage."""
    ray.kill(engine.model.factory.log.links[stage]._actor)  # type: ignore[attr-defined]


@pytest.mark.parametrize("stages", [2, 3])
def test_texts_are_those_of_one_process(stages: int, expected: list[str]) -> None:
    with PipelineEngine.from_gguf(demo.STORY, stages=stages, **KIND) as engine:
        assert engine.generate_batch(PROMPTS, **DRAWN) == expected
        kill(engine, stages - 2)
        assert engine.generate_batch(PROMPTS, **DRAWN) == expected, "between two requests"
        streams = engine.stream_batch(PROMPTS, **DRAWN)
        next(streams[0])
        kill(engine, 0)
        texts = [stream.result().text for stream in streams]
        assert texts == expected, "in the middle of a text"
        engine.model.check_integrity()


def test_a_request_fails_with_its_stage(expected: list[str]) -> None:
    with PipelineEngine.from_gguf(demo.STORY, on_failure="fail", **KIND) as engine:
        stream = engine.stream(PROMPTS[0], **DRAWN)
        next(stream)
        kill(engine, 0)
        with pytest.raises(StageFailed, match="stage 0"):
            stream.result()
        assert engine.generate_batch(PROMPTS, **DRAWN) == expected


def test_a_session_goes_on_in_other_actors() -> None:
    with InferenceEngine.from_gguf(demo.STORY, **KIND) as engine, engine.session() as session:
        session.prefill(PROMPTS[0])
        whole = "".join(session.stream(max_tokens=30, temperature=0))
    with PipelineEngine.from_gguf(demo.STORY, **KIND) as engine, engine.session() as session:
        session.prefill(PROMPTS[0])
        begun = "".join(session.stream(max_tokens=12, temperature=0))
        data = session.snapshot()
    with (
        PipelineEngine.from_gguf(demo.STORY, stages=3, **KIND) as engine,
        restore_session(engine.model, data) as session,
    ):
        rest = "".join(session.stream(max_tokens=18, temperature=0))
    assert begun + rest == whole

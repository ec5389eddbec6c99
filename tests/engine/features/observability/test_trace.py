"""Traces: what is in the file, that it is whole whatever happens, and that nothing else changes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oxillama import AsyncSpecConfig, ConfigError, SamplerConfig, SpeculativeDecoder, demo
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.features.observability import trace as trace_module
from oxillama.engine.features.observability.trace import Trace, open_trace
from oxillama.engine.features.observability.tracing import TracedBlock, Tracer
from oxillama.engine.features.pipeline.engine import StagedEngine
from oxillama.engine.loop import EngineLoop
from oxillama.engine.runner import Runner
from oxillama.gguf.model_file import ModelFile
from oxillama.models.adapters.bind import bind
from oxillama.models.adapters.lora import LoadedLora
from oxillama.models.adapters.stack import Adaptation, Applied
from tests.support import zoo
from tests.support.adapters import adapter_of
from tests.support.kernels import same_bits
from tests.support.serving import MODELS, Serving
from tests.support.tiny_models import Running, tokens_of
from tests.support.waiting import until

GREEDY = SamplerConfig.greedy()
PROMPT = "Once upon a time"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def events(path: Path) -> list[dict[str, Any]]:
    """All events; the end of the file may be missing."""
    text = path.read_text(encoding="utf-8").rstrip()
    found: list[dict[str, Any]] = json.loads(text if text.endswith("]") else text + "]")
    return found


def spans(found: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in found if event["ph"] == "X" and event["name"] == name]


def check_nested(found: list[dict[str, Any]]) -> None:
    """The spans of a thread lie inside or beside each other."""
    threads = {event["tid"] for event in found if event["ph"] == "X"}
    for thread in threads:
        open_until: list[float] = []
        mine = [event for event in found if event["ph"] == "X" and event["tid"] == thread]
        for event in sorted(mine, key=lambda e: (e["ts"], -e["dur"])):
            start, end = event["ts"], event["ts"] + event["dur"]
            while open_until and open_until[-1] <= start + 0.002:  # they are rounded to nanoseconds
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 0.002, event
            open_until.append(end)


def phases(found: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The phases of each track in order; what begins also ends, and lies inside what began before it."""
    tracks: dict[str, list[str]] = {}
    open_phases: dict[str, list[tuple[str, float]]] = {}
    for event in found:
        if event["ph"] == "b":
            tracks.setdefault(event["id"], []).append(event["name"])
            open_phases.setdefault(event["id"], []).append((event["name"], event["ts"]))
        elif event["ph"] == "e":
            name, start = open_phases[event["id"]].pop()
            assert (name, True) == (event["name"], start <= event["ts"])
    assert not any(open_phases.values()), open_phases
    return tracks


def test_a_trace_has_steps_layers_and_requests(path: Path) -> None:
    with InferenceEngine.from_gguf(demo.STORY, num_threads=1, trace=path) as engine:
        engine.generate(PROMPT, sampler=GREEDY, max_tokens=12, request_id='a "name"', ignore_eos=True)
        engine.generate("the fox the fox the", max_tokens=6, regex="[a-z ]{100}", speculate="lookup")
        n_layers, steps = engine.model.spec.n_layers, engine.metrics.steps
        masks = engine.metrics.mask_timer.masks
        drafts = engine.metrics.drafts
    assert path.read_text(encoding="utf-8").endswith("\n]\n")
    found = events(path)
    check_nested(found)
    assert len(spans(found, "step")) == len(spans(found, "forward pass")) == steps >= 13
    assert len(spans(found, "attention")) == len(spans(found, "feed forward")) == n_layers * steps
    assert [event["args"]["layer"] for event in spans(found, "attention")] == [*range(n_layers)] * steps
    assert len(spans(found, "logits")) == steps
    assert len(spans(found, "grammar mask")) == masks > 0
    assert len(spans(found, "draft")) >= drafts
    assert sum(event["args"]["prefill"] for event in spans(found, "step")) == engine.metrics.prefill_tokens
    tracks = phases(found)
    assert [names[0] for names in tracks.values()] == ['a "name"', "2"]
    assert {tuple(names[1:]) for names in tracks.values()} == {("queue", "prefill", "decode")}
    ends = [e["args"] for e in found if e["ph"] == "e" and "args" in e]
    assert ends[0] == {"reason": "length", "tokens": 12}
    assert [e["args"]["name"] for e in found if e["name"] == "thread_name"] == ["oxillama demo story"]


def test_a_track_follows_preemption_and_cancellation(path: Path) -> None:
    serving = Serving(max_pages=6)
    decoder = SimpleNamespace(spec=SimpleNamespace(here=[]), layers=[], hidden_states=None, logits=None)
    tracer = Tracer(path, "engine", decoder)  # type: ignore[arg-type]
    serving.loop = EngineLoop(serving.runner, serving.scheduler, tracer)
    requests = [serving.submit(tokens_of(30, 40, seed=n), max_tokens=40) for n in range(3)]
    waiting = serving.submit(tokens_of(30, 40), max_tokens=4)
    serving.step()
    serving.cancel(waiting)
    serving.run(*requests, waiting)
    tracer.close()
    tracks = phases(events(path))
    assert tracks["engine 4"] == ["4", "queue"]
    lives = Counter(name for names in tracks.values() for name in names)
    assert (
        lives["preempted"]
        == lives["recompute"] + lives["prefill"] - 3
        == serving.scheduler.queues.preemptions
        > 0
    )


@pytest.mark.parametrize(
    "name", ["llama", "jamba", "deepseek2", "glm-dsa", "qwen3moe", "gpt-oss", "rwkv7", "cohere2", "gemma3n"]
)
def test_traced_models_have_the_same_bits(name: str, path: Path) -> None:
    data = MODELS[name].file() if name in MODELS else zoo.MODELS[name].file()
    plain, traced = Running(data), Running(data)
    tracer = Tracer(path, "engine", traced.model)
    lora = LoadedLora.load(adapter_of(ModelFile.open(data), plain.model, 2, 0), everywhere=True)
    tokens = tokens_of(20, 40)
    for running in (plain, traced):
        running.adapters = Adaptation([Applied(lora, bind(lora, running.model), 1.0, 0)])
    assert same_bits(traced.logits(tokens, 7), plain.logits(tokens, 7))
    tracer.close()
    layers = [event["args"]["layer"] for event in events(path) if "layer" in event.get("args", {})]
    assert set(layers) == set(range(plain.model.spec.n_layers))


def test_without_a_trace_nothing_of_it_is_there() -> None:
    model = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1).model
    assert (type(model.loop), type(model.runner)) == (EngineLoop, Runner)
    blocks = [block for layer in model.runner.model.layers for block in layer.blocks()]
    assert blocks
    assert not any(isinstance(block, TracedBlock) for block in blocks)


@pytest.mark.parametrize("stop", ["os._exit(1)", "os.kill(os.getpid(), signal.SIGKILL)", "pass"])
def test_the_file_is_whole_however_the_process_ends(stop: str, path: Path) -> None:
    if "SIGKILL" in stop and not hasattr(signal, "SIGKILL"):
        pytest.skip("there is no such signal here")
    program = f"""
import os, signal
from oxillama import demo
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.features.observability import trace
trace.FLUSH_SECONDS = 0.0
engine = InferenceEngine.from_gguf(demo.STORY, num_threads=1, trace={str(path)!r})
stream = engine.stream("Once upon a time", max_tokens=400, ignore_eos=True)
for _ in range(20):
    next(stream)
{stop}
"""
    subprocess.run([sys.executable, "-c", program], check=stop == "pass", timeout=60)
    found = events(path)
    check_nested(found)
    assert len(spans(found, "step")) >= 15


def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "trace.json", f"{tmp_path}/nul\0"):
        with pytest.raises(ConfigError, match="trace: "):
            InferenceEngine.from_gguf(demo.DRAFT, trace=path)
    with pytest.raises(ConfigError, match="trace: expected a path"):
        InferenceEngine.from_gguf(demo.DRAFT, trace=7)  # type: ignore[arg-type]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is full")
def test_a_full_disk_ends_the_trace_alone(caplog: pytest.LogCaptureFixture) -> None:
    with InferenceEngine.from_gguf(demo.DRAFT, num_threads=1, trace="/dev/full") as engine:
        text = engine.generate(PROMPT, sampler=GREEDY, max_tokens=8)
    assert text == InferenceEngine.from_gguf(demo.DRAFT).generate(PROMPT, sampler=GREEDY, max_tokens=8)
    assert sum("trace: /dev/full: is given up" in line for line in caplog.messages) == 1


def test_a_file_ends_at_its_limit(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trace_module, "MOST_BYTES", 5000)
    monkeypatch.setattr(trace_module, "FLUSH_SECONDS", 0.0)
    with InferenceEngine.from_gguf(demo.DRAFT, num_threads=1, trace=path) as engine:
        engine.generate(PROMPT, max_tokens=50, ignore_eos=True)
    assert 0 < path.stat().st_size <= 5000
    assert spans(events(path), "step")
    assert any("is given up: expected at most 5000 bytes" in line for line in caplog.messages)


def test_events_that_wait_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "MOST_EVENTS", 10)
    trace = open_trace(path)
    for n in range(25):
        trace.span("work", n, n + 1)
    trace.close()
    found = events(path)
    assert len(spans(found, "work")) == 10
    assert [event["args"] for event in found if event["name"] == "events dropped"] == [{"n": 15}]


def test_engines_share_a_file(path: Path) -> None:
    first, second = (InferenceEngine.from_gguf(demo.DRAFT, num_threads=1, trace=path) for _ in range(2))
    first.generate(PROMPT, max_tokens=2)
    first.close()
    first.close()
    second.generate(PROMPT, max_tokens=3)
    second.close()
    found = events(path)
    assert len(phases(found)) == 2
    names = [event["args"]["name"] for event in found if event["name"] == "thread_name"]
    assert len(set(names)) == len(names) == 2
    assert path.read_text(encoding="utf-8").endswith("\n]\n")


def test_a_draft_engine_that_runs_ahead_stands_beside_its_target(path: Path) -> None:
    target = InferenceEngine.from_gguf(demo.STORY, num_threads=1, trace=path)
    draft = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1, trace=path)
    speculating = SpeculativeDecoder(draft, target, AsyncSpecConfig(target_sampler=GREEDY, max_tokens=30))
    asyncio.run(speculating.generate(PROMPT))
    for engine in (target, draft):
        engine.close()
    found = events(path)
    check_nested(found)
    threads = {e["args"]["name"]: e["tid"] for e in found if e["name"] == "thread_name"}
    assert len(threads) == 2
    for thread in threads.values():
        assert [e for e in spans(found, "forward pass") if e["tid"] == thread]


def test_the_command_line_writes_a_trace(path: Path) -> None:
    args = ["run", str(demo.DRAFT), "-p", PROMPT, "-n", "5", "--trace", str(path), "-q"]
    subprocess.run([sys.executable, "-m", "oxillama", *args], check=True, capture_output=True, timeout=60)
    assert len(spans(events(path), "step")) == 5


def test_a_trace_is_ended_when_its_engine_is_dropped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(loop: EngineLoop, listeners: object) -> None:
        time.sleep(0.1)  # the reader has its end, and the step goes on

    engine = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1, trace=path)
    monkeypatch.setattr(EngineLoop, "_wake", slow)
    engine.generate(PROMPT, max_tokens=2)
    del engine
    until(lambda: path.read_text(encoding="utf-8").endswith("\n]\n"))
    assert len(spans(events(path), "step")) == 2


def test_an_idle_engine_has_written_everything(path: Path) -> None:
    engine = InferenceEngine.from_gguf(demo.DRAFT, num_threads=1, trace=path)
    engine.generate(PROMPT, max_tokens=2)
    until(lambda: len(spans(events(path), "step")) == 2)
    with engine.session() as session:
        session.prefill(PROMPT)
        until(lambda: len(spans(events(path), "forward pass")) == 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_writes_nothing(path: Path) -> None:
    trace = Trace(str(path))
    trace.users = 1
    child = os.fork()
    if child == 0:
        trace.span("child", 0.0, 1.0)
        trace.flush(now=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    trace.span("parent", 0.0, 1.0)
    trace.close()
    assert [event["name"] for event in events(path)] == ["process_name", "parent"]


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    yield
    until(lambda: not trace_module._open)


def test_a_pipeline_is_traced(path: Path) -> None:
    with StagedEngine.from_gguf(demo.STORY, num_threads=1, trace=path) as engine:
        engine.generate_batch([PROMPT, "The fox"], max_tokens=6, ignore_eos=True)
        steps = engine.metrics.steps
    found = events(path)
    check_nested(found)
    assert len(spans(found, "step")) == len(spans(found, "forward pass")) == steps >= 6
    layers = {event["args"]["layer"] for event in spans(found, "attention")}
    assert layers == set(engine.model.runner.model.spec.here) < set(range(engine.model.spec.n_layers))
    assert len(phases(found)) == 2

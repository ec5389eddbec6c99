"""What is traced of an engine, and how: parts that note their times, in the place of those that do not.

`Untraced` and `Traced` make the parts of an engine. An engine without a trace has none of what is here in it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence as Listed
from functools import partial
from typing import Any

import numpy as np

from oxillama.cache.pool import CachePool
from oxillama.config import EngineConfig
from oxillama.engine.building import new_pool
from oxillama.engine.loop import EngineLoop, Rows, Streams
from oxillama.engine.observers import Observer
from oxillama.engine.request import Request
from oxillama.engine.runner import Layout, Output, Runner
from oxillama.engine.scheduler import ScheduledBatch, Scheduler
from oxillama.gguf.model_file import ModelFile
from oxillama.grammar.mask_timer import MaskTimer
from oxillama.models import Decoder, Spec
from oxillama.models.layers.layer import Block
from oxillama.models.workspace import Step
from oxillama.observability.metrics import EngineMetrics
from oxillama.observability.trace import Trace, open_trace
from oxillama.sampling.logprobs import SampledToken
from oxillama.weights.linear import Linear
from oxillama.weights.low_rank import AdaptedRows


class Untraced:
    """Makes the parts of an engine that is not traced."""

    def spec(self, spec: Spec, file: ModelFile) -> Spec:
        """Of the layers that are run here: all."""
        return spec

    def pool(self, model: Decoder, config: EngineConfig) -> CachePool:
        """The memory of the sequences."""
        return new_pool(model, config)

    def unused(self, tensors: list[str]) -> list[str]:
        """Those of the tensors not used here that are not used at all."""
        return tensors

    def mask_timer(self) -> MaskTimer:
        """What times the masks of grammars."""
        return MaskTimer()

    def runner(self, model: Decoder, pool: CachePool, n_threads: int) -> Runner:
        """What runs batches."""
        return Runner(model, pool, n_threads)

    def loop(
        self, runner: Runner, scheduler: Scheduler, metrics: EngineMetrics, *observers: Observer
    ) -> EngineLoop:
        """What serves the requests."""
        return EngineLoop(runner, scheduler, metrics, *observers)

    def close(self) -> None:
        """Nothing more will come."""


class Traced(Untraced):
    """Makes the parts of an engine that is traced.

    Parameters
    ----------
    path : of the trace's file.
    name : of the engine's thread in it.

    Raises
    ------
    ConfigError : the file cannot be written.
    """

    def __init__(self, path: Any, name: str) -> None:
        self._trace = open_trace(path)
        others = self._trace.users - 1
        self._name = f"{name} ({others + 1})" if others else name
        self._is_open = True

    def mask_timer(self) -> MaskTimer:
        return TracedMasks(self._trace)

    def runner(self, model: Decoder, pool: CachePool, n_threads: int) -> Runner:
        return TracedRunner(self._trace, model, pool, n_threads)

    def loop(
        self, runner: Runner, scheduler: Scheduler, metrics: EngineMetrics, *observers: Observer
    ) -> EngineLoop:
        tracks = RequestTracks(self._trace, self._name)
        made = TracedLoop(self._trace, self._name, runner, scheduler, metrics, *observers, tracks)
        made.owner = self  # the file is open as long as something may be traced
        return made

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._trace.close()

    def __del__(self) -> None:
        if hasattr(self, "_is_open"):
            self.close()


class TracedMasks(MaskTimer):
    """Notes a span for each mask of a grammar."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def note(self, start: float, end: float) -> None:
        super().note(start, end)
        self._trace.span("grammar mask", start, end)


class TracedBlock:
    """A block of a layer that notes a span for each of its runs."""

    def __init__(self, trace: Trace, block: Block, layer: int) -> None:
        self._trace, self._block, self._layer = trace, block, layer
        self._name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(block).__name__).lower()

    def run(self, h: np.ndarray, out: np.ndarray, step: Step, accumulate: bool) -> None:
        start = time.perf_counter()
        self._block.run(h, out, step, accumulate)
        self._trace.span(self._name, start, time.perf_counter(), layer=self._layer, rows=len(h))

    def linears(self) -> list[Linear]:
        return self._block.linears()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block, name)


class TracedRunner(Runner):
    """Notes spans for each forward pass, the blocks of its layers, and its logits."""

    def __init__(self, trace: Trace, model: Decoder, pool: CachePool, n_threads: int) -> None:
        self._trace = trace
        for i, layer in enumerate(model.layers):
            model.layers[i] = layer.with_blocks(partial(TracedBlock, trace, layer=i))
        super().__init__(model, pool, n_threads)

    def run(self, sequences: Any, *others: Any) -> list[np.ndarray | None]:
        n = sum(sequence.scheduled_len - sequence.cached_len for sequence in sequences)
        start = time.perf_counter()
        try:
            return super().run(sequences, *others)
        finally:
            self._trace.span("forward pass", start, time.perf_counter(), sequences=len(sequences), rows=n)

    def _outputs(
        self, hidden: np.ndarray, outputs: Listed[Output], layout: Layout, adapted: AdaptedRows | None
    ) -> list[np.ndarray | None]:
        start = time.perf_counter()
        found = super()._outputs(hidden, outputs, layout, adapted)
        self._trace.span("logits", start, time.perf_counter(), rows=layout.n_logits)
        return found


class TracedLoop(EngineLoop):
    """Notes spans for each step and its parts, and how many requests there are."""

    owner: object = None

    def __init__(
        self,
        trace: Trace,
        name: str,
        runner: Runner,
        scheduler: Scheduler,
        metrics: EngineMetrics,
        *observers: Observer,
    ) -> None:
        super().__init__(runner, scheduler, metrics, *observers)
        self._trace, self._name = trace, name
        self._counted = (0, 0)

    def step(self) -> bool:
        trace, start = self._trace, time.perf_counter()
        trace.name_thread(self._name)
        is_busy = super().step()
        if is_busy:
            batch = self._batch
            trace.span(
                "step", start, time.perf_counter(),
                requests=len(batch.requests), prefill=batch.n_prefill, decode=batch.n_decode,
            )  # fmt: skip
        counts = len(self.scheduler.running), len(self.scheduler.waiting)
        if counts != self._counted:
            self._counted = counts
            trace.count(f"requests of {self._name}", running=counts[0], waiting=counts[1])
        trace.flush(now=not is_busy)
        return is_busy

    def _draft(self) -> None:
        start = time.perf_counter()
        super()._draft()
        drafts = [r.sequence.n_drafts for r in self.scheduler.running if r.sequence.n_drafts]
        if drafts:
            n = sum(drafts)
            self._trace.span("draft", start, time.perf_counter(), requests=len(drafts), tokens=n)

    def _schedule(self) -> ScheduledBatch:
        start = time.perf_counter()
        batch = super()._schedule()
        if batch.requests:
            self._trace.span("schedule", start, time.perf_counter())
        return batch

    def _commit(self, batch: ScheduledBatch, rows: list[Rows]) -> None:
        start = time.perf_counter()
        super()._commit(batch, rows)
        self._trace.span("commit", start, time.perf_counter())

    def _sampled(self, streams: Streams) -> list[int | SampledToken | BaseException]:
        start = time.perf_counter()
        found = super()._sampled(streams)
        self._trace.span("sample", start, time.perf_counter(), sequences=len(streams))
        return found

    def _announce(self, requests: list[Request]) -> int:
        start = time.perf_counter()
        n_ended = super()._announce(requests)
        if requests or n_ended:
            self._trace.span("deliver", start, time.perf_counter(), ended=n_ended)
        return n_ended


class RequestTracks(Observer):
    """Notes a track for each request: a phase for all of it, and in that the phases of its life."""

    def __init__(self, trace: Trace, engine: str) -> None:
        self._trace, self._engine = trace, engine
        self._phases: dict[int, str] = {}  # by number, of the requests that go on

    def queue(self, request: Request) -> None:
        now, facts = time.perf_counter(), {"number": request.id, "prompt": len(request.prompt)}
        submitted = now - max(0.0, time.monotonic() - request.submitted_at)
        self._trace.begin(self._track(request), request.name, submitted, **facts)
        self._enter(request, "queue", submitted)

    def admit(self, request: Request) -> None:
        began = not request.sequence.certain[len(request.prompt) :]
        self._enter(request, "prefill" if began else "recompute", time.perf_counter())

    def preempt(self, request: Request) -> None:
        self._enter(request, "preempted", time.perf_counter())

    def token(self, request: Request, now: float) -> None:
        if self._phases.get(request.id) != "decode":
            self._enter(request, "decode", time.perf_counter())

    def end(self, request: Request, now: float) -> None:
        at, phase = time.perf_counter(), self._phases.pop(request.id, None)
        if phase is not None:
            self._trace.end(self._track(request), phase, at)
            n = len(request.sequence.certain) - len(request.prompt)
            self._trace.end(self._track(request), request.name, at, reason=request.finish_reason, tokens=n)

    def _enter(self, request: Request, phase: str, at: float) -> None:
        track, before = self._track(request), self._phases.get(request.id)
        if before is not None:
            self._trace.end(track, before, at)
        self._phases[request.id] = phase
        self._trace.begin(track, phase, at)

    def _track(self, request: Request) -> str:
        return f"{self._engine} {request.id}"

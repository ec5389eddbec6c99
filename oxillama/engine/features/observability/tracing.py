"""Spans of an engine in a trace: its steps and their parts, forward passes and layers, masks, requests."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama.engine.batch import ScheduledBatch
from oxillama.engine.features.observability.metrics import MaskTimer
from oxillama.engine.features.observability.trace import Trace, open_trace
from oxillama.engine.protocols import Observer
from oxillama.engine.request import Request
from oxillama.engine.scheduler import Scheduler
from oxillama.models import Decoder
from oxillama.models.layers.layer import Block
from oxillama.models.weights.linear import Linear
from oxillama.models.workspace import Step

if TYPE_CHECKING:
    from oxillama.engine.loading import LoadedModel


class Tracer(Observer):
    """Traces one engine.

    Args:
        path: of the trace's file.
        name: of the model, which the engine's thread has in the trace.
        decoder: the model's layers that are run in this process.

    Attributes:
        mask_timer: notes a span for each mask of a grammar.

    Raises:
        ConfigError: the file cannot be written.
    """

    @classmethod
    def of(cls, model: LoadedModel) -> Tracer:
        """The tracer of a model that is being loaded."""
        tracer = cls(model.config.trace, model.name, model.runner.model)
        metrics = model.made("metrics")
        if metrics is not None:
            metrics.mask_timer = tracer.mask_timer
        return tracer

    def __init__(self, path: Any, name: str, decoder: Decoder) -> None:
        self._trace = trace = open_trace(path)
        others = trace.users - 1
        self._name = f"{name} ({others + 1})" if others else name
        self._is_open = True
        self._counted = (0, 0)
        self._stepped_at = 0.0
        self._phases: dict[int, str] = {}  # key: the number of a request that has not ended
        self.mask_timer: TracedMasks = TracedMasks(trace)
        decoder.layers = [
            layer.with_blocks(partial(TracedBlock, trace, layer=number))
            for number, layer in zip(decoder.spec.here, decoder.layers)
        ]
        for method, span in (("hidden_states", "forward pass"), ("logits", "logits")):
            setattr(decoder, method, _spanned(getattr(decoder, method), trace, span))

    # --- steps ----------------------------------------------------------------------------------------

    def stepped(self, batch: ScheduledBatch, now: float) -> None:
        trace, times = self._trace, batch.times
        n = len(batch.requests)
        began, self._stepped_at = max(times.propose, self._stepped_at), times.end  # pipelined steps overlap
        trace.span("step", began, times.end, requests=n, prefill=batch.n_prefill, decode=batch.n_decode)
        drafted = [sampled.n_drafted for sampled in batch.sampled if sampled.n_drafted]
        if drafted:
            trace.span("draft", times.propose, times.schedule, requests=len(drafted), tokens=sum(drafted))
        trace.span("schedule", times.schedule, times.launch)
        trace.span("commit", times.commit, times.end)
        if batch.sampled:
            trace.span("sample", times.sample, times.end, sequences=len(batch.sampled))
        for request, n_tokens, _, _ in batch.sampled:
            if n_tokens and self._phases.get(request.id, "decode") != "decode":
                self._enter(request, "decode", times.end)

    def delivered(self, n_events: int, began: float, scheduler: Scheduler) -> None:
        trace = self._trace
        trace.name_thread(self._name)
        if n_events:
            trace.span("deliver", began, time.perf_counter(), requests=n_events)
        counts = len(scheduler.running), len(scheduler.waiting)
        if counts != self._counted:
            self._counted = counts
            trace.count(f"requests of {self._name}", running=counts[0], waiting=counts[1])
        trace.flush(now=not n_events)

    # --- requests: a phase for all of it, and in that the phases of its life -----------------------------

    def queued(self, request: Request) -> None:
        now, facts = time.perf_counter(), {"number": request.id, "prompt": len(request.prompt)}
        submitted = now - max(0.0, time.monotonic() - request.submitted_at)
        self._trace.begin(self._track(request), request.name, submitted, **facts)
        self._enter(request, "queue", submitted)

    def admitted(self, request: Request) -> None:
        began = not request.sequence.accepted[len(request.prompt) :]
        self._enter(request, "prefill" if began else "recompute", time.perf_counter())

    def preempted(self, request: Request) -> None:
        self._enter(request, "preempted", time.perf_counter())

    def ended(self, request: Request, now: float) -> None:
        at, phase = time.perf_counter(), self._phases.pop(request.id, None)
        if phase is not None:
            self._trace.end(self._track(request), phase, at)
            n = len(request.sequence.accepted) - len(request.prompt)
            self._trace.end(self._track(request), request.name, at, reason=request.finish_reason, tokens=n)

    def _enter(self, request: Request, phase: str, at: float) -> None:
        track, before = self._track(request), self._phases.get(request.id)
        if before is not None:
            self._trace.end(track, before, at)
        self._phases[request.id] = phase
        self._trace.begin(track, phase, at)

    def _track(self, request: Request) -> str:
        return f"{self._name} {request.id}"

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


def _spanned(call: Callable[..., Any], trace: Trace, name: str) -> Callable[..., Any]:
    """A method that notes a span for each call; its first argument is a batch or an array of rows."""

    def spanned(rows: Any, *others: Any) -> Any:
        start = time.perf_counter()
        try:
            return call(rows, *others)
        finally:
            trace.span(name, start, time.perf_counter(), rows=len(rows))

    return spanned

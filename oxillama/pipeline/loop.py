"""The loop of a pipeline: while one batch is in the last stage, others are in the stages before it.

The streams are divided among as many batches as there are stages. A batch that is under way is left alone
until it has landed: its sequences are not scheduled, preempted or ended. So no page is freed that a stage is
still to write.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from oxillama.engine.loop import EngineLoop, Rows
from oxillama.engine.request import Request, TextRequest
from oxillama.engine.runner import Flight
from oxillama.engine.scheduler import ScheduledBatch
from oxillama.errors import StageFailed
from oxillama.faults import fault
from oxillama.models.decoder import ForwardCancelled
from oxillama.pipeline.runner import PipelinedRunner


@dataclass
class UnderWay:
    """A batch that is under way, or the error with which it could not be started."""

    batch: ScheduledBatch
    flight: Flight | Exception
    started: float
    began: float


class PipelinedLoop(EngineLoop):
    """Requests in, events out, with several batches under way.

    Parameters
    ----------
    restart : starts the stages that have failed again; raises StageFailed.
    goes_on : whether requests begin again after that, which changes none of their bits; otherwise those that
        ran end with the StageFailed.
    """

    runner: PipelinedRunner

    def __init__(self, restart: Callable[[], None], goes_on: bool, *args: Any) -> None:
        super().__init__(*args)
        self.scheduler.depth = self.runner.depth
        self._restart, self._goes_on = restart, goes_on
        self._under_way: deque[UnderWay] = deque()

    def step(self) -> bool:
        """Starts one batch, and ends the first of those under way where there are enough of them; whether
        there was anything to do."""
        started = time.perf_counter()
        self.has_cancelled = False
        if self.runner.lost is not None and (self.scheduler.running or self.scheduler.waiting or self.held):
            self._recover(self.runner.lost)
        self._release_dropped()
        self._draft()
        began = time.perf_counter()
        batch = self._schedule()
        if batch.requests:
            self._under_way.append(UnderWay(batch, self._take_off(batch), started, began))
            self.scheduler.flying += batch.requests
        if not self._under_way:
            self._rest = self.runner.model.store.rest()
        landed: list[Request] = []
        if self._under_way and (not batch.requests or len(self._under_way) >= self.runner.depth):
            landed = self._land()
        return bool(self._announce(landed) or batch.requests or landed)

    def land(self) -> None:
        while self._under_way:
            self._announce(self._land())

    def end_all(self, reason: str, error: Callable[[], BaseException]) -> None:
        self._give_up()
        super().end_all(reason, error)

    def _draft(self) -> None:
        flying = self.scheduler.flying
        self.speculator.draft(
            [r for r in self.scheduler.running if isinstance(r, TextRequest) and r not in flying]
        )

    def _take_off(self, batch: ScheduledBatch) -> Flight | Exception:
        try:
            return self.runner.start(batch.sequences, batch.outputs, self.speculator.taps(batch.requests))
        except Exception as error:
            return error

    def _land(self) -> list[Request]:
        """Ends the pass that has been under way longest; its requests."""
        first = self._under_way.popleft()
        batch = self._batch = first.batch
        self.scheduler.flying = [r for r in self.scheduler.flying if r not in batch.requests]
        self._deadline = min(request.deadline for request in batch.requests)
        rows = self._rows_of(first)
        if self.runner.lost is None:
            self._take_rows(batch, rows, first.started, first.began)
        return batch.requests

    def _rows_of(self, under_way: UnderWay) -> list[Rows] | None:
        """As `_forward`, of a pass that was started."""
        batch, flight = under_way.batch, under_way.flight
        try:
            if isinstance(flight, Exception):
                raise flight
            return list(self.runner.finish(flight, self._is_given_up))
        except (ForwardCancelled, StageFailed):
            return None
        except Exception as error:
            if len(batch.requests) == 1:
                return [error]
        return [self._forward_alone(request) for request in batch.requests]

    def _give_up(self) -> None:
        """Forgets the passes that are under way: nobody takes what comes of them."""
        self._under_way.clear()
        self.scheduler.flying = []

    def _recover(self, lost: StageFailed) -> None:
        """Starts the failed stages again. The sequences have no pages any more, only their tokens."""
        self._give_up()
        if not self._goes_on:
            for request in list(self.scheduler.running):
                self.scheduler.finish(request, "error", fault(StageFailed(str(lost))))
        self.scheduler.begin_again()
        for sequence in self.held:
            sequence.forget()
        try:
            self._restart()
        except StageFailed as error:
            self.end_all("error", partial(fault, StageFailed(str(error))))
        else:
            self.runner.lost = None

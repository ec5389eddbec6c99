"""Runs batches whose first layers are run by other stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oxillama.engine.cache.pages import CachePool
from oxillama.engine.features.pipeline.messages import PassMessage
from oxillama.engine.features.pipeline.pool import CommandLog
from oxillama.engine.runner import InFlight, Runner
from oxillama.errors import StageFailed
from oxillama.models import Decoder
from oxillama.models.decoder import Carried


class PipelinedRunner(Runner):
    """The last stage, which starts each pass in the others.

    Args:
        log: of the copies of pages, with the links to the other stages.
        restart_stages: starts the stages that have failed again; raises StageFailed.
        begins_again: whether requests then begin again, which changes none of their bits; otherwise those
            that ran end with the StageFailed.

    Attributes:
        depth: passes that may be in flight: one in every stage, and one that waits for the first of them.
        lost: why a stage has failed; None while all work.
    """

    def __init__(
        self,
        model: Decoder,
        pool: CachePool,
        n_threads: int,
        log: CommandLog,
        restart_stages: Callable[[], None],
        begins_again: bool,
    ) -> None:
        super().__init__(model, pool, n_threads)
        self._log = log
        self._restart_stages = restart_stages
        self.begins_again: bool = begins_again
        self.depth: int = len(log.links) + 1

    def restart(self) -> None:
        self._restart_stages()

    def _send(self, in_flight: InFlight) -> InFlight:
        batch, in_flight.tables = in_flight.batch, [table.copy() for table in in_flight.tables]
        rows = batch.tokens, batch.positions, batch.row_start
        copies = tuple(self._log.take())
        message = PassMessage(copies, *rows, in_flight.tables, in_flight.states, batch.input_rows)
        try:
            if self.lost is not None:
                raise StageFailed(str(self.lost))
            handle: Any = None
            for link in self._log.links:
                handle = link.run(message, handle)
        except StageFailed as error:
            self.lost = self.lost or error
            raise
        in_flight.handle = handle
        return in_flight

    def _received(self, in_flight: InFlight) -> Carried | None:
        try:
            return self._log.links[-1].result(in_flight.handle)
        except StageFailed as error:
            self.lost = self.lost or error
            raise

"""Runs batches whose first layers are run by other stages."""

from __future__ import annotations

from typing import Any

from oxillama.cache.pool import CachePool
from oxillama.engine.runner import Flight, Runner
from oxillama.errors import StageFailed
from oxillama.models import Decoder
from oxillama.models.decoder import Carried
from oxillama.pipeline.messages import PassMessage
from oxillama.pipeline.pool import Journal


class PipelinedRunner(Runner):
    """The last stage, which starts each pass in the others.

    Attributes
    ----------
    depth : passes that may be under way: one in every stage, and one that waits for the first of them.
    lost : why a stage has failed; None while all work.
    """

    def __init__(self, model: Decoder, pool: CachePool, n_threads: int, journal: Journal) -> None:
        super().__init__(model, pool, n_threads)
        self._journal = journal
        self.depth = len(journal.links) + 1
        self.lost: StageFailed | None = None

    def _start(self, flight: Flight) -> Flight:
        message = PassMessage.of(self._journal.take(), flight.batch, flight.tables, flight.states)
        flight.tables = message.tables
        try:
            if self.lost is not None:
                raise StageFailed(str(self.lost))
            handle: Any = None
            for link in self._journal.links:
                handle = link.run(message, handle)
        except StageFailed as error:
            self.lost = self.lost or error
            raise
        flight.handle = handle
        return flight

    def _given(self, flight: Flight) -> Carried | None:
        try:
            return self._journal.links[-1].result(flight.handle)
        except StageFailed as error:
            self.lost = self.lost or error
            raise

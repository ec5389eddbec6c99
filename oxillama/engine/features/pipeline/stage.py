"""A stage of a pipeline that is not the last: it runs its layers when a message asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from oxillama import _kernels
from oxillama._kernels.openmp_thread import may_enter_openmp
from oxillama.base.config import available_cpus
from oxillama.engine.building import load_decoder, load_weights, packed_file, weight_store
from oxillama.engine.cache.kv_pool import cache_pool
from oxillama.engine.cache.pages import CachePool
from oxillama.engine.cache.recurrent_states import SlotPool
from oxillama.engine.features.pipeline.messages import Copy, PassMessage, StageFacts, StagePlan, facts_of_file
from oxillama.gguf.model_file import ModelFile
from oxillama.models import Decoder, read_spec
from oxillama.models.decoder import Carried
from oxillama.models.thread_tuner import ThreadTuner
from oxillama.models.workspace import Batch

NONE = np.empty(0, np.int64)


class Stage:
    """Some layers of a model, with their part of all pages and states. For one thread at a time.

    Args:
        model: with `Spec.part`.
        kv_type, page_size: as in `EngineConfig`.
        n_threads: threads that a pass may use.
        file: as `StageFacts.model`.
        unused: tensors of the file that it does not use.
    """

    def __init__(
        self,
        model: Decoder,
        kv_type: str,
        page_size: int,
        n_threads: int,
        file: tuple[int, int] = (0, 0),
        unused: Sequence[str] = (),
    ) -> None:
        self.model = model
        self.pool: CachePool = cache_pool(model, kv_type, page_size)
        self._facts = StageFacts(file, model.state_floats, model.record_floats, tuple(unused))
        self._work = model.workspace()
        self._tuner = ThreadTuner(n_threads, model.store.busy_seconds)

    @classmethod
    def load(cls, plan: StagePlan) -> Stage:
        """Reads its own tensors, and only those. The calling thread may enter OpenMP from then on.

        Raises:
            ModelFileError, GGUFError, LoadError: the model cannot be loaded, and why.
        """
        may_enter_openmp()
        config = plan.config
        with ModelFile.open(plan.path) as file:
            spec = replace(read_spec(file), part=plan.part)
            packed, _ = packed_file(file, config)
            weights = load_weights(file, _kernels.best(), config, None, weight_store(packed, config))
            model = load_decoder(spec, weights, plan.context_size, pack_now=True)
            facts = facts_of_file(file)
        n_threads = config.num_threads or available_cpus()
        return cls(model, config.kv_type, config.page_size, n_threads, facts, weights.unused())

    def facts(self) -> StageFacts:
        """What it has loaded."""
        return self._facts

    def run(self, message: PassMessage, carried: Carried | None) -> Carried:
        """Runs a pass: what the stage before passed on goes in, what the next one is given comes out."""
        groups, states = self.pool.groups, self.pool.recurrent_states
        self.copy_pages(message.copies)
        for number, table in enumerate(message.tables):
            self._have_pages(number, int(table.max(initial=0)))
        parts = None
        if states is not None and message.states is not None:
            for slots in message.states:
                have_slots(states, slots.after, *(() if slots.before is None else (slots.before,)))
                have_slots(states.records, *slots.earlier, *slots.recorded)
            parts = [states.part(slots) for slots in message.states]
        batch = Batch(
            message.tokens, message.positions, message.row_start, NONE, parts, input_rows=message.input_rows
        )
        paged = self.model.kernels.attention.PagedBatch
        kv = [
            paged(group.shape, group.table, table, batch.row_start, batch.starts)
            for group, table in zip(groups, message.tables)
        ]
        if message.input_rows is not None:
            kv = message.input_rows.begin(self.model, groups, message.tables, kv)
        return self.model.passed_on(batch, kv, self._work, self._tuner, carried)

    def copy_pages(self, copies: Sequence[Copy]) -> None:
        """Copies pages, in order."""
        for copy in copies:
            self._have_pages(copy.group, max(copy.to, copy.source))
            self.pool.groups[copy.group].copy_page(copy.to, copy.source)

    def read_pages(self, group: int, pages: Sequence[int]) -> np.ndarray:
        """uint8 (pages, bytes): its layers of some pages."""
        self._have_pages(group, max(pages, default=-1))
        return self.pool.groups[group].read_pages(pages)

    def write_pages(self, group: int, pages: Sequence[int], data: np.ndarray) -> None:
        """Writes what `read_pages` returned."""
        self._have_pages(group, max(pages, default=-1))
        self.pool.groups[group].write_pages(pages, data)

    def read_state(self, slot: int) -> np.ndarray:
        """float32 (state_floats,): its part of a recurrent state."""
        if self.pool.recurrent_states is None:
            return np.empty(0, np.float32)
        have_slots(self.pool.recurrent_states, slot)
        return self.pool.recurrent_states.read(slot)

    def write_state(self, slot: int, data: np.ndarray) -> None:
        """Writes what `read_state` returned."""
        if self.pool.recurrent_states is not None:
            have_slots(self.pool.recurrent_states, slot)
            self.pool.recurrent_states.write(slot, data)

    def _have_pages(self, group: int, last: int) -> None:
        """Gives memory to all pages of a group up to ``last``. Raises KvCacheFullError."""
        pool = self.pool.groups[group]
        while pool.n_pages <= last:
            pool.allocate(1)


def have_slots(pool: SlotPool, *numbers: int) -> None:
    """Gives memory to all slots up to the last of some. Raises KvCacheFullError."""
    while pool.n_live <= max(numbers, default=-1):
        pool.allocate()

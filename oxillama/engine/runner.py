"""Runs batches: from sequences to the flat batch, through the model, to hidden states and logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Listed
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama.base.lazy_import import lazy
from oxillama.engine.cache.kv import PagedKvCache
from oxillama.engine.cache.pages import CachePool
from oxillama.engine.sequence import Output, Sequence
from oxillama.errors import ConfigError, KvCacheFullError, OxiLlamaError
from oxillama.models import Decoder
from oxillama.models.decoder import Carried
from oxillama.models.workspace import Batch, StatePart, StateSlots, Threads

if TYPE_CHECKING:
    from oxillama.engine.cache.recurrent import RecurrentCache
    from oxillama.models.weights.low_rank import AdaptedRows, RowGroup

adapted_rows: Callable[..., Any] = lazy("oxillama.models.weights.low_rank:AdaptedRows.of")

new_tuner: Callable[..., Any] = lazy("oxillama.models.thread_tuner:ThreadTuner")

HiddenHook = Callable[[int, np.ndarray, Mapping[int, np.ndarray]], object]
"""Called with a position and the hidden states from there on: float32 (rows, n_embd), after the last norm;
and with the inputs of the layers `Runner.tapped`, by layer: float32 (rows, n_embd), in new memory."""

MAX_LAYOUTS = 64
"""Layouts of batches that are kept."""


@dataclass(slots=True, eq=False, repr=False)
class InFlight:
    """A pass that was launched.

    Attributes:
        hooks: for each sequence what takes the hidden states of its rows, or None; () for none at all.
        layout, ran: of the rows that are wanted, and of those that the pass gives, the hooks' included.
        tables: of each page group int32 (sequences, width), the pages of the sequences.
        states: what the pass does to the recurrent state of each sequence; None without recurrent layers.
        handle: of the hidden states from other processes.
    """

    sequences: Listed[Sequence]
    outputs: Listed[Output]
    hooks: Listed[HiddenHook | None]
    layout: Layout
    ran: Layout
    batch: Batch
    tables: list[np.ndarray]
    states: list[StateSlots] | None
    handle: Any = None


class Runner:
    """The model, its buffers and its threads. For one thread at a time.

    Attributes:
        depth: passes that may be in flight at a time.
        lost: why keys, values and states of all sequences were lost; None while they are there.
        tapped: layers whose inputs hooks get.
        begins_again: whether requests run again from their tokens once `restart` has mended that. Otherwise
            they end with the error.
    """

    depth = 1
    lost: OxiLlamaError | None = None
    begins_again = True
    tapped: tuple[int, ...] = ()

    def __init__(self, model: Decoder, pool: CachePool, n_threads: int) -> None:
        self.model = model
        self.pool = pool
        self.tuner: Threads = (
            new_tuner(n_threads, model.store.busy_seconds) if n_threads > 1 else Threads(n_threads)
        )
        self._work = model.workspace()
        self._tables = [BlockTables(group) for group in range(len(pool.groups))]
        self._has_logits = False  # as far as was asked
        self._adapted: AdaptedRows | None = None  # of the last pass
        self._layouts: dict[tuple[tuple[Output, int, int], ...], Layout] = {}

    @property
    def n_threads(self) -> int:
        """Threads that a pass may use."""
        return self.tuner.max_threads

    def forward(
        self, parts: Listed[tuple[Sequence, int]], all_logits: bool = False, states: bool = False
    ) -> np.ndarray:
        """Runs the next tokens of some sequences together.

        Args:
            parts: sequences, each with how many of its pending tokens to run (at least 1).
            all_logits: rows of every token; otherwise of the last token of each sequence.
            states: hidden states after the last norm instead of logits.

        Returns:
            float32 (tokens or sequences, vocab), or the width of the hidden states.

        Raises:
            ConfigError: logits of a model whose positions see what comes later.
            KvCacheFullError: there are no pages for them; no sequence has changed.
        """
        if states:
            output = Output.ALL_HIDDEN if all_logits else Output.LAST_HIDDEN
        else:
            output = Output.ALL_LOGITS if all_logits else Output.LAST_LOGITS
        schedule(parts)
        try:
            rows = self.run([sequence for sequence, _ in parts], [output] * len(parts))
        except BaseException:
            for sequence, _ in parts:
                sequence.rollback()
            raise
        for sequence, _ in parts:
            sequence.commit()
            sequence.free_out_of_window()
        found = [row for row in rows if row is not None]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def run(
        self,
        sequences: Listed[Sequence],
        outputs: Listed[Output],
        cancelled: Callable[[], bool] | None = None,
        hooks: Listed[HiddenHook | None] = (),
    ) -> list[np.ndarray | None]:
        """Runs the scheduled tokens of some sequences together; the caller then calls `Sequence.commit`.

        Args:
            outputs: which rows are wanted of each sequence.
            cancelled: asked between layers whether to give up.
            hooks: for each sequence what is called with all its rows, or None; () for none at all.

        Returns:
            list: for each sequence float32 (wanted rows, vocab or n_embd), or None where nothing is wanted.

        Raises:
            ConfigError: logits of a model whose positions see what comes later.
            ForwardCancelled: ``cancelled`` said so.
        """
        return self.complete(self.launch(sequences, outputs, hooks), cancelled)

    def launch(
        self, sequences: Listed[Sequence], outputs: Listed[Output], hooks: Listed[HiddenHook | None] = ()
    ) -> InFlight:
        """Begins a pass, which `complete` ends; at most `depth` may be in flight. Arguments as for `run`.

        Raises ConfigError as `run`.
        """
        caches: list[PagedKvCache] = []
        parts: list[tuple[Output, int, int]] = []
        for sequence, output in zip(sequences, outputs):
            n = sequence.scheduled_len - sequence.cached_len
            parts.append((output, n, min(sequence.n_drafts, n - 1)))  # the first row is no draft
            caches.append(sequence.kv)
        layout = ran = self._layout_of(tuple(parts))
        if layout.n_logits and not self._has_logits:
            self.check_logits()
        if hooks:
            shown = [
                (Output.ALL_HIDDEN, n, drafts) if hook else (output, n, drafts)
                for hook, (output, n, drafts) in zip(hooks, parts)
            ]
            ran = self._layout_of(tuple(shown))
        tables = [group.of(caches) for group in self._tables]
        states = None if self.pool.recurrent_states is None else _states(sequences)
        batch = self._batch(sequences, ran, states)
        return self._send(InFlight(sequences, outputs, hooks, layout, ran, batch, tables, states))

    def _send(self, in_flight: InFlight) -> InFlight:
        """Sends a pass to other processes: a hook for pipelines."""
        return in_flight

    def complete(
        self, in_flight: InFlight, cancelled: Callable[[], bool] | None = None
    ) -> list[np.ndarray | None]:
        """Runs a pass that was launched; returns and raises as `run`."""
        batch, sequences, hooks = in_flight.batch, in_flight.sequences, in_flight.hooks
        layout, batch.tapped = in_flight.layout, self.tapped if hooks else ()
        paged, starts = self.model.kernels.attention.PagedBatch, batch.starts
        carried = self._received(in_flight)
        kv = [
            paged(group.shape, group.table, table, batch.row_start, starts)
            for group, table in zip(self.pool.groups, in_flight.tables)
        ]
        if batch.input_rows is not None:
            kv = batch.input_rows.paged(self.model.kernels, self.pool.groups, in_flight.tables, kv)
        hidden = self.model.hidden_states(batch, kv, self._work, self.tuner, cancelled, carried)
        if in_flight.states is not None:
            for sequence in sequences:
                recurrent: RecurrentCache = sequence.kv  # type: ignore[assignment]
                recurrent.end(sequence.scheduled_len)
        if hooks:
            inputs = self._work.taps(batch, self.model.carried)
            hidden = _call_hooks(hidden, sequences, hooks, in_flight.ran, layout.counts, inputs)
        return self._outputs(hidden, in_flight.outputs, layout, batch.adapted)

    def _received(self, in_flight: InFlight) -> Carried | None:
        """The hidden states from other processes: a hook for pipelines."""
        return None

    def restart(self) -> None:
        """Mends what `lost` says, once no pass is in flight. Raises an OxiLlamaError if it cannot."""

    def _layout_of(self, parts: tuple[tuple[Output, int, int], ...]) -> Layout:
        """The layout of a batch; decoding, with drafts and without, takes turns between a few."""
        found = self._layouts.get(parts)
        if found is None:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            found = self._layouts[parts] = Layout(parts)
        return found

    def _outputs(
        self, hidden: np.ndarray, outputs: Listed[Output], layout: Layout, adapted: AdaptedRows | None
    ) -> list[np.ndarray | None]:
        """The output rows of each sequence; one product computes all logits that are needed."""
        counts, rows, numbers = layout.counts, hidden, layout.wanted
        if layout.n_logits < len(hidden):
            chosen = np.repeat([output.is_logits for output in outputs], counts)
            rows, numbers = hidden[chosen], numbers[chosen]
        if adapted is not None and len(numbers) < layout.row_start[-1]:
            adapted = adapted.of_rows(numbers)
        logits = self.model.logits(rows, self._work, self.tuner, adapted) if layout.n_logits else rows
        if len(counts) == 1:
            return [None if outputs[0] is Output.NONE else logits if layout.n_logits else hidden]
        found: list[np.ndarray | None] = []
        at = logits_at = 0
        for output, n in zip(outputs, counts):
            if output is Output.NONE:
                found.append(None)
            elif output.is_logits:
                found.append(logits[logits_at : logits_at + n])
                logits_at += n
            else:
                found.append(hidden[at : at + n])
            at += n
        return found

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """float32 (n, vocab) of hidden states of the last pass, float32 (n, n_embd), after the last norm."""
        return self.model.logits(hidden, self._work, self.tuner)

    def check_logits(self) -> None:
        """Raises ConfigError if the model has none, or its positions see what comes later."""
        spec = self.model.spec
        self._has_logits = self.model.output is not None and spec.causal
        if not self._has_logits:
            raise ConfigError(f"model: {spec.family.name} is an encoder, it has no logits; it can embed")

    def _batch(self, sequences: Listed[Sequence], layout: Layout, states: list[StateSlots] | None) -> Batch:
        tokens: list[int] = []
        positions: list[int] = []
        is_adapted, embeddings = False, None
        for s in sequences:
            tokens += s.tokens[s.cached_len : s.scheduled_len]
            positions += range(s.cached_len, s.scheduled_len)
            is_adapted = is_adapted or s.adapters is not None
            embeddings = s.embeddings or embeddings
        return Batch(
            tokens=np.array(tokens, np.int32),
            positions=np.array(positions, np.int32),
            row_start=layout.row_start,
            wanted=layout.wanted,
            recurrent_states=self._memory_of(states) if states and self.model.state_floats else None,
            adapted=self._adapted_rows(sequences, layout.row_start) if is_adapted else None,
            input_rows=embeddings and embeddings.rows_of(sequences, layout.row_start),
        )

    def _memory_of(self, states: list[StateSlots]) -> list[StatePart]:
        pool = self.pool.recurrent_states
        assert pool is not None
        return [pool.part(slots) for slots in states]

    def _adapted_rows(self, sequences: Listed[Sequence], row_start: np.ndarray) -> AdaptedRows | None:
        """The adapters of the rows; the object of the last pass where the adapters are the same."""
        groups: list[RowGroup] = []
        for sequence, row in zip(sequences, row_start.tolist()):
            if sequence.adapters is not None:
                groups += sequence.adapters.groups(sequence.cached_len, sequence.scheduled_len, row)
        self._adapted = adapted_rows(self.model.kernels, int(row_start[-1]), groups, self._adapted)
        return self._adapted


class Layout:
    """Where the rows of each sequence lie in a batch, and which of them are wanted.

    Args:
        parts: for each sequence what is wanted, its rows, and how many of them are drafts.

    Attributes:
        row_start: int32 (sequences + 1,), the rows of each sequence.
        wanted: int64, the wanted rows.
        counts: how many of each sequence.
        n_logits: how many of them are wanted as logits.
    """

    def __init__(self, parts: Listed[tuple[Output, int, int]]) -> None:
        starts = [0, *accumulate(n for _, n, _ in parts)]
        wanted = [_wanted(output, end, n, drafts) for (output, n, drafts), end in zip(parts, starts[1:])]
        self.row_start: np.ndarray = np.array(starts, np.int32)
        self.wanted: np.ndarray = np.array(list(chain.from_iterable(wanted)), np.int64)
        self.counts: list[int] = [len(rows) for rows in wanted]
        self.n_logits: int = sum(n for n, (output, _, _) in zip(self.counts, parts) if output.is_logits)


def _wanted(output: Output, end: int, n: int, n_drafts: int) -> range:
    """The output rows among the ``n`` rows before ``end``."""
    return range(end if output is Output.NONE else end - n if output.is_all else end - 1 - n_drafts, end)


def _call_hooks(
    hidden: np.ndarray,
    sequences: Listed[Sequence],
    hooks: Listed[HiddenHook | None],
    ran: Layout,
    wanted: list[int],
    inputs: Mapping[int, np.ndarray],
) -> np.ndarray:
    """Calls the hooks with their rows; returns the wanted rows, which are the last of each sequence."""
    kept, at = [], 0
    for start, sequence, hook, n, n_wanted in zip(ran.row_start, sequences, hooks, ran.counts, wanted):
        part = hidden[at : at + n]
        at += n
        if hook is not None:
            hook(sequence.cached_len, part, {i: x[start : start + n].copy() for i, x in inputs.items()})
        kept.append(part[n - n_wanted :])
    return kept[0] if len(kept) == 1 else np.concatenate(kept)


def _states(sequences: Listed[Sequence]) -> list[StateSlots]:
    """What the pass does to the recurrent state of each sequence."""
    caches: list[RecurrentCache] = [s.kv for s in sequences]  # type: ignore[misc]
    return [kv.begin(s.cached_len) for s, kv in zip(sequences, caches)]


def schedule(parts: Listed[tuple[Sequence, int]]) -> None:
    """Makes place for the rows of all sequences, or of none. Raises KvCacheFullError."""
    done = []
    try:
        for sequence, n in parts:
            sequence.schedule(n)
            done.append(sequence)
    except KvCacheFullError:
        for sequence in done:
            sequence.rollback()
        raise


class BlockTables:
    """The block tables of a batch in one page group, as one array; a row is written when it changes.

    Args:
        group: number of the group.
    """

    def __init__(self, group: int) -> None:
        self._group = group
        self._array = np.zeros((0, 0), np.int32)
        self._rows: list[tuple[PagedKvCache, int]] = []

    def of(self, caches: Listed[PagedKvCache]) -> np.ndarray:
        """int32 (caches, width), valid until the next call.

        Numbers of freed pages are replaced by the first page in use; no row reads these entries.
        """
        tables, width = [], 0
        for kv in caches:
            table = kv.tables[self._group]
            tables.append(table)
            width = max(width, len(table.pages))
        n_rows, n_columns = self._array.shape
        if len(caches) > n_rows or width > n_columns:
            shape = (max(len(caches), n_rows), max(width + width // 2, n_columns))
            self._array, self._rows = np.zeros(shape, np.int32), []
        del self._rows[len(caches) :]
        for i, (kv, table) in enumerate(zip(caches, tables)):
            if i < len(self._rows) and self._rows[i][0] is kv and self._rows[i][1] == kv.version:
                continue
            self._array[i, : len(table.pages)] = table.pages
            if table.first:
                self._array[i, : table.first] = table.pages[table.first]
            self._rows[i : i + 1] = [(kv, kv.version)]
        return self._array[: len(caches)]

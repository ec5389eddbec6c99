"""Rows of a batch that come from embeddings, not from token ids: their positions and what they see.

A sequence with media has `InputEmbeddings` (`Sequence.embeddings`). For each batch `InputEmbeddings.rows_of`
makes `InputEmbeddingRows`, which put the embeddings into the rows, and say which positions rotate the rows
and which rows see each other.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Sequence as Listed
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from oxillama._kernels import Kernels
from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError
from oxillama.models import Decoder
from oxillama.models.layers.layer import AnyLayer
from oxillama.models.media.encoder import Rows
from oxillama.models.workspace import Step

MASKED = -1e30
"""The score of a position that a row does not see."""

MARK_BYTES = 32


class Span(NamedTuple):
    """InputEmbeddings rows of a sequence, from its token ``start`` on."""

    start: int
    rows: Rows

    @property
    def end(self) -> int:
        """The first token behind them."""
        return self.start + len(self.rows.values)


class Use(NamedTuple):
    """A medium of a prompt: the digest of the decoded medium, and the first token of each of its spans."""

    digest: bytes
    starts: tuple[int, ...]


@dataclass(frozen=True)
class InputEmbeddings:
    """The given rows of a sequence; its tokens there are 0.

    Attributes:
        spans: in order.
        axes: int64 (pairs,), the coordinate (time, row, column, none) that turns each pair of dimensions of
            the text model's rotation; None for a model whose positions are numbers of tokens.
        media: whose rows they are, in order.
        projector: returns the content hash of the projector file (`ModelFingerprint.content`).
        preprocessing: version of `oxillama.models.media.decode.PREPROCESSING`, the lowest of all media.
    """

    spans: list[Span]
    axes: np.ndarray | None = None
    media: tuple[Use, ...] = ()
    projector: Callable[[], bytes] = bytes
    preprocessing: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return sum(span.rows.values.nbytes for span in self.spans)

    @cached_property
    def _numbered(self) -> tuple[np.ndarray, int, int]:
        """int32 (3, tokens): time, row and column of each token up to the end of the last span; that end, and
        the time of the token there.

        A picture takes one time, and as many positions as its longer side has tokens.
        """
        parts, at, done = [], 0, 0
        for start, rows in self.spans:
            parts.append(np.tile(np.arange(at, at + start - done), (3, 1)))
            at += start - done
            n = done = start + len(rows.values)
            if rows.grid is None:
                parts.append(np.tile(np.arange(at, at + n - start), (3, 1)))
                at += n - start
                continue
            columns, lines = rows.grid
            line, column = np.divmod(np.arange(n - start), columns)
            parts.append(np.stack([np.full(n - start, at), at + line, at + column]))
            at += max(columns, lines)
        return np.concatenate(parts, axis=1).astype(np.int32), done, at

    def coordinates(self, first: int, last: int) -> np.ndarray:
        """int32 (3, last - first): time, row and column of tokens."""
        numbered, end, following = self._numbered
        known, begin = numbered[:, first:last], max(first, end)
        rest = np.arange(begin, max(begin, last), dtype=np.int32) + np.int32(following - end)
        return np.concatenate([known, np.tile(rest, (3, 1))], axis=1)

    @cached_property
    def whole(self) -> list[tuple[int, int]]:
        """Beginnings and ends of rows that see each other, so that each of these runs within one pass."""
        return [(span.start, span.end) for span in self.spans if span.rows.both_ways]

    def extend_to_span(self, sequence: Sequence, n: int) -> int:
        """``n`` tokens for a sequence's next pass, or more: up to the end of rows that see each other.

        Passes of a recurrent model end where the cache wants it, so that all pending tokens are one pass.
        """
        if self.whole and sequence.pool.recurrent_states is not None:
            return sequence.pending
        first = sequence.cached_len
        found = next((end - first for start, end in self.whole if start < first + n < end), n)
        return min(found, max(n, sequence.pending))

    def cut(self, n: int) -> InputEmbeddings | None:
        """The embeddings of the first ``n`` tokens; None without any. Raises ConfigError inside a medium."""
        around = self._around(n)
        if around is not None:
            start, end = around
            raise ConfigError(f"n_tokens: expected {start} or {end}, the ends of a medium, got {n}")
        media = tuple(use for use in self.media if use.starts[0] < n)
        spans = [span for span in self.spans if span.start < n]
        return replace(self, spans=spans, media=media) if spans else None

    def outside(self, n: int) -> int:
        """``n`` tokens, or fewer: up to the medium that would be cut."""
        around = self._around(n)
        return n if around is None else around[0]

    def _around(self, n: int) -> tuple[int, int] | None:
        """The beginning and the end of the medium that begins before token ``n`` and ends behind it."""
        ends = {span.start: span.end for span in self.spans}
        found = ((use.starts[0], ends[use.starts[-1]]) for use in self.media)
        return next(((start, end) for start, end in found if start < n < end), None)

    def rest(self, n: int) -> InputEmbeddings | None:
        """The embeddings after the first ``n`` tokens, counted from there; None if the rest is text."""
        spans = [span for span in self.spans if span.start >= n]
        media = tuple(use for use in self.media if use.starts[0] >= n)
        return replace(self, spans=spans, media=media).behind(None, -n) if spans else None

    def behind(self, before: InputEmbeddings | None, n: int) -> InputEmbeddings:
        """These embeddings after ``n`` tokens, with the embeddings ``before`` them."""
        spans = [Span(span.start + n, span.rows) for span in self.spans]
        media = tuple(Use(use.digest, tuple(start + n for start in use.starts)) for use in self.media)
        if before is None:
            return replace(self, spans=spans, media=media)
        version = min(before.preprocessing, self.preprocessing)
        media = (*before.media, *media)
        return replace(self, spans=[*before.spans, *spans], media=media, preprocessing=version)

    def marked(self, tokens: Listed[int]) -> list[int]:
        """Token ids that also tell the given rows apart, for the prefix cache.

        Of two prompts that begin with the same marks the keys and values are the same: a mark is a hash of
        the embeddings of its span, of their grid, and of the row's place.
        """
        found = list(tokens)
        for start, rows in self.spans:
            for i in range(start, min(start + len(rows.values), len(found))):
                facts = rows.digest + (i - start).to_bytes(4, "little") + found[i].to_bytes(36, "little")
                mark = hashlib.blake2b(facts, digest_size=MARK_BYTES - 1).digest()
                found[i] = int.from_bytes(mark, "little") << 32 | 1 << 31
        return found

    def rows_of(self, sequences: Listed[Sequence], row_start: np.ndarray) -> InputEmbeddingRows:
        """The given rows of a batch in which at least one sequence has some."""
        return InputEmbeddingRows.of(sequences, row_start)


class Part(NamedTuple):
    """InputEmbeddings rows of a batch: from row ``row`` on, float32 (n, width)."""

    row: int
    values: np.ndarray
    both_ways: str

    @property
    def end(self) -> int:
        """The first row behind them."""
        return self.row + len(self.values)


@dataclass(frozen=True)
class InputEmbeddingRows:
    """The given rows of a batch, for all stages of a pipeline.

    Attributes:
        parts: in order.
        row_start: as in `Batch`.
        starts: position of the first row of each sequence.
        axes: as in `InputEmbeddings`.
        places: int32 (3, rows), time, row and column of all rows; None without axes.
    """

    parts: list[Part]
    row_start: np.ndarray
    starts: np.ndarray
    axes: np.ndarray | None
    places: np.ndarray | None

    @classmethod
    def of(cls, sequences: Listed[Sequence], row_start: np.ndarray) -> InputEmbeddingRows:
        """The rows of the scheduled tokens of some sequences."""
        parts, places = [], []
        axes = next((s.embeddings.axes for s in sequences if s.embeddings is not None), None)
        for s, row in zip(sequences, row_start.tolist()):
            embeddings, first, last = s.embeddings, s.cached_len, s.scheduled_len
            for start, rows in embeddings.spans if embeddings is not None else ():
                begin, end = max(first, start), min(last, start + len(rows.values))
                if begin < end:
                    values = rows.values[begin - start : end - start]
                    parts.append(Part(row + begin - first, values, rows.both_ways))
            if axes is not None:
                alone = np.arange(first, last, dtype=np.int32)
                places.append(
                    np.tile(alone, (3, 1)) if embeddings is None else embeddings.coordinates(first, last)
                )
        starts = np.array([s.cached_len for s in sequences], np.int32)
        joined = None if axes is None else np.ascontiguousarray(np.concatenate(places, axis=1))
        return cls(parts, row_start, starts, axes, joined)

    # --- embeddings ---------------------------------------------------------------------------------

    def put(self, x: np.ndarray, step: Step) -> None:
        """Puts the embeddings into x (n, n_embd)."""
        for part in self.parts:
            x[part.row : part.end] = part.values[:, : x.shape[1]]

    def turn(self, step: Step, model: Decoder) -> None:
        """Gives a pass the tables of rotations that the rows need."""
        if self.axes is not None:
            step.tables = {i: self._table(i, model) for i in step.tables}

    def _table(self, i: int, model: Decoder) -> np.ndarray:
        """float32 (n, 2, n_rot / 2): cosines and sines of rotation ``i``, each pair by its coordinate."""
        axes, rows, rope = self.axes, self.places, model.spec.ropes[i]
        assert axes is not None and rows is not None
        table = np.empty((rows.shape[1], 2, rope.n_rot // 2), np.float32)
        for axis, positions in enumerate(rows):
            turned = np.empty_like(table)
            model.kernels.vector.rope_table(positions, model.frequencies[i], rope.magnitude, turned)
            pairs = axes == axis if axis else (axes == 0) | (axes == 3)  # the fourth kind does not turn
            table[:, :, pairs] = turned[:, :, pairs]
        return table

    def add_deep(self, layer: int, x: np.ndarray) -> None:
        """x += the embeddings for the output of a layer, x (n, n_embd)."""
        width = x.shape[1]
        for part in self.parts:
            values = part.values[:, (layer + 1) * width : (layer + 2) * width]
            if values.shape[1]:
                x[part.row : part.end] += values

    # --- attention ----------------------------------------------------------------------------------

    def paged(
        self, kernels: Kernels, groups: Listed[Any], tables: Listed[np.ndarray], kv: list[Any]
    ) -> list[Any]:
        """The kernels' batches over pages, in which rows of pictures see each other where they should."""
        if not any(part.both_ways for part in self.parts):
            return kv
        paged, starts, runs = kernels.attention.PagedBatch, self.starts, self._runs()
        found = []
        for group, table, whole in zip(groups, tables, kv, strict=True):
            parts = []
            for run in runs:
                pieces = self._pieces(run)
                numbers = np.ascontiguousarray(table[[s for s, _, _ in pieces]])
                counts = np.cumsum([0, *(end - begin for _, begin, end in pieces)]).astype(np.int32)
                places = [starts[s] + begin - int(self.row_start[s]) for s, begin, _ in pieces]
                batch = paged(group.shape, group.table, numbers, counts, np.array(places, np.int32))
                parts.append((run, batch))
            found.append(SpannedBatch(whole, parts))
        return found

    def begin(
        self, model: Decoder, groups: Listed[Any], tables: Listed[np.ndarray], kv: list[Any]
    ) -> list[Any]:
        """As `paged`, for a stage that learns of given rows by a pass."""
        width = max((part.values.shape[1] for part in self.parts), default=0)
        take_media(model, max(0, width // model.spec.n_embd - 1))
        return self.paged(model.kernels, groups, tables, kv)

    def _runs(self) -> list[Run]:
        """All rows of the batch, cut where rows that see each other begin and end."""
        runs, at = [], 0
        for part in self.parts:
            if part.both_ways:
                if at < part.row:
                    runs.append(Run(at, part.row, ""))
                runs.append(Run(part.row, part.end, part.both_ways))
                at = part.end
        last = int(self.row_start[-1])
        return [*runs, Run(at, last, "")] if at < last else runs

    def _pieces(self, run: Run) -> list[tuple[int, int, int]]:
        """The sequences that have rows in a run, with the first of these rows and the one behind the last."""
        starts = self.row_start.tolist()
        found = []
        for s, (start, end) in enumerate(pairwise(starts)):
            begin, stop = max(run.begin, start), min(run.end, end)
            if begin < stop:
                found.append((s, begin, stop))
        return found


class Run(NamedTuple):
    """Rows of a batch, in which the rows of a picture see each other."""

    begin: int
    end: int
    both_ways: str


class SpannedBatch:
    """A `PagedBatch` in which some rows see later ones, too.

    Rows keep their bits however a batch is cut, so that each run of rows is a call of its own.
    """

    def __init__(self, whole: Any, parts: list[tuple[Run, Any]]) -> None:
        self._whole = whole
        self._parts = parts
        self.store: Any = whole.store
        self.scratch_bytes: Any = whole.scratch_bytes
        self.choose: Any = whole.choose

    def attend(
        self,
        layer: int,
        q: np.ndarray,
        n_heads: int,
        scale: float,
        out: np.ndarray,
        scratch: np.ndarray,
        n_threads: int,
        window: int = 0,
        chunk: int = 0,
        *,
        causal: bool = True,
        softcap: float = 0.0,
        sinks: np.ndarray | None = None,
        slopes: np.ndarray | None = None,
        biases: np.ndarray | None = None,
        chosen: np.ndarray | None = None,
    ) -> None:
        """As `PagedBatch.attend`. The window limits how far back a row sees, and not how far ahead."""
        for run, batch in self._parts:
            own = window, causal, biases
            if run.both_ways == "all" or (run.both_ways and window):
                own = bidirectional(run.end - run.begin, window, n_heads, biases)
            batch.attend(
                *(layer, q[run.begin : run.end], n_heads, scale, out[run.begin : run.end], scratch),
                *(n_threads, own[0], chunk),
                causal=own[1], softcap=softcap, sinks=sinks, slopes=slopes, biases=own[2], chosen=chosen,
            )  # fmt: skip


def bidirectional(
    n: int, window: int, n_heads: int, biases: np.ndarray | None
) -> tuple[int, bool, np.ndarray | None]:
    """``window``, ``causal`` and ``biases`` for ``n`` rows that see each other, and a window before them."""
    if not window or n <= window:
        return window, False, biases
    masked = np.zeros((n_heads, 2 * window + 1), np.float32)
    masked[:, 0] = MASKED  # distances of the window and more
    return 0, False, masked


class MediaLayer:
    """A layer of a text model in batches with given rows.

    Args:
        i: the layer's number; behind it rows add the embeddings that they have for it (Qwen3-VL's deep
            stack).
        model: for the first layer of a stage, which gives the pass its tables of rotations; None for others.
    """

    def __init__(self, layer: AnyLayer, i: int, model: Decoder | None) -> None:
        self.layer: AnyLayer = layer
        self.i: int = i
        self.model = None if model is None else weakref.ref(model)
        self.blocks, self.linears = layer.blocks, layer.linears

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["layer"], name)

    def with_blocks(self, wrap: Any) -> MediaLayer:
        """As `AnyLayer.with_blocks`."""
        model = None if self.model is None else self.model()
        return MediaLayer(self.layer.with_blocks(wrap), self.i, model)

    def run(self, x: np.ndarray, step: Step) -> None:
        """As `AnyLayer.run`."""
        embeddings, model = step.batch.input_rows, None if self.model is None else self.model()
        if embeddings is not None and model is not None:
            embeddings.turn(step, model)
        self.layer.run(x, step)
        if embeddings is not None:
            embeddings.add_deep(self.i, x)


def take_media(decoder: Decoder, n_deep: int) -> None:
    """Has the layers of a stage run given rows that have embeddings for the first ``n_deep`` layers, too.

    For the thread that runs the stage.
    """
    for at, i in enumerate(decoder.spec.here):
        layer = decoder.layers[at]
        if (not at or i < n_deep) and not isinstance(layer, MediaLayer):
            decoder.layers[at] = MediaLayer(layer, i, None if at else decoder)

"""What a pass takes: the rows of a batch, and the buffers that the layers write to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oxillama._kernels.memory import aligned_empty
from oxillama.models.weights.linear import Linear, Pass

if TYPE_CHECKING:
    from oxillama.models.weights.low_rank import AdaptedRows


class StateSlots(NamedTuple):
    """As `StatePart`, with the numbers of slots and records in place of their memory."""

    before: int | None
    after: int
    earlier: Sequence[int]
    recorded: Sequence[int]
    settled: int


class StatePart(NamedTuple):
    """The recurrent state that a pass reads and writes for a sequence; arguments of `StateBatch`.

    Attributes:
        before, after: the state that the pass reads (None for zeros), and the one that it writes, float32
            (floats,) each; one array for both is an update in place.
        earlier: records of the rows between that state and the first row of the pass.
        recorded: records that the pass writes for its last rows.
        settled: how many of its rows, earlier ones first, are applied to the state that it writes.
    """

    before: np.ndarray | None
    after: np.ndarray
    earlier: Sequence[np.ndarray]
    recorded: Sequence[np.ndarray]
    settled: int


@dataclass(slots=True, eq=False, repr=False)
class Batch:
    """Rows to run, sequence by sequence. It does not change, but for `tapped` before it runs.

    Examples: a chunk of a prompt, one decode step of many sequences, tokens to score.

    Attributes:
        tokens: int32 (rows,), token ids.
        positions: int32 (rows,), position of each row in its sequence.
        row_start: int32 (sequences + 1,), the rows of each sequence.
        wanted: int64 (logits,), the rows whose logits are wanted, ascending.
        recurrent_states: of each sequence; None for a model without recurrent layers.
        adapted: the rows that take adapters; None where no row does.
        input_rows: has ``put(x, step)``, which replaces the embeddings of some rows; None where no row is
            given.
        tapped: layers whose inputs drafters read, each kept in a buffer of the name `tap_of`; or `STREAMS`.
    """

    tokens: np.ndarray
    positions: np.ndarray
    row_start: np.ndarray
    wanted: np.ndarray
    recurrent_states: list[StatePart] | None = None
    adapted: AdaptedRows | None = None
    input_rows: Any = None
    tapped: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def starts(self) -> np.ndarray:
        """int32 (sequences,), position of the first row of each."""
        starts: np.ndarray = (
            self.positions[self.row_start[:-1]] if len(self.row_start) > 2 else self.positions[:1]
        )
        return starts


STREAMS = -1  # used as a layer index: the streams of hidden states after all layers


def tap_of(layer: int) -> str:
    """The name of the buffer that keeps the input of a layer."""
    return f"tap {layer}" if layer != STREAMS else "streams"


MIN_ROWS = 64  # least rows of a buffer, so that all experts of a token can run in one call
MAX_GROUPS = 512  # matrices of one call
MAX_VIEWS = 256


class Views(dict[tuple[str, int, int], np.ndarray]):
    """Arrays by (name, rows, width): float32 (rows, width), the beginning of a buffer. Every layer asks for
    several, so they are kept.

    A buffer is made when it is first used, for all reserved rows, and again when it has to be wider: what is
    passed on in a buffer has the same width wherever it is written and read.

    Attributes:
        buffers: float32 (floats,), by name.
        n_rows: reserved rows; no view may have more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[str, np.ndarray] = {}
        self.n_rows: int = 0

    def __missing__(self, key: tuple[str, int, int]) -> np.ndarray:
        name, n, width = key
        if len(self) > MAX_VIEWS:
            self.clear()
        buffer = self.buffers.get(name)
        if buffer is None or len(buffer) < self.n_rows * width:
            self.clear()
            buffer = self.buffers[name] = aligned_empty(4 * self.n_rows * width).view(np.float32)
        found = self[key] = buffer[: n * width].reshape(n, width)
        return found

    def reserve(self, n_rows: int) -> None:
        """Gives the buffers up, and makes those that are used from now on for ``n_rows`` rows."""
        self.clear()
        self.buffers.clear()
        self.n_rows = n_rows

    def like(self, name: str, x: np.ndarray) -> np.ndarray:
        """float32, of the shape of x (rows, width)."""
        n, width = x.shape
        return self[name, n, width]


class Workspace:
    """Buffers of a forward pass, kept between passes; they grow with the largest batch.

    Args:
        linears: all linear layers of the model, for the size of their scratch memory.

    Attributes:
        rows: views of the buffers; a view must not have more than the reserved rows.
    """

    def __init__(self, linears: list[Linear]) -> None:
        self.linears = linears
        self.linear_bytes: int = 0
        self.scratch: np.ndarray = aligned_empty(0)
        self.rows: Views = Views()

    def reserve(self, n_rows: int, attention_bytes: int, adapted: AdaptedRows | None = None) -> None:
        """Makes room for ``n_rows`` rows, for the attention's scratch, and for the adapters'."""
        n_rows = max(n_rows, MIN_ROWS)
        if n_rows > self.rows.n_rows:
            self.rows.reserve(n_rows)
            self.linear_bytes = max(linear.scratch_bytes(n_rows) for linear in self.linears)
        adapter_bytes = 0 if adapted is None else adapted.scratch_bytes(self.rows.n_rows)
        needed = max(self.linear_bytes + adapter_bytes, attention_bytes)
        if needed > self.scratch.nbytes:
            self.scratch = aligned_empty(needed)

    def taps(self, batch: Batch, widths: Mapping[str, int]) -> dict[int, np.ndarray]:
        """float32 (rows, width), inputs of `Batch.tapped` layers in the last pass; valid until the next."""
        usual, n = widths["x"], len(batch)
        return {i: self.rows[(t := tap_of(i)), n, widths.get(t, usual)] for i in batch.tapped}

    def rounds(self, counts: list[int], most: int = MAX_GROUPS) -> Iterator[tuple[slice, slice]]:
        """Splits groups of ``counts`` rows into calls that fit the buffers: slices of groups and of rows.

        No call has more than ``most`` groups.
        """
        first = start = end = 0
        for i, count in enumerate(counts):
            if end + count - start > self.rows.n_rows or i - first == min(most, MAX_GROUPS):
                yield slice(first, i), slice(start, end)
                first, start = i, end
            end += count
        yield slice(first, len(counts)), slice(start, end)


class Threads:
    """The number of threads that layers run with: `max_threads`, unless a `ThreadTuner` chooses.

    Attributes:
        n_threads: of the present layer, or of the last one.
    """

    def __init__(self, max_threads: int) -> None:
        self.max_threads = max_threads
        self.n_threads: int = max_threads

    def begin(self, rows: int, layer: int) -> int:
        """The number of threads of layer ``layer`` over ``rows`` rows, which begins now. There is nothing to
        choose where `max_threads` is 1."""
        return self.n_threads

    def end(self) -> None:
        """The layer that was begun last is done."""


@dataclass(kw_only=True, eq=False, repr=False)
class Step(Pass):
    """The values that the layers of one forward pass share.

    Attributes:
        batch: its rows.
        kv: of each page group the kernels' `PagedBatch` over them.
        tables: float32 (n, 2, n_rot / 2) for each rotation that layers use, by its number: cosines and sines
            of the rows' positions.
        temperatures: float32 (n, 1), factors of the queries in layers with scaled queries; None for 1.
        recurrent: the kernels' `StateBatch` over the rows, None where no layer is recurrent.
        chosen: int32 (n, most), positions that the rows attend to, chosen by the last selector; None for all.
        counts: int32 (n,), how many of these; None for as many as there are.
        table_at: the table of a rotation, by its number, at positions int32 (m,).
    """

    batch: Batch
    kv: Sequence[Any]
    work: Workspace
    tables: Mapping[int, np.ndarray]
    temperatures: np.ndarray | None = None
    recurrent: Any = None
    chosen: np.ndarray | None = None
    counts: np.ndarray | None = None
    table_at: Any = None

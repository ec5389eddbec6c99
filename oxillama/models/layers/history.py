"""The inputs of a sequence's last tokens, kept in its recurrent state, and what blocks of tokens make of
them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from oxillama._kernels import Kernels
from oxillama.models.layers.recurrent import RecurrentBlock
from oxillama.models.workspace import Batch


class TokenHistory:
    """Inputs float32 (width,) of the last ``depth`` tokens; the token at position p is in row p % depth.

    Args:
        at, record: where its floats begin among the floats of the block that owns it, in states and in
            records.
    """

    def __init__(self, depth: int, width: int, at: int = 0, record: int = 0) -> None:
        self.depth = depth
        self.width = width
        self.at = at
        self.record = record
        self.floats: int = depth * width
        self.record_floats: int = width

    def seen(
        self, block: RecurrentBlock, x: np.ndarray, batch: Batch, multiple: int, before: int
    ) -> Iterator[tuple[slice, int, int, np.ndarray]]:
        """The inputs that a pass needs, sequence by sequence; keeps the inputs x (n, width) of its rows.

        Yields the rows of the sequence, their first position, and float32 (positions, width): the inputs from
        a position on, which comes before them. That is ``before`` positions before the last ``multiple``, or
        0.
        """
        assert batch.recurrent_states is not None
        at, record = block.offset + self.at, block.record + self.record
        for s, state in enumerate(batch.recurrent_states):
            rows = slice(int(batch.row_start[s]), int(batch.row_start[s + 1]))
            start, own = int(batch.starts[s]), x[rows]
            settled = start - len(state.earlier)  # the first position that is not in the state
            first = max(0, start // multiple * multiple - before)
            low = min(first, settled)
            inputs = np.empty((start - low + len(own), self.width), np.float32)
            old = np.arange(low, settled)
            if state.before is not None and len(old):
                memory = state.before[at : at + self.floats].reshape(self.depth, self.width)
                inputs[: len(old)] = memory[old % self.depth]
            for i, earlier in enumerate(state.earlier):
                inputs[settled + i - low] = earlier[record : record + self.width]
            inputs[start - low :] = own
            self._keep(state, at, inputs, low, settled)
            for i, target in enumerate(state.recorded):
                target[record : record + self.width] = own[len(own) - len(state.recorded) + i]
            yield rows, start, first, inputs[first - low :]

    def _keep(self, state: object, at: int, inputs: np.ndarray, low: int, settled: int) -> None:
        """Writes the settled inputs, from position ``settled`` on, to the new state; ``low`` is the first
        one's."""
        before, after, n = state.before, state.after, state.settled  # type: ignore[attr-defined]
        memory = after[at : at + self.floats]
        if before is None:
            memory[:] = 0
        elif before is not after:
            memory[:] = before[at : at + self.floats]
        new = np.arange(max(settled, settled + n - self.depth), settled + n)
        memory.reshape(self.depth, self.width)[new % self.depth] = inputs[new - low]


class BlockInputs:
    """Complete blocks of ``size`` tokens, and the inputs of their tokens.

    Args:
        overlapping: a block has the inputs of the block before it, too, in front of its own.
    """

    def __init__(
        self, size: int, width: int, overlapping: bool = False, at: int = 0, record: int = 0
    ) -> None:
        self.size = size
        self.before: int = size if overlapping else 0
        self.history: TokenHistory = TokenHistory(size + self.before, width, at, record)

    def complete(
        self, block: RecurrentBlock, x: np.ndarray, batch: Batch
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The blocks that the rows x (n, width) of a pass complete.

        Returns:
            int (m,): the rows of their last tokens.
            int32 (m,): the positions of their first tokens.
            float32 (m, tokens, width): the inputs; zeros for tokens before the first position.
        """
        size, width = self.size, self.history.width
        rows, firsts, parts = [], [], []
        for span, start, low, inputs in self.history.seen(block, x, batch, size, self.before):
            end = start + span.stop - span.start
            numbers = np.arange(start // size, end // size)
            if not len(numbers):
                continue
            missing = self.before if low == 0 and start // size == 0 else 0
            wide = np.concatenate([np.zeros((missing, width), np.float32), inputs]) if missing else inputs
            at = (numbers - numbers[0])[:, None] * size + np.arange(self.before + size)
            parts.append(wide[at])
            rows.append(span.start + (numbers + 1) * size - 1 - start)
            firsts.append(numbers * size)
        if not parts:
            none = np.zeros(0, np.int64)
            return none, none.astype(np.int32), np.zeros((0, self.before + size, width), np.float32)
        return np.concatenate(rows), np.concatenate(firsts).astype(np.int32), np.concatenate(parts)


def mean_of(values: np.ndarray) -> np.ndarray:
    """float32 (m, width): the means of values (m, tokens, width), added in order."""
    total = values[:, 0].copy()
    for j in range(1, values.shape[1]):
        total += values[:, j]
    total *= np.float32(1 / values.shape[1])
    return total


def pooled(kernels: Kernels, values: np.ndarray, logits: np.ndarray, n_threads: int) -> np.ndarray:
    """float32 (m, width): sums of values (m, tokens, width), weighted by a softmax of logits over the tokens,
    channel by channel, added in order."""
    powers = np.ascontiguousarray(logits - logits.max(axis=1, keepdims=True))
    kernels.vector.activate(powers, "exp", powers, n_threads)
    total: np.ndarray = powers[:, 0].copy()
    found: np.ndarray = powers[:, 0] * values[:, 0]
    for j in range(1, values.shape[1]):
        total += powers[:, j]
        found += powers[:, j] * values[:, j]
    found /= total
    return found

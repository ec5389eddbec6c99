"""The gated delta rule: the bits of the reference, however its rows come."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from oxillama._kernels import load
from oxillama._kernels.recurrent.state_batch import StateBatch
from oxillama.reference.delta import delta_scan
from tests.support.kernels import PRESENT, refuses, same_bits


@dataclass(frozen=True)
class Case:
    """Sizes of a layer."""

    keys: int
    heads: int
    dim: int
    interleaved: bool = False
    by_channel: bool = False
    rows: int = 19

    @property
    def state_floats(self) -> int:
        return self.heads * self.dim * (-(-self.dim // 16) * 16)

    @property
    def record_floats(self) -> int:
        decays = self.heads * (self.dim if self.by_channel else 1)
        return (self.keys + self.heads) * self.dim + self.heads + decays

    def inputs(self) -> dict[str, np.ndarray]:
        """q, k, v, decay and beta by row, as models have them: unit keys, decays and strengths in (0, 1)."""
        rng, n = np.random.default_rng(self.dim), self.rows
        qk = rng.standard_normal((n, 2 * self.keys, self.dim))
        qk /= np.linalg.norm(qk, axis=2, keepdims=True)
        v = rng.standard_normal((n, self.heads * self.dim))
        decays = self.heads * (self.dim if self.by_channel else 1)
        made = {
            "qkv": np.concatenate([qk.reshape(n, -1), v], axis=1),
            "decay": rng.uniform(0.5, 1, (n, decays)),
            "beta": rng.random((n, self.heads)),
        }
        return {name: values.astype(np.float32) for name, values in made.items()}

    def stated(self) -> np.ndarray:
        """float32 (rows, heads * dim), by the reference."""
        given, h = self.inputs(), np.arange(self.heads)
        qkv = given["qkv"].reshape(self.rows, -1, self.dim)
        q, k, v = np.split(qkv, [self.keys, 2 * self.keys], axis=1)
        decay = given["decay"].reshape(self.rows, self.heads, -1)
        key = h % self.keys if self.interleaved else h // (self.heads // self.keys)
        decay = decay if self.by_channel else decay[..., 0]
        return delta_scan(q[:, key], k[:, key], v, decay, given["beta"]).reshape(self.rows, -1)


CASES = [
    Case(2, 4, 128),
    Case(2, 4, 128, interleaved=True),
    Case(3, 3, 64, by_channel=True),
    Case(1, 2, 48),
    Case(2, 2, 8, by_channel=True),
    Case(1, 3, 7, by_channel=True),
    Case(1, 1, 33),
    Case(2, 6, 1, interleaved=True),
    Case(2, 4, 48, rows=150),
    Case(2, 6, 40, interleaved=True, rows=150),
    Case(4, 4, 128, by_channel=True, rows=150),
]

WAYS = {
    19: [([19], 2, 0), ([1] * 19, 1, 0), ([4, 1, 9, 5], 1, 0), ([4, 1, 9, 5], 1, 3)],
    150: [
        *(([150], n_threads, 0) for n_threads in (1, 2, 5)),
        *(([60, 70, 20], 1, 0), ([140, 10], 1, 0), ([10, 140], 1, 3)),
    ],
}
"""By the number of rows: pieces, threads, and records of a piece. Many rows go through whole heads; pieces of
fewer go through the blocks of a head one by one, as all rows do with many threads."""


def run(case: Case, target: str, pieces: list[int], threads: int = 1, drafts: int = 0) -> np.ndarray:
    """Outputs of all rows, run in ``pieces``, of each the last ``drafts`` rows as records taken in later."""
    given, kernel = case.inputs(), load(target).delta.delta_scan
    state = np.full(case.state_floats, np.nan, np.float32)
    empty, out, first = True, np.zeros((case.rows, case.heads * case.dim), np.float32), 0
    earlier: list[np.ndarray] = []
    for n in pieces:
        rows = slice(first, first + n)
        recorded = [np.zeros(case.record_floats, np.float32) for _ in range(min(drafts, n))]
        states = StateBatch(
            *(
                [None if empty else state],
                [state],
                np.int32([0, n]),
                case.state_floats,
                [earlier],
                [recorded],
            ),
            *(np.int32([len(earlier) + n - len(recorded)]), case.record_floats),
        )
        parts = {name: np.ascontiguousarray(x[rows]) for name, x in given.items()}
        found = np.zeros((n, out.shape[1]), np.float32)
        kernel(states, 0, 0, case.heads, case.interleaved, **parts, out=found, n_threads=threads)
        out[rows], earlier, first, empty = found, recorded, first + n, False
    return out


@pytest.mark.parametrize("case", CASES, ids=str)
def test_targets_threads_pieces_and_records_change_no_bit(case: Case) -> None:
    whole = case.stated()
    for target, way in product(PRESENT, WAYS[case.rows]):
        assert same_bits(run(case, target, *way), whole), (target, way)


def test_sequences_of_a_batch_have_their_own_states() -> None:
    case = Case(2, 4, 32)
    given, kernel = case.inputs(), load(PRESENT[0]).delta.delta_scan
    memory = [np.zeros(case.state_floats, np.float32) for _ in range(3)]
    starts = np.int32([0, 5, 5, case.rows])
    args = starts, case.state_floats, [()] * 3, [()] * 3, np.diff(starts), case.record_floats
    out = np.zeros((case.rows, case.heads * case.dim), np.float32)
    kernel(StateBatch([None] * 3, memory, *args), 0, 0, 4, False, **given, out=out, n_threads=2)
    assert same_bits(out[:5], case.stated()[:5])
    assert not memory[1].any()
    assert np.abs(out[5:] - case.stated()[5:]).max() > 1e-2  # these began without a past


@pytest.mark.parametrize(
    ("name", "array", "text"),
    [
        ("decay", np.ones((19, 5), np.float32), "decay: expected rows of 4 or of 128, got 5"),
        ("qkv", np.ones((19, 250), np.float32), "qkv: expected q, k and v of 4 heads of 32 channels"),
        ("qkv", np.ones((19, 128 + 6 * 32), np.float32), "qkv: expected q, k and v of 4 heads of 32"),
    ],
)
def test_sizes_that_do_not_fit_are_named(name: str, array: np.ndarray, text: str) -> None:
    case = Case(2, 4, 32)
    memory = np.zeros(case.state_floats, np.float32)
    states = StateBatch([None], [memory], np.int32([0, 19]), len(memory), [()], [()], np.int32([19]), 0)
    given = case.inputs() | {name: array, "out": np.zeros((19, 128), np.float32)}
    refuses(text, load(PRESENT[0]).delta.delta_scan, states, 0, 0, 4, False, **given, n_threads=1)

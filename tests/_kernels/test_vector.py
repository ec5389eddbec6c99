"""Row-wise kernels: the bits of the reference, on every target and any threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from oxillama._kernels import load
from oxillama.reference import rows
from oxillama.reference.connections import balanced, mixed
from tests.support.kernels import PRESENT, normal, on_targets, refuses, same_bits
from tools import measure_mathfun

WIDTHS = (1, 2, 15, 16, 17, 31, 33, 64, 100, 1030)


def kernel(target: str) -> Any:
    return load(target).vector


def same_everywhere(run: Callable[[Any], np.ndarray]) -> np.ndarray:
    """What every target gives, which must be the same bits."""
    found = [run(kernel(target)) for target in PRESENT]
    assert all(same_bits(out, found[0]) for out in found)
    return found[0]


def rms_norm(
    vector: Any, x: np.ndarray, weight: np.ndarray | None, eps: float = 1e-5, n_threads: int = 1
) -> np.ndarray:
    out = np.full_like(x, np.nan)
    vector.rms_norm(x, weight, eps, out, n_threads)
    return out


def gate(vector: Any, gate_up: np.ndarray, name: str = "silu", n_threads: int = 1) -> np.ndarray:
    out = np.full((len(gate_up), gate_up.shape[1] // 2), np.nan, np.float32)
    vector.gate(gate_up, name, out, n_threads)
    return out


def activate(vector: Any, x: np.ndarray, name: str, n_threads: int = 1) -> np.ndarray:
    out = np.full_like(x, np.nan)
    vector.activate(x, name, out, n_threads)
    return out


def softmax(vector: Any, x: np.ndarray) -> tuple[np.ndarray, bool]:
    out = np.full_like(x, np.nan)
    return out, vector.softmax(x, out)


# --- norms and gates -------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_norms_with_and_without_parameters(width: int, centred: bool, accumulate: bool) -> None:
    """Root-mean-square and layer norms, each with or without weights and biases, written or added."""
    x, onto = normal(60, width, seed=width) + np.float32(3), normal(60, width, seed=7)
    x[1] *= np.float32(1e-6)  # eps decides
    x[2] *= np.float32(1e6)
    x[3] = 0

    def run(weight: np.ndarray | None, bias: np.ndarray | None, vector: Any) -> np.ndarray:
        out = onto.copy()
        norm = vector.layer_norm if centred else vector.rms_norm
        norm(x, weight, 1e-5, out, 1, bias, accumulate)
        return out

    for weight, bias in product((None, normal(width, seed=1)), (None, normal(width, seed=2))):
        wanted = rows.norm(x, 1e-5, weight, bias, centred)
        found = same_everywhere(partial(run, weight, bias))
        assert same_bits(found, onto + wanted if accumulate else wanted)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("column", [0, 5])
@pytest.mark.parametrize(("heads", "dim", "width"), [(1, 1, 6), (3, 16, 53), (4, 20, 100), (2, 128, 400)])
def test_head_norm(heads: int, dim: int, width: int, column: int, centred: bool) -> None:
    """Each head by its own weights; what is beside them stays."""
    x, weight, bias = normal(40, width, seed=dim), normal(heads, dim), normal(heads, dim, seed=3)
    end = column + heads * dim

    def run(w: np.ndarray | None, b: np.ndarray | None, vector: Any, n_threads: int = 1) -> np.ndarray:
        out = x.copy()
        vector.head_norm(out, heads, dim, w, 1e-5, n_threads, column, centred, b)
        return out

    for w, b in ((weight, None), (None, None), (weight, bias)):
        out = same_everywhere(partial(run, w, b))
        part = x[:, column:end].reshape(40, heads, dim)
        assert same_bits(out[:, column:end].reshape(part.shape), rows.norm(part, 1e-5, w, b, centred))
        assert same_bits(out[:, :column], x[:, :column])
        assert same_bits(out[:, end:], x[:, end:])
        assert same_bits(run(w, b, kernel(PRESENT[0]), 3), out)


@pytest.mark.parametrize("scale", [0.0, 1.6448534])
@pytest.mark.parametrize("width", [1, 16, 37, 300])
def test_cut_leaves_what_is_far_above_the_mean(width: int, scale: float) -> None:
    """The rest is 0, columns behind stay, and a row with a NaN is NaN."""
    x = normal(30, width + 5, seed=width) + np.float32(2)
    x[1, 0] = np.nan

    def run(vector: Any, n_threads: int = 1) -> np.ndarray:
        out = x.copy()
        vector.cut(out, width, scale, n_threads)
        return out

    out = same_everywhere(run)
    assert same_bits(out[:, :width].copy(), rows.cut(x[:, :width].copy(), scale))
    assert np.isnan(out[1, :width]).all()
    assert same_bits(out[:, width:], x[:, width:])
    assert same_bits(run(kernel(PRESENT[0]), 3), out)
    text = f"cut: expected 1 to {width + 5} columns, got {width + 6}"
    refuses(text, kernel(PRESENT[0]).cut, x, width + 6, scale, 1)


# --- activations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", load(PRESENT[0]).vector.ACTIVATIONS)
@pytest.mark.parametrize("width", WIDTHS)
def test_activations(width: int, name: str) -> None:
    x = normal(width, seed=width, std=4)
    found = same_everywhere(lambda vector: activate(vector, x, name))
    assert same_bits(found, rows.ACTIVATIONS[name](x))
    in_place = x.copy()
    kernel(PRESENT[0]).activate(in_place, name, in_place, 1)
    assert same_bits(in_place, found)


@pytest.mark.parametrize("name", load(PRESENT[0]).vector.ACTIVATIONS)
def test_gates(name: str) -> None:
    for width in WIDTHS:
        gate_up = normal(20, 2 * width, seed=width, std=4)
        found = same_everywhere(lambda vector, x=gate_up: gate(vector, x, name))  # type: ignore[misc]
        assert same_bits(found, rows.gate(name, gate_up[:, :width], gate_up[:, width:]))


@pytest.mark.parametrize(
    ("name", "bound"), [("exp", 1.0), ("tanh", 2.0), ("softplus", 3.0), ("erfc", 6.0), ("silu", 2.5)]
)
def test_functions_err_by_no_more_than_they_say(name: str, bound: float) -> None:
    """A sample of all floats, one in 20,011; tools/measure_mathfun.py takes every one."""
    for target in PRESENT:
        assert measure_mathfun.worst(name, 20_011, target)[0] <= bound


@on_targets
def test_functions_at_the_ends(target: str) -> None:
    vector, inf = kernel(target), np.inf
    x = np.float32([-inf, -1e30, -0.0, 0.0, 1e30, inf, np.nan])
    for name, ends in (
        ("tanh", [-1, -1, -0.0, 0, 1, 1]),
        ("erfc", [2, 2, 1, 1, 0, 0]),
        ("softplus", [0, 0, np.float32(np.log(2)), np.float32(np.log(2)), 1e30, inf]),
        ("sigmoid", [0, 0, 0.5, 0.5, 1, 1]),
        ("relu", [0, 0, 0, 0, 1e30, inf]),
        ("exp", [0, 0, 1, 1, 1.6516363e38, 1.6516363e38]),
    ):
        found = activate(vector, x, name)
        assert np.isnan(found[-1])
        assert np.allclose(found[:-1], np.float32(ends), rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("cap", [5.0, 30.0])
def test_soft_cap(cap: float) -> None:
    x = normal(30, 3333, std=20)

    def run(vector: Any, n_threads: int = 1) -> np.ndarray:
        out = x.copy()
        vector.soft_cap(out, cap, n_threads)
        return out

    assert same_bits(run(kernel(PRESENT[0]), 3), rows.soft_cap(x, cap))
    assert same_bits(same_everywhere(run), rows.soft_cap(x, cap))


@pytest.mark.parametrize("width", WIDTHS)
def test_sums(width: int) -> None:
    x, y = normal(9, width), normal(9, width, seed=1)
    at, factors = np.array([7, 0, 3], np.int32), np.float32([0.5, -2, 0.3])

    def scaled(vector: Any, n_threads: int = 1) -> np.ndarray:
        out = x.copy()
        vector.add_scaled(out, y, 0.7, n_threads)
        return out

    def some(vector: Any) -> np.ndarray:
        out = x.copy()
        vector.add_rows(out, at, factors, y[:3].copy(), 1)
        return out

    exact = (x.astype(np.float64) + y.astype(np.float64) * np.float32(0.7)).astype(np.float32)
    assert same_bits(same_everywhere(scaled), exact)
    exact = x.copy()
    exact[at] = x[at].astype(np.float64) + factors[:, None].astype(np.float64) * y[:3]
    assert same_bits(same_everywhere(some), exact)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_rows_that_come_again_are_added_in_order(n_threads: int) -> None:
    x, y, factors = normal(5, 1000, std=1e3), normal(90, 1000, seed=1), normal(90, seed=2)
    at = np.random.default_rng(0).integers(0, 5, 90).astype(np.int32)

    def added(vector: Any) -> np.ndarray:
        out = x.copy()
        vector.add_rows(out, at, factors, y, n_threads)
        return out

    exact = x.copy()
    for row, factor, add in zip(at, factors.astype(np.float64), y.astype(np.float64)):
        exact[row] = exact[row] + factor * add  # each sum rounded once, as these products are exact in double
    found = same_everywhere(added)
    assert np.abs(found - exact).max() <= np.spacing(np.float32(4e3))  # double rounding may tip a last bit
    assert np.mean(found == exact) > 0.999


def test_a_gate_that_is_far_out_is_open_or_shut() -> None:
    gates = np.array([-np.inf, -3e38, -200, -89, -88, 88, 89, 200, 3e38], np.float32)
    out = same_everywhere(lambda vector: gate(vector, np.stack([gates, np.ones_like(gates)], axis=1)))[:, 0]
    assert np.array_equal(out[5:], gates[5:])
    assert np.isnan(out[0]) or out[0] == 0 or out[0] < -1e30  # -inf / (1 + e^88): exp stops growing there
    assert (np.abs(out[2:5]) < 2e-36).all()


@pytest.mark.parametrize("n_threads", [2, 3])
@on_targets
def test_threads_change_no_bit(target: str, n_threads: int) -> None:
    """Wide enough that threads do start: 65,536 elements."""
    x, weight, vector = normal(70, 1000), normal(1000), kernel(target)
    assert same_bits(rms_norm(vector, x, weight, n_threads=n_threads), rms_norm(vector, x, weight))
    gate_up = normal(70, 2000)
    assert same_bits(gate(vector, gate_up, n_threads=n_threads), gate(vector, gate_up))
    table = rope_table(vector, np.arange(70), rows.frequencies(50, 1e4))
    one, more = x.copy(), x.copy()
    vector.rope(one, 10, 100, table, True, 1)
    vector.rope(more, 10, 100, table, True, n_threads)
    assert same_bits(one, more)


@on_targets
def test_a_row_does_not_depend_on_its_neighbours(target: str) -> None:
    x, weight, gate_up, vector = normal(9, 50), normal(50), normal(9, 100), kernel(target)
    x[3], gate_up[3] = np.nan, np.nan
    for i in (0, 2, 4, 8):
        assert same_bits(rms_norm(vector, x, weight)[i], rms_norm(vector, x[i : i + 1], weight)[0])
        assert same_bits(gate(vector, gate_up)[i], gate(vector, gate_up[i : i + 1])[0])
    assert np.isnan(rms_norm(vector, x, weight)[3]).all()
    assert np.isnan(gate(vector, gate_up)[3]).all()


# --- exp and softmax -------------------------------------------------------------------------------


def test_exp_ends_at_zero() -> None:
    """Seen through a softmax over (x, 0) for x < -20: the sum it divides by is then exactly 1."""
    x = np.array([-87.299995, -87.3, -87.30001, -100, -1e30, -np.inf], np.float32)
    for target in PRESENT:
        out = np.array([softmax(kernel(target), np.float32([each, 0]))[0][0] for each in x])
        assert (out[:2] > 0).all()
        assert (out[2:] == 0).all()
        assert not np.signbit(out).any()


@pytest.mark.parametrize("width", WIDTHS)
def test_softmax(width: int) -> None:
    x = normal(width, seed=width, std=5)
    out = same_everywhere(lambda vector: softmax(vector, x)[0])
    assert softmax(kernel(PRESENT[0]), x)[1] is True
    assert same_bits(out, rows.softmax(x))
    shifted = same_everywhere(lambda vector: softmax(vector, x + np.float32(64))[0])
    assert np.allclose(out, shifted, rtol=5e-5)


def test_softmax_of_one_value_is_one() -> None:
    for value in (0.0, -3e38, 3e38, 17.5):
        assert same_everywhere(lambda vector, v=value: softmax(vector, np.float32([v]))[0])[0] == 1  # type: ignore[misc]


@on_targets
def test_softmax_gives_masked_values_exactly_nothing(target: str) -> None:
    x = normal(50)
    x[[0, 7, 16, 49]] = -np.inf
    out, sound = softmax(kernel(target), x)
    assert sound
    assert (out[[0, 7, 16, 49]] == 0).all()
    keep = np.isfinite(x)
    assert (out[keep] > 0).all()
    assert same_bits(out, rows.softmax(x))


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000])
@pytest.mark.parametrize("at", [0, 15, 16, 36])
@on_targets
def test_softmax_tells_of_nan_and_infinity(target: str, at: int, bits: int) -> None:
    x = normal(37)
    x.view(np.uint32)[at] = bits
    assert softmax(kernel(target), x)[1] is False


@on_targets
def test_softmax_of_nothing_but_masked_values_is_not_sound(target: str) -> None:
    for width in (1, 16, 40):
        assert softmax(kernel(target), np.full(width, -np.inf, np.float32))[1] is False
    assert softmax(kernel(target), np.empty(0, np.float32))[1] is False


# --- rotary embedding ------------------------------------------------------------------------------


def rope_table(vector: Any, positions: Any, frequencies: np.ndarray, magnitude: float = 1.0) -> np.ndarray:
    table = np.full((len(positions), 2, len(frequencies)), np.nan, np.float32)
    vector.rope_table(np.asarray(positions, np.int32), frequencies, magnitude, table)
    return table


@pytest.mark.parametrize("magnitude", [1.0, 0.75])
def test_rope_table_is_right_to_the_last_place(magnitude: float) -> None:
    """Cosines and sines up to position 10^6, also where they nearly vanish (an absolute error counts there).

    They are rounded, and once more by a magnitude other than 1.
    """
    positions = np.concatenate([np.arange(300), np.linspace(300, 999_999, 700).astype(int)])
    frequencies = rows.frequencies(64, 1e4)
    table = same_everywhere(lambda vector: rope_table(vector, positions, frequencies, magnitude))
    angles = (positions[:, None] * frequencies).astype(np.longdouble)  # a product of doubles
    for found, exact in ((table[:, 0], np.cos(angles)), (table[:, 1], np.sin(angles))):
        exact = exact * np.longdouble(magnitude)
        unit = np.spacing(np.abs(exact).astype(np.float32))
        assert (np.abs(found - exact) <= (0.51 if magnitude == 1 else 1.5) * unit + 1e-11).all()


def test_rope_table_in_every_quadrant() -> None:
    quarters = np.arange(400)
    table = same_everywhere(
        lambda vector: rope_table(vector, quarters, np.array([np.pi / 2, np.pi / 4 + 1e-9]))
    )
    assert np.allclose(table[:, 0, 0], [1, 0, -1, 0] * 100, atol=1e-10)
    assert np.allclose(table[:, 1, 0], [0, 1, 0, -1] * 100, atol=1e-10)
    exact = quarters * (np.pi / 4 + 1e-9)
    assert np.allclose(table[:, 0, 1], np.cos(exact), atol=1e-7)
    assert np.allclose(table[:, 1, 1], np.sin(exact), atol=1e-7)


def test_huge_angles_are_the_same_on_all_targets() -> None:
    positions = [0, 1, -1, 2**31 - 1, -(2**31)]
    frequencies = np.array([1.0, 3e5, 1e9, 1e300, np.inf, np.nan])
    table = same_everywhere(lambda vector: rope_table(vector, positions, frequencies))
    assert np.isnan(table[3, :, 2:]).all()
    assert np.isfinite(table[:, :, :2]).all()
    assert np.abs(table[:, :, :2]).max() <= 1.01


@pytest.mark.parametrize("neox", [False, True])
@pytest.mark.parametrize(
    ("heads", "dim", "n_rot", "width"), [(3, 32, 32, 96), (2, 20, 12, 50), (1, 7, 6, 7), (4, 16, 2, 64)]
)
def test_rope_turns_pairs(heads: int, dim: int, n_rot: int, width: int, neox: bool) -> None:
    x = normal(9, width)
    positions, frequencies = np.arange(100, 109), rows.frequencies(n_rot, 500.0)

    def run(vector: Any) -> np.ndarray:
        out = x.copy()
        vector.rope(out, heads, dim, rope_table(vector, positions, frequencies), neox, 1)
        return out

    out = same_everywhere(run)
    table = rows.rotation_table(positions, frequencies)
    wanted = rows.rotate(x[:, : heads * dim].reshape(9, heads, dim), table, neox)
    assert same_bits(out[:, : heads * dim].reshape(wanted.shape), wanted)
    rest = np.arange(width) % dim >= n_rot
    rest[heads * dim :] = True
    assert same_bits(out[:, rest].copy(), x[:, rest].copy())


# --- bad input -------------------------------------------------------------------------------------


@on_targets
def test_arrays_that_do_not_fit_are_refused(target: str) -> None:
    vector, x = kernel(target), normal(3, 8)
    table, i32 = np.zeros((3, 2, 4), np.float32), np.arange(4, dtype=np.int32)
    for text, call, *arguments in (
        ("weight: expected at least 8", vector.rms_norm, x, normal(7), 1e-5, x.copy(), 1),
        ("out: expected .* 3 rows of 8", vector.rms_norm, x, normal(8), 1e-5, x[:2].copy(), 1),
        ("gate_up: expected at least 3 rows of 10, got 3 of 8", vector.gate, x, "silu", normal(3, 5), 1),
        ("name: expected one of silu", vector.gate, x, "swish", normal(3, 4), 1),
        ("bias: expected at least 8", vector.layer_norm, x, None, 1e-5, x, 1, normal(7)),
        ("weight: expected at least 8", vector.head_norm, x, 2, 4, normal(4), 1e-5, 1),
        ("rows of 8, got 2 of 4 at 1", vector.head_norm, x, 2, 4, None, 1e-5, 1, 1),
        ("0 to 2, got 3", vector.add_rows, x, np.int32([3]), np.float32([1]), x[:1].copy(), 1),
        ("out: expected at least 4", vector.softmax, normal(4), normal(3)),
        ("table: expected at least 3 rows of 2 x 4", vector.rope, x, 1, 8, table[:2], False, 1),
        ("rope: expected .*, got 2 of 8 with", vector.rope, x, 2, 8, table, False, 1),
        ("rope: expected .*, got 1 of 7 with", vector.rope, x, 1, 7, table, False, 1),
        ("out: expected at least 4 rows of 2 x 4", vector.rope_table, i32, np.ones(4), 1.0, table),
    ):
        refuses(text, call, *arguments)
    for text, call, *arguments in (
        ("x: expected", vector.rms_norm, x.astype(float), normal(8), 1e-5, x, 1),
        ("x: expected a C-contiguous", vector.rms_norm, x[:, ::2], normal(4), 1e-5, x, 1),
        ("x: expected", vector.softmax, np.zeros(4), normal(4)),
        ("positions: expected", vector.rope_table, np.arange(3), np.ones(4), 1.0, table),
        ("frequencies: expected", vector.rope_table, i32[:3], np.ones(4, np.float32), 1.0, table),
    ):
        refuses(text, call, *arguments, error=TypeError)


@pytest.mark.parametrize("d", [1, 16, 37])
def test_streams_mix_in_order(d: int) -> None:
    """The bits of the reference, in place, too; the columns behind the streams are not read."""
    n, streams, outputs = 9, 5, 3
    x, weights = normal(n, streams * d + 4, seed=1), normal(n, outputs * streams, seed=2)
    added, factors = normal(n, d, seed=3), normal(n, outputs, seed=4)
    own = np.ascontiguousarray(x[:, : streams * d])
    parts, shares = own.reshape(n, streams, d), weights.reshape(n, outputs, streams)
    stated = [mixed(parts, shares).reshape(n, -1), mixed(parts, shares, added, factors).reshape(n, -1)]
    square = np.tile(weights[:, :streams], (1, streams))
    for target in PRESENT:
        vector, out = kernel(target), np.empty((n, outputs * d), np.float32)
        vector.mix_streams(x, streams, weights, out, 2)
        assert same_bits(out, stated[0])
        vector.mix_streams(x, streams, weights, out, 1, added, factors)
        assert same_bits(out, stated[1])
        again = own.copy()
        vector.mix_streams(again, streams, square, again, 2)
        assert same_bits(again[:, :d], mixed(parts, shares[:, :1]).reshape(n, d))


def test_matrices_become_almost_doubly_stochastic() -> None:
    for streams, rounds in ((4, 20), (3, 1), (16, 3)):
        x = normal(7, streams * streams, seed=streams, std=2)
        stated = balanced(x.reshape(7, streams, streams), 1e-6, rounds)
        assert np.allclose(stated.sum(axis=1), 1, atol=1e-4)
        for target in PRESENT:
            found = x.copy()
            load(target).vector.balance(found, streams, 1e-6, rounds, 2)
            assert same_bits(found, stated.reshape(7, -1))

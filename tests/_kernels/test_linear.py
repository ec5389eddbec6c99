"""`Linear`: the bits of the reference, whoever computes a row, and next to what."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from oxillama._kernels import load
from oxillama.base.formats import FORMATS, IN_MEMORY, LAYOUTS, LONGEST_ROW, W8A8
from tests.support.fma import fma
from tests.support.kernels import (
    COMPUTE,
    MULTIPLIED,
    NAMES,
    PRESENT,
    activation_of,
    apply,
    dequantized,
    linear,
    matrix,
    normal,
    on_targets,
    packed,
    product,
    put_scale,
    refuses,
    same_bits,
)

on_formats = pytest.mark.parametrize("name", MULTIPLIED)


def check(
    name: str,
    rows: np.ndarray,
    x: np.ndarray,
    out: np.ndarray,
    bias: np.ndarray | None = None,
    onto: np.ndarray | None = None,
) -> None:
    """Asserts that the product has the bits of the reference."""
    wanted = product(name, rows, x)
    wanted = wanted if bias is None else wanted + bias
    assert same_bits(np.ascontiguousarray(out), wanted if onto is None else onto + wanted)


def in_pieces(layer: Any, x: np.ndarray, size: int, n_threads: int = 1) -> np.ndarray:
    """What a `Linear` makes of x, so many rows at a time."""
    return np.concatenate([apply(layer, x[i : i + size], n_threads) for i in range(0, len(x), size)])


@pytest.mark.parametrize("name", [name for name in MULTIPLIED if activation_of(name) != "f32"])
def test_products_are_near_those_of_unquantized_activations(name: str) -> None:
    """int8 activations err by at most half a step of max|x| / 127 each, evenly either way."""
    rows, x = matrix(name, 64, 1024), normal(16, 1024, seed=5)
    weights = rows.view("<f4") if name in COMPUTE else dequantized(name, rows)
    out = apply(linear(PRESENT[0], [(name, rows)], 1024), x)
    step = np.abs(x).max(axis=1, keepdims=True) / 127
    deviation = step / np.sqrt(12) * np.sqrt((weights**2).sum(axis=1))  # of a sum of uniform errors
    assert (np.abs(out - x.astype(np.float64) @ weights.T) < 5 * deviation).all()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_shape_on_any_target_gives_the_bits_of_each_row_alone(data: st.DataObject) -> None:
    """Several matrices of any formats and heights, with or without bias, added or not; threads; tokens."""
    names = data.draw(st.lists(st.sampled_from(MULTIPLIED), min_size=1, max_size=3), label="formats")
    block = max(IN_MEMORY[name].block_len for name in names)
    cols = (
        block * data.draw(st.integers(1, 3), label="blocks") if block > 1 else data.draw(st.integers(1, 70))
    )
    heights = [data.draw(st.integers(1, 50), label="rows") for _ in names]
    n, seed = data.draw(st.integers(1, 40), label="tokens"), data.draw(st.integers(0, 2**31))
    parts = [
        (name, matrix(name, rows, cols, seed + i))
        for i, (name, rows) in enumerate(zip(names, heights, strict=True))
    ]
    x = normal(n, cols, seed=seed)
    bias = normal(sum(heights), seed=seed + 1) if data.draw(st.booleans(), label="bias") else None
    onto = normal(n, sum(heights), seed=seed + 2) if data.draw(st.booleans(), label="accumulate") else None

    layers = {target: linear(target, parts, cols, bias) for target in PRESENT}
    whole = apply(layers[PRESENT[0]], x, 1, onto)
    start = 0
    for name, rows in parts:
        span = slice(start, start + len(rows))
        added = None if bias is None else bias[span], None if onto is None else onto[:, span]
        check(name, rows, x, whole[:, span], *added)
        start += len(rows)
    for target, layer in layers.items():
        assert same_bits(apply(layer, x, data.draw(st.integers(1, 4), label="threads"), onto), whole), target
        i = data.draw(st.integers(0, n - 1), label="row")
        assert same_bits(
            apply(layer, x[i : i + 1], 1, onto if onto is None else onto[i : i + 1])[0], whole[i]
        )
    part = data.draw(st.integers(0, len(parts) - 1), label="part")
    first = sum(heights[:part])
    alone = linear(
        PRESENT[0], [parts[part]], cols, None if bias is None else bias[first : first + heights[part]]
    )
    span = slice(first, first + heights[part])
    assert same_bits(apply(alone, x, 1, onto if onto is None else onto[:, span]), whole[:, span].copy())


@on_formats
@on_targets
def test_threads_and_batches_of_a_large_matrix_change_no_bit(target: str, name: str) -> None:
    """Large enough that threads do start (400,000 multiplications), in several chunks."""
    cols, n = 512, 35
    layer = linear(
        target, [(name, matrix(name, 530, cols)), (name, matrix(name, 75, cols, 1))], cols, normal(605)
    )
    x = normal(n, cols, seed=2)
    whole = apply(layer, x)
    for n_threads in (2, 3, 4):
        assert same_bits(apply(layer, x, n_threads), whole)
    for size in (1, 2, 4, 5, 9, 16, 34):  # tiles of 8, 4, 2 and 1, in other places
        assert same_bits(in_pieces(layer, x, size, 2), whole)


@pytest.mark.parametrize(
    ("name", "cols"),
    [*((name, 512) for name in ("Q8_0", "Q4_0", "Q4_K", "Q6_K", "W8A8")), ("Q8_0", 8192), ("W8A8_128", 480)],
)
@on_targets
def test_few_rows_and_many_give_the_same_bits(target: str, name: str, cols: int) -> None:
    """Few rows take the panels a strip at a time, many rows and wide matrices a chunk at a time."""
    n = 137  # 17 tiles of 8
    rows = 100  # an odd number of panels, the last one cut
    layer = linear(target, [(name, matrix(name, rows, cols))], cols)
    x = normal(n, cols, seed=2)
    whole = apply(layer, x)
    for size, n_threads in ((8, 1), (24, 3), (100, 2), (n, 3)):
        assert same_bits(in_pieces(layer, x, size, n_threads), whole), (size, n_threads)


@pytest.mark.parametrize(
    "name",
    ["Q8_0", "Q4_0", "Q5_1", "Q1_0", "IQ4_NL", "MXFP4", "NVFP4", "Q2_K", "Q4_K", "Q6_K", "IQ3_S", "TQ2_0"],
)
@on_targets
def test_tokens_that_share_unpacked_panels_have_the_bits_of_few(target: str, name: str) -> None:
    """Several strips of panels in a chunk, the last of one panel; as many tiles as it takes, and a rest."""
    cols, layout = 4096, LAYOUTS[FORMATS[name].layout or ""]
    n = 8 * max(layout.unpacked_from, 2) + 5
    layer = linear(target, [(name, matrix(name, 13 * 16 - 3, cols))], cols)
    x = normal(n, cols, seed=2)
    few = in_pieces(layer, x, 8)  # one tile, or two of 4
    kernels = load(target)
    try:
        for unpacks, n_threads in ((True, 1), (True, 2), (False, 2)):
            kernels.linear.use_unpacked(unpacks)
            assert same_bits(apply(layer, x, n_threads), few)
    finally:
        kernels.linear.use_unpacked(kernels.unpacks_quick)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_in_a_group_each_row_comes_out_as_alone(data: st.DataObject) -> None:
    """Groups of any sizes, rows taken in any order and more than once, formats that differ; threads."""
    cols, seed = 256 * data.draw(st.integers(1, 5), label="blocks"), data.draw(st.integers(0, 2**31))
    heights = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=2), label="rows")
    counts = np.int32(data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=9), label="counts"))
    groups = [
        [
            (name, matrix(name, rows, cols, seed + 10 * g + i))
            for i, rows in enumerate(heights)
            for name in [data.draw(st.sampled_from(MULTIPLIED), label="format")]
        ]
        for g in range(len(counts))
    ]
    bias = normal(sum(heights), seed=seed) if data.draw(st.booleans(), label="bias") else None
    x, m = normal(data.draw(st.integers(1, 30), label="tokens"), cols, seed=seed), int(counts.sum())
    taken = np.random.default_rng(seed).integers(0, len(x), m).astype(np.int32)
    in_place = data.draw(st.booleans(), label="rows as they are")
    for target in PRESENT:
        linears = [linear(target, parts, cols, bias) for parts in groups]
        out = np.full((m, sum(heights)), np.nan, np.float32)
        scratch = np.empty(max(layer.scratch_bytes(m) for layer in linears), np.uint8)
        n_threads = data.draw(st.integers(1, 4), label="threads")
        args = (x[taken], None) if in_place else (x, taken)
        load(target).linear.apply_groups(linears, counts, *args, out, scratch, n_threads)
        of_group = np.repeat(np.arange(len(counts)), counts)
        for g, layer in enumerate(linears):
            assert same_bits(out[of_group == g], apply(layer, x[taken[of_group == g]]))


@on_targets
def test_groups_that_do_not_fit_are_refused(target: str) -> None:
    layer, other = (linear(target, [("Q8_0", matrix("Q8_0", rows, 32))], 32) for rows in (16, 17))
    x, out, scratch = normal(3, 32), np.empty((2, 16), np.float32), np.empty(layer.scratch_bytes(2), np.uint8)
    two = np.int32([0, 2])

    def call(
        linears: list[Any], counts: Any, rows: Any = two, room: Any = scratch, n_threads: int = 1
    ) -> None:
        load(target).linear.apply_groups(linears, np.int32(counts), x, rows, out, room, n_threads)

    call([layer], [2])
    refuses("linears: expected 1 to 512 groups, got 0", call, [], [])
    refuses("got 513", call, [layer] * 513, [1] * 513)
    refuses("n_threads: expected an integer from 1 to 1024, got 0", call, [layer], [2], n_threads=0)
    refuses("linears: expected shapes of 16 x 32, got 17 x 32", call, [layer, other], [1, 1])
    refuses("counts: expected 1 to 2 rows for group 0, got 3", call, [layer], [3])
    refuses("counts: expected 1 to 0 rows for group 1, got 0", call, [layer, layer], [2, 0])
    refuses("counts: expected 2 rows in all, got 1", call, [layer], [1])
    refuses("counts: expected at least 2", call, [layer, layer], [2])
    refuses("rows: expected 0 to 2, got 3", call, [layer], [2], np.int32([0, 3]))
    refuses("rows: expected 0 to 2, got -1", call, [layer], [2], np.int32([0, -1]))
    refuses("scratch: expected", call, [layer], [2], room=scratch[1:])


@on_targets
def test_an_empty_batch_does_nothing(target: str) -> None:
    layer = linear(target, [("Q8_0", matrix("Q8_0", 16, 32))], 32)
    assert apply(layer, np.empty((0, 32), np.float32)).shape == (0, 16)


def extremes(name: str) -> np.ndarray:
    """16 rows of 512 columns of the largest and smallest codes, sub-scales and minima; scales of 1."""
    fmt = FORMATS[name]
    blocks = np.zeros((16, 512 // fmt.block_len, fmt.block_bytes), np.uint8)
    fills = (0x00, 0xFF, 0x80, 0x7F, 0xF0, 0x0F, 0x88, 0x77)
    for row in range(16):
        blocks[row] = fills[row % 8]
        if row >= 8:
            blocks[row, :, 1::2] = fills[(row + 1) % 8]
    put_scale(name, blocks.reshape(-1, fmt.block_bytes), 0x3C00)
    return blocks.reshape(16, -1)


@pytest.mark.parametrize("name", [name for name in NAMES if FORMATS[name].block_len > 1])
@on_targets
def test_largest_codes_times_largest_activations_do_not_saturate(target: str, name: str) -> None:
    """Activations are whole numbers with a maximum of 127, so that everything but one rounding is exact."""
    rows = extremes(name)
    patterns = np.array([[127], [-127], [1], [0]], np.float32).repeat(512, axis=1)
    x = np.concatenate([patterns, patterns])
    x[4:, ::2] *= -1
    x[2:4, 0] = x[6:8, 0] = 127
    x[2:4, 256::32] = x[6:8, 256::32] = 127
    x[2:4, ::32] = x[6:8, ::32] = -127
    out = apply(linear(target, [(name, rows)], 512), x)
    check(name, rows, x, out)
    if name in ("Q4_0", "Q8_0"):  # their sums fit the 24 bits of a float
        assert np.array_equal(out, x.astype(np.float64) @ dequantized(name, rows).T)


@on_formats
@on_targets
def test_rows_of_zero_weights_give_zero(target: str, name: str) -> None:
    rows = matrix(name, 20, 512)  # two scales: sums of ternary codes are zero now and then
    rows[3] = rows[17] = 0
    out = apply(linear(target, [(name, rows)], 512), normal(5, 512))
    assert (out[:, [3, 17]] == 0).all()
    assert (np.delete(out, [3, 17], axis=1) != 0).all()


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-40, 3e-37, 2e-36, 1e-30, 1e30, 3e34])
@on_formats
def test_tiny_and_huge_activations_stay_what_they_are(name: str, size: float) -> None:
    rows = matrix(name, 16, 512)
    x = (np.sign(normal(3, 512)) * np.float32(size)).astype(np.float32)
    x[1] = normal(512)
    x[2, 256:] = 1
    found = [apply(linear(target, [(name, rows)], 512), x) for target in PRESENT]
    assert all(same_bits(out, found[0]) for out in found)
    assert np.isfinite(found[0]).all()
    check(name, rows, x, found[0])


@pytest.mark.parametrize(
    "bits", [0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000, 0xFF800000]
)
@on_formats
def test_what_is_not_finite_spoils_its_own_row_and_no_other(name: str, bits: int) -> None:
    """A NaN (any payload) or infinity in an activation shows in every result of its row: nothing hides it."""
    rows = matrix(name, 20, 512)
    x = normal(9, 512)
    clean = apply(linear(PRESENT[0], [(name, rows)], 512), x)
    x.view(np.uint32)[4, 300] = bits
    found = [apply(linear(target, [(name, rows)], 512), x) for target in PRESENT]
    for out in found:
        assert not np.isfinite(out[4]).any()
        assert same_bits(out, found[0])
        assert same_bits(np.delete(out, 4, axis=0), np.delete(clean, 4, axis=0))


@pytest.mark.parametrize(
    "names",
    [("Q8_0", "Q4_0"), ("Q4_K", "F16"), ("NVFP4", "BF16"), ("W8A8", "W8A8"), ("W8A8_128", "W8A8_128")],
)
@on_targets
def test_products_are_multiplied_with_the_scale_of_their_matrix(target: str, names: tuple[str, str]) -> None:
    """Before the bias is added, and before that is added to what is there."""
    parts, x = [(name, matrix(name, 24, 512, seed=i)) for i, name in enumerate(names)], normal(11, 512)
    scales, bias, onto = np.array([0.3, -7], np.float32), normal(48, seed=1), normal(11, 48, seed=2)
    panels = [packed(name, rows, 512) for name, rows in parts]
    make = load(target).linear.Linear
    wanted = apply(make(panels, 512), x) * np.repeat(scales, 24)
    assert same_bits(apply(make(panels, 512, scales=scales), x), wanted)
    assert same_bits(apply(make(panels, 512, bias, scales=scales), x), wanted + bias)
    assert same_bits(apply(make(panels, 512, bias, scales=scales), x, 2, onto), onto + (wanted + bias))


@pytest.mark.parametrize("name", [name for name in NAMES if FORMATS[name].block_len > 1])
@on_targets
def test_denormal_scales_count(target: str, name: str) -> None:
    rows = matrix(name, 16, 512)
    blocks = rows.reshape(-1, FORMATS[name].block_bytes)
    put_scale(name, blocks, 0x0003)
    x = normal(2, 512)
    out = apply(linear(target, [(name, rows)], 512), x)
    check(name, rows, x, out)
    assert (out != 0).all()


# --- one scale per row, or per 128 columns ---------------------------------------------------------


@pytest.mark.parametrize("name", COMPUTE)
@pytest.mark.parametrize(
    ("rows", "cols", "n"),
    [(1, 32, 1), (33, 96, 3), (100, 2080, 37), (16, 5632, 8), (20, 256, 20), (5, 1184, 9)],
)
@on_targets
def test_rows_that_packing_rounds_are_exact(target: str, rows: int, cols: int, n: int, name: str) -> None:
    """Short last spans, spans of zeros, and rows of more columns than a thread quantizes at a time."""
    w, x = normal(rows, cols, seed=rows), normal(n, cols, seed=n)
    w[rows // 2] = w[0, : cols // 2] = x[0, cols // 2 :] = 0
    x[n // 2] *= np.float32(1e-38)
    layer = linear(target, [(name, w.view(np.uint8))], cols)
    for n_threads in (1, 3):
        check(name, w.view(np.uint8), x, apply(layer, x, n_threads))


def test_a_large_value_makes_its_own_span_coarse_alone() -> None:
    """A large weight and a large activation: each 128 columns of both have a scale."""
    w, x = normal(16, 320, seed=1), normal(8, 320, seed=2)
    w[:, 5] = x[:, 200] = 1000
    exact = x.astype(np.float64) @ w.T
    error = {}
    for name in COMPUTE:
        error[name] = np.abs(apply(linear(PRESENT[0], [(name, w.view(np.uint8))], 320), x) - exact)
    assert error["W8A8_128"].mean() < 0.6 * error["W8A8"].mean()


@on_targets
def test_the_longest_row_does_not_overflow(target: str) -> None:
    """All products are 127 x 127, or their negatives: sums of 2,147,092,480, just below 2^31."""
    w = np.ones((2, LONGEST_ROW), np.float32)
    w[1] = -1
    x = np.ones((9, LONGEST_ROW), np.float32)
    x[3] = -1
    out = apply(linear(target, [("W8A8", w.view(np.uint8))], LONGEST_ROW), x)
    check("W8A8", w.view(np.uint8), x, out)
    assert (np.sign(out[:, 0]) == np.where(np.arange(9) == 3, -1, 1)).all()


def test_longer_rows_are_refused() -> None:
    cols, matrices = LONGEST_ROW + 32, [(LAYOUTS[W8A8.layout or ""].id, 1, None)]
    text = f"shape: expected at most {LONGEST_ROW} columns, got 1 x {cols}"
    refuses(text, load(PRESENT[0]).linear.Linear, matrices, cols, None)


# --- the fused multiply-add ------------------------------------------------------------------------


def triples() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """a, b, c for which a * b + c is hard to round: ties broken by a far bit, cancellation, denormals."""
    rng = np.random.default_rng(11)

    def random(n: int, low: int, high: int) -> np.ndarray:
        sign = rng.choice([-1.0, 1.0], n)
        return (sign * rng.integers(2**23, 2**24, n) * 2.0 ** rng.integers(low, high, n)).astype(np.float32)

    a, b, c = random(4000, -30, 8), random(4000, -30, 8), random(4000, -60, 8)
    # (1 + 2^-12)^2 lies half way between two floats; c, however small, moves it off
    tie = [(1 + 2.0**-12, 1 + 2.0**-12, s * 2.0**-k) for s in (1, -1) for k in range(20, 150)]
    far = [((2**24 - 1) * 2.0**-24, m * 2.0**-24, s * 2.0**k) for s in (1, -1) for m in (2**24 - 1, 2**23 + 1)
           for k in range(-80, 30)]  # fmt: skip
    # half an ulp and a trace; what a product loses by rounding
    half = [(1 + 2.0**-23, s * 2.0**-k, 1.0) for s in (1, -1) for k in range(20, 60)]
    near = [(x, y, -float(x * y)) for x, y in zip(a[:500], b[:500], strict=True)]
    small = [(m * 2.0**-100, n * 2.0**-60, s * 2.0**-149) for m in (1, 3, 2**24 - 1)
             for n in (1, 2**11 + 1, 2**23 - 1) for s in (-1, 0, 1, 2)]  # fmt: skip
    edge = [(2.0**-75, s * 2.0**-75, t * 2.0**-149) for s in (1, -1) for t in (0, 1, 2, -1)]
    large = [(2.0**127, 2 - 2.0**-23, s * 2.0**k) for s in (1, -1) for k in range(95, 128)]  # at the overflow
    extra = np.array(tie + far + half + near + small + edge + large, np.float32).T
    return tuple(np.concatenate([np.ravel(x), y]) for x, y in zip((a, b, c), extra, strict=True))  # type: ignore[return-value]


@on_targets
def test_every_target_rounds_a_multiply_add_once(target: str) -> None:
    """Two columns of F32 are fma(b, a, fma(1, c, 0)): the second is judged by exact rational arithmetic."""
    a, b, c = triples()
    wanted = np.array([fma(*t) for t in zip(a, b, c, strict=True)], np.float32)
    rows = np.stack([np.ones_like(a), a], axis=1).astype("<f4")  # row i: (1, a[i])
    found = np.empty_like(wanted)
    for start in range(0, len(a), 256):  # row i times token i: the diagonal
        span = slice(start, start + 256)
        layer = linear(target, [("F32", rows[span].view(np.uint8))], 2)
        found[span] = np.diagonal(apply(layer, np.stack([c[span], b[span]], axis=1)))
    different = np.flatnonzero((found != wanted) & ~(np.isnan(found) & np.isnan(wanted)))
    assert not len(different), [(a[i], b[i], c[i], found[i], wanted[i]) for i in different[:3]]


# --- bad input -------------------------------------------------------------------------------------


def shifted(data: np.ndarray) -> np.ndarray:
    """A copy of bytes, 8 bytes past an alignment to 64."""
    room = np.concatenate([data[:8], data, data[:64]])
    found = room[(8 - room.ctypes.data) % 64 or 8 :][: len(data)]
    assert found.ctypes.data % 64 == 8
    return found


@on_targets
def test_a_linear_that_cannot_be_is_refused(target: str) -> None:
    make = load(target).linear.Linear
    rows = matrix("Q8_0", 32, 64)
    layout, n, data = packed("Q8_0", rows, 64)
    for matrices, cols, bias, error, text in (
        ([], 64, None, ValueError, "matrices: expected 1 to 16, got 0"),
        ([(layout, n, data)] * 17, 64, None, ValueError, "matrices: expected 1 to 16, got more"),
        ([(-1, n, data)], 64, None, ValueError, f"layout: expected an id of 0 to {len(LAYOUTS) - 1}, got -1"),
        ([(len(LAYOUTS), n, data)], 64, None, ValueError, f"layout: expected .*, got {len(LAYOUTS)}"),
        ([(layout, 0, data)], 64, None, ValueError, "shape: expected .*, got 0 x 64"),
        ([(layout, n, data)], 63, None, ValueError, "shape: expected rows of blocks of 32, got 32 x 63"),
        ([(layout, n, data)], 0, None, ValueError, "shape: expected .*, got 32 x 0"),
        ([(layout, n + 1, data)], 64, None, ValueError, "matrix: expected"),
        ([(layout, n, data[:-1])], 64, None, ValueError, "matrix: expected"),
        ([(layout, n, data.view(np.int8))], 64, None, TypeError, "matrix: expected"),
        ([(layout, n, shifted(data))], 64, None, ValueError, "matrix: expected data aligned to 64 bytes"),
        ([(layout, n, data)], 64, np.zeros(31, np.float32), ValueError, "bias: expected at least 32"),
        ([(layout, n, data)], 64, np.zeros(32), TypeError, "bias: expected"),
    ):
        refuses(text, make, matrices, cols, bias, error=error)
    text = "scales: expected at least 2 elements, got 1"
    refuses(text, make, [(layout, n, data)] * 2, 64, scales=np.ones(1, np.float32))


@on_targets
def test_arrays_that_do_not_fit_are_refused(target: str) -> None:
    layer = linear(target, [("F32", matrix("F32", 20, 8))], 8)
    x, out = normal(3, 8), np.zeros((3, 20), np.float32)
    scratch = np.zeros(layer.scratch_bytes(3), np.uint8)
    assert (layer.rows, layer.cols) == (20, 8)
    for arguments, error, text in (
        ((x[:, :7].copy(), out, scratch, 1), ValueError, "x: expected at least 0 rows of 8, got 3 of 7"),
        ((x.astype(np.float64), out, scratch, 1), TypeError, "x: expected"),
        ((np.asfortranarray(x), out, scratch, 1), TypeError, "x: expected a C-contiguous"),
        ((x, out[:2], scratch, 1), ValueError, "out: expected at least 3 rows of 20"),
        ((x, out, scratch[:-1], 1), ValueError, "scratch: expected"),
        ((x, out, scratch, 0), ValueError, "n_threads: expected an integer from 1 to 1024, got 0"),
        ((x, out, scratch, -3), ValueError, "n_threads: expected an integer from 1 to 1024, got -3"),
    ):
        refuses(text, layer.apply, *arguments, error=error)


@on_targets
def test_panels_that_are_given_late_give_the_same_bits(target: str) -> None:
    x, matrices = normal(3, 64), [packed("Q4_0", matrix("Q4_0", rows, 64, rows), 64) for rows in (20, 33)]
    others = [packed("Q4_0", matrix("Q4_0", rows, 64, 7), 64) for rows in (20, 33)]
    kernels = load(target)
    late = kernels.linear.Linear([(layout, rows, None) for layout, rows, _ in matrices], 64)
    for each in (matrices, others, matrices):
        expected = apply(kernels.linear.Linear(each, 64), x)
        late.give([data for _, _, data in each])
        assert same_bits(apply(late, x), expected)
    late.give(None)
    out, scratch = np.zeros((3, 53), np.float32), np.zeros(late.scratch_bytes(3), np.uint8)
    text = "panels: expected a Linear that was given its panels"
    refuses(text, late.apply, x, out, scratch, 1)
    refuses(text, kernels.linear.apply_groups, [late], np.int32([3]), x, None, out, scratch, 1)


@on_targets
def test_only_late_panels_are_exchanged_and_only_for_panels_that_fit(target: str) -> None:
    (layout, rows, data), kernels = packed("Q4_0", matrix("Q4_0", 20, 64), 64), load(target)
    late = kernels.linear.Linear([(layout, rows, None)], 64)
    late.give([data])
    kept, b = apply(late, normal(1, 64)), linear(target, [("F32", matrix("F32", 3, 20))], 20)
    refuses("panels: expected 1 arrays, got 2", late.give, [data, data])
    refuses("panels: expected 1 arrays, got 0", late.give, [])
    refuses("expected at least", late.give, [data[:-1]])
    refuses("expected data aligned to 64 bytes", late.give, [shifted(data)])
    assert same_bits(apply(late, normal(1, 64)), kept)  # a refusal changes nothing
    make = kernels.linear.Linear
    refuses("expected a Linear made without panels", make([(layout, rows, data)], 64).give, [data])
    text = "expected the panels of all or of none"
    refuses(text, make, [(layout, rows, data), (layout, rows, None)], 64)
    text = "a: expected a Linear made with its panels"
    refuses(text, kernels.linear.LowRank, late, [(b, 0, 0)], np.ones(20))


def test_panels_are_not_exchanged_while_a_product_reads_them() -> None:
    (layout, rows, data), cols = packed("Q8_0", matrix("Q8_0", 512, 512), 512), 512
    late = load(PRESENT[-1]).linear.Linear([(layout, rows, None)], cols)
    late.give([data])
    done = threading.Event()

    def multiply() -> None:
        while not done.is_set():
            apply(late, normal(64, cols))

    thread = threading.Thread(target=multiply)
    thread.start()
    try:
        with pytest.raises(ValueError, match="panels: expected no running product, got 1"):
            while thread.is_alive():
                late.give([data])
    finally:
        done.set()
        thread.join()
    late.give(None)

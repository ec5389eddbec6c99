"""Attention over keys and values of bf16: pairs of dimensions and of positions, by one instruction or two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxillama._kernels import load
from tests.reference.test_attention import WAYS
from tests.support.kernels import PRESENT, on_targets, refuses, same_bits
from tests.support.paged_cache import SHAPES, Cache, rows, wanted

on_ways = pytest.mark.parametrize(("target", "bf16_dot"), WAYS)


@on_ways
@pytest.mark.parametrize("page_size", [1, 2, 16])
@pytest.mark.parametrize("window", [1, 6, 33])
def test_half_a_pair_is_seen(target: str, bf16_dot: bool | None, page_size: int, window: int) -> None:
    """Rows that begin or end between the two positions of a pair; whole, in chunks and one by one."""
    shape, heads = (1, 2, 24, 40), 6
    qkv = rows(90, shape, heads, seed=1)
    expected = wanted(qkv, shape, heads, "bf16", 0.3, window=window)
    for cuts in ([90], [1] * 90, [7, 57, 1, 25]):
        cache, first = Cache(target, shape, "bf16", page_size, n_pages=100, bf16_dot=bf16_dot), 0
        for n in cuts:
            (found,) = cache.run([(0, qkv[first : first + n])], heads, 0.3, 2, window=window)
            assert same_bits(found, expected[first : first + n])
            first += n


@on_ways
@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
@pytest.mark.parametrize("options", [{}, {"window": 5}, {"chunk": 9}], ids=str)
def test_the_other_one_of_a_pair_does_not_touch_a_row(
    target: str, bf16_dot: bool | None, value: float, options: dict[str, Any]
) -> None:
    shape, heads = (1, 1, 16, 32), 3  # rows of one tile see different positions
    qkv = rows(70, shape, heads, seed=2)
    clean = Cache(target, shape, "bf16", bf16_dot=bf16_dot).run([(0, qkv)], heads, 0.2, **options)[0]
    for position in (0, 1, 14, 15, 37, 62, 63):
        spoilt = qkv.copy()
        spoilt[position, heads * 16 :] = value
        cache = Cache(target, shape, "bf16", bf16_dot=bf16_dot)
        (found,) = cache.run([(0, spoilt)], heads, 0.2, **options)
        assert same_bits(found[:position], clean[:position])
        assert not np.isfinite(found[position]).all() or value == 3e38
        behind = position + options.get("window", 70)
        if "chunk" in options:
            behind = position + 9 - position % 9
        assert same_bits(found[behind:], clean[behind:])


@on_ways
@pytest.mark.parametrize(("of_keys", "of_values"), [(-70, -60), (-56, -56), (-30, -90), (60, 60), (0, -126)])
def test_the_smallest_numbers_give_the_same_bits(
    target: str, bf16_dot: bool | None, of_keys: int, of_values: int
) -> None:
    """Numbers around 2^-56 and below, subnormal ones among them, are 0 to all ways, or to none."""
    shape, heads = (1, 1, 16, 16), 2
    qkv = rows(80, shape, heads, seed=3)
    rng = np.random.default_rng(0)
    for columns, power in ((slice(0, 48), of_keys), (slice(48, 64), of_values)):
        qkv[:, columns] *= np.ldexp(np.float32(1), power + rng.integers(-8, 8, qkv[:, columns].shape))
    with np.errstate(all="ignore"):
        expected = wanted(qkv, shape, heads, "bf16", 1.0)
    cache = Cache(target, shape, "bf16", bf16_dot=bf16_dot)
    assert same_bits(cache.run([(0, qkv)], heads, 1.0)[0], expected)


@on_ways
@pytest.mark.parametrize("height", [30.0, 60.0, 86.0, 100.0])
def test_what_was_found_before_may_shrink_to_subnormal_numbers(
    target: str, bf16_dot: bool | None, height: float
) -> None:
    """A block with much higher scores: outputs and sums before it nearly vanish, and products cancel them."""
    shape, heads = (1, 1, 16, 16), 1
    qkv = rows(200, shape, heads, seed=4)
    qkv[:, :32] = 0
    qkv[:, 0] = 1
    qkv[64:, 16], qkv[130:, 16] = height, 2 * height
    qkv[:64, 32:] *= np.float32(2.0**-40)
    expected = wanted(qkv, shape, heads, "bf16", 1.0)
    cache = Cache(target, shape, "bf16", bf16_dot=bf16_dot)
    assert same_bits(cache.run([(0, qkv)], heads, 1.0)[0], expected)


@on_ways
def test_weights_are_rounded_and_add_up_to_one(target: str, bf16_dot: bool | None) -> None:
    """Two keys whose weights are 1 and e^-1 as bf16: their sum is that of the rounded weights."""
    shape, heads = (1, 1, 16, 16), 1
    qkv = np.zeros((2, 48), np.float32)
    qkv[1, 0] = qkv[0, 16] = 1  # the score of position 0 is 1, that of position 1 is 0
    qkv[0, 32:], qkv[1, 32:] = 1, 3
    small = np.float32(0.3671875)  # e^-1 with 8 bits
    expected = np.float32(1 + 3 * small) * (np.float32(1) / (1 + small))
    found = Cache(target, shape, "bf16", bf16_dot=bf16_dot).run([(0, qkv)], heads, 1.0)[0]
    assert (found[1] == expected).all()
    qkv[:, 32:] = 1.5
    found = Cache(target, shape, "bf16", bf16_dot=bf16_dot).run([(0, qkv)], heads, 1.0)[0]
    np.testing.assert_allclose(found, 1.5, rtol=2e-7)


@on_ways
def test_partitions_and_many_threads(target: str, bf16_dot: bool | None) -> None:
    shape, heads = SHAPES["odd keys"]
    qkv = rows(1200, shape, heads, seed=5)
    whole = Cache(target, shape, "bf16", 64, bf16_dot=bf16_dot).run([(0, qkv)], heads, 0.4)[0]
    first = Cache(PRESENT[0], shape, "bf16", 16, n_pages=80).run([(0, qkv)], heads, 0.4, 3)[0]
    assert same_bits(whole, first)
    cache = Cache(target, shape, "bf16", 8, n_pages=160, bf16_dot=bf16_dot)
    cache.run([(0, qkv[:-1])], heads, 0.4)
    assert same_bits(cache.run([(0, qkv[-1:])], heads, 0.4, 3)[0], whole[-1:])


@on_targets
def test_the_instruction_is_that_of_the_matrices(target: str) -> None:
    kernels = load(target)
    assert kernels.attention.BF16_DOT == kernels.linear.BF16_DOT
    cache = Cache(target, (1, 1, 16, 16), "bf16", bf16_dot=True)
    if kernels.attention.BF16_DOT:
        cache.batch([(0, 3)])
    else:
        refuses("bf16_dot: expected False where no instruction", cache.batch, [(0, 3)])

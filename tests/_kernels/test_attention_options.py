"""Options of attention: long contexts; what is out of view."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from oxillama.base.formats import KV_TYPES
from oxillama.reference.attention import View
from tests.support.kernels import PRESENT, on_targets, same_bits
from tests.support.paged_cache import Cache, attended, rows, wanted
from tests.support.spread import pairs

LONG: list[dict[str, Any]] = [
    {},
    {"window": 1500},
    {"window": 100},
    {"chunk": 1100},
    {"biases": np.random.default_rng(5).standard_normal((4, 257)).astype(np.float32)},
    {"biases": np.random.default_rng(6).standard_normal((4, 5)).astype(np.float32), "window": 40},
    {"softcap": 5.0},
    {"slopes": np.float32([0.01, 0.001, 0.0, 0.5]), "window": 1500},
    {"softcap": 5.0, "slopes": np.float32([0.01, 0.001, 0.0, 0.5]), "sinks": np.float32([1, 0, -9, 5])},
]
"""Options for sequences of more than one partition."""


@pytest.mark.parametrize(
    ("options", "kv_type", "causal"), pairs(LONG, ["f32", "q8_0"], [True, False]), ids=str
)
def test_a_long_sequence_is_as_stated(options: dict[str, Any], kv_type: str, causal: bool) -> None:
    shape, heads = (1, 2, 16, 16), 4
    qkv, scale = rows(3100, shape, heads), 0.25
    cache = Cache(PRESENT[0], shape, kv_type, 64)
    found = cache.run([(0, qkv)], heads, scale, 2, causal=causal, **options)[0]
    q, k, v = np.split(qkv, [64, 96], axis=1)
    k, v = (x.reshape(-1, 2, 16) for x in (k, v))
    for first in (0, 1020, 2047, 3092):
        few = q[first : first + 8].reshape(-1, 4, 16)
        stated = attended(few, k, v, scale, kv_type, first, causal=causal, **options)
        assert same_bits(found[first : first + 8], stated.reshape(-1, 64))


@pytest.mark.parametrize("n", [1024, 1025, 2048, 2049])
def test_a_partition_may_have_one_position(n: int) -> None:
    """The last row sees 1 to 3 partitions of 1024 positions, of which the last has 1024 positions or one."""
    shape, heads = (1, 2, 16, 16), 4
    qkv = rows(n, shape, heads)
    cache = Cache(PRESENT[0], shape, "f32", 64)
    cache.run([(0, qkv[:-1])], heads, 0.25, 2)
    found = cache.run([(0, qkv[-1:])], heads, 0.25, 2)[0]
    assert same_bits(found, wanted(qkv, shape, heads, "f32", 0.25, n=1))


@pytest.mark.parametrize(("options", "kv_type"), pairs(LONG, ["f16", "q8_0"]), ids=str)
def test_partitions_on_threads_change_no_bit(options: dict[str, Any], kv_type: str) -> None:
    """One sequence has too few units for its threads: partitions are shared out; a long chunk's units are."""
    shape, heads = (1, 2, 64, 64), 4
    qkv, scale = rows(2600, shape, heads), 0.125
    whole = Cache(PRESENT[0], shape, kv_type, 256).run([(0, qkv)], heads, scale, 2, **options)[0]
    full = Cache(PRESENT[0], shape, kv_type, 8, n_pages=500)
    full.run([(0, qkv[:2590]), (1, qkv[:1025])], heads, scale, 3, **options)
    for target, n_threads in product(PRESENT, (1, 2, 7)):
        cache = Cache(target, shape, kv_type, 8, n_pages=500)
        cache.memory, cache.table = full.memory, full.table
        cache.pages, cache.free, cache.lengths = dict(full.pages), list(full.free), dict(full.lengths)
        found = cache.run([(0, qkv[2590:2591])], heads, scale, n_threads, **options)
        found += cache.run([(0, qkv[2591:2597])], heads, scale, n_threads, **options)
        found += cache.run([(1, qkv[1025:1040]), (0, qkv[2597:])], heads, scale, n_threads, **options)
        assert same_bits(np.concatenate([*found[:2], found[3]]), whole[2590:]), (target, n_threads)
        assert same_bits(found[2], whole[1025:1040]), (target, n_threads)


@on_targets
def test_many_waves_of_partitions_change_no_bit(target: str) -> None:
    """More tasks than there is room for at a time: a unit of 64 rows fills its state."""
    shape, heads = (1, 1, 16, 16), 64
    qkv = rows(1, shape, heads)
    found = []
    for n_threads in (1, 2):
        cache = Cache(target, shape, "f32", 1024, n_pages=20)
        cache.batch([(0, 1024 * 20 - 1)])
        random = np.random.default_rng(5)
        for page in cache.memory:
            page.view(np.float32)[:] = random.standard_normal(page.nbytes // 4)
        found.append(cache.run([(0, qkv)], heads, 0.25, n_threads)[0])
    assert same_bits(found[0], found[1])
    assert np.isfinite(found[0]).all()


@pytest.mark.parametrize("size", [0.0, 1.0, 300.0, 1e6])
def test_a_soft_cap_bends_scores_of_every_size(size: float) -> None:
    shape, heads = (1, 1, 16, 16), 2
    qkv = rows(120, shape, heads)
    qkv[:, :32] *= size
    found = Cache(PRESENT[0], shape).run([(0, qkv)], heads, 0.25, softcap=4.0)[0]
    assert same_bits(found, wanted(qkv, shape, heads, "f32", 0.25, softcap=4.0))


@on_targets
def test_a_sink_can_take_everything_or_nothing(target: str) -> None:
    shape, heads = (1, 1, 16, 16), 3
    qkv = rows(40, shape, heads)
    plain = Cache(target, shape).run([(0, qkv)], heads, 0.25)[0]
    sinks = np.array([-np.inf, 1e30, np.nan], np.float32)
    out = Cache(target, shape).run([(0, qkv)], heads, 0.25, sinks=sinks)[0]
    assert same_bits(out[:, :16], plain[:, :16])
    assert (out[:, 16:32] == 0).all()
    assert np.isnan(out[:, 32:]).all()


@pytest.mark.parametrize(
    "view", [{"window": 30}, {"chunk": 50}, {"window": 30, "causal": False}], ids=" ".join
)
@pytest.mark.parametrize(("kv_type", "value"), pairs(sorted(KV_TYPES), [np.inf, -np.inf, np.nan, 3e38]))
@on_targets
def test_what_is_out_of_view_does_not_touch_a_row(
    target: str, value: float, kv_type: str, view: dict[str, Any]
) -> None:
    """Behind and ahead, with every option that touches scores."""
    shape, heads = (1, 1, 32, 32), 3
    slopes, sinks = np.array([0.1, 0.0, 1.0], np.float32), np.array([1, 2, 3], np.float32)
    options = {**view, "softcap": 2.0, "slopes": slopes, "sinks": sinks}
    qkv = rows(130, shape, heads)
    clean = Cache(target, shape, kv_type, 4).run([(0, qkv)], heads, 0.2, **options)[0]
    for position in (0, 49, 70, 129):
        spoilt = qkv.copy()
        spoilt[position, heads * 32 :] = value
        found = Cache(target, shape, kv_type, 4).run([(0, spoilt)], heads, 0.2, **options)[0]
        at, seen = np.arange(130), View(**view)
        unseen = (position < seen.first(at)) | (position >= seen.last(at, 130))
        assert 0 < unseen.sum() < 130
        assert same_bits(found[unseen], clean[unseen])
        assert not same_bits(found[~unseen], clean[~unseen])


def test_scores_of_minus_infinity_alone_give_nan_and_touch_no_neighbour() -> None:
    shape, heads = (1, 1, 16, 16), 1
    qkv = rows(80, shape, heads)
    qkv[:, :16] = 1
    qkv[:20, 16] = -np.inf
    found = Cache(PRESENT[0], shape).run([(0, qkv)], heads, 1.0)[0]
    assert np.isnan(found[:20]).all()
    cache = Cache(PRESENT[0], shape)
    pieces = [cache.run([(0, qkv[a:b])], heads, 1.0)[0] for a, b in ((0, 13), (13, 30), (30, 60), (60, 80))]
    assert same_bits(np.concatenate(pieces), found)
    assert same_bits(found[20:], wanted(qkv, shape, heads, "f32", 1.0, n=60))


def test_scratch_does_not_grow_with_the_context() -> None:
    sizes = set()
    for length in (10, 1000, 60000):
        cache = Cache(PRESENT[0], (1, 2, 16, 16), "f16", 1024)
        sizes.add(cache.batch([(0, length)]).scratch_bytes(2))
    assert len(sizes) == 1

"""The reference's attention: the bits of the kernel, for every KV type, shape and option."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxillama._kernels import load
from oxillama.base.formats import KV_TYPES
from tests.support.kernels import PRESENT, same_bits
from tests.support.paged_cache import KINDS, SHAPES, Cache, rows, some_options, wanted
from tests.support.spread import leading, pairs

WAYS: list[tuple[str, bool | None]] = [
    (target, way)
    for target in PRESENT
    for way in ((True, False) if load(target).attention.BF16_DOT else (None,))
]
"""Targets; those that have an instruction for pairs of bf16 with it and without it."""


@pytest.mark.parametrize(
    ("target", "name", "kv_type"),
    [*pairs(PRESENT[:1], SHAPES, KINDS), *pairs(PRESENT[1:], SHAPES, KINDS)],
)
def test_kv_types_and_shapes(target: str, name: str, kv_type: str) -> None:
    shape, heads = SHAPES[name]
    qkv, scale = rows(83 if heads < 64 else 9, shape, heads), shape[2] ** -0.5
    (found,) = Cache(target, shape, kv_type).run([(0, qkv)], heads, scale, layer=shape[0] - 1)
    assert same_bits(found, wanted(qkv, shape, heads, kv_type, scale))


LIMITS = [(1, 0), (5, 0), (64, 0), (100, 0), (10**6, 0), (0, 1), (0, 48), (0, 64), (0, 8192), (20, 48)]
"""Windows and chunks, 0 for none."""


@pytest.mark.parametrize(("window", "chunk"), LIMITS)
@pytest.mark.parametrize("name", ["multi-head", "grouped", "odd values"])
def test_limited_views(name: str, window: int, chunk: int) -> None:
    shape, heads = SHAPES[name]
    qkv, scale = rows(133, shape, heads), shape[2] ** -0.5
    (found,) = Cache(PRESENT[0], shape).run([(0, qkv)], heads, scale, window=window, chunk=chunk)
    assert same_bits(found, wanted(qkv, shape, heads, "f32", scale, window=window, chunk=chunk))


@pytest.mark.parametrize("seed", leading(range(120), 24))
def test_options_together(seed: int) -> None:
    """Over random shapes and KV types."""
    rng = np.random.default_rng(seed)
    kv_heads, group = int(rng.integers(1, 4)), int(rng.choice([1, 2, 3, 8, 9, 70]))
    key_dim, value_dim = (int(rng.choice([1, 5, 16, 31, 32, 40, 64, 100, 128])) for _ in range(2))
    shape, heads = (1, kv_heads, key_dim, value_dim), kv_heads * group
    options, kv_type = some_options(rng, heads), str(rng.choice(sorted(KV_TYPES)))
    qkv = rows(int(rng.integers(1, 200 if group < 10 else 40)), shape, heads, seed)
    scale = float(rng.choice([0.1, 1.0])) * key_dim**-0.5
    page_size, n_threads = int(rng.choice([1, 4, 16, 64])), int(rng.integers(1, 4))
    target, bf16_dot = WAYS[seed % len(WAYS)]
    cache = Cache(target, shape, kv_type, page_size, n_pages=200, bf16_dot=bf16_dot)
    (found,) = cache.run([(0, qkv)], heads, scale, n_threads, **options)
    assert same_bits(found, wanted(qkv, shape, heads, kv_type, scale, **options)), options


@pytest.mark.parametrize("options", [{}, {"window": 1030}])
def test_partitions(options: dict[str, Any]) -> None:
    """Behind position 1,024 what was seen before it is merged, in order."""
    shape, heads = (1, 1, 3, 2), 1
    qkv = rows(2100, shape, heads, seed=3)
    expected = wanted(qkv, shape, heads, "f32", 1.0, **options)
    for target in PRESENT:
        (found,) = Cache(target, shape, "f32", page_size=64).run([(0, qkv)], heads, 1.0, **options)
        assert same_bits(expected, found)

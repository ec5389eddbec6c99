"""The reference's attention: the bits of the kernel, for every KV type and option."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxillama._kernels import load
from oxillama.reference.attention import View, attend
from oxillama.reference.kv import store
from tests.support.kernels import PRESENT, same_bits
from tests.support.paged_cache import KINDS, SHAPES, Cache, rows, some_options

NAMES = {"softcap": "soft_cap"}

WAYS = [(target, None) for target in PRESENT] + [
    (target, False) for target in PRESENT if load(target).attention.BF16_DOT
]
"""Targets, and those that have an instruction for pairs of bf16 without it."""


def stated(
    qkv: np.ndarray, shape: tuple[int, ...], heads: int, kv_type: str, scale: float, **options: Any
) -> np.ndarray:
    """What the reference makes of rows (n, q + k + v)."""
    _, kv_heads, key_dim, value_dim = shape
    q, k, v = np.split(qkv, np.cumsum([heads * key_dim, kv_heads * key_dim]), axis=1)
    n, view = len(qkv), View(**{NAMES.get(name, name): value for name, value in options.items()})
    kv = store(k.reshape(n, kv_heads, key_dim), v.reshape(n, kv_heads, value_dim), kv_type)
    return attend(q.reshape(n, heads, key_dim), kv, scale, view).reshape(n, -1)


@pytest.mark.parametrize("target", PRESENT)
@pytest.mark.parametrize("kv_type", KINDS)
def test_every_kv_type(kv_type: str, target: str) -> None:
    shape, heads = (1, 2, 40, 37), 4
    qkv = rows(70, shape, heads, seed=1)
    (found,) = Cache(target, shape, kv_type).run([(0, qkv)], heads, 0.3)
    assert same_bits(stated(qkv, shape, heads, kv_type, 0.3), found)


@pytest.mark.parametrize("kv_type", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["multi-query", "narrow keys", "odd keys", "few values"])
def test_shapes_and_options(name: str, kv_type: str) -> None:
    shape, heads = SHAPES[name]
    rng = np.random.default_rng(sum(name.encode()))
    for _ in range(2):
        options, qkv = some_options(rng, heads), rows(90, shape, heads, seed=2)
        expected = stated(qkv, shape, heads, kv_type, 0.5, **options)
        for target, bf16_dot in WAYS:
            cache = Cache(target, shape, kv_type, bf16_dot=bf16_dot)
            (found,) = cache.run([(0, qkv)], heads, 0.5, **options)
            assert same_bits(expected, found), options


@pytest.mark.parametrize("options", [{}, {"window": 1030}])
def test_partitions(options: dict[str, int]) -> None:
    """Behind position 1,024 what was seen before it is merged, in order."""
    shape, heads = (1, 1, 3, 2), 1
    qkv = rows(2100, shape, heads, seed=3)
    expected = stated(qkv, shape, heads, "f32", 1.0, **options)
    for target in PRESENT:
        (found,) = Cache(target, shape, "f32", page_size=64).run([(0, qkv)], heads, 1.0, **options)
        assert same_bits(expected, found)

"""The public attention functions: arrays in, arrays out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oxillama
from oxillama import batched_flash_attention, flash_attention_forward
from oxillama.errors import ConfigError
from tests.support.kernels import normal, refuses, same_bits
from tests.support.paged_cache import attended, some_options


def arrays(
    tokens: int,
    positions: int,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 24,
    value: int = 24,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, k = normal(tokens, heads * dim, seed=seed), normal(positions, kv_heads * dim, seed=seed + 1)
    v = normal(positions, kv_heads * value, seed=seed + 2)
    return q.reshape(-1, heads, dim), k.reshape(-1, kv_heads, dim), v.reshape(-1, kv_heads, value)


@pytest.mark.parametrize("seed", range(40))
def test_it_is_softmax_attention(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kv_heads, group, dim, value = (int(rng.integers(1, top)) for top in (4, 5, 70, 70))
    positions = int(rng.integers(1, 300))
    tokens = int(rng.integers(1, positions + 1))
    q, k, v = arrays(tokens, positions, kv_heads * group, kv_heads, dim, value, seed)
    options = some_options(rng, kv_heads * group)
    causal = options.pop("causal", True)
    options.pop("chunk", None)
    scale = None if seed % 2 else 0.2
    found = flash_attention_forward(q, k, v, kv_heads * group, dim, scale, causal, **options, num_threads=2)
    assert same_bits(found, attended(q, k, v, scale or dim**-0.5, causal=causal, **options))


def test_flat_arrays_are_heads_side_by_side() -> None:
    q, k, v = arrays(7, 9, value=10)
    flat = flash_attention_forward(*(x.reshape(len(x), -1) for x in (q, k, v)), 4, 24)
    assert same_bits(flat, flash_attention_forward(q, k, v, 4, 24).reshape(7, 40))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8])
def test_other_numbers_are_taken_as_float32(dtype: Any) -> None:
    q, k, v = ((4 * x).astype(dtype) for x in arrays(7, 9))
    as_float = (x.astype(np.float32) for x in (q, k, v))
    assert same_bits(flash_attention_forward(q, k, v, 4, 24), flash_attention_forward(*as_float, 4, 24))


@pytest.mark.parametrize(("tokens", "positions"), [(50, 7), (14, 7), (1, 1), (8, 7), (3, 200)])
def test_without_a_mask_there_may_be_more_queries_than_positions(tokens: int, positions: int) -> None:
    q, k, v = arrays(tokens, positions)
    found = flash_attention_forward(q, k, v, 4, 24, causal_mask=False)
    assert same_bits(found, attended(q, k, v, 24**-0.5, first=0, causal=False))


def test_a_batch_is_its_sequences_bit_for_bit() -> None:
    sequences = [
        arrays(tokens, positions, seed=positions) for tokens, positions in ((5, 90), (70, 70), (0, 3), (1, 1))
    ]
    q, k, v = (list(x) for x in zip(*sequences))
    for causal in (True, False):
        found = batched_flash_attention(q, k, v, 4, 24, 0.3, causal, softcap=3.0)
        assert isinstance(found, list)
        for out, parts in zip(found, sequences, strict=True):
            assert same_bits(
                out, flash_attention_forward(*parts, 4, 24, 0.3, causal, softcap=3.0, num_threads=1)
            )


def test_a_batch_in_one_array_comes_back_in_one() -> None:
    q, k, v = (np.stack([x, x[::-1]]) for x in arrays(33, 33))
    found = batched_flash_attention(q, k, v, 4, 24)
    assert found.shape == (2, 33, 4, 24)
    assert same_bits(found[1], flash_attention_forward(q[1], k[1], v[1], 4, 24))
    assert batched_flash_attention(q[:0], k[:0], v[:0], 4, 24).shape == (0, 33, 4, 24)
    assert batched_flash_attention([], [], [], 4, 24) == []


def test_what_does_not_fit_is_refused() -> None:
    q, k, v = arrays(5, 9)
    shapes = r"shape \(n, 8, 24\) or \(n, 192\), got float32 \(5, 4, 24\)"
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((q, k, v, 0, 24), {}, "num_heads: expected an integer >= 1, got 0"),
        ((q, k, v, 4, 0), {}, "head_dim: expected an integer >= 1, got 0"),
        ((q, k, v, 4, 24), {"num_threads": 0}, "num_threads: expected an integer >= 1, got 0"),
        ((q, k, v, 4, 24), {"window": -1}, "(window|softcap): expected a finite number >= 0"),
        ((q, k, v, 4, 24), {"softcap": np.inf}, "(window|softcap): expected a finite number >= 0"),
        ((q, k, v, 5, 24), {}, r"k: expected heads of 24 whose number divides 5, got \(9, 2, 24\)"),
        ((q, k, v, 8, 24), {}, rf"q\[0\]: expected real numbers of {shapes}"),
        ((q, k, v, 4, 23), {}, "k: expected heads of 23"),
        ((q, k, v[:, :1, :23], 4, 24), {}, "v: expected 2 heads"),
        ((q, k, v[:8], 4, 24), {}, r"v\[0\]: expected 9 positions, as k\[0\] has, got 8"),
        ((q[0, 0], k, v, 4, 24), {}, r"q\[0\]: expected"),
        ((q.astype(str), k, v, 4, 24), {}, r"q\[0\]: expected real numbers"),
        ((q + 1j, k, v, 4, 24), {}, r"q\[0\]: expected real numbers"),
        ((q, k[:4], v[:4], 4, 24), {}, r"q\[0\]: expected at most 4 tokens"),
        ((q, k[:4], v[:4], 4, 24, None, False), {"window": 3}, r"q\[0\]: expected at most 4 tokens"),
        ((q, k[:0], v[:0], 4, 24, None, False), {}, r"q\[0\]: expected at most 0 tokens"),
        ((q, k, v, 4, 24), {"sinks": np.zeros(3)}, r"sinks: expected real numbers of shape \(4,\)"),
        ((q, k, v, 4, 24), {"slopes": np.zeros((4, 1))}, r"slopes: expected real numbers of shape \(4,\)"),
    ]
    for arguments, options, text in cases:
        refuses(text, flash_attention_forward, *arguments, error=ConfigError, **options)
    batched, given = batched_flash_attention, ([q, q], [k, k[:, :1]], [v, v], 4, 24)
    text = "expected one of each for every sequence, got 2, 1 and 1"
    refuses(text, batched, [q, q], [k], [v], 4, 24, error=ConfigError)
    refuses(r"k\[1\]: expected real numbers", batched, *given, error=ConfigError)


def test_the_package_exports_them() -> None:
    assert {"batched_flash_attention", "flash_attention_forward"} <= set(oxillama.__all__)

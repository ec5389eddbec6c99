"""Which parametrizations run every time, and which are slow: they repeat what another one checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import product
from typing import Any

import pytest

ARCHITECTURES = frozenset(
    (
        *("llama", "phi3", "gpt2", "falcon", "bloom", "gemma3", "gpt-oss", "qwen2vl", "qwen3moe", "llama4"),
        *("deepseek2", "deepseek32", "mamba2", "jamba", "rwkv7", "qwen3next", "lfm2", "bert", "t5encoder"),
    )
)
"""One for each kind of layer, of positions, of experts and of what is kept of earlier tokens."""


def slow(value: Any) -> Any:
    """The value for `parametrize`, or those of several arguments, marked as slow."""
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)


def few(values: Iterable[Any], fast: Collection[Any] = ARCHITECTURES) -> list[Any]:
    """The values for `parametrize`; those that are not in ``fast`` are slow."""
    return [value if value in fast else slow(value) for value in values]


def leading(values: Iterable[Any], n: int) -> list[Any]:
    """The values for `parametrize`; those behind the first ``n`` are slow."""
    return [value if i < n else slow(value) for i, value in enumerate(values)]


def each(values: Iterable[Any], n: int) -> list[Any]:
    """The values for `parametrize`; slow but for the first and every ``n``-th from there."""
    return [slow(value) if i % n else value for i, value in enumerate(values)]


def pairs(*axes: Iterable[Any]) -> list[Any]:
    """All combinations for `parametrize`; slow but for as many as show each value of each axis."""
    lists = [list(axis) for axis in axes]
    longest = max(map(len, lists)) if all(lists) else 0
    shown = {tuple(i % len(values) for values in lists) for i in range(longest)}
    found = []
    for numbers in product(*(range(len(values)) for values in lists)):
        combination = tuple(values[i] for values, i in zip(lists, numbers))
        found.append(combination if numbers in shown else slow(combination))
    return found

"""Which parametrizations run every time, and which are slow: they repeat what another one checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import product
from typing import Any

import pytest

CASES = 10
"""Cases of a test that run every time, if all tests of the project run."""

ARCHITECTURES = frozenset(
    (
        *("llama", "phi3", "gpt2", "falcon", "bloom", "gemma3", "gpt-oss", "qwen2vl", "qwen3moe", "llama4"),
        *("deepseek2", "deepseek32", "mamba2", "jamba", "rwkv7", "qwen3next", "lfm2", "bert", "t5encoder"),
        *("gemma4", "minimax-01", "hrm_text", "graniteswitch", "minimax-m3", "kimi-k3", "bailingmoe3"),
        *("qwen4exp", "deepseek4", "glm5-next", "hy_v4", "muse-glimmer"),
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


def spread(tests: Iterable[pytest.Item]) -> None:
    """Marks the cases of each test as slow, but for `CASES` of them at even distances."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in tests:
        if item.get_closest_marker("slow") is None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for items in cases.values():
        kept = {i * len(items) // CASES for i in range(CASES)}
        for i, item in enumerate(items):
            if len(items) > CASES and i not in kept:
                item.add_marker("slow")

"""What stays in memory under a budget."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from oxillama.errors import ConfigError
from oxillama.models.offload.plan import Plan, Sizes, make_plan

SIZES = st.builds(
    lambda parts, expert, n, used: Sizes(parts, (), expert if n else 0, n * expert, 0, min(used, n)),
    st.lists(st.integers(1, 50), min_size=1, max_size=30),
    st.integers(1, 40),
    st.integers(0, 60),
    st.integers(1, 8),
)


def used(sizes: Sizes, plan: Plan) -> int:
    return sum(sizes.parts[i] for i in plan.stays) + plan.n_buffers * plan.buffer_bytes + plan.expert_bytes


@given(SIZES, st.data())
def test_a_plan_is_within_its_budget_and_sufficient(sizes: Sizes, data: st.DataObject) -> None:
    budget = data.draw(st.integers(sizes.least, sizes.total + 5))
    plan = make_plan(sizes, budget)
    assert used(sizes, plan) <= budget
    others = [n for i, n in enumerate(sizes.parts) if i not in plan.stays]
    assert plan.buffer_bytes == max(others, default=0)
    assert plan.n_buffers in ((1, 2) if others else (0,))
    assert not sizes.experts or plan.expert_bytes >= sizes.expert
    if budget >= sizes.total:
        assert not others and plan.expert_bytes == sizes.experts
    # nothing that would fit is left out
    if len(others) > 1 and not sizes.experts:
        rest = sorted(others)[1:]
        assert used(sizes, plan) - plan.n_buffers * (plan.buffer_bytes - rest[-1]) + min(others) > budget


@given(SIZES)
def test_a_budget_below_the_least_is_refused(sizes: Sizes) -> None:
    make_plan(sizes, sizes.least)
    with pytest.raises(ConfigError, match=f"offload_budget: expected at least {sizes.least} bytes"):
        make_plan(sizes, sizes.least - 1)


@pytest.mark.parametrize("budget", range(2, 41))
def test_equal_parts_that_stay_are_spread_evenly(budget: int) -> None:
    plan = make_plan(Sizes([1] * 40), budget)
    streamed = [i for i in range(40) if i not in plan.stays]
    assert len(streamed) == (40 - budget + 2 if budget < 40 else 0)
    gaps = [b - a for a, b in zip(streamed, [*streamed[1:], streamed[0] + 40])] if streamed else [0]
    assert max(gaps) - min(gaps) <= 2


@pytest.mark.parametrize(
    ("sizes", "budget", "expected"),
    [
        # the large last part stays, so that buffers are small
        (Sizes([10] * 6 + [100]), 120, Plan(frozenset({6}), 10, 2, 0)),
        # but not where it alone does not fit beside a buffer
        (Sizes([10] * 6 + [100]), 105, Plan(frozenset(), 100, 1, 0)),
        # pinned parts stay first
        (Sizes([10] * 6, {0, 1}), 40, Plan(frozenset({0, 1}), 10, 2, 0)),
        # the experts of a token come before parts that stay, and the rest is for experts
        (Sizes([10] * 4, (), 5, 100, 0, 3), 20 + 15, Plan(frozenset(), 10, 2, 15)),
        (Sizes([10] * 4, (), 5, 100, 0, 3), 40 + 33, Plan(frozenset({0, 1, 2, 3}), 0, 0, 33)),
        # where they do not fit, one expert at a time is enough
        (Sizes([10] * 4, (), 5, 100, 0, 3), 15, Plan(frozenset(), 10, 1, 5)),
    ],
)
def test_what_comes_first(sizes: Sizes, budget: int, expected: Plan) -> None:
    assert make_plan(sizes, budget) == expected


def test_pinned_experts_count() -> None:
    sizes: Any = Sizes([10] * 4, {0}, 5, 100, 20, 3)
    assert sizes.least == 10 + 10 + 20 + 5
    assert make_plan(sizes, sizes.least).expert_bytes == 25

"""How many tokens are drafted: by what was accepted and what rows cost."""

from __future__ import annotations

import itertools
import random

import pytest

from oxillama.speculation.length import (
    ACCEPTED_AT,
    CREDIT,
    LONG_MEMORY,
    MOST_SAVED,
    PROBE,
    SHARE,
    Acceptance,
    Budget,
    Outlook,
    RowCosts,
    draft_lengths,
)


def costs_of(*seconds: float) -> RowCosts:
    """Costs that have been seen many times: of 1, 2, ... rows."""
    costs = RowCosts()
    for _ in range(200):
        for n, value in enumerate(seconds, 1):
            costs.observe(n, value)
    return costs


def accepted(rate: float) -> Acceptance:
    return Acceptance(accepted=10 * rate, tried=10)


def test_costs_are_learnt_and_follow_the_speed_of_the_machine() -> None:
    costs = costs_of(1.0, 1.1, 1.2, 1.3)
    for n in range(1, 5):
        assert costs.seconds(n) == pytest.approx(0.9 + 0.1 * n, rel=0.02)
    for _ in range(100):
        costs.observe(1, 2.0)  # everything takes twice as long now
    assert costs.seconds(4) == pytest.approx(2.6, rel=0.1)


def test_costs_between_and_beyond_the_measured_are_estimated() -> None:
    costs = RowCosts()
    assert costs.seconds(1) == 0
    for _ in range(200):
        costs.observe(1, 1.0)
        costs.observe(5, 2.0)
    assert costs.seconds(3) == pytest.approx(1.5, rel=0.05)
    assert costs.seconds(7) > costs.seconds(5)


@pytest.mark.parametrize("rates", [(0.9,), (0.5, 0.8), (0.3, 0.6, 0.95)])
@pytest.mark.parametrize("slope", [0.02, 0.15, 0.5])
@pytest.mark.parametrize("drafting", [0.0, 0.1])
def test_lengths_make_the_most_tokens_a_second(
    rates: tuple[float, ...], slope: float, drafting: float
) -> None:
    """Against all choices, tried one by one."""
    costs = costs_of(*(1 + slope * n for n in range(len(rates) * 5)))
    sequences = [accepted(rate) for rate in rates]

    def speed(lengths: tuple[int, ...]) -> float:
        tokens = sum(sum(s.rate**d for d in range(n + 1)) for s, n in zip(sequences, lengths))
        return tokens / (costs.seconds(len(rates) + sum(lengths)) + max(lengths) * drafting)

    chosen = draft_lengths(len(rates), sequences, [4] * len(rates), [drafting] * len(rates), costs).lengths
    best = max(map(speed, itertools.product(range(5), repeat=len(rates))))
    assert speed(tuple(chosen)) >= best * (1 if not drafting else 0.97)


def test_nothing_is_drafted_where_it_does_not_pay() -> None:
    costs = costs_of(1.0, 1.9, 2.8, 3.7)
    assert draft_lengths(1, [accepted(0.5)], [3], [0.0], costs).lengths == [0]
    assert draft_lengths(1, [accepted(0.9)], [3], [5.0], costs).lengths == [0]


def test_the_limits_of_each_sequence_are_kept() -> None:
    costs = costs_of(*(1 + 0.01 * n for n in range(12)))
    assert draft_lengths(2, [accepted(0.9), accepted(0.9)], [0, 3], [0.0, 0.0], costs).lengths == [0, 3]


def test_tokens_after_a_rejected_one_tell_nothing() -> None:
    acceptance = Acceptance(accepted=0, tried=0)
    acceptance.note(8, 2)
    assert (acceptance.accepted, acceptance.tried) == (2, 3)
    acceptance.note(2, 2)
    assert acceptance.tried == pytest.approx(0.9 * 3 + 2)


def test_drafts_may_lose_what_earlier_ones_gained_and_a_share_of_the_time() -> None:
    budget = Budget()
    assert budget.left == 0
    budget.note(1.0, None)
    assert budget.left == pytest.approx(CREDIT + SHARE)
    budget.note(1.0, 0.5)
    assert budget.left == pytest.approx(CREDIT + 2 * SHARE + 0.5)
    budget.note(1.0, -3.0)
    assert budget.left == pytest.approx(CREDIT + 3 * SHARE - 2.5)
    for _ in range(30):
        budget.note(1.0, 4.0)
    assert budget.left == MOST_SAVED
    for _ in range(30):
        budget.note(1.0, -4.0)
    assert budget.left == -MOST_SAVED


def test_a_probe_waits_until_steps_without_drafts_have_saved_what_it_takes() -> None:
    budget = Budget()
    budget.note(1.0, 4.0)
    assert budget.steps_to(0.1, 0.2, 1.0) == 20
    assert budget.steps_to(0.1, 0.2, 1.0, planning=0.11) == 31  # the plan takes of the share, too
    for _ in range(19):
        budget.note(1.0, None)
    assert budget.steps_to(0.1, 0.2, 1.0) == 1
    budget.note(1.0, None)
    assert budget.steps_to(0.1, 0.2, 1.0) <= 0
    assert budget.steps_to(0.1, 0.2, 1.0, planning=0.1) <= 0
    budget.note(1.0, 0.1)  # the probe was made
    assert budget.steps_to(0.1, 0.2, 1.0) == 20
    assert budget.steps_to(9.0, 10.0, 1.0) == pytest.approx((9.0 - budget.left) / SHARE, abs=1)


@pytest.mark.parametrize("n_rows", [1, 8])
@pytest.mark.parametrize("slope", [0.05, 0.2, 0.5])
def test_drafts_that_are_never_right_lose_a_share_of_the_time(n_rows: int, slope: float) -> None:
    """Decided as a speculator does, for steps whose rows cost as much as ``slope`` of the first."""
    costs, budget = costs_of(*(1 + slope * n for n in range(2 * n_rows + 2))), Budget()
    sequences = [Acceptance() for _ in range(n_rows)]
    step, taken, n_drafted, n_steps = costs.seconds(n_rows), 0.0, 0, 40
    for _ in range(n_steps):
        plan = draft_lengths(n_rows, sequences, [8] * n_rows, [0.0] * n_rows, costs, budget=budget.left)
        row, probe = (costs.seconds(n_rows + n) - step for n in (1, PROBE))
        if not any(plan.lengths) and budget.steps_to(row, probe, step) <= 0 and budget.left >= probe:
            plan.lengths[0] = PROBE
        n = sum(plan.lengths)
        n_drafted += n
        lost = costs.seconds(n_rows + n) - step
        taken += step + lost
        budget.note(step, -lost if n else None)
        for sequence, length in zip(sequences, plan.lengths):
            if length:
                sequence.note(length, 0)
    assert n_drafted  # they are tried
    assert taken <= step * (n_steps + CREDIT + SHARE * n_steps)


def test_a_sequence_begins_with_what_is_known_of_others() -> None:
    known, new = Acceptance(memory=LONG_MEMORY), Acceptance()
    for _ in range(100):
        known.note(2, 2, [0.9, 0.1])
    new.begin_like(known)
    assert new.is_fresh
    assert new.is_graded
    assert new.rate == pytest.approx(known.rate) == pytest.approx(0.98)
    assert new.chance(0.1) == known.chance(0.1) > 0.9
    new.note(1, 0, [0.1])
    assert not new.is_fresh
    assert new.chance(0.1) < known.chance(0.1)


def test_what_changes_the_speed_of_all_steps_changes_no_ratio() -> None:
    """The machine is twice as slow half of the time, for some steps on end, and stands still now and then."""
    rng, costs = random.Random(1), RowCosts()
    slow = 1.0
    for _ in range(3000):
        slow = (1.0 if slow == 2.0 else 2.0) if rng.random() < 0.05 else slow
        n = rng.choice((1, 1, 2, 5))
        hanging = 20.0 if rng.random() < 0.01 else 1.0
        costs.observe_pass("small", 0.25 * slow)
        costs.observe(n, slow * hanging * (0.9 + 0.1 * n))
    for n in (2, 5):
        assert costs.seconds(n) / costs.seconds(1) == pytest.approx(0.9 + 0.1 * n, rel=0.15)
    assert costs.seconds_of_pass("small") / costs.seconds(1) == pytest.approx(0.25, rel=0.25)


def test_a_step_once_taken_for_dear_is_tried_again() -> None:
    costs = costs_of(1.0, 1.1)
    costs.observe(8, 30.0)  # the process was suspended
    assert costs.seconds(8) / costs.seconds(1) < 2.5
    for _ in range(40):
        costs.observe(1, 1.0)
        costs.observe(8, 9.0)
    assert costs.seconds(8) / costs.seconds(1) > 4
    for _ in range(2000):
        costs.observe(1, 1.0)
    assert costs.seconds(8) / costs.seconds(1) < 2.0


def test_a_pass_once_taken_for_dear_is_tried_again() -> None:
    costs = costs_of(1.0)
    costs.observe_pass("small", 100.0)  # the process was suspended
    costs.observe_start("small", 100.0, at_most=False)
    for _ in range(4000):
        costs.observe(1, 1.0)
    assert costs.seconds_of_pass("small") < 1.0
    assert costs.seconds_of_start("small") < 1.0


def test_one_draft_tells_again_what_a_drafter_takes_that_has_rested() -> None:
    costs = costs_of(1.0)
    costs.observe_pass("small", 2.0)
    costs.observe_first("small", 30.0, n_tokens=10)
    assert costs.seconds_of_first("small", 20) == pytest.approx(60.0)
    for _ in range(4000):
        costs.observe(1, 1.0)
    assert costs.seconds_of_pass("small") < 0.1
    assert costs.seconds_of_first("small", 20) < 1.0
    costs.observe_pass("small", 2.0)
    assert costs.seconds_of_pass("small") == pytest.approx(2.0, rel=0.05)
    assert costs.seconds_of_first("small", 20) == pytest.approx(60.0, rel=0.05)


def test_the_speed_is_that_of_the_last_steps() -> None:
    costs = costs_of(1.0, 1.2)
    for _ in range(10):
        costs.observe(2, 2.4)
    assert costs.seconds(1) == pytest.approx(2.0, rel=0.1)


def test_a_further_row_costs_what_steps_differ_by() -> None:
    costs = costs_of(1.0, 1.1, 1.2, 1.3)
    assert costs.seconds_of_row(1, 3) == pytest.approx(0.1, rel=0.1)
    assert costs_of(1.0, 0.8).seconds_of_row(1, 1) == 0


def test_what_a_draft_takes_beside_its_passes_counts() -> None:
    costs = costs_of(1.0, 1.1, 1.2, 1.3, 1.4)
    costs.observe_start("small", 0.5, at_most=False)
    assert costs.seconds_of_start("small") == pytest.approx(0.5, rel=0.05)
    for _ in range(200):
        costs.observe_start("small", 5.0, at_most=True)  # it had to catch up
    assert costs.seconds_of_start("small") == pytest.approx(0.5, rel=0.05)
    for _ in range(200):
        costs.observe_start("small", 0.1, at_most=True)
    assert costs.seconds_of_start("small") == pytest.approx(0.1, rel=0.05)
    assert draft_lengths(1, [accepted(0.6)], [4], [0.1], costs).lengths != [0]
    assert draft_lengths(1, [accepted(0.6)], [4], [0.1], costs, start=2.0).lengths == [0]


def test_it_is_learnt_what_a_probability_is_worth() -> None:
    acceptance = Acceptance()
    assert acceptance.chance(0.99) == pytest.approx(ACCEPTED_AT[-1])
    for _ in range(100):
        acceptance.note(3, 1, [0.9, 0.1, 0.1])  # the third is behind the rejected one: it tells nothing
    assert acceptance.chance(0.9) > 0.95
    assert acceptance.chance(0.1) < 0.05
    assert acceptance.chance(0.5) == ACCEPTED_AT[2]
    assert acceptance.by_probability[0][1] == pytest.approx(4 * 0.98**100 + (1 - 0.98**100) / 0.02)


def test_a_draft_ends_where_it_is_hardly_accepted() -> None:
    now = iter([1.0, 3.0, 5.0, 9.0])
    outlook = Outlook(Acceptance(), 0.6, clock=lambda: next(now))
    assert outlook.goes_on(0.99)
    assert outlook.pass_seconds is None  # it may have caught up with the text
    assert outlook.goes_on(0.9)
    assert not outlook.goes_on(0.45)
    assert outlook.survival == pytest.approx(ACCEPTED_AT[5] * ACCEPTED_AT[4] * ACCEPTED_AT[2])
    assert outlook.pass_seconds == 2.0
    assert Outlook(Acceptance(), 0.0).goes_on(0.0)

"""How many tokens are drafted: by what was accepted and what rows cost."""

from __future__ import annotations

import itertools

import pytest

from oxillama.speculative.length import FIRST_PROBE, LAST_PROBE, Acceptance, RowCosts, draft_lengths


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

    chosen = draft_lengths(len(rates), sequences, [4] * len(rates), [drafting] * len(rates), costs)
    best = max(map(speed, itertools.product(range(5), repeat=len(rates))))
    assert speed(tuple(chosen)) >= best * (1 if not drafting else 0.97)


def test_nothing_is_drafted_where_it_does_not_pay() -> None:
    costs = costs_of(1.0, 1.9, 2.8, 3.7)
    assert draft_lengths(1, [accepted(0.5)], [3], [0.0], costs) == [0]
    assert draft_lengths(1, [accepted(0.9)], [3], [5.0], costs) == [0]


def test_the_limits_of_each_sequence_are_kept() -> None:
    costs = costs_of(*(1 + 0.01 * n for n in range(12)))
    assert draft_lengths(2, [accepted(0.9), accepted(0.9)], [0, 3], [0.0, 0.0], costs) == [0, 3]


def test_tokens_after_a_rejected_one_tell_nothing() -> None:
    acceptance = Acceptance(accepted=0, tried=0)
    acceptance.note(8, 2)
    assert (acceptance.accepted, acceptance.tried) == (2, 3)
    acceptance.note(2, 2)
    assert acceptance.tried == pytest.approx(0.9 * 3 + 2)


def test_a_draft_is_tried_again_now_and_then() -> None:
    acceptance = Acceptance()
    for _ in range(30):
        acceptance.note(1, 0)
    assert acceptance.rate < 0.1
    costs, waits = costs_of(1.0, 1.9), []
    for _ in range(6):
        for waited in itertools.count():
            (n,) = draft_lengths(1, [acceptance], [4], [0.0], costs)
            acceptance.note(n, 0)
            if n:
                waits.append(waited)
                break
    assert set(waits) == {LAST_PROBE}
    acceptance.note(1, 1)
    assert acceptance.patience == FIRST_PROBE

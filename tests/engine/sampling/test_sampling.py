"""Sampling: random numbers, the drawn distribution, the same tokens everywhere, what cannot be honoured."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from oxillama._kernels import load
from oxillama.base.config.sampler import SamplerConfig
from oxillama.engine.sampling.sampler import Sampler, Xorshift64
from oxillama.errors import ConfigError, SamplingError
from oxillama.reference.sampling import ReferenceSampler
from tests.engine.sampling.test_sampler_stages import stated
from tests.support.kernels import PRESENT, normal

KERNELS = load(PRESENT[0])
PLAIN: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}

# --- random numbers --------------------------------------------------------------------------------


def test_xorshift_against_its_definition() -> None:
    """Splitmix64's published first outputs for seed 0 is the state; then Marsaglia's shifts (13, 7, 17)."""
    assert Xorshift64(0).state == 0xE220A8397B1DCDAF
    random = Xorshift64(5)
    random.state = 1
    assert random.uniform() == (0x40822041 >> 11) * 2**-53  # the generator's known second state from 1
    assert random.state == 0x40822041


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_uniform_numbers_are_uniform(seed: int) -> None:
    random = Xorshift64(seed)
    numbers = np.array([random.uniform() for _ in range(20_000)])
    assert ((numbers >= 0) & (numbers < 1)).all()
    counts = np.bincount((numbers * 50).astype(int), minlength=50)
    assert ((counts - 400) ** 2 / 400).sum() < 95  # chi-square of 49 degrees of freedom: p about 1e-4
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_no_seed_leads_to_the_state_that_never_moves() -> None:
    inverse = (-0x9E3779B97F4A7C15) % 2**64  # the seed splitmix64 maps to zero
    assert Xorshift64(inverse).state == 1


def test_a_state_continues_where_it_was() -> None:
    random = Xorshift64(9)
    random.uniform()
    copy = Xorshift64(0)
    copy.state = random.state
    assert [random.uniform() for _ in range(5)] == [copy.uniform() for _ in range(5)]


# --- the chain -------------------------------------------------------------------------------------

CONFIGS = {
    "plain": PLAIN,
    "temperature": PLAIN | {"temperature": 2.5},
    "cold": PLAIN | {"temperature": 0.3},
    "top-k": PLAIN | {"top_k": 5},
    "top-p": PLAIN | {"top_p": 0.7},
    "min-p": PLAIN | {"min_p": 0.2},
    "penalty": PLAIN | {"repetition_penalty": 1.8, "repetition_window": 4},
    "reward": PLAIN | {"repetition_penalty": 0.5, "repetition_window": -1},
    "no window": PLAIN | {"repetition_penalty": 1.8, "repetition_window": 0},
    "all": {"repetition_penalty": 1.3, "temperature": 1.4, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
    "defaults": {},
    "typical": PLAIN | {"typical_p": 0.6},
    "top-a": PLAIN | {"top_a": 0.3},
    "top-n-sigma": PLAIN | {"top_n_sigma": 1.5},
    "eta": PLAIN | {"eta_cutoff": 0.1},
    "epsilon": PLAIN | {"epsilon_cutoff": 0.05},
    "xtc": PLAIN | {"xtc_probability": 1.0, "xtc_threshold": 0.1},
    "dynamic temperature": PLAIN | {"dynatemp_range": 0.7, "dynatemp_exponent": 1.5},
    "frequency": PLAIN | {"frequency_penalty": 0.3, "presence_penalty": 0.4},
    "dry": PLAIN | {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_sequence_breakers": ()},
    "bias": PLAIN | {"logit_bias": {3: 2.0, 4: -np.inf}, "banned_tokens": (0, 2)},
    "allowed": PLAIN | {"allowed_tokens": (9, 1, 2, 5, 2, 18)},
    "temperature first": {"order": ("temperature", "top_p", "min_p", "top_k"), "top_p": 0.7},
}
HISTORY = [3, 3, 9, 0, 1, 3, 14, 2]


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_are_drawn_from_the_distribution_of_the_reference(name: str) -> None:
    """Chi-square of 4000 draws; the seed is fixed, so the outcome is too. What is cut never appears."""
    config = SamplerConfig(**CONFIGS[name], seed=7)
    logits = normal(20, seed=3, std=2)
    logits[5] = -np.inf
    wanted = stated(config, logits, HISTORY)
    before = logits.copy()
    sampler = Sampler(config, KERNELS)
    counts = np.bincount([sampler.sample(logits, HISTORY) for _ in range(4000)], minlength=20)
    assert np.array_equal(logits, before)
    assert not counts[wanted == 0].any()
    likely = wanted * 4000 >= 5
    chi = ((counts[likely] - 4000 * wanted[likely]) ** 2 / (4000 * wanted[likely])).sum()
    freedom = max(1, np.count_nonzero(likely) - 1)
    assert chi < freedom + 4 * np.sqrt(2 * freedom) + 4


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=50), st.data())
def test_a_drawn_token_is_that_of_the_reference(values: list[float], data: st.DataObject) -> None:
    config = SamplerConfig(
        temperature=data.draw(st.floats(0.05, 5)),
        top_k=data.draw(st.integers(0, 60)),
        top_p=data.draw(st.floats(0, 1)),
        min_p=data.draw(st.floats(0, 1)),
        seed=data.draw(st.integers(0, 2**64 - 1)),
    )
    logits = np.array(values, np.float32)
    expected = ReferenceSampler(config, frozenset()).sample(logits, [])
    assert Sampler(config, KERNELS).sample(logits, []) == expected


def test_greedy_takes_the_highest_and_the_lowest_id_of_equals() -> None:
    logits = np.array([1, 5, -2, 5, 4], np.float32)
    sampler = Sampler(SamplerConfig.greedy(), KERNELS)
    assert sampler.sample(logits, []) == 1
    state = sampler.random.state
    penalized = SamplerConfig(temperature=0, repetition_penalty=2.0)
    assert Sampler(penalized, KERNELS).sample(logits, [1, 1]) == 3
    assert Sampler(penalized, KERNELS).sample(logits, [1, 3]) == 4
    assert sampler.random.state == state, "greedy draws nothing"


def test_a_top_p_of_0_takes_the_highest_at_any_temperature() -> None:
    rows = normal(60, 500, seed=8, std=0.1)
    for options in ({"temperature": 5.0}, {"order": ("temperature", "top_p"), "min_p": 0, "top_k": 0}):
        sampler = Sampler(SamplerConfig(top_p=0, **options), KERNELS)
        assert [sampler.sample(row, []) for row in rows] == list(rows.argmax(axis=1))


def test_a_penalty_counts_a_token_once_and_only_in_its_window() -> None:
    logits = np.array([2.0, 1.5], np.float32)
    for history, window, token in (
        ([0, 0, 0], 64, 0),  # 2 / 1.3 = 1.54, not 2 / 1.3^3 = 0.91
        ([0], 64, 0),
        ([0, 1, 1], 2, 0),
    ):
        config = SamplerConfig(temperature=0, repetition_penalty=1.3, repetition_window=window)
        assert Sampler(config, KERNELS).sample(logits, history) == token
    config = SamplerConfig(temperature=0, repetition_penalty=1.5, repetition_window=1)
    assert Sampler(config, KERNELS).sample(logits, [1, 0]) == 1
    assert Sampler(config, KERNELS).sample(logits, [0, 1]) == 0


@pytest.mark.parametrize(("penalties", "dry"), [(2, 20), (20, 2), (-1, 2), (2, -1), (3, 0), (0, 3)])
def test_each_penalty_looks_at_its_own_window(penalties: int, dry: int) -> None:
    config = SamplerConfig(
        **PLAIN,
        repetition_penalty=1.7,
        repetition_window=penalties,
        dry_multiplier=1.5,
        dry_allowed_length=1,
        dry_range=dry,
        dry_sequence_breakers=(),
    )
    logits, history = normal(20, seed=4, std=2), [5, 7, 1, 2, 9, 5, 7, 3, 8, 1, 2, 5, 7]
    ids, p = Sampler(config, KERNELS).distribution(logits, history)
    assert np.allclose(p, stated(config, logits, history)[ids], atol=1e-6)


def test_a_bias_does_not_undo_a_ban() -> None:
    config = SamplerConfig(logit_bias={3: 1000.0, 4: 100.0}, banned_tokens=(3,))
    assert {Sampler(config, KERNELS, seed).sample(normal(20)) for seed in range(20)} == {4}


def test_greedy_takes_the_highest_of_those_that_are_typical() -> None:
    logits = np.log(np.float32([0.4, *[0.06] * 10]))  # the first is too likely to be typical
    config = SamplerConfig(**PLAIN | {"temperature": 0.0, "typical_p": 0.3})
    assert Sampler(config, KERNELS).sample(logits) == 1


@pytest.mark.parametrize("name", CONFIGS)
def test_a_seed_gives_the_same_tokens_on_every_target(name: str) -> None:
    rows = normal(60, 500, seed=8, std=3)
    runs = []
    for target in PRESENT:
        sampler = Sampler(SamplerConfig(**CONFIGS[name], seed=123), load(target))
        runs.append([sampler.sample(row, HISTORY) for row in rows])
    assert all(run == runs[0] for run in runs)
    other = Sampler(SamplerConfig(**CONFIGS[name], seed=124), KERNELS)
    assert [other.sample(row, HISTORY) for row in rows] != runs[0]


def test_whose_seed_counts() -> None:
    assert Sampler(SamplerConfig(seed=5), KERNELS, seed=6).seed == 5
    assert Sampler(SamplerConfig(), KERNELS, seed=6).seed == 6
    assert Sampler(SamplerConfig(), KERNELS).seed != Sampler(SamplerConfig(), KERNELS).seed
    drawn = Sampler(SamplerConfig(), KERNELS)
    again = Sampler(SamplerConfig(seed=drawn.seed), KERNELS)
    logits = normal(100)
    assert [drawn.sample(logits, []) for _ in range(9)] == [again.sample(logits, []) for _ in range(9)]


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-40, 1e-30, 1e-5])
def test_a_temperature_near_zero_takes_the_highest(temperature: float) -> None:
    for scale in (1, 1e30):
        logits = normal(50, std=scale)
        sampler = Sampler(SamplerConfig(**PLAIN | {"temperature": temperature}, seed=1), KERNELS)
        assert {sampler.sample(logits, []) for _ in range(20)} == {int(logits.argmax())}


@pytest.mark.parametrize("temperature", [1e30, 3e38])
def test_a_huge_temperature_draws_evenly(temperature: float) -> None:
    sampler = Sampler(SamplerConfig(**PLAIN | {"temperature": temperature}, seed=1), KERNELS)
    assert {sampler.sample(normal(8), []) for _ in range(200)} == set(range(8))


@pytest.mark.parametrize("config", [SamplerConfig(), SamplerConfig.greedy(), SamplerConfig(**PLAIN)])
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1, np.nan, 2], "NaN"),
        ([np.nan] * 3, "NaN"),
        ([1, np.inf, 2], "NaN or \\+inf"),
        ([-np.inf] * 3, "every token is masked"),
    ],
)
def test_logits_that_choose_nothing_are_an_error(
    config: SamplerConfig, values: list[float], text: str
) -> None:
    with pytest.raises(SamplingError, match=text):
        Sampler(config, KERNELS).sample(np.array(values, np.float32), [])


@pytest.mark.parametrize("config", [SamplerConfig(), SamplerConfig.greedy(), SamplerConfig(**PLAIN)])
def test_masked_tokens_are_never_chosen(config: SamplerConfig) -> None:
    logits = np.full(300, -np.inf, np.float32)
    logits[[7, 250]] = [0.5, 0]
    sampler = Sampler(config, KERNELS, seed=3)
    assert {sampler.sample(logits, [7]) for _ in range(100)} <= {7, 250}


# --- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("temperature", [0, 0.0, 1e9], [-1e-9, float("inf"), float("nan"), "1", None, True]),
        ("top_k", [0, 1, 10**9], [-1, 1.5, "3", None, True]),
        ("top_p", [0, 1e-9, 1, 1.0], [1.000001, -1, float("nan"), None, True]),
        ("min_p", [0, 1], [-1e-9, 1.1, float("nan"), None]),
        ("repetition_penalty", [0.1, 1, 5], [0, -1, float("inf"), None]),
        ("repetition_window", [-1, 0, 10**6], [-2, 0.5, None, True]),
        ("seed", [None, 0, 2**64 - 1], [-1, 2**64, 1.0, "1", True]),
        ("typical_p", [1e-9, 1], [0, 1.1, None]),
        ("top_a", [0, 1], [-0.1, 1.1]),
        ("top_n_sigma", [0, 5], [-1, float("inf")]),
        ("eta_cutoff", [0, 0.999], [-0.1, 1]),
        ("epsilon_cutoff", [0, 0.999], [-0.1, 1]),
        ("frequency_penalty", [-2, 0, 2.5], [float("inf"), float("nan"), "1"]),
        ("presence_penalty", [-2, 0, 2.5], [float("-inf"), None]),
        ("dry_multiplier", [0, 5], [-1, float("nan")]),
        ("dry_base", [1, 3.5], [0.99, 0]),
        ("dry_allowed_length", [0, 10], [-1, 2.5]),
        ("dry_range", [-1, 0, 4096], [-2, 1.0]),
        ("dry_sequence_breakers", [(), ("\n", (1, 2))], [None, "abc", ("",), ((),), ((-1,),), (3,)]),
        ("xtc_probability", [0, 1], [-0.1, 1.1]),
        ("xtc_threshold", [0, 1], [-0.1, 1.1]),
        ("dynatemp_range", [0, 2], [-1]),
        ("dynatemp_exponent", [0, 2], [-1]),
        ("mirostat", [0], [3, -1, 1.0, True]),
        ("mirostat_tau", [0, 8], [-1]),
        ("mirostat_eta", [0, 1], [-1]),
        ("min_tokens", [0, 9], [-1, 1.5]),
        ("ignore_eos", [True, False], [0, 1, None]),
        (
            "logit_bias",
            [{}, {5: 1.5, 7: float("-inf")}],
            [None, [(1, 2)], {-1: 1}, {1: "a"}, {1: float("inf")}],
        ),
        ("banned_tokens", [(), (3, 4)], [None, 5, (-1,), (1.5,), ("a",), (True,)]),
        ("allowed_tokens", [None, (3,)], [(), 5, (-1,)]),
        ("grammar", [None, 'root ::= "a"'], ["", 5, b"x", {}]),
        ("json_schema", [None, {}, True, "{}", int], ["", 5, [1]]),
        ("regex", [None, "a*"], [5, b"a"]),
        ("choices", [None, ("a", "b")], [(), "ab", (1,)]),
        ("order", [("temperature",), ("top_k", print)], [None, "top_k", ("top",), ("top_k", "top_k")]),
    ],
)
def test_options_have_ranges(field: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert getattr(SamplerConfig(**{field: value}), field) == value
    for value in bad:
        with pytest.raises(ConfigError, match=rf"^{field}(\[1\])?: expected (.|\n)*, got "):
            SamplerConfig(**{field: value})


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(ConfigError, match="tempreature: is no option; did you mean temperature"):
        SamplerConfig(tempreature=1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"order": ("top_k", "temperature"), "min_p": 0.1}, "min_p: expected the stage min_p in order"),
        ({"order": ("top_k",), "temperature": 0}, "temperature: expected the stage temperature in order"),
        (
            {"order": ("dry",), "presence_penalty": 1},
            "presence_penalty: expected the stage penalties in order",
        ),
        (
            {"order": ("top_k",), "dynatemp_range": 0.5},
            "dynatemp_range: expected the stage temperature in order",
        ),
        ({"mirostat": 2, "top_k": 10}, "mirostat: cannot be combined with top_k 10"),
        ({"mirostat": 1, "typical_p": 0.5}, "mirostat: cannot be combined with typical_p"),
        ({"mirostat": 2, "xtc_probability": 0.5}, "mirostat: cannot be combined with xtc_probability"),
        ({"mirostat": 2, "temperature": 0}, "mirostat: expected a temperature > 0"),
        ({"grammar": "x", "regex": "y"}, "grammar: cannot be combined with regex"),
        ({"choices": ("x",), "json_schema": True}, "json_schema: cannot be combined with choices"),
    ],
)
def test_options_that_cannot_be_honoured_together_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SamplerConfig(**options)


def test_what_is_left_out_without_being_asked_for_is_no_fault() -> None:
    SamplerConfig(order=("temperature",))
    SamplerConfig(order=("top_k", "temperature"), top_p=1.0, min_p=0.0)
    SamplerConfig(order=("top_p", "min_p"), top_k=0, temperature=1.0)
    assert SamplerConfig(mirostat=2) == SamplerConfig.mirostat_v2(temperature=0.8)
    config = SamplerConfig.mirostat_v2(tau=4, eta=0.2, seed=3)
    assert (config.mirostat, config.temperature, config.mirostat_tau, config.mirostat_eta) == (2, 1, 4, 0.2)


def test_options_are_comparable_hashable_and_can_be_copied() -> None:
    config = SamplerConfig(logit_bias={1: 2.0}, banned_tokens=[4], json_schema={"type": "object"})
    assert config == replace(config) == pickle.loads(pickle.dumps(config))
    assert hash(config) == hash(replace(config))
    assert config.banned_tokens == (4,)


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    for options in ({"logit_bias": {50: 1.0}}, {"banned_tokens": (50,)}, {"allowed_tokens": (50,)}):
        with pytest.raises(ConfigError, match="expected token ids below 50, got 50"):
            Sampler(SamplerConfig(**options), KERNELS).sample(normal(50), [])
        Sampler(SamplerConfig(**options), KERNELS).sample(normal(51), [])
    sampler = Sampler(SamplerConfig(repetition_penalty=1.1), KERNELS)
    for history in ([50], [-1], np.array([3, 50])):
        with pytest.raises(SamplingError, match="history: holds a token that is not in the vocabulary of 50"):
            sampler.sample(normal(50), history)
    with pytest.raises(SamplingError, match="history: expected token ids"):
        sampler.sample(normal(50), [2**40])


@pytest.mark.parametrize(
    ("options", "name"), [({"ignore_eos": True}, "ignore_eos"), ({"min_tokens": 3}, "min_tokens")]
)
def test_what_needs_a_tokenizer_says_so(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: expected a tokenizer"):
        Sampler(SamplerConfig(**options), KERNELS)
    with pytest.raises(ConfigError, match=r"dry_sequence_breakers: '\\n' expected a tokenizer"):
        Sampler(SamplerConfig(dry_multiplier=1.0), KERNELS)
    with pytest.raises(ConfigError, match="regex: expected its constraint compiled"):
        Sampler(SamplerConfig(regex="a*"), KERNELS)

"""Each sampling stage against the reference: random and adversarial logits, every target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from oxillama._kernels import load
from oxillama.base.config import sampler
from oxillama.base.config.option import declared
from oxillama.base.config.sampler import SamplerConfig
from oxillama.engine.sampling.sampler import Sampler
from oxillama.reference.sampling import ReferenceSampler
from tests.support.kernels import PRESENT, normal

KERNELS = load(PRESENT[0])
PLAIN: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
VOCAB = 131_072

STAGES: dict[str, list[dict[str, Any]]] = {
    "top_k": [{"top_k": k} for k in (1, 2, 40, 127, 129, 1000, 50_000)],
    "top_p": [{"top_p": p} for p in (1e-9, 0.3, 0.8, 0.95, 0.9999)],
    "min_p": [{"min_p": p} for p in (1e-6, 0.05, 0.5, 1.0)],
    "typical_p": [{"typical_p": p} for p in (0.01, 0.2, 0.5, 0.95)],
    "epsilon_cutoff": [{"epsilon_cutoff": e} for e in (1e-6, 3e-4, 0.1)],
    "eta_cutoff": [{"eta_cutoff": e} for e in (1e-6, 3e-4, 0.1)],
    "xtc": [{"xtc_probability": 1.0, "xtc_threshold": t} for t in (0.001, 0.05, 0.1, 0.5, 0.6)],
    "temperature": [{"temperature": t} for t in (0.01, 0.7, 3.0)],
    "dynatemp": [
        {"temperature": 1.0, "dynatemp_range": 0.5},
        {"temperature": 0.4, "dynatemp_range": 0.5, "dynatemp_exponent": 2.5},
        {"temperature": 0.8, "dynatemp_range": 0.3, "dynatemp_exponent": 0.0},
    ],
    "mirostat": [{"mirostat": 1, "mirostat_tau": t} for t in (0.5, 2.0, 5.0)],
    "mirostat_v2": [{"mirostat": 2, "mirostat_tau": t} for t in (0.0, 0.5, 2.0, 5.0)],
}


def some_values(name: str) -> list[float]:
    """Values of an option's range at which its stage does something."""
    option = declared(SamplerConfig)[name]
    low, high = max(option.low, 0.0), min(option.high, 4.0)
    return [low + share * (high - low) for share in (0.01, 0.2, 0.9)]


for _name, _stage in sampler.STAGES.items():  # a stage is tested as soon as it is in the table
    if _name not in STAGES and _stage.is_cut:
        STAGES[_name] = [{option: x} for option in _stage.off for x in some_values(option)]

CASES = [(name, options) for name, several in STAGES.items() for options in several]


def row(kind: str, n: int) -> np.ndarray:
    """Logits of a kind that some stage may find hard."""
    rng = np.random.default_rng(n)
    x = (rng.standard_normal(n) * 3).astype(np.float32)
    if kind == "uniform":
        x = rng.uniform(-1, 1, n).astype(np.float32)
    elif kind == "ties":
        x = rng.integers(0, 5, n).astype(np.float32)
    elif kind == "rising":
        x = np.linspace(-8, 8, n).astype(np.float32)
    elif kind == "masked":
        x[rng.random(n) < 0.9] = -np.inf
        x[n // 2] = 2
    elif kind == "one survivor":
        x = np.full(n, -np.inf, np.float32)
        x[n // 3] = -4
    elif kind == "flat":
        x[:] = 0.25
    elif kind == "peaked":
        x[n // 2] = 30
    elif kind == "soft masks":
        x[: n - n // 4] = -1e9
    elif kind == "clusters":
        x = (rng.choice(np.float32([5, 4.99, -3]), n) + 1e-4 * rng.standard_normal(n)).astype(np.float32)
    return x


KINDS = (
    "normal", "uniform", "ties", "rising", "masked", "one survivor", "flat", "peaked", "soft masks",
    "clusters",
)  # fmt: skip


def chosen_from(
    config: SamplerConfig, logits: np.ndarray, target: str = PRESENT[0], history: Sequence[int] = ()
) -> np.ndarray:
    """float64 (vocab,): what a sampler would draw from."""
    ids, p = Sampler(config, load(target)).distribution(logits, history)
    assert len(set(ids.tolist())) == len(ids)
    out = np.zeros(len(logits))
    out[ids] = p
    return out


def stated(config: SamplerConfig, logits: np.ndarray, history: Sequence[int] = ()) -> np.ndarray:
    """float64 (vocab,): what the reference would draw from."""
    ids, p = ReferenceSampler(config, frozenset()).distribution(logits, history)
    out = np.zeros(len(logits))
    out[ids] = p
    return out


def check(config: SamplerConfig, logits: np.ndarray, history: Sequence[int] = ()) -> None:
    """The reference's candidates and probabilities."""
    found, wanted = chosen_from(config, logits, history=history), stated(config, logits, history)
    assert np.array_equal(found > 0, wanted > 0)
    assert np.allclose(found, wanted, rtol=1e-6, atol=0)
    assert abs(found.sum() - 1) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 63, 1000, 1025, pytest.param(5000, marks=pytest.mark.slow), VOCAB])
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_that_of_the_reference(stage: str, n: int, kind: str) -> None:
    logits = row(kind, n)
    for options in STAGES[stage] if n < VOCAB else STAGES[stage][1:2]:
        check(SamplerConfig(**PLAIN | options), logits)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_stage_on_any_logits(data: st.DataObject) -> None:
    values = st.floats(-40, 40, width=32) | st.sampled_from([0.0, -0.0, 1.0, float("-inf"), 7.5, -3e38])
    logits = np.array(data.draw(st.lists(values, min_size=1, max_size=60)), np.float32)
    logits[data.draw(st.integers(0, len(logits) - 1))] = 3.0
    _, options = data.draw(st.sampled_from(CASES))
    check(SamplerConfig(**PLAIN | options), logits)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_stages_in_any_order(data: st.DataObject) -> None:
    order = tuple(data.draw(st.permutations(SamplerConfig().order)))
    options = {
        "order": order,
        "top_k": data.draw(st.integers(1, 70)),
        "top_p": data.draw(st.sampled_from([0.5, 0.9, 1.0])),
        "min_p": data.draw(st.sampled_from([0.0, 0.03])),
        "typical_p": data.draw(st.sampled_from([0.6, 1.0])),
        "temperature": data.draw(st.sampled_from([0.5, 1.0, 2.0])),
        "repetition_penalty": data.draw(st.sampled_from([1.0, 1.3])),
        "top_n_sigma": data.draw(st.sampled_from([0.0, 2.0])),
    }
    logits = normal(60, seed=data.draw(st.integers(0, 999)), std=3)
    history = data.draw(st.lists(st.integers(0, 59), max_size=30))
    check(SamplerConfig(**options), logits, history)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("n", [17, 1025, 20_000])
def test_every_target_gives_the_same_bits(stage: str, n: int) -> None:
    for kind in KINDS:
        logits = row(kind, n)
        for options in STAGES[stage]:
            config = SamplerConfig(**PLAIN | options)
            first = chosen_from(config, logits)
            for target in PRESENT[1:]:
                assert np.array_equal(first, chosen_from(config, logits, target)), (kind, options, target)


def test_a_cut_keeps_the_lower_ids_among_equals() -> None:
    flat = np.zeros(VOCAB, np.float32)
    for options, n in (
        ({"top_k": 40}, 40),
        ({"top_k": 5000}, 5000),
        ({"top_p": 0.5}, VOCAB // 2),
        ({"top_p": 0.75}, VOCAB * 3 // 4),
        ({"temperature": 0}, 1),
        ({"typical_p": 0.5}, VOCAB // 2 + 1),
    ):
        kept = np.flatnonzero(chosen_from(SamplerConfig(**PLAIN | options), flat))
        assert kept.tolist() == list(range(len(kept)))
        assert abs(len(kept) - n) <= (1 if "typical_p" in options else 0), options


# --- XTC -------------------------------------------------------------------------------------------


def test_xtc_leaves_the_least_likely_of_the_probable() -> None:
    logits = np.log(np.float32([0.1, 0.4, 0.02, 0.3, 0.18]))
    config = SamplerConfig(**PLAIN, xtc_probability=1.0, xtc_threshold=0.15)
    assert np.flatnonzero(chosen_from(config, logits)).tolist() == [0, 2, 4]
    ties = np.float32([1, 5, 5, 0, 5])
    assert np.flatnonzero(chosen_from(config, ties)).tolist() == [0, 3, 4], (
        "the highest id among equals stays"
    )


def test_xtc_acts_as_often_as_asked() -> None:
    logits = np.log(np.float32([0.6, 0.3, 0.1]))
    sampler = Sampler(SamplerConfig(**PLAIN, xtc_probability=0.3, xtc_threshold=0.25, seed=3), KERNELS)
    counts = np.bincount([sampler.sample(logits) for _ in range(10_000)], minlength=3) / 10_000
    expected = 0.7 * np.array([0.6, 0.3, 0.1]) + 0.3 * np.array([0, 0.75, 0.25])
    assert np.abs(counts - expected).max() < 0.02


# --- mirostat --------------------------------------------------------------------------------------


def test_mirostat_holds_the_surprise_near_its_target() -> None:
    for version in (1, 2):
        config = SamplerConfig(mirostat=version, temperature=1.0, mirostat_tau=3.0, seed=5)
        sampler, surprises = Sampler(config, KERNELS), []
        for logits in normal(1500, 300, seed=2, std=1.5):
            before = sampler.mu
            sampler.sample(logits)
            surprises.append((before - sampler.mu) / 0.1 + 3.0)
        assert abs(np.mean(surprises[200:]) - 3.0) < 0.3


# --- penalties -------------------------------------------------------------------------------------


def orders(stage: str) -> st.SearchStrategy[tuple[str, ...]]:
    """A stage before and after a cut."""
    return st.sampled_from([(stage, "top_k", "temperature"), ("top_k", stage, "temperature")])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_penalties_are_those_of_the_reference(data: st.DataObject) -> None:
    n = data.draw(st.sampled_from([3, 20, 2000]))
    config = SamplerConfig(
        **PLAIN | {"top_k": data.draw(st.sampled_from([0, 5])), "order": data.draw(orders("penalties"))},
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.3, 0.5])),
        frequency_penalty=data.draw(st.sampled_from([0.0, 0.4, -0.3])),
        presence_penalty=data.draw(st.sampled_from([0.0, 0.7, -1.0])),
        repetition_window=data.draw(st.sampled_from([-1, 0, 1, 7, 64])),
    )
    history = data.draw(st.lists(st.integers(0, min(n, 12) - 1), max_size=80))
    logits = normal(n, seed=data.draw(st.integers(0, 99)), std=2)
    check(config, logits, history)


def test_no_penalty_masks_a_token_and_no_reward_makes_it_infinite() -> None:
    logits = np.float32([-3e38, 3e38, -np.inf])
    for penalty in (3e38, 1e-30):
        config = SamplerConfig(**PLAIN | {"temperature": 0}, repetition_penalty=penalty)
        assert Sampler(config, KERNELS).sample(logits[:1], [0]) == 0
        assert Sampler(config, KERNELS).sample(logits, [0, 1, 2]) == 1
    config = SamplerConfig(**PLAIN | {"temperature": 0}, dry_multiplier=3e38, dry_sequence_breakers=())
    assert Sampler(config, KERNELS).sample(logits[:1], [0] * 100) == 0


# --- DRY -------------------------------------------------------------------------------------------


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_dry_is_that_of_the_reference(data: st.DataObject) -> None:
    """Few different tokens, so that much repeats; breakers of one and of several tokens."""
    n = data.draw(st.integers(1, 5))
    token = st.integers(0, n - 1)
    breakers = data.draw(st.lists(st.lists(token, min_size=1, max_size=3).map(tuple), max_size=3))
    config = SamplerConfig(
        **PLAIN | {"top_k": data.draw(st.sampled_from([0, 3])), "order": data.draw(orders("dry"))},
        dry_multiplier=data.draw(st.sampled_from([0.5, 1.0])),
        dry_base=data.draw(st.sampled_from([1.0, 1.1, 1.75])),
        dry_allowed_length=data.draw(st.integers(0, 5)),
        dry_range=data.draw(st.sampled_from([-1, 0, 1, 5, 20])),
        dry_sequence_breakers=breakers,
    )
    history = data.draw(st.lists(token, max_size=40))
    logits = normal(n, seed=data.draw(st.integers(0, 99)))
    check(config, logits, history)


def test_a_repetition_ends_where_its_texts_differ() -> None:
    """The end repeats 3 tokens and no more, though what lies around looks like more."""
    logits, history = np.zeros(3, np.float32), [0, 2, 0, 0, 0, 1, 0, 0, 0, 0]
    config = SamplerConfig(
        **PLAIN, dry_multiplier=1.0, dry_allowed_length=1, dry_sequence_breakers=(), seed=1
    )
    check(config, logits, history)


def test_dry_is_linear_in_the_history() -> None:
    """A history that makes a quadratic search slow: 300,000 times the same token."""
    config = SamplerConfig(**PLAIN, dry_multiplier=0.8, dry_sequence_breakers=(), seed=1)
    sampler = Sampler(config, KERNELS)
    sampler.feed(np.zeros(300_000, np.int32))
    assert sampler.sample(np.zeros(4, np.float32)) > 0


# --- our own exp and log ---------------------------------------------------------------------------


def test_log_and_exp_are_within_their_bounds() -> None:
    rng = np.random.default_rng(0)
    numbers = np.concatenate([np.exp(rng.uniform(-700, 700, 20_000)), 1 + rng.uniform(-1e-3, 1e-3, 20_000)])
    for target in PRESENT:
        module = load(target).sampling
        logs = np.array([module.log(x) for x in numbers])
        assert np.all(np.abs(logs - np.log(numbers)) <= 1e-15 * np.abs(np.log(numbers)))
        powers = rng.uniform(-700, 709, 20_000)
        exps = np.array([module.exp(x) for x in powers])
        assert np.all(np.abs(exps / np.exp(powers) - 1) < 1e-15)
        assert module.log(0.0) == -np.inf and np.isnan(module.log(-1.0)) and module.log(np.inf) == np.inf
        assert module.log(5e-324) == pytest.approx(np.log(5e-324), rel=1e-15)
        assert module.log(1.0) == 0 and module.exp(0.0) == 1
        assert module.exp(-800.0) == 0 and module.exp(800.0) == np.inf and np.isnan(module.exp(np.nan))


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"top_k": 1}, {"top_p": 0.01}, {"top_p": 0}, {"typical_p": 0.01}]
)
@pytest.mark.parametrize("n", [8, 300])
@pytest.mark.parametrize("target", PRESENT)
def test_zero_and_negative_zero_are_equal(target: str, n: int, options: dict[str, Any]) -> None:
    """The lowest id of equal logits is kept."""
    logits = np.full(n, -9.0, np.float32)
    logits[[2, 4, n - 1]] = [-0.0, 0.0, 0.0]
    config = SamplerConfig(seed=1, **{"top_k": 0, "top_p": 1.0, "min_p": 0.0, **options})
    sampler = Sampler(config, load(target))
    assert {sampler.sample(logits, []) for _ in range(5)} == {2}

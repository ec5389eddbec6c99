"""The reference's sampler: the tokens of the kernels for the same random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxillama import Sampler, SamplerConfig, SamplingError
from oxillama.reference.sampling import ReferenceSampler, Xorshift64
from oxillama.reference.source import Unsupported
from tests.support.kernels import normal

OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "default": {},
    "greedy": {"temperature": 0.0},
    "nothing": OFF,
    "top-k of few": OFF | {"top_k": 7},
    "top-k of many": OFF | {"top_k": 500},
    "top-p": OFF | {"top_p": 0.8},
    "nearly all": OFF | {"top_p": 0.999},
    "min-p": OFF | {"min_p": 0.02},
    "typical": OFF | {"typical_p": 0.5},
    "top-a": OFF | {"top_a": 0.3},
    "sigma": OFF | {"top_n_sigma": 1.5},
    "epsilon": OFF | {"epsilon_cutoff": 1e-3},
    "eta": OFF | {"eta_cutoff": 2e-3},
    "xtc": OFF | {"xtc_probability": 0.6, "xtc_threshold": 0.02},
    "cold": OFF | {"temperature": 0.3},
    "dynamic": OFF | {"dynatemp_range": 0.7, "dynatemp_exponent": 1.5},
    "mirostat": OFF | {"mirostat": 1, "mirostat_tau": 3.0},
    "mirostat 2": OFF | {"mirostat": 2, "mirostat_tau": 3.0},
    "penalties": {"repetition_penalty": 1.4, "frequency_penalty": 0.3, "presence_penalty": -0.2},
    "penalties of all": {"repetition_penalty": 1.2, "repetition_window": -1, "top_k": 300},
    "biases": {"logit_bias": {3: 4.0, 5: -np.inf}, "banned_tokens": (7, 8)},
    "some": {"allowed_tokens": (9, 2, 40, 41, 42)},
}


@pytest.mark.parametrize("vocab", [50, 3000])
@pytest.mark.parametrize("name", CONFIGS)
def test_tokens(name: str, vocab: int) -> None:
    config = SamplerConfig(**CONFIGS[name], seed=11)
    ours, theirs, history = ReferenceSampler(config, frozenset()), Sampler(config), [1, 2, 3]
    for i in range(30):
        logits = normal(vocab, seed=i, std=1.0 + i / 10)
        logits[1] = -np.inf
        logits[20:25] = logits[20]
        expected = theirs.sample(logits, history)
        assert ours.sample(logits, history) == expected
        assert ours.mu == theirs.mu
        history.append(expected)
    assert ours.random.state == theirs.random.state


def test_random_numbers_are_those_of_the_paper() -> None:
    """The first outputs of splitmix64 seeded with 0 are published: 0xE220A8397B1DCDAF."""
    random = Xorshift64(0)
    assert random.state == 0xE220A8397B1DCDAF
    assert 0.0 <= random.uniform() < 1.0


def test_bad_logits() -> None:
    sampler = ReferenceSampler(SamplerConfig(seed=1), frozenset())
    for value, message in ((np.nan, "NaN"), (np.inf, "NaN"), (-np.inf, "masked")):
        with pytest.raises(SamplingError, match=message):
            sampler.sample(np.full(9, value, np.float32), [])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"regex": "a+"}, "regex"),
        ({"dry_multiplier": 0.8}, "dry_multiplier"),
        ({"order": (len, "temperature"), "top_k": 0, "top_p": 1.0, "min_p": 0.0}, "order"),
    ],
)
def test_what_is_not_stated_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        ReferenceSampler(SamplerConfig(seed=1, **options), frozenset())

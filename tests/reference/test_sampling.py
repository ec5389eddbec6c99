"""The reference's sampler: the tokens of the kernels for the same random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxillama import Sampler, SamplerConfig, SamplingError, demo
from oxillama.gguf.model_file import ModelFile
from oxillama.reference.sampling import ReferenceSampler, Xorshift64
from oxillama.reference.source import Unsupported
from oxillama.text.chat.bridge import TokenizerBridge
from tests.engine.sampling.test_sampling import CONFIGS as DRAWN, PLAIN
from tests.support.kernels import normal

CONFIGS = DRAWN | {
    "greedy": {"temperature": 0.0},
    "top-k of many": PLAIN | {"top_k": 500},
    "nearly all": PLAIN | {"top_p": 0.999},
    "mirostat": PLAIN | {"mirostat": 1, "mirostat_tau": 3.0},
    "mirostat 2": PLAIN | {"mirostat": 2, "mirostat_tau": 3.0},
    "penalties of all": {"repetition_penalty": 1.2, "repetition_window": -1, "top_k": 300},
    "xtc by chance": PLAIN | {"xtc_probability": 0.6, "xtc_threshold": 0.02},
    "negative presence": {"repetition_penalty": 1.4, "frequency_penalty": 0.3, "presence_penalty": -0.2},
}


@pytest.mark.parametrize("vocab", [50, 3000])
@pytest.mark.parametrize("name", CONFIGS)
def test_tokens(name: str, vocab: int) -> None:
    config = SamplerConfig(**CONFIGS[name], seed=11)
    ours, theirs, history = ReferenceSampler(config, frozenset()), Sampler(config), [1, 2, 3]
    for i in range(30 if vocab == 50 else 10):
        logits = normal(vocab, seed=i, std=1.0 + i / 10)
        logits[1] = -np.inf
        logits[20:25] = logits[20]
        expected = theirs.sample(logits, history)
        assert ours.sample(logits, history) == expected
        assert ours.mu == theirs.mu
        history.append(expected)
    assert ours.random.state == theirs.random.state


DRY: dict[str, dict[str, Any]] = {
    "dry": {},
    "dry that allows more": {"dry_allowed_length": 4, "dry_base": 1.1},
    "dry that allows nothing": {"dry_allowed_length": 0},
    "dry of few tokens": {"dry_range": 12},
    "dry with large powers": {"dry_base": 60.0, "dry_multiplier": 1e30},
    "dry without growth": {"dry_base": 1.0},
    "dry behind a cut": {"order": ("top_k", "dry", "temperature"), "top_k": 20, "top_p": 1.0, "min_p": 0.0},
    "dry with bounded powers": {"dry_base": 1e4, "dry_multiplier": 2e-36},
    "dry with breakers": {
        "dry_sequence_breakers": ((3,), (2, 4), (2, 4, 5)),
        "dry_allowed_length": 1,
        "dry_multiplier": 0.3,
    },
}


@pytest.mark.parametrize("name", DRY)
def test_dry(name: str) -> None:
    """Histories of few tokens, which repeat themselves."""
    options = {"dry_multiplier": 0.8, "dry_sequence_breakers": ()} | DRY[name]
    config, rng = SamplerConfig(**options, seed=5), np.random.default_rng(3)
    for i in range(30):  # draws from the choices below
        ours, theirs = ReferenceSampler(config, frozenset()), Sampler(config)
        history = rng.integers(2, 7 if i % 2 else 4, int(rng.integers(0, 40))).tolist()
        if i % 3 == 0:
            history += ([6, 2, 4, 5] if i % 2 else [2, 4]) * 12
        logits = normal(60, seed=i, std=2.0)
        logits[2:7] += np.float32(4)
        logits[3] = -np.inf if i % 5 == 0 else logits[3]
        for _ in range(4):
            expected = theirs.sample(logits, history)
            assert ours.sample(logits, history) == expected
            history.append(expected)


def test_dry_with_texts() -> None:
    tokenizer = TokenizerBridge.from_metadata(ModelFile.open(demo.STORY).metadata)
    config = SamplerConfig(dry_multiplier=2.0, dry_sequence_breakers=("\n", ", and", "the"), seed=5)
    text = "the cat, and the dog, and the cat, and the dog,\n and the cat, and"
    history = tokenizer.encode(text)
    for n in range(4, len(history)):
        logits = normal(tokenizer.n_vocab, seed=n, std=1.0)
        logits[history] += np.float32(9)
        ours, theirs = ReferenceSampler(config, frozenset(), tokenizer), Sampler(config, tokenizer=tokenizer)
        assert ours.sample(logits, history[:n]) == theirs.sample(logits, history[:n])


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
        ({"order": (len, "temperature"), "top_k": 0, "top_p": 1.0, "min_p": 0.0}, "order"),
    ],
)
def test_what_is_not_stated_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        ReferenceSampler(SamplerConfig(seed=1, **options), frozenset())

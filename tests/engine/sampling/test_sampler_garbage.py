"""Samplers given what they cannot take: an error of ours or a TypeError, and a state as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oxillama import (
    ConfigError,
    OxiLlamaError,
    Sampler,
    SamplerChain,
    SamplerConfig,
    SamplingError,
    pool_hidden_states,
    sample,
    sample_batch,
    token_logprobs,
)
from tests.support.random_use import GARBAGE

LOGITS = np.linspace(0, 1, 50, dtype=np.float32)
CONFIG = SamplerConfig(seed=1, repetition_penalty=1.1)
BAD = [value for value in GARBAGE if not isinstance(value, range)]

CALLS: dict[str, Callable[[Sampler, Any], object]] = {
    "chain": lambda s, bad: SamplerChain.from_config(bad),
    "sampler": lambda s, bad: Sampler(bad),
    "seed": lambda s, bad: Sampler(SamplerConfig(), seed=bad).sample(LOGITS),
    "kernels": lambda s, bad: Sampler(CONFIG, bad),
    "logits": lambda s, bad: s.sample(bad),
    "history": lambda s, bad: s.sample(LOGITS, bad),
    "top": lambda s, bad: s.sample_with_logprobs(LOGITS, None, bad),
    "distribution": lambda s, bad: s.distribution(bad),
    "feed": lambda s, bad: s.feed(bad),
    "accept": lambda s, bad: s.accept(bad),
    "rollback": lambda s, bad: s.rollback(bad),
    "truncate": lambda s, bad: s.truncate(bad),
    "fork": lambda s, bad: s.fork(bad),
    "restore": lambda s, bad: s.restore(bad),
    **{
        f"restore {key}": lambda s, bad, key=key: s.restore({**s.state(), key: bad})  # type: ignore[misc]
        for key in ("seed", "random", "mu", "tokens", "before")
    },
    "batch": lambda s, bad: sample_batch(bad, [LOGITS]),
    "rows of a batch": lambda s, bad: sample_batch([s], bad),
    "histories of a batch": lambda s, bad: sample_batch([s], [LOGITS], [bad]),
    "tops of a batch": lambda s, bad: sample_batch([s], [LOGITS], None, bad),
    "threads of a batch": lambda s, bad: sample_batch([s], [LOGITS], None, None, bad),
    "token": lambda s, bad: token_logprobs(LOGITS, bad),
    "logits of a token": lambda s, bad: token_logprobs(bad, 1),
    "top of a token": lambda s, bad: token_logprobs(LOGITS, 1, bad),
    "sample": lambda s, bad: sample(LOGITS, bad),
    "states": lambda s, bad: pool_hidden_states(bad, "last"),
}


@pytest.mark.parametrize("name", CALLS)
def test_garbage_is_refused_or_taken(name: str) -> None:
    for bad in BAD:
        sampler, fresh = Sampler(CONFIG), Sampler(CONFIG)
        try:
            CALLS[name](sampler, bad)
        except (OxiLlamaError, TypeError):
            assert sampler.state() == fresh.state()
            assert sampler.sample(LOGITS) == fresh.sample(LOGITS)


def test_the_errors_say_what_was_expected() -> None:
    sampler = Sampler(CONFIG)
    for error, call in (
        (ConfigError, lambda: Sampler(SamplerConfig(), seed=-1)),
        (ConfigError, lambda: sampler.fork("x")),  # type: ignore[arg-type]
        (ConfigError, lambda: sampler.sample_with_logprobs(LOGITS, None, -1)),
        (SamplingError, lambda: sampler.sample("x")),  # type: ignore[arg-type]
        (SamplingError, lambda: sampler.feed([10**10])),
        (SamplingError, lambda: sampler.feed(np.zeros((2, 0)))),  # type: ignore[arg-type]
        (SamplingError, lambda: sampler.accept(-1)),
        (SamplingError, lambda: sampler.rollback(10**5000)),
        (SamplingError, lambda: sampler.restore({**sampler.state(), "mu": 10**400})),
    ):
        with pytest.raises(error, match="expected"):
            call()

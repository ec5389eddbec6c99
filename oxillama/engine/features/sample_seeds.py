"""Several samples of one prompt, and the best of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence as Listed

from oxillama.base.config import GenerationOptions, checks
from oxillama.engine.completion import Completion
from oxillama.engine.features.shared_prompts import share_prompt
from oxillama.engine.loading import LoadedModel
from oxillama.engine.request import TextRequest
from oxillama.errors import ConfigError

MAX_SAMPLES = 1024
"""Most samples of a prompt at a time."""


def numbers_of_samples(n: object, best_of: object) -> tuple[int, int]:
    """How many samples are wanted, and of how many. Raises ConfigError."""
    wanted = checks.integer("n", n, 1, MAX_SAMPLES)
    return wanted, wanted if best_of is None else checks.integer("best_of", best_of, wanted, MAX_SAMPLES)


def seeded(options: GenerationOptions, n: int, default: int | None) -> list[GenerationOptions]:
    """The options of ``n`` samples, with the seeds s, s + 1, ... modulo 2^64.

    s is the seed of the options, else ``default``, else a new one. Raises ConfigError unless n is 1 to 1024.
    """
    n = checks.integer("n", n, 1, MAX_SAMPLES)
    if options.sampler is None:
        raise ConfigError("sampler: expected one, got None")
    first = default if options.sampler.seed is None else options.sampler.seed
    if first is None:
        first = int.from_bytes(os.urandom(8), "little")
    seeds = [(first + i) % 2**64 for i in range(n)]
    return [options._changed(sampler=options.sampler._changed(seed=seed)) for seed in seeds]


def sample_requests(
    model: LoadedModel,
    options: GenerationOptions,
    n: int,
    new_request: Callable[[GenerationOptions], TextRequest],
) -> list[TextRequest]:
    """Requests of ``n`` samples of one prompt, which is run once. Raises ConfigError, as `seeded`."""
    requests = [new_request(each) for each in seeded(options, n, model.config.seed)]
    model.feature("shared prompts")
    share_prompt(requests)
    return requests


def mean_logprob(completion: Completion) -> float:
    """Log-probability per token in the model's own distribution; 0 without tokens. They must be noted."""
    logprobs = completion.logprobs
    if logprobs is None:
        raise ConfigError("logprobs: expected them with each token, got none")
    return sum(token.raw.logprob for token in logprobs) / max(1, len(logprobs))


def best_samples(completions: Listed[Completion], n: int) -> list[Completion]:
    """The ``n`` of the highest `mean_logprob`, the best first; among equals, the lower seeds."""
    return sorted(completions, key=mean_logprob, reverse=True)[:n]

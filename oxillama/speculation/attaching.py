"""Turns on speculative decoding for a request."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from oxillama.engine.loading import LoadedModel
from oxillama.engine.request import TextRequest
from oxillama.engine.sampling.sampler import Xorshift64
from oxillama.speculation.sampling import RejectionSampler
from oxillama.speculation.state import SPECULATION, Speculation

if TYPE_CHECKING:
    from oxillama.speculation.drafters import Drafter


def attach(model: LoadedModel, request: TextRequest) -> None:
    """Give a request a drafter, as its options or the engine's say. A draft model is loaded only once.

    Raises:
        ModelFileError, GGUFError, LoadError, TokenizerError: the draft model cannot be loaded.
        ConfigError: the drafter cannot draft for this model; the message says why.
    """
    chosen = model.config.speculate if request.options.speculate is None else request.options.speculate
    assert chosen is not None
    name, drafters = os.fspath(chosen), model.feature("drafters")
    drafter = drafters.loaded.get(name) or model.call(lambda: drafters.load(name))
    attach_drafter(model, request, drafter, model.config.draft_max)


def attach_drafter(model: LoadedModel, request: TextRequest, drafter: Drafter, most: int) -> Speculation:
    """Let a drafter propose up to ``most`` tokens at a time for a request that is not yet submitted."""
    by_rejection = request.options.draft_acceptance == "rejection"
    random = Xorshift64(~request.sampler.seed) if by_rejection else None  # not the sampler's own numbers
    found = request.parts[SPECULATION] = Speculation(drafter, most, random)
    if random is not None:
        request.sampler = RejectionSampler(request.sampler, request.sequence, found.distributions, random)
    model.loop.use_drafter(model.feature("speculator"))
    return found

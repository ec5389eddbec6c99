"""Several samples of one prompt, and the best of them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from oxillama.config import EngineConfig, GenerationOptions, checks
from oxillama.engine.generation import Completion, Generation
from oxillama.engine.loading import LoadedModel
from oxillama.engine.prompts import Prompt
from oxillama.engine.request import TextRequest
from oxillama.engine.shared_prompt import SharedPrompt
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from oxillama.config import GenerationFields

MAX_SAMPLES = 1024
"""Most samples of a prompt at a time."""


class Samples:
    """The part of `InferenceEngine` that samples a prompt more than once."""

    config: EngineConfig
    _last: Any

    if TYPE_CHECKING:  # what it calls

        @property
        def model(self) -> LoadedModel: ...

        def _request(self, tokens: list[int], options: GenerationOptions, whole: bool) -> TextRequest: ...

    def stream_n(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        n: int,
        **fields: Unpack[GenerationFields],
    ) -> list[Generation]:
        """Starts ``n`` samples of one prompt, which is run once; one handle for each, as `stream` gives them.

        Sample i is what `stream` gives with the seed s + i (modulo 2^64), where s is the seed that is asked
        for, else a new one. Each is a request of its own, to be read or cancelled by itself; they are refused
        with QueueFull, or taken, together. Parameters and errors are those of `stream`; ConfigError also if
        ``n`` is not 1 to 1024.
        """
        return self._stream_n(prompt, options, fields, checks.integer("n", n, 1, MAX_SAMPLES))

    def _stream_n(
        self,
        prompt: Prompt,
        options: GenerationOptions | None,
        fields: Mapping[str, Any],
        n: int,
        whole: bool = False,
    ) -> list[Generation]:
        model = self.model
        checked = GenerationOptions.of(options, fields, self.config.sampler)
        model.runner.check_logits()
        tokens = model.prompt_tokens(prompt, free=1)
        requests = [self._request(tokens, each, whole) for each in seeded(checked, n, self.config.seed)]
        share_prompt(requests)
        generations = [Generation(model, request) for request in requests]
        model.thread.submit(*requests)
        self._last.generation = weakref.ref(generations[-1])
        return generations

    def generate_n(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        n: int,
        best_of: int | None = None,
        **fields: Unpack[GenerationFields],
    ) -> list[Completion]:
        """``n`` whole texts for one prompt, as `stream_n` starts them, in order of their seeds.

        Parameters
        ----------
        best_of : so many are generated, and the ``n`` whose tokens have the highest mean log-probability in
            the model's own distribution are returned, the best first (as OpenAI's ``best_of`` chooses). Their
            log-probabilities are noted, asked for or not.

        Raises
        ------
        ConfigError : ``n`` is not 1 to 1024, or ``best_of`` not ``n`` to 1024.

        Other errors are those of `stream`. A text that a timeout has cut has the finish reason "timeout".
        """
        n, most = numbers_of_samples(n, best_of)
        if best_of is not None:
            fields["logprobs"] = True
        generations = self._stream_n(prompt, options, fields, most, whole=True)
        try:
            found = [generation.result() for generation in generations]
        except BaseException:
            for generation in generations:
                generation.cancel()
            raise
        return found if best_of is None else best_samples(found, n)


def numbers_of_samples(n: object, best_of: object) -> tuple[int, int]:
    """How many samples are wanted, and of how many. Raises ConfigError."""
    wanted = checks.integer("n", n, 1, MAX_SAMPLES)
    return wanted, wanted if best_of is None else checks.integer("best_of", best_of, wanted, MAX_SAMPLES)


def seeded(options: GenerationOptions, n: int, default: int | None) -> list[GenerationOptions]:
    """The options of each sample, with the seeds s, s + 1, ... modulo 2^64.

    s is the seed of the options, else ``default``, else a new one.
    """
    if options.sampler is None:
        raise ConfigError("sampler: expected one, got None")
    first = default if options.sampler.seed is None else options.sampler.seed
    if first is None:
        first = int.from_bytes(os.urandom(8), "little")
    return [replace(options, sampler=replace(options.sampler, seed=(first + i) % 2**64)) for i in range(n)]


def share_prompt(requests: Listed[TextRequest]) -> None:
    """Has requests of one prompt, none of them submitted yet, run it once."""
    first = requests[0]
    if len(requests) > 1 and len(first.prompt) > 1:
        shared = SharedPrompt(first.sequence)
        for request in requests:
            request.shared = shared
            shared.join(request)


def mean_logprob(completion: Completion) -> float:
    """Log-probability per token in the model's own distribution; 0 without tokens. They must be noted."""
    logprobs = completion.logprobs
    if logprobs is None:
        raise ConfigError("logprobs: expected them with each token, got none")
    return sum(token.raw.logprob for token in logprobs) / max(1, len(logprobs))


def best_samples(completions: Listed[Completion], n: int) -> list[Completion]:
    """The ``n`` of the highest `mean_logprob`, the best first; of equals those of the lower seeds."""
    return sorted(completions, key=mean_logprob, reverse=True)[:n]

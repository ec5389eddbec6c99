"""`SpeculativeDecoder`: speculation over two engines in asyncio, where the draft engine runs ahead."""

from __future__ import annotations

import inspect
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from oxillama.config import GenerationOptions, SamplerConfig, checks
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import Generation
from oxillama.engine.loading import Prompt
from oxillama.errors import ConfigError, GenerationCancelled
from oxillama.speculation.attaching import attach_drafter
from oxillama.speculation.run_ahead import RunAheadDrafter
from oxillama.speculation.state import Speculation
from oxillama.speculation.token_map import same_tokens


@dataclass(frozen=True, kw_only=True)
class AsyncSpecConfig:
    """Options of a `SpeculativeDecoder`.

    Attributes
    ----------
    spec_k : max drafted tokens that a pass verifies, 1 to 64. As many are verified as pay.
    draft_sampler : chooses the drafted tokens, from the draft model's logits.
    target_sampler : chooses the tokens of the text. A seed gives the text of that seed.
    force_n1 : nothing is drafted.
    max_tokens : max tokens of a text.

    Raises
    ------
    ConfigError : a field is outside its range; the message names it.
    """

    spec_k: int = 4
    draft_sampler: SamplerConfig = field(default_factory=SamplerConfig.greedy)
    target_sampler: SamplerConfig = field(default_factory=SamplerConfig)
    force_n1: bool = False
    max_tokens: int = 512

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec_k", checks.integer("spec_k", self.spec_k, 1, 64))
        object.__setattr__(self, "max_tokens", checks.integer("max_tokens", self.max_tokens, 0))
        for name in ("draft_sampler", "target_sampler"):
            checks.instance(name, getattr(self, name), SamplerConfig)
        checks.boolean("force_n1", self.force_n1)


@dataclass
class SpecStats:
    """What became of the drafts of all texts of a decoder.

    Attributes
    ----------
    accepted, rejected : drafted tokens that the target chose too, and those that it did not.
    bonus_tokens : tokens of the texts that were not drafted: at most one for each pass.
    total_elapsed : seconds from call to text.
    n1_fallbacks : texts that went on without drafts, though they were to have some: the drafter failed.
    """

    accepted: int = 0
    rejected: int = 0
    bonus_tokens: int = 0
    total_elapsed: float = 0.0
    n1_fallbacks: int = 0

    def acceptance_rate(self) -> float:
        """Share of the drafted tokens that were accepted; 0.0 when none was tried."""
        tried = self.accepted + self.rejected
        return self.accepted / tried if tried else 0.0

    def total_output_tokens(self) -> int:
        """Tokens of the texts."""
        return self.accepted + self.bonus_tokens


class CancellationToken:
    """Ends the texts that it was given to, from any thread."""

    def __init__(self) -> None:
        self._is_cancelled = False
        self._lock = threading.Lock()
        self._generations: weakref.WeakSet[Generation] = weakref.WeakSet()

    def cancel(self) -> None:
        """Ends them; a second call does nothing."""
        with self._lock:
            self._is_cancelled = True
            generations = list(self._generations)
        for generation in generations:
            generation.cancel()

    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._is_cancelled

    def _watch(self, generation: Generation) -> None:
        with self._lock:
            self._generations.add(generation)
        if self._is_cancelled:
            generation.cancel()


class SpeculativeDecoder:
    """Generates with a target engine, for which the engine of a smaller model drafts at the same time.

    The draft engine computes the next drafts while the target verifies those before. Its proposals are taken
    where they continue the text; the target waits for them no longer than for half of a step. The text is
    the one that the target gives alone. Any number of texts may be generated at the same time, and the
    engines may be used otherwise.

    ``speculate=`` of an engine or a request does the same within the steps of one engine, which is faster
    where both models share the cores.

    Parameters
    ----------
    draft, target : engines with loaded models whose vocabularies are the same. They stay open.

    Raises
    ------
    ConfigError : both are one engine, or their vocabularies differ.

    Attributes
    ----------
    stats : of all texts since `reset_stats`.
    """

    def __init__(
        self, draft: InferenceEngine | None, target: InferenceEngine, config: AsyncSpecConfig | None = None
    ) -> None:
        config = AsyncSpecConfig() if config is None else config
        self.config: AsyncSpecConfig = checks.instance("config", config, AsyncSpecConfig)
        self.target: InferenceEngine = checks.instance("target", target, InferenceEngine)
        self.draft = draft
        self.stats: SpecStats = SpecStats()
        self._token = CancellationToken()
        target.model.runner.check_logits()
        if draft is not None:
            model = checks.instance("draft", draft, InferenceEngine).model
            if model is target.model:
                raise ConfigError("draft: expected another engine than the target, got the same")
            model.runner.check_logits()
            if not same_tokens(model.tokenizer, target.tokenizer):
                raise ConfigError(
                    f"draft: expected the tokens of the target, got others in {self._draft_name}"
                )

    @classmethod
    def new_n1(cls, target: InferenceEngine, config: AsyncSpecConfig | None = None) -> SpeculativeDecoder:
        """A decoder that drafts nothing."""
        return cls(None, target, config)

    @property
    def _draft_name(self) -> str:
        path = None if self.draft is None else self.draft.config.model_path
        return "draft" if path is None else os.fspath(path)

    def reset_stats(self) -> None:
        """Begins to count anew."""
        self.stats = SpecStats()

    def cancellation_token(self) -> CancellationToken:
        """Ends the text that is generated, or else the next one. After that there is another token."""
        return self._token

    async def generate(self, prompt: Prompt, on_token: Callable[[str], object] | None = None) -> str:
        """The text for a prompt. Cancelling the task ends it.

        Parameters
        ----------
        on_token : called, and awaited if it returns an awaitable, with each piece of text as it comes;
            returning False ends the text.

        Raises
        ------
        GenerationCancelled : the token was cancelled before the first token of the text. Later it ends the
            text.

        Other errors are those of `InferenceEngine.stream`.
        """
        if not (on_token is None or callable(on_token)):
            raise checks.refuse("on_token", "a callable", on_token)
        started, token, config = time.perf_counter(), self._token, self.config
        if token.is_cancelled():
            self._token = CancellationToken()
            raise GenerationCancelled("text: was cancelled before it began")
        tokens = self.target.model.prompt_tokens(prompt, free=1)
        options = GenerationOptions(sampler=config.target_sampler, max_tokens=config.max_tokens)
        drafter = None if config.force_n1 else self._drafter(tokens)
        speculation = None
        try:
            request = self.target._request(tokens, replace(options, speculate="off"))
            if drafter is not None:
                speculation = attach_drafter(self.target.model, request, drafter, config.spec_k)
            (generation,) = self.target._submit([request])
            token._watch(generation)
            try:
                async for piece in generation:
                    answer = None if on_token is None else on_token(piece)
                    if inspect.isawaitable(answer):
                        answer = await answer
                    if answer is False:
                        break
            finally:
                await generation.aclose()
        finally:
            if drafter is not None:
                drafter.forget()
            if token.is_cancelled() and token is self._token:
                self._token = CancellationToken()
        self._count(generation, speculation, drafter, time.perf_counter() - started)
        if token.is_cancelled() and not generation.tokens:
            raise GenerationCancelled("text: was cancelled before its first token")
        return generation.text

    def _drafter(self, tokens: list[int]) -> RunAheadDrafter | None:
        """What drafts for a prompt."""
        if self.draft is None:
            return None
        model, target = self.draft.model, self.target.tokenizer
        sampler, most = model.sampler(self.config.draft_sampler), self.config.spec_k
        context, name = model.context_size, self._draft_name
        return RunAheadDrafter(name, self.draft.session, context, sampler, target, tokens, most)

    def _count(
        self,
        generation: Generation,
        speculation: Speculation | None,
        drafter: RunAheadDrafter | None,
        seconds: float,
    ) -> None:
        stats, request = self.stats, generation._text_request
        accepted = 0
        if speculation is not None and drafter is not None:
            accepted = speculation.stats.accepted
            stats.rejected += speculation.stats.rejected
            stats.n1_fallbacks += drafter.has_failed
        stats.accepted += accepted
        stats.bonus_tokens += request.n_generated - accepted
        stats.total_elapsed += seconds

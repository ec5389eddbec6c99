"""`SpeculativeDecoder`: speculative decoding with two engines in asyncio; the draft engine runs ahead."""

from __future__ import annotations

import inspect
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from oxillama.base.config import GenerationOptions, SamplerConfig, checks
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

    Attributes:
        spec_k: max drafted tokens that a pass verifies, 1 to 64; fewer are verified if that is faster.
        draft_sampler: chooses the drafted tokens from the draft model's logits.
        target_sampler: chooses the tokens of the text. A seed gives the same text as without drafts.
        force_n1: turns drafting off.
        max_tokens: max tokens of a text.

    Raises:
        ConfigError: a field is outside its range; the message names it.
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
    """Counts of the drafts of all texts of a decoder.

    Attributes:
        accepted: drafted tokens that the target also chose.
        rejected: drafted tokens that it did not choose.
        bonus_tokens: tokens of the texts that were not drafted: at most one for each pass.
        total_elapsed: seconds in `generate`, summed over the texts.
        n1_fallbacks: texts that continued without drafts because the drafter failed.
    """

    accepted: int = 0
    rejected: int = 0
    bonus_tokens: int = 0
    total_elapsed: float = 0.0
    n1_fallbacks: int = 0

    def acceptance_rate(self) -> float:
        """The share of the drafted tokens that were accepted; 0.0 if no token was drafted."""
        tried = self.accepted + self.rejected
        return self.accepted / tried if tried else 0.0

    def total_output_tokens(self) -> int:
        """The number of tokens of all texts."""
        return self.accepted + self.bonus_tokens


class CancellationToken:
    """Cancels the generations that watch it, from any thread."""

    def __init__(self) -> None:
        self._is_cancelled = False
        self._lock = threading.Lock()
        self._generations: weakref.WeakSet[Generation] = weakref.WeakSet()

    def cancel(self) -> None:
        """Cancel the generations; a second call has no effect."""
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
    """Generates with a target engine while the engine of a smaller model drafts for it.

    The draft engine computes the next drafts while the target verifies the previous ones. Proposals are used
    if they continue the text; the target waits for them at most half the time of a step. The text is the same
    as without the draft engine. Several texts may be generated at the same time, and both engines may serve
    other requests.

    ``speculate=`` of an engine or a request drafts within the steps of one engine, which is faster if both
    models share the cores.

    Args:
        draft: engine with a loaded model, which stays open; None: nothing is drafted.
        target: engine with a loaded model of the same vocabulary. It stays open.

    Raises:
        ConfigError: both engines are the same, or their vocabularies differ.

    Attributes:
        stats: counts of all texts since `reset_stats`.
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
        """A decoder without a draft engine, which drafts nothing."""
        return cls(None, target, config)

    @property
    def _draft_name(self) -> str:
        path = None if self.draft is None else self.draft.config.model_path
        return "draft" if path is None else os.fspath(path)

    def reset_stats(self) -> None:
        """Set all counts to zero."""
        self.stats = SpecStats()

    def cancellation_token(self) -> CancellationToken:
        """The token that cancels the current text, or else the next one. Then a new token replaces it."""
        return self._token

    async def generate(self, prompt: Prompt, on_token: Callable[[str], object] | None = None) -> str:
        """Generate the text for a prompt. Cancelling the task ends the generation.

        Args:
            on_token: called with each new piece of text, and awaited if it returns an awaitable; returning
                False ends the text.

        Raises:
            GenerationCancelled: the token was cancelled before the first token of the text. A later
                cancellation ends the text.

        Other errors are the errors of `InferenceEngine.stream`.
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
        """The drafter for a prompt; None without a draft engine."""
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

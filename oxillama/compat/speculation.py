"""Speculation with two engines' options, and going back, by the reference's names."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from oxillama.config import EngineConfig, GenerationOptions, checks
from oxillama.engine.drafters import ModelDrafter
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.generation import text_of
from oxillama.engine.loading import LoadedModel
from oxillama.engine.prompts import Prompt
from oxillama.engine.session import Session
from oxillama.engine.speculation import Speculation
from oxillama.errors import ConfigError, RewindNotSupported
from oxillama.speculative.token_map import same_tokens


@dataclass(frozen=True)
class SpeculativeConfig:
    """Options of a `SpeculativeEngine`.

    Attributes
    ----------
    target, draft : of the two models. The target's sampler chooses the tokens, of the drafts too.
    num_speculative : most tokens of a draft, 1 to 64.
    seed : of the texts; None for the target's.

    Raises
    ------
    ConfigError : a field is outside its range; the message names it.
    """

    target: EngineConfig
    draft: EngineConfig
    num_speculative: int = 4
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("target", "draft"):
            config = checks.instance(name, getattr(self, name), EngineConfig)
            if config.speculate is not None:
                raise ConfigError(f"{name}: expected no speculate beside a draft, got {config.speculate!r}")
        n = checks.integer("num_speculative", self.num_speculative, 1, 64)
        object.__setattr__(self, "num_speculative", n)
        if self.seed is not None:
            object.__setattr__(self, "seed", checks.integer("seed", self.seed, 0, 2**64 - 1))


class SpeculativeEngine:
    """An engine whose requests are drafted by a smaller model, in the steps of the engine.

    Raises what `InferenceEngine` raises, and ConfigError if the vocabularies differ.

    Attributes
    ----------
    target : the engine, whose thread runs the draft model too.
    """

    def __init__(self, config: SpeculativeConfig) -> None:
        self.config = checks.instance("config", config, SpeculativeConfig)
        seed = config.target.seed if config.seed is None else config.seed
        for name, options in (("target", config.target), ("draft", config.draft)):
            if options.model_path is None:
                raise ConfigError(f"{name}: expected a model_path, got None")
        self.target = InferenceEngine(replace(config.target, seed=seed))
        path = os.fspath(config.draft.model_path)  # type: ignore[arg-type]
        self._draft = draft = LoadedModel(path, config.draft)
        tokenizer = self.target.tokenizer
        if not same_tokens(draft.tokenizer, tokenizer):
            raise ConfigError(f"draft: expected the tokens of the target, got others in {path}")
        ends = tokenizer.eog_ids
        self._drafter = ModelDrafter(path, draft.runner, tokenizer.n_vocab, ends, draft.context_size)

    def generate(
        self, prompt: Prompt, max_tokens: int = 256, callback: Callable[[str], object] | None = None
    ) -> str:
        """The text that the target gives alone; parameters and errors as of `InferenceEngine.generate`."""
        options = GenerationOptions(sampler=self.target.config.sampler, max_tokens=max_tokens)
        tokens = self.target.model.prompt_tokens(prompt, free=1)
        speculation = Speculation(self._drafter, self.config.num_speculative)
        return text_of(self.target._stream_drafted(tokens, options, speculation, callback).result())

    def close(self) -> None:
        """Ends the engine and frees the draft model."""
        self.target.close()
        self._draft.close()

    def __enter__(self) -> SpeculativeEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class SpeculativeDeltaSync:
    """Takes an engine's own session back to a checkpoint, by forks: nothing is copied or run again."""

    def __init__(self) -> None:
        self._checkpoint: Session | None = None

    def checkpoint(self, engine: InferenceEngine) -> None:
        """Notes the tokens of the engine's own session, in place of an earlier checkpoint."""
        self._checkpoint = engine._own.fork()

    def restore(self, engine: InferenceEngine) -> None:
        """Puts the checkpoint in place of the engine's own session, any number of times.

        Raises
        ------
        RewindNotSupported : there is no checkpoint of this engine's model.
        """
        if self._checkpoint is None or self._checkpoint._model is not engine.model:
            raise RewindNotSupported("checkpoint: expected one of this engine, got none")
        engine._default_session = self._checkpoint.fork()


@runtime_checkable
class Rewindable(Protocol):
    """What can be taken back: an `InferenceEngine`, with its own session."""

    def rewind(self, n_tokens: int) -> None:
        """Keeps the first ``n_tokens`` tokens. Raises PositionBeyondEnd if there are fewer."""
        ...

    def current_length(self) -> int:
        """Tokens that there are."""
        ...

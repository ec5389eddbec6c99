"""Speculative decoding with a separate draft model, and rewinding, by the reference's names."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from oxillama.base.config import EngineConfig, GenerationOptions, checks
from oxillama.compat.engine import InferenceEngine
from oxillama.engine.completion import text_of
from oxillama.engine.generation import Generation
from oxillama.engine.loading import LoadedModel, Prompt
from oxillama.engine.request import TextRequest
from oxillama.errors import ConfigError, RewindNotSupported
from oxillama.sessions.capture import snapshot_of_sequence
from oxillama.sessions.container import read_bytes
from oxillama.sessions.restore import check_fits, restore_generation, saved_config
from oxillama.sessions.sequences import SequenceCopy
from oxillama.sessions.session import Session
from oxillama.sessions.snapshot import EngineSnapshot
from oxillama.sessions.speculative import SpeculativeEngineSnapshot
from oxillama.speculation.attaching import attach_drafter
from oxillama.speculation.drafters import ModelDrafter
from oxillama.speculation.token_map import same_tokens


@dataclass(frozen=True)
class SpeculativeConfig:
    """Options of a `SpeculativeEngine`.

    Attributes:
        target: options of the target model. Its sampler also samples the drafts.
        draft: options of the draft model.
        num_speculative: max tokens of a draft, 1 to 64.
        seed: seed of the texts; None: the target's.

    Raises:
        ConfigError: a field is outside its range; the message names it.
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
        if self.draft.prefix_cache_dir is not None:
            raise ConfigError("draft: expected no prefix_cache_dir, which only the target's prompts use")
        n = checks.integer("num_speculative", self.num_speculative, 1, 64)
        object.__setattr__(self, "num_speculative", n)
        if self.seed is not None:
            object.__setattr__(self, "seed", checks.integer("seed", self.seed, 0, 2**64 - 1))


class SpeculativeEngine:
    """An engine whose requests are drafted by a smaller model, within the engine's steps.

    ``target`` is the engine, whose thread also runs the draft model. Raises as `InferenceEngine`, and
    ConfigError if the vocabularies differ.
    """

    def __init__(self, config: SpeculativeConfig) -> None:
        checks.instance("config", config, SpeculativeConfig)
        seed = config.target.seed if config.seed is None else config.seed
        for name, options in (("target", config.target), ("draft", config.draft)):
            if options.model_path is None:
                raise ConfigError(f"{name}: expected a model_path, got None")
        self._set_up(config, InferenceEngine(replace(config.target, seed=seed)))

    def _set_up(self, config: SpeculativeConfig, target: InferenceEngine) -> None:
        """Load the draft model; if this fails, close the target."""
        self.config: SpeculativeConfig = config
        self.target: InferenceEngine = target
        self._generation: Generation | None = None
        self._begun: EngineSnapshot | None = None
        try:
            path = os.fspath(config.draft.model_path)  # type: ignore[arg-type]
            self._draft = draft = LoadedModel(path, config.draft)
            tokenizer = target.tokenizer
            if not same_tokens(draft.tokenizer, tokenizer):
                draft.close()
                raise ConfigError(f"draft: expected the tokens of the target, got others in {path}")
            ends = tokenizer.eog_ids
            self._drafter = ModelDrafter(path, draft.runner, tokenizer.n_vocab, ends, draft.context_size)
        except BaseException:
            target.close()
            raise

    def _attach(self, request: TextRequest) -> None:
        attach_drafter(self.target.model, request, self._drafter, self.config.num_speculative)

    def generate(
        self, prompt: Prompt, max_tokens: int = 256, callback: Callable[[str], object] | None = None
    ) -> str:
        """The text as the target alone generates it; parameters and errors as `InferenceEngine.generate`."""
        options = GenerationOptions(sampler=self.target.config.sampler, max_tokens=max_tokens)
        tokens = self.target.model.prompt_tokens(prompt, free=1)
        request = self.target._request(tokens, replace(options, speculate="off"))
        self._attach(request)
        (generation,) = self.target._submit([request], callback)
        return self._whole(generation)

    def _whole(self, generation: Generation) -> str:
        self._generation = generation
        return text_of(generation.result())

    # --- snapshots ----------------------------------------------------------------------------------

    def capture(self) -> SpeculativeEngineSnapshot:
        """The snapshot that `snapshot` serializes."""
        taken = None
        if self._generation is not None and self._generation.is_running:
            try:
                taken = self._generation.capture()
            except ConfigError:  # the generation may have ended in the meantime
                if self._generation.is_running:
                    raise
        if taken is None:
            taken = self._begun or self.target.capture()
        draft = snapshot_of_sequence(self._draft, SequenceCopy.empty(self._draft.pool), "engine", None)
        return SpeculativeEngineSnapshot(taken, draft, self.config.num_speculative)

    def snapshot(self, *, compress: bool = False) -> bytes:
        """A snapshot of the last text, if it has not ended (see `finish`); else of the engine.

        Call it from a callback, or from another thread. Raises ConfigError for an option that cannot be
        saved.
        """
        return self.capture().encode(compress=compress)

    def snapshot_to_file(self, path: str | os.PathLike[str], *, compress: bool = False) -> None:
        """Write a `snapshot` to a file atomically. Also raises ModelFileError."""
        self.capture().write(path, compress=compress)

    @classmethod
    def resume(
        cls,
        data: bytes | bytearray | memoryview,
        target_model_path: str | os.PathLike[str] | None = None,
        draft_model_path: str | os.PathLike[str] | None = None,
    ) -> SpeculativeEngine:
        """Two engines with the options of a snapshot.

        Args:
            target_model_path: where the target model is now; None: its former path.
            draft_model_path: where the draft model is now; None: its former path.

        Raises:
            SpecSnapshotIncompatible: the snapshot is damaged.
            SnapshotIncompatible: it does not fit.
            ModelFingerprintMismatch: one of the models differs.
        """
        snapshot = SpeculativeEngineSnapshot.decode(data)
        with ExitStack() as failing:
            target = InferenceEngine.resume(snapshot.target, target_model_path)
            failing.callback(target.close)
            draft = saved_config(snapshot.draft)
            path = snapshot.draft.model.path if draft_model_path is None else draft_model_path
            if not path:
                raise ConfigError("draft_model_path: expected a path, for a draft model from bytes")
            config = SpeculativeConfig(
                target.config, replace(draft, model_path=path), snapshot.num_speculative
            )
            made = cls.__new__(cls)
            made._set_up(config, target)
            failing.callback(made.close)
            check_fits(made._draft, snapshot.draft)
            failing.pop_all()
        made._begun = snapshot.target if snapshot.target.kind == "generation" else None
        return made

    @classmethod
    def resume_from_file(
        cls,
        path: str | os.PathLike[str],
        target: str | os.PathLike[str] | None = None,
        draft: str | os.PathLike[str] | None = None,
    ) -> SpeculativeEngine:
        """`resume` from a file. Raises ModelFileError if it cannot be read."""
        return cls.resume(read_bytes(path), target, draft)

    def finish(self, callback: Callable[[str], object] | None = None) -> str:
        """Finish the text that was running when the snapshot was taken; returns the whole text.

        ``callback`` receives the rest. Raises ConfigError if there is no such text.
        """
        if self._begun is None:
            raise ConfigError("snapshot: expected one of a text that is under way, got none")
        model, begun = self.target.model, self._begun
        generation = restore_generation(model, begun, {}, callback=callback, attach=self._attach)
        self._begun = None
        return self._whole(generation)

    def close(self) -> None:
        """Close the engine and free the draft model."""
        self.target.close()
        self._draft.close()

    def __enter__(self) -> SpeculativeEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class SpeculativeDeltaSync:
    """Takes an engine's built-in session back to a checkpoint by forks: nothing is copied or run again."""

    def __init__(self) -> None:
        self._checkpoint: Session | None = None

    def checkpoint(self, engine: InferenceEngine) -> None:
        """Remember the current tokens of the engine's built-in session; replaces an earlier checkpoint."""
        self._checkpoint = engine._own.fork()

    def restore(self, engine: InferenceEngine) -> None:
        """Replace the engine's built-in session by the checkpoint; may be repeated.

        Raises:
            RewindNotSupported: there is no checkpoint of this engine's model.
        """
        if self._checkpoint is None or self._checkpoint._model is not engine.model:
            raise RewindNotSupported("checkpoint: expected one of this engine, got none")
        engine._own_session = self._checkpoint.fork()


@runtime_checkable
class Rewindable(Protocol):
    """An object whose tokens can be rewound, such as `InferenceEngine` with its built-in session."""

    def rewind(self, n_tokens: int) -> None:
        """Keep the first ``n_tokens`` tokens. Raises PositionBeyondEnd if there are fewer."""
        ...

    def current_length(self) -> int:
        """The number of tokens."""
        ...

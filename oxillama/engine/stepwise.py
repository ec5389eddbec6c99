"""The engine's own sequence, run by hand: tokens in, logits out, and back again.

Other requests' steps and these take turns, a chunk at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence as Listed
from dataclasses import dataclass

import numpy as np

from oxillama.config.engine import EngineConfig
from oxillama.engine.core import EngineCore
from oxillama.engine.runner import Runner
from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError, PromptError
from oxillama.gguf.model_file import ModelFile
from oxillama.models.spec import Spec
from oxillama.tokenizer.bridge import TokenizerBridge

Prompt = str | Listed[int] | np.ndarray


@dataclass(frozen=True)
class KvSnapshot:
    """What `Stepwise.kv_snapshot` took.

    Attributes
    ----------
    tokens : ids of the sequence.
    data : uint8 (pages, bytes of a page), keys and values of all of them.
    model : key of the model that computed them.
    """

    tokens: list[int]
    data: np.ndarray
    model: bytes


class Stepwise:
    """The part of `InferenceEngine` that runs tokens by hand."""

    config: EngineConfig
    runner: Runner
    core: EngineCore
    spec: Spec
    tokenizer: TokenizerBridge
    context_size: int
    _sequence: Sequence
    _model_key: bytes

    def _new_sequence(self) -> None:
        self._sequence = Sequence(self.runner.pool)
        self._own = threading.RLock()  # of the one sequence; two threads' tokens would mix in it

    def _need_file(self) -> ModelFile:
        raise NotImplementedError

    def logits(self, tokens: Prompt) -> np.ndarray:
        """float32 (n, vocab): logits after each token of a fresh sequence. Leaves `prefill`'s alone."""
        self._need_file()
        sequence = Sequence(self.runner.pool, self._prompt_tokens(tokens))
        try:
            return self._extend(sequence, all_logits=True)
        finally:
            with self.core.exclusive():
                sequence.release()

    def prefill(self, tokens: Prompt) -> np.ndarray:
        """Appends tokens to the engine's own sequence; float32 (vocab,) logits after the last."""
        self._need_file()
        fresh = self._prompt_tokens(tokens)
        with self._own:
            before = len(self._sequence.tokens)
            self._sequence.tokens += fresh
            try:
                logits: np.ndarray = self._extend(self._sequence)[0]
                return logits
            except BaseException:
                with self.core.exclusive():
                    self._sequence.truncate(before)
                raise

    forward_prefill = prefill

    def forward_one(self, token: int) -> np.ndarray:
        """Appends one token to the engine's own sequence; float32 (vocab,) logits after it."""
        return self.prefill([token])

    forward_decode = forward_one

    def truncate(self, n_tokens: int) -> None:
        """Forgets all but the first ``n_tokens`` tokens of the engine's own sequence."""
        self._need_file()
        with self._own, self.core.exclusive():
            if isinstance(n_tokens, bool) or not 0 <= n_tokens <= len(self._sequence.tokens):
                raise ConfigError(f"n_tokens: needs 0 to {len(self._sequence.tokens)}, got {n_tokens!r}")
            self._sequence.truncate(n_tokens)

    def rewind(self, n_tokens: int) -> None:
        """Forgets the last ``n_tokens`` tokens of the engine's own sequence."""
        self._need_file()
        with self._own:
            if isinstance(n_tokens, bool) or not 0 <= n_tokens <= len(self._sequence.tokens):
                raise ConfigError(f"n_tokens: needs 0 to {len(self._sequence.tokens)}, got {n_tokens!r}")
            self.truncate(len(self._sequence.tokens) - n_tokens)

    def reset(self) -> None:
        """Forgets the engine's own sequence."""
        self.truncate(0)

    @property
    def kv_cache_seq_len(self) -> int:
        """Tokens in the engine's own sequence."""
        return self._sequence.cached_len if hasattr(self, "_sequence") else 0

    def kv_snapshot(self) -> KvSnapshot:
        """A copy of the engine's own sequence: its tokens, keys and values."""
        self._need_file()
        with self._own:
            if self._sequence.pending:  # what a cut has left to be run again
                self._extend(self._sequence)
        with self._own, self.core.exclusive():
            sequence = self._sequence
            data = sequence.kv.snapshot(sequence.cached_len)
            return KvSnapshot(list(sequence.tokens), data, self._model_key)

    def kv_restore(self, snapshot: KvSnapshot) -> None:
        """Puts a snapshot in place of the engine's own sequence.

        Raises
        ------
        ConfigError : it is of another model, KV type or page size.
        KvCacheFullError : there are no pages for it. The sequence is as it was in both cases.
        """
        self._need_file()
        with self._own, self.core.exclusive():
            if snapshot.model != self._model_key:
                raise ConfigError("snapshot: is of another model than the one that is loaded")
            n = len(snapshot.tokens)
            self._sequence.kv.restore(snapshot.data, n)
            self._sequence.tokens = list(snapshot.tokens)
            self._sequence.cached_len = self._sequence.scheduled_len = n

    def _extend(self, sequence: Sequence, all_logits: bool = False) -> np.ndarray:
        """Runs what is pending, in chunks; logits of every row, or (1, vocab) of the last."""
        if len(sequence.tokens) > self.context_size:
            raise PromptError(
                f"prompt: {len(sequence.tokens)} tokens do not fit a context of {self.context_size}"
            )
        parts = []
        while sequence.pending:
            n = min(self.config.prefill_chunk_size, sequence.pending)
            with self.core.exclusive():
                parts.append(self.runner.forward([(sequence, n)], all_logits))
        return np.concatenate(parts) if all_logits else parts[-1]

    def _prompt_tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if not prompt:
                raise PromptError("prompt: is empty")
            return self.tokenizer.encode(prompt)
        return self._checked_tokens(prompt)

    def _checked_tokens(self, tokens: Listed[int] | np.ndarray) -> list[int]:
        ids = [int(t) for t in tokens]
        if not ids:
            raise PromptError("prompt: has no tokens")
        wrong = next((t for t in ids if not 0 <= t < self.spec.n_vocab), None)
        if wrong is not None:
            raise PromptError(f"prompt: token {wrong} is not in the vocabulary of {self.spec.n_vocab}")
        return ids

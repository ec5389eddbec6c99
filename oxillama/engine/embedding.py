"""Embeddings of texts: hidden states of their tokens after the last norm, pooled into one vector."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Listed
from contextlib import AbstractContextManager, nullcontext
from enum import Enum

import numpy as np

from oxillama.config.engine import EngineConfig
from oxillama.engine.core import EngineCore
from oxillama.engine.runner import Runner
from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError, PromptError


class PoolingMode(str, Enum):
    """How one vector comes from those of a text's tokens."""

    LAST = "last"  # the last token's
    MEAN = "mean"  # their mean
    MAX = "max"  # the largest of each component
    CLS = "cls"  # the first token's


def pooling_of(mode: PoolingMode | str | None, stated: str, causal: bool) -> PoolingMode:
    """A mode as asked for, else as the model's file has it, else the last token of a decoder and the mean of
    an encoder. Raises ConfigError if there is no such mode."""
    wanted = (
        mode if mode is not None else stated if stated not in ("", "none") else "last" if causal else "mean"
    )
    try:
        return PoolingMode(wanted)
    except ValueError as error:
        modes = ", ".join(mode.value for mode in PoolingMode)
        raise ConfigError(f"pooling: needs one of {modes}, got {wanted!r}") from error


def pool(states: np.ndarray, mode: PoolingMode) -> np.ndarray:
    """float32 (d,) of states float32 (tokens, d)."""
    if mode is PoolingMode.MEAN:
        mean: np.ndarray = states.mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean
    found: np.ndarray = {
        PoolingMode.LAST: lambda: states[-1].copy(),
        PoolingMode.CLS: lambda: states[0].copy(),
        PoolingMode.MAX: lambda: states.max(axis=0),
    }[mode]()
    return found


Alone = Callable[[], AbstractContextManager[None]]
"""Keeps others off the pages for a while."""


def token_states(
    runner: Runner, texts: Listed[list[int]], chunk: int, alone: Alone = nullcontext
) -> list[np.ndarray]:
    """float32 (tokens, d) of each text, run together, about ``chunk`` rows at a time, each time ``alone``.

    A decoder's text may be cut where a chunk is full; an encoder sees each whole. What else is in a batch
    changes no bit.
    """
    whole = not runner.model.spec.causal
    sequences = [Sequence(runner.pool, tokens) for tokens in texts]
    found: list[list[np.ndarray]] = [[] for _ in texts]
    try:
        while any(sequence.pending for sequence in sequences):
            parts: list[tuple[Sequence, int]] = []
            owners, room = [], chunk
            for i, sequence in enumerate(sequences):
                n = sequence.pending if whole else min(sequence.pending, room)
                if 0 < n <= room or (n and not parts):
                    parts.append((sequence, n))
                    owners.append(i)
                    room = max(0, room - n)
            with alone():
                rows = runner.forward(parts, all_logits=True, states=True)
                for i, piece in zip(owners, np.split(rows, np.cumsum([n for _, n in parts])[:-1])):
                    found[i].append(piece)
                    if not sequences[i].pending:
                        sequences[i].release()
    finally:
        with alone():
            for sequence in sequences:
                sequence.release()
    return [np.concatenate(pieces) for pieces in found]


def embed_texts(
    runner: Runner,
    texts: Listed[list[int]],
    mode: PoolingMode | str | None,
    chunk: int,
    normalize: bool,
    alone: Alone = nullcontext,
) -> np.ndarray:
    """float32 (texts, d): one vector for each list of token ids, of length 1 if ``normalize``."""
    spec = runner.model.spec
    pooling = pooling_of(mode, spec.pooling, spec.causal)
    if not texts:
        return np.empty((0, spec.n_embd), np.float32)
    vectors = np.stack([pool(states, pooling) for states in token_states(runner, texts, chunk, alone)])
    if normalize:
        lengths = np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=1, keepdims=True))
        vectors = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
    return vectors


class Embedder:
    """The engine's methods that embed texts; a class of their own for the sake of size.

    All raise PromptError if a text is empty or does not fit the context, TokenizerError if it is not valid
    unicode, and ConfigError if no model is loaded or there is no such pooling.
    """

    config: EngineConfig
    context_size: int
    core: EngineCore
    runner: Runner

    def embed(self, text: str | Listed[int], *, normalize: bool = False) -> np.ndarray:
        """float32 (n_embd,): the embedding of a text, pooled as the model's file says; else by the mean of
        an encoder's tokens, or the last token of a decoder. Of length 1 if ``normalize``."""
        vector: np.ndarray = self.embed_batch([text], normalize=normalize)[0]
        return vector

    def embed_batch(self, texts: Listed[str | Listed[int]], *, normalize: bool = False) -> np.ndarray:
        """float32 (texts, n_embd): such an embedding of each text, bit for bit as `embed` gives it."""
        return self._embed(texts, None, normalize)

    def embed_with(
        self, text: str | Listed[int], pooling: PoolingMode | str, *, normalize: bool = False
    ) -> np.ndarray:
        """`embed` with the pooling asked for."""
        vector: np.ndarray = self.embed_batch_with([text], pooling, normalize=normalize)[0]
        return vector

    def embed_batch_with(
        self, texts: Listed[str | Listed[int]], pooling: PoolingMode | str, *, normalize: bool = False
    ) -> np.ndarray:
        """`embed_batch` with the pooling asked for."""
        return self._embed(texts, pooling, normalize)

    def _embed(
        self, texts: Listed[str | Listed[int]], pooling: PoolingMode | str | None, normalize: bool
    ) -> np.ndarray:
        self._need_file()
        if isinstance(texts, str):
            raise ConfigError("texts: needs a list of texts, got one text")
        tokens = [self._prompt_tokens(text) for text in texts]
        for ids in tokens:
            if len(ids) > self.context_size:
                raise PromptError(f"text: {len(ids)} tokens do not fit a context of {self.context_size}")
        chunk = self.config.prefill_chunk_size
        return embed_texts(self.runner, tokens, pooling, chunk, normalize, self.core.exclusive)

    def _need_file(self) -> object:
        raise NotImplementedError

    def _prompt_tokens(self, prompt: str | Listed[int]) -> list[int]:
        raise NotImplementedError

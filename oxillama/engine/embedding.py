"""Embeddings and scores of texts: hidden states after the last norm, pooled into one vector."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from oxillama.config import checks
from oxillama.engine.handle import Handle
from oxillama.engine.loading import LoadedModel
from oxillama.engine.request import EmbeddingRequest, Event
from oxillama.engine.sequence import Sequence
from oxillama.errors import ConfigError


class PoolingMode(str, Enum):
    """How one vector comes from those of a text's tokens."""

    LAST = "last"  # the last token's
    MEAN = "mean"  # their mean
    MAX = "max"  # the largest of each component
    CLS = "cls"  # the first token's


def pooling_of(mode: PoolingMode | str | None, stated: str, causal: bool) -> PoolingMode:
    """A mode as asked for, else as the model's file has it, else the last token of a decoder and the mean of
    an encoder. Raises ConfigError if there is no such mode."""
    if mode is None:
        mode = stated if stated in list(PoolingMode) else "last" if causal else "mean"
    try:
        return PoolingMode(mode)
    except ValueError as error:
        modes = ", ".join(mode.value for mode in PoolingMode)
        raise ConfigError(f"pooling: expected one of {modes}, got {mode!r}") from error


def pool_hidden_states(states: np.ndarray, mode: PoolingMode | str) -> np.ndarray:
    """One vector of many.

    Parameters
    ----------
    states : float32 (tokens, n_embd)

    Returns
    -------
    float32 (n_embd,)
    """
    mode = PoolingMode(mode)
    if mode is PoolingMode.MEAN:
        mean: np.ndarray = states.mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean
    found: np.ndarray = {
        PoolingMode.LAST: lambda: states[-1].copy(),
        PoolingMode.CLS: lambda: states[0].copy(),
        PoolingMode.MAX: lambda: states.max(axis=0),
    }[mode]()
    return found


class Embedding(Handle):
    """A text whose hidden states are being computed.

    Parameters
    ----------
    last : those of the last token only.
    """

    def __init__(self, model: LoadedModel, tokens: list[int], *, last: bool = False) -> None:
        sequence = Sequence(model.runner.pool, tokens, checkpoints=0)
        sequence.in_one_pass = not model.spec.causal
        # what a cache knows of a text is not run, so that only its last row comes out
        key = model.prefix_key() if last and model.spec.causal else None
        request = EmbeddingRequest(sequence, key=key, last=last)
        super().__init__(model.thread, request, model)
        self._parts: list[np.ndarray] = []
        model.thread.submit(request, limited=False)

    def result(self) -> np.ndarray:
        """float32 (tokens, n_embd), or (1, n_embd) of the last token. Raises what the model raised."""
        try:
            while self.finish_reason is None:
                self._take(self._event())
        except BaseException:
            self.cancel()
            raise
        return np.concatenate(self._parts)

    def __await__(self) -> Generator[object, None, np.ndarray]:
        """`result`, in asyncio."""
        return self._result().__await__()

    async def _result(self) -> np.ndarray:
        try:
            while self.finish_reason is None:
                self._take(await self._async_event())
        except BaseException:
            self.cancel()
            raise
        return np.concatenate(self._parts)

    def _take(self, event: Event) -> None:
        if isinstance(event, np.ndarray):
            self._parts.append(event)


def pair_tokens(model: LoadedModel, query: str, document: str) -> list[int]:
    """Token ids of a query with a document, as the model's reranker was trained to see them.

    That is the file's template "rerank", in which {query} and {document} stand for the texts, or both texts
    with the vocabulary's separators.
    """
    tokenizer = model.tokenizer
    checks.instance("query", query, str)
    checks.instance("document", document, str)
    if "rerank" not in tokenizer.chat_template_names:
        return model.prompt_tokens(tokenizer.encode_pair(query, document))
    text = tokenizer.chat_template_source("rerank")
    parts = {"{query}": query, "{document}": document}
    text = re.sub(r"\{query\}|\{document\}", lambda found: parts[found[0]], text)
    return model.prompt_tokens(tokenizer.encode(text, parse_special=True))


def scores(model: LoadedModel, states: list[np.ndarray]) -> np.ndarray:
    """float32 (texts,): the reranker's score of each text, from float32 (tokens, n_embd) of its tokens."""
    decoder = model.runner.model
    assert decoder.classifier is not None
    pooled = np.stack([pool_hidden_states(x, decoder.classifier.pooling) for x in states])
    labels = model.call(lambda: decoder.classify(pooled, model.runner.n_threads))
    return np.array(labels[:, 0])


def classifier_pooling(model: LoadedModel) -> PoolingMode:
    """Which token a reranker's head looks at. Raises ConfigError if the model is no reranker."""
    classifier = model.runner.model.classifier
    if classifier is None:
        raise ConfigError("model: expected a reranker, the file has no classification head")
    return PoolingMode(classifier.pooling)


@dataclass(frozen=True)
class Pooling:
    """How vectors are made of hidden states.

    Attributes
    ----------
    mode : which of the tokens' vectors, or what of them.
    normalize : whether the vector is scaled to length 1.
    """

    mode: PoolingMode
    normalize: bool = False

    @property
    def last(self) -> bool:
        """Whether the last token's hidden states are all that is needed."""
        return self.mode is PoolingMode.LAST

    def apply(self, states: np.ndarray) -> np.ndarray:
        """float32 (n_embd,) of float32 (tokens, n_embd)."""
        vector = pool_hidden_states(states, self.mode)
        if self.normalize:
            length = np.sqrt((vector.astype(np.float64) ** 2).sum())
            vector = (vector / np.maximum(length, 1e-12)).astype(np.float32)
        return vector

"""Embeddings and scores of texts: hidden states after the last norm, pooled into one vector."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from enum import Enum
from typing import Any

import numpy as np

from oxillama.base.config import checks
from oxillama.base.config.adapters import Adapters
from oxillama.engine.handle import Handle, next_event
from oxillama.engine.loading import LoadedModel, Prompt, listed
from oxillama.engine.request import Event, Request
from oxillama.engine.sequence import Output, Sequence
from oxillama.errors import ConfigError
from oxillama.models.adapters.stack import Adaptation

Reduce = Callable[[np.ndarray], np.ndarray]

NONE = "none"
"""The word of files and clients for no pooling: a vector for each token."""


class PoolingMode(str, Enum):  # noqa: UP042 - str() of a member stays what it was
    """How the vectors of a text's tokens become one vector."""

    LAST = "last"  # the last token's
    MEAN = "mean"  # their mean
    MAX = "max"  # the largest of each component
    CLS = "cls"  # the first token's


def pooling_of(mode: PoolingMode | str | None, model: LoadedModel) -> PoolingMode:
    """A mode as asked for, else as the model's file has it, else the last token of a decoder and the mean of
    an encoder. Raises ConfigError if there is no such mode."""
    spec = model.spec
    if mode is None:
        mode = spec.pooling if spec.pooling in list(PoolingMode) else "last" if spec.causal else "mean"
    return checked_mode(mode)


def checked_mode(mode: PoolingMode | str) -> PoolingMode:
    """A mode by its name. Raises ConfigError."""
    try:
        return PoolingMode(mode)
    except ValueError as error:
        modes = ", ".join(mode.value for mode in PoolingMode)
        raise ConfigError(f"pooling: expected one of {modes}, got {checks.shown(mode)}") from error


def pool_hidden_states(states: np.ndarray, mode: PoolingMode | str) -> np.ndarray:
    """Pools the hidden states of a text into one vector.

    Args:
        states: float32 (tokens, n_embd)

    Returns:
        float32 (n_embd,)

    Raises:
        ConfigError: there is no such mode, or there are no vectors.
    """
    mode = checked_mode(mode)
    checks.instance("states", states, np.ndarray)
    if states.ndim != 2 or not len(states):
        raise ConfigError(f"states: expected vectors of tokens, got shape {states.shape}")
    if mode is PoolingMode.MEAN:
        mean: np.ndarray = states.mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean
    found: np.ndarray = {
        PoolingMode.LAST: lambda: states[-1].copy(),
        PoolingMode.CLS: lambda: states[0].copy(),
        PoolingMode.MAX: lambda: states.max(axis=0),
    }[mode]()
    return found


class EmbeddingRequest(Request):
    """A sequence whose hidden states are wanted; its one event before the end is their reduction.

    Args:
        reduce: makes the result of float32 (tokens, n_embd), or (1, n_embd) if ``last``; called by the engine
            thread.
        last: whether the hidden states of the last token are all that is needed.
        tenant, key: as for `Request`.
    """

    def __init__(
        self,
        sequence: Sequence,
        reduce: Reduce,
        *,
        last: bool = False,
        key: bytes | None = None,
        tenant: str = "",
    ) -> None:
        super().__init__(sequence, key=key)
        self.tenant = tenant
        self.output = Output.LAST_HIDDEN if last else Output.ALL_HIDDEN
        self.first_wanted = -1 if last else 0
        self._reduce = reduce
        self._parts: list[tuple[int, np.ndarray]] = []  # rows, and the position of the first

    def take_rows(self, rows: np.ndarray) -> str | None:
        start = self.sequence.cached_len - len(rows)
        known = self._parts  # after a preemption, rows are computed again
        self._parts = [(first, part[: start - first]) for first, part in known if first < start]
        self._parts.append((start, rows))
        if self.sequence.pending:
            return None
        self.emit(self._reduce(np.concatenate([part for _, part in self._parts])))
        return "done"


def embedding_request(
    model: LoadedModel,
    tokens: list[int],
    reduce: Reduce,
    adapters: Adaptation | None,
    *,
    input_embeddings: Any = None,
    **kind: Any,
) -> EmbeddingRequest:
    """A request for the hidden states of tokens, not submitted yet.

    ``input_embeddings`` are embeddings that some tokens are run with, None for a text; ``kind`` is as for
    `EmbeddingRequest`.
    """
    sequence = Sequence(model.pool, tokens, checkpoints=0, adapters=adapters, embeddings=input_embeddings)
    sequence.in_one_pass = not model.spec.causal
    return EmbeddingRequest(sequence, reduce, **kind)


class Embedding(Handle):
    """A text whose hidden states are being computed, and what is made of them."""

    def __init__(self, model: LoadedModel, request: EmbeddingRequest) -> None:
        super().__init__(model.thread, request, model)
        self._result: np.ndarray | None = None

    def result(self) -> np.ndarray:
        """What was made of the hidden states. Raises what the model raised."""
        try:
            while self.finish_reason is None:
                self._take(self._event())
        except BaseException:
            self.cancel()
            raise
        return self._found()

    def __await__(self) -> Generator[object, None, np.ndarray]:
        """`result`, in asyncio."""
        return self._await_result().__await__()

    async def _await_result(self) -> np.ndarray:
        try:
            while self.finish_reason is None:
                self._take(self._checked(await next_event(self)))
        except BaseException:
            self.cancel()
            raise
        return self._found()

    def _take(self, event: Event) -> None:
        if isinstance(event, np.ndarray):
            self._result = event

    def _found(self) -> np.ndarray:
        assert self._result is not None
        return self._result


def embeddings(
    model: LoadedModel,
    texts: Iterable[Prompt],
    pooling: PoolingMode | str | None = None,
    normalize: bool = False,
    adapters: Adapters = None,
    *,
    tenant: str = "",
    salt: str = "",
) -> list[Embedding]:
    """Starts to embed texts, or prompts with media; each result is float32 (n_embd,), of length 1 if
    ``normalize``.

    Where the file has matrices behind the pooling, the result is as wide as the last of them. ``tenant`` and
    ``salt`` are as in `GenerationOptions`.
    """
    decoder, n_threads = model.runner.model, model.runner.n_threads
    mode = pooling_of(pooling, model)
    checks.boolean("normalize", normalize)

    def pooled(states: np.ndarray) -> np.ndarray:
        vector: np.ndarray = decoder.project(pool_hidden_states(states, mode)[None], n_threads)[0]
        if not normalize:
            return vector
        length = np.sqrt((vector.astype(np.float64) ** 2).sum())
        return np.asarray(vector / np.maximum(length, 1e-12), np.float32)

    prompts = [model.prompt_parts(text) for text in listed(texts, "texts")]
    last = mode is PoolingMode.LAST
    return started(model, prompts, pooled, adapters, last=last, tenant=tenant, salt=salt)


def token_vectors(
    model: LoadedModel, texts: Iterable[Prompt], *, tenant: str = "", salt: str = ""
) -> list[Embedding]:
    """Starts to embed each token of texts, or of prompts with media; each result is float32 (tokens, n_embd):
    the hidden states after the last norm. ``tenant`` and ``salt`` are as in `GenerationOptions`."""
    prompts = [model.prompt_parts(text) for text in listed(texts, "texts")]
    return started(model, prompts, np.copy, None, tenant=tenant, salt=salt)


def started(
    model: LoadedModel,
    prompts: list[tuple[list[int], Any]],
    reduce: Reduce,
    adapters: Adapters,
    *,
    last: bool = False,
    tenant: str = "",
    salt: str = "",
) -> list[Embedding]:
    """Starts a request for each prompt (tokens, and input embeddings of its media); ``reduce`` makes the
    result from its hidden states, or from the last token's hidden state."""
    # what a cache knows of a text is not run, so that only its last row comes out
    key = model.prefix_key(salt) if last and model.spec.causal else None
    kind: dict[str, Any] = {"last": last, "tenant": tenant, "key": key}
    applied = [model.adaptation(adapters, tokens) for tokens, _ in prompts]
    requests = [
        embedding_request(model, tokens, reduce, adapted, input_embeddings=media, **kind)
        for (tokens, media), adapted in zip(prompts, applied)
    ]
    handles = [Embedding(model, request) for request in requests]
    if requests:
        model.thread.submit(*requests, limited=False)
    return handles


def rankings(
    model: LoadedModel,
    query: str,
    documents: Iterable[str],
    adapters: Adapters = None,
    *,
    tenant: str = "",
    salt: str = "",
) -> list[Embedding]:
    """Starts to score documents; the result of each is float32 (labels,). Options are as for `embeddings`.

    Raises ConfigError if the model is no reranker.
    """
    decoder, n_threads = model.runner.model, model.runner.n_threads
    classifier = decoder.classifier
    if classifier is None:
        raise ConfigError("model: expected a reranker, the file has no classification head")
    pooling = PoolingMode(classifier.pooling)

    def scored(states: np.ndarray) -> np.ndarray:
        return np.asarray(decoder.classify(pool_hidden_states(states, pooling)[None], n_threads)[0])

    pairs = [(pair_tokens(model, query, document), None) for document in listed(documents, "documents")]
    last = pooling is PoolingMode.LAST
    return started(model, pairs, scored, adapters, last=last, tenant=tenant, salt=salt)


def pair_tokens(model: LoadedModel, query: str, document: Any) -> list[int]:
    """Token ids of a query with a document, as the model's reranker was trained to see them.

    That is the file's template "rerank", in which {query} and {document} stand for the texts, or both texts
    with the vocabulary's separators.
    """
    tokenizer = model.tokenizer
    checks.instance("query", query, str)
    checks.instance("document", document, str)
    if "rerank" not in tokenizer.templates:
        return model.prompt_tokens(tokenizer.encode_pair(query, document))
    text = tokenizer.chat_template_source("rerank")
    parts = {"{query}": query, "{document}": document}
    text = re.sub(r"\{query\}|\{document\}", lambda found: parts[found[0]], text)
    return model.prompt_tokens(tokenizer.encode(text, parse_special=True))

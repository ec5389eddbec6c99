"""``/v1/embeddings`` and ``/v1/rerank``."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server.answer_size import NUMBER_BYTES, check_size
from oxillama.apps.server.bodies import EmbeddingBody, RerankBody, TemplateBody, read_body
from oxillama.apps.server.callers import context, whose
from oxillama.apps.server.chats import chat_of
from oxillama.apps.server.errors import ApiError, fault
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.pieces import Mapped
from oxillama.apps.server.prompts import check_text
from oxillama.apps.server.running import checked_prompt, chosen, connected, in_thread, prompt_lists
from oxillama.base.config.server import ServerConfig
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.features.embeddings import (
    NONE,
    Embedding,
    embeddings as start_embeddings,
    pooling_of,
    rankings,
    token_vectors,
)

OF_MESSAGES = {*TemplateBody.model_fields, "add_special_tokens"} - {"model"}
"""Fields of a body that say something of a conversation."""


async def embeddings(request: Request) -> Response:
    """Vectors of length 1 for texts, token ids, texts with media, or a conversation."""
    body = await read_body(request, EmbeddingBody)
    check_fields(body)
    here, engine = await chosen(request, body.model)
    check_dimensions(engine, body.dimensions)
    pooling = pooling_for(here.config, engine, body.pooling)
    if pooling == NONE:
        what = 'expected one vector for a text, got "none": /embedding has those of each token'
        raise fault("pooling", what, "unsupported_value")
    prompts, fields = partial(prompts_of, engine, body), "input, dimensions"
    work = vectors_of(engine, prompts, pooling, True, fields, body.dimensions)
    vectors, n_tokens = await connected(request, work)

    def entry(i: int) -> dict[str, Any]:
        vector = encoded(shortened(vectors[i], body.dimensions), body.encoding_format)
        return {"object": "embedding", "index": i, "embedding": vector}

    data = Mapped(entry, range(len(vectors)))
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return JsonAnswer({"object": "list", "data": data, "model": here.hosted.name, "usage": usage})


def check_dimensions(engine: InferenceEngine, wanted: int | None) -> None:
    """Raises ApiError for more components than the vectors of a model have."""
    most = engine.model.spec.embedding_width
    if wanted is not None and wanted > most:
        raise fault("dimensions", f"expected at most {most}, got {wanted}")


async def vectors_of(
    engine: InferenceEngine,
    prompts: Callable[[], list[list[int]]],
    pooling: str | None,
    normalize: bool,
    fields: str,
    dimensions: int | None = None,
) -> tuple[list[np.ndarray], int]:
    """The vectors of texts, whose token ids ``prompts`` makes in a thread, and the number of all tokens.

    ``pooling`` and ``normalize`` are as for `start_embeddings`, or the pooling is `NONE`: a vector of each
    token. Raises ApiError if the answer would be too large (``fields`` as for `check_size`).
    """
    width = dimensions or engine.model.spec.embedding_width

    def start() -> tuple[list[list[int]], list[Embedding]]:
        texts = prompts()
        n_rows = sum(map(len, texts)) if pooling == NONE else len(texts)
        check_size(n_rows * width * NUMBER_BYTES, fields)
        if pooling == NONE:
            return texts, token_vectors(engine.model, texts, **whose())
        return texts, start_embeddings(engine.model, texts, pooling, normalize, **whose())

    texts, handles = await in_thread(start)
    return await all_of(handles), sum(map(len, texts))


def check_fields(body: EmbeddingBody) -> None:
    """Raises ApiError unless a body has either texts or a conversation, without fields of the other."""
    given = body.model_fields_set
    if "input" not in given and "messages" not in given:
        raise fault("input", "expected a value, got none, nor messages", "missing")
    name = next((name for name in sorted(OF_MESSAGES) if name in given), None)
    if "input" in given and name is not None:
        wanted = "none beside input" if name == "messages" else "messages, not input, beside it"
        raise fault(name, f"expected {wanted}", "invalid_value")


def prompts_of(engine: InferenceEngine, body: EmbeddingBody) -> list[list[int]]:
    """The token ids of each prompt of a body. Raises as `prompt_lists`, and as `Chat.tokens`."""
    if not body.messages:
        return prompt_lists(
            engine, body.input.each, name="input", free=0, media=True, is_list=body.input.is_list
        )
    tokens = chat_of(engine, body, may_go_on=False).tokens(engine, closes=body.add_special_tokens, free=0)
    return [checked_prompt(engine, tokens, name="messages", free=0)]


def pooling_for(config: ServerConfig, engine: InferenceEngine, wanted: str | None) -> str:
    """The pooling of a request: its own, else the server's, else the pooling of the model's file.

    Raises ConfigError if there is no such pooling.
    """
    mode = wanted or config.pooling
    return NONE if mode == NONE else pooling_of(mode, engine.model).value


async def all_of(handles: Sequence[Embedding]) -> list[np.ndarray]:
    """The results of all handles; if one fails or the task is cancelled, the others are cancelled.

    The key is charged with their tokens.
    """
    context().n_tokens += sum(map(n_run, handles))
    try:
        return [await handle for handle in handles]
    except BaseException:
        for handle in handles:
            handle.cancel()
        raise


def shortened(vector: np.ndarray, dimensions: int | None) -> np.ndarray:
    """The first components, float32 (dimensions,), as a vector of length 1; all of them for None."""
    if dimensions is None:
        return vector
    cut = vector[:dimensions].astype(np.float64)
    return np.asarray(cut / max(float(np.sqrt((cut**2).sum())), 1e-12), np.float32)


def encoded(vector: np.ndarray, format: str) -> Any:
    """A vector as numbers, or as base64 of little-endian float32."""
    if format == "float":
        return vector.tolist()
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


async def rerank(request: Request) -> Response:
    """Documents with their scores, the best first; ``texts`` in the form of text-embeddings-inference."""
    body = await read_body(request, RerankBody)
    documents = documents_of(body)
    here, engine = await chosen(request, body.model)
    texts = [text_of(i, document) for i, document in enumerate(documents)]

    async def run() -> Response:
        for text in (body.query, *texts):
            check_text(engine, text, "documents")
        handles = await in_thread(partial(rankings, engine.model, body.query, texts, **whose()))
        scores = [float(score[0]) for score in await all_of(handles)]
        order = sorted(range(len(texts)), key=lambda i: (-scores[i], i))[: body.top_n]
        if body.texts is not None:
            plain: list[dict[str, Any]] = [{"index": i, "score": scores[i]} for i in order]
            return JsonAnswer(
                [{**e, "text": texts[e["index"]]} for e in plain] if body.return_text else plain
            )
        found: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in order]
        if body.return_documents:
            found = [{**entry, "document": {"text": texts[entry["index"]]}} for entry in found]
        n_tokens = sum(map(n_run, handles))
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        head = {"id": f"rerank-{uuid.uuid4().hex}", "object": "list", "model": here.hosted.name}
        return JsonAnswer({**head, "results": found, "usage": usage})

    return await connected(request, run())


def documents_of(body: RerankBody) -> Sequence[str | dict[str, Any]]:
    """The documents of a body. Raises ApiError unless they are given under one of their names."""
    if (body.documents is None) == (body.texts is None):
        got = "none" if body.texts is None else "both"
        raise fault("documents", f"expected them, or texts, got {got}", "missing")
    name = "return_documents" if body.documents is None else "return_text"
    if getattr(body, name):
        beside = "documents" if body.documents is None else "texts"
        raise fault(name, f"expected {beside} beside it, got none", "invalid_value")
    return body.texts if body.documents is None else body.documents  # type: ignore[return-value]


def text_of(index: int, document: str | dict[str, Any]) -> str:
    """A document's text: itself, or its "text"."""
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise ApiError(400, f"documents[{index}]: expected a text, got {document!r:.200}", param="documents")
    return text


def n_run(handle: Embedding) -> int:
    """Tokens of a text, or of a query with a document."""
    return len(handle._request.prompt)

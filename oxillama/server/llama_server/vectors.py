"""``/embedding``: llama-server's form of vectors, of texts or of each of their tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from oxillama.embeddings.pooling import NONE, Embedding, embeddings, token_vectors
from oxillama.server.bodies import NativeEmbeddingBody, Prompts, read_body
from oxillama.server.callers import whose
from oxillama.server.errors import ApiError
from oxillama.server.json_text import JsonAnswer
from oxillama.server.openai.vectors import all_of, pooling_for
from oxillama.server.running import chosen, connected, in_thread, prompt_lists


async def embedding(request: Request) -> Response:
    """The vector of each text, or those of all its tokens, which are as the model gives them."""
    body = await read_body(request, NativeEmbeddingBody)
    name, given = prompts_of(body)
    here, engine = await chosen(request, body.model)
    pooling = pooling_for(here.config, engine, body.pooling)
    normalize = body.embd_normalize == 2

    def start() -> list[Embedding]:
        texts = prompt_lists(engine, given.each, name=name, free=0, media=True)
        if pooling == NONE:
            return token_vectors(engine.model, texts, **whose())
        return embeddings(engine.model, texts, pooling, normalize, **whose())

    async def run() -> Response:
        found = await all_of(await in_thread(start))

        def listed() -> list[dict[str, Any]]:
            rows = [np.atleast_2d(each).tolist() for each in found]
            return [{"index": i, "embedding": each} for i, each in enumerate(rows)]

        return JsonAnswer(await in_thread(listed))

    return await connected(request, run())


def prompts_of(body: NativeEmbeddingBody) -> tuple[str, Prompts]:
    """The field with the texts, and these. Raises ApiError unless one of the two names is there."""
    given = {name: value for name in ("content", "input") if (value := getattr(body, name)) is not None}
    if len(given) != 1:
        message = f"content: expected it, or input, got {'both' if given else 'none'}"
        raise ApiError(400, message, param="content", code="missing")
    ((name, found),) = given.items()
    return name, found

"""``/api/embed`` and ``/api/embeddings``."""

from __future__ import annotations

from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from oxillama.embeddings.pooling import embeddings as start_embeddings
from oxillama.server.bodies import read_body
from oxillama.server.callers import whose
from oxillama.server.errors import ApiError, prompt_too_long
from oxillama.server.json_text import JsonAnswer
from oxillama.server.ollama.asking import Asked, ask, context_of
from oxillama.server.ollama.bodies import EmbedBody, EmbeddingsBody
from oxillama.server.openai.vectors import all_of, shortened
from oxillama.server.options import HARMLESS, check_harmless, unknown
from oxillama.server.running import connected, in_thread, prompt_lists


async def embed(request: Request) -> Response:
    """Vectors of length 1 for one text or several."""
    body = await read_body(request, EmbedBody)
    asked = await ask(request, body.model, body.keep_alive)
    most = asked.engine.model.spec.n_embd
    if body.dimensions is not None and body.dimensions > most:
        raise ApiError(400, f"dimensions: expected at most {most}, got {body.dimensions}", param="dimensions")
    found, n_tokens = await connected(request, vectors(asked, body.input, body.options, True))

    def listed() -> list[list[float]]:
        return [shortened(vector, body.dimensions).tolist() for vector in found]

    return JsonAnswer(
        {
            "model": asked.name,
            "embeddings": await in_thread(listed),
            "total_duration": asked.total_ns,
            "load_duration": asked.load_ns,
            "prompt_eval_count": n_tokens,
        }
    )


async def embeddings(request: Request) -> Response:
    """The vector of one text, as the model gives it; [] for none."""
    body = await read_body(request, EmbeddingsBody)
    asked = await ask(request, body.model, body.keep_alive)
    if not body.prompt:
        return JsonAnswer({"embedding": []})
    ((vector,), _) = await connected(request, vectors(asked, body.prompt, body.options, False))
    return JsonAnswer({"embedding": vector.tolist()})


async def vectors(
    asked: Asked, texts: str | list[str], options: dict[str, Any], normalize: bool
) -> tuple[list[np.ndarray], int]:
    """The vectors of texts, and the number of all their tokens."""
    rest, context = context_of(asked.engine, options)
    for name, value in rest.items():
        if name not in HARMLESS:
            raise unknown(name, ("num_ctx",))
        check_harmless(name, value)
    wanted = [texts] if isinstance(texts, str) else texts

    def start() -> tuple[list[list[int]], list[Any]]:
        found = prompt_lists(asked.engine, wanted, name="input", free=0)
        for tokens in found:
            if len(tokens) > context:
                raise prompt_too_long("input", len(tokens), context, 0)
        return found, start_embeddings(asked.engine.model, found, None, normalize, **whose())

    tokens, handles = await in_thread(start)
    return await all_of(handles), sum(map(len, tokens))

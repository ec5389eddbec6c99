"""``/api/embed`` and ``/api/embeddings``."""

from __future__ import annotations

from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server.answer_size import NUMBER_BYTES, check_size
from oxillama.apps.server.bodies import read_body
from oxillama.apps.server.callers import whose
from oxillama.apps.server.errors import ApiError, prompt_too_long
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.ollama.asking import Asked, ask, context_of
from oxillama.apps.server.ollama.bodies import EmbedBody, EmbeddingsBody, OllamaBody
from oxillama.apps.server.openai.vectors import all_of, shortened
from oxillama.apps.server.options import HARMLESS, check_harmless, unknown
from oxillama.apps.server.pieces import Mapped
from oxillama.apps.server.running import connected, in_thread, prompt_lists
from oxillama.engine.features.embeddings import embeddings as start_embeddings


async def embed(request: Request) -> Response:
    """Vectors of length 1 for one text or several."""
    body = await read_body(request, EmbedBody)
    asked = await ask(request, body.model, body.keep_alive, asks=bool(body.input))
    most = asked.engine.model.spec.embedding_width
    if body.dimensions is not None and body.dimensions > most:
        raise ApiError(400, f"dimensions: expected at most {most}, got {body.dimensions}", param="dimensions")
    found, n_tokens = await connected(request, vectors(asked, body, body.input, True))

    def numbers(vector: np.ndarray) -> list[float]:
        return list(shortened(vector, body.dimensions).tolist())

    return JsonAnswer(
        {
            "model": asked.name,
            "embeddings": Mapped(numbers, found),
            "total_duration": asked.total_ns,
            "load_duration": asked.load_ns,
            "prompt_eval_count": n_tokens,
        }
    )


async def embeddings(request: Request) -> Response:
    """The vector of one text, not normalized; [] for an empty text."""
    body = await read_body(request, EmbeddingsBody)
    asked = await ask(request, body.model, body.keep_alive, asks=bool(body.prompt))
    if not body.prompt:
        return JsonAnswer({"embedding": []})
    ((vector,), _) = await connected(request, vectors(asked, body, body.prompt, False))
    return JsonAnswer({"embedding": vector.tolist()})


async def vectors(
    asked: Asked, body: OllamaBody, texts: str | list[str], normalize: bool
) -> tuple[list[np.ndarray], int]:
    """The vectors of texts, and the number of all their tokens."""
    rest, context = context_of(asked.engine, body)
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
        check_size(len(found) * asked.engine.model.spec.embedding_width * NUMBER_BYTES, "input")
        return found, start_embeddings(asked.engine.model, found, None, normalize, **whose())

    tokens, handles = await in_thread(start)
    return await all_of(handles), sum(map(len, tokens))

"""``/api/embed`` and ``/api/embeddings``."""

from __future__ import annotations

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server.bodies import read_body
from oxillama.apps.server.errors import prompt_too_long
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.ollama.asking import Asked, ask, context_of
from oxillama.apps.server.ollama.bodies import EmbedBody, EmbeddingsBody, OllamaBody
from oxillama.apps.server.openai.vectors import check_dimensions, shortened, vectors_of
from oxillama.apps.server.options import HARMLESS, check_harmless, unknown
from oxillama.apps.server.pieces import Mapped
from oxillama.apps.server.running import connected, prompt_lists


async def embed(request: Request) -> Response:
    """Vectors of length 1 for one text or several."""
    body = await read_body(request, EmbedBody)
    asked = await ask(request, body.model, body.keep_alive, asks=bool(body.input))
    check_dimensions(asked.engine, body.dimensions)
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

    def prompts() -> list[list[int]]:
        found = prompt_lists(asked.engine, wanted, name="input", free=0)
        for tokens in found:
            if len(tokens) > context:
                raise prompt_too_long("input", len(tokens), context, 0)
        return found

    return await vectors_of(asked.engine, prompts, None, normalize, "input")

"""``/embedding``: llama-server's form of vectors, of texts or of each of their tokens."""

from __future__ import annotations

from functools import partial

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server.bodies import NativeEmbeddingBody, read_body
from oxillama.apps.server.errors import fault
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.openai.vectors import pooling_for, vectors_of
from oxillama.apps.server.pieces import Mapped
from oxillama.apps.server.prompt_fields import Prompts
from oxillama.apps.server.running import chosen, connected, prompt_lists


async def embedding(request: Request) -> Response:
    """The vector of each text, or the vectors of all its tokens, which are not normalized."""
    body = await read_body(request, NativeEmbeddingBody)
    name, given = prompts_of(body)
    here, engine = await chosen(request, body.model)
    pooling = pooling_for(here.config, engine, body.pooling)
    is_list = given.is_list
    prompts = partial(prompt_lists, engine, given.each, name=name, free=0, media=True, is_list=is_list)
    work = vectors_of(engine, prompts, pooling, body.embd_normalize == 2, f"{name}, pooling")
    found, _ = await connected(request, work)
    rows = [Mapped(np.ndarray.tolist, np.atleast_2d(each)) for each in found]
    return JsonAnswer([{"index": i, "embedding": each} for i, each in enumerate(rows)])


def prompts_of(body: NativeEmbeddingBody) -> tuple[str, Prompts]:
    """The field with the texts, and the texts. Raises ApiError unless the body has one of the two fields."""
    given = {name: value for name in ("content", "input") if (value := getattr(body, name)) is not None}
    if len(given) != 1:
        raise fault("content", f"expected it, or input, got {'both' if given else 'none'}", "missing")
    ((name, found),) = given.items()
    return name, found

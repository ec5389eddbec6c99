"""llama-server's interface to the vocabulary and the chat template."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from oxillama.engine.engine import InferenceEngine
from oxillama.server.bodies import DetokenizeBody, TemplateBody, TokenizeBody, read_body
from oxillama.server.chats import chat_of
from oxillama.server.errors import ApiError
from oxillama.server.running import chosen, in_thread


async def tokenize(request: Request) -> Response:
    """Token ids of a text, with their pieces if they are wanted."""
    body = await read_body(request, TokenizeBody)
    body.refuse_rest()
    _, engine = await chosen(request, body.model)
    encode = engine.tokenizer.encode
    tokens = await in_thread(encode, body.content, body.add_special, body.parse_special)
    if not body.with_pieces:
        return JSONResponse({"tokens": tokens})
    return JSONResponse({"tokens": [{"id": token, "piece": piece(engine, token)} for token in tokens]})


def piece(engine: InferenceEngine, token: int) -> Any:
    """The text of a token; its bytes, if they are no text."""
    data = engine.tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def detokenize(request: Request) -> Response:
    """The text of token ids, control tokens included."""
    body = await read_body(request, DetokenizeBody)
    body.refuse_rest()
    _, engine = await chosen(request, body.model)
    n_vocab = engine.tokenizer.n_vocab
    for token in body.tokens:
        if not 0 <= token < n_vocab:
            raise ApiError(400, f"tokens: expected ids below {n_vocab}, got {token}", param="tokens")
    return JSONResponse({"content": engine.tokenizer.decode(body.tokens, skip_special=False)})


async def apply_template(request: Request) -> Response:
    """The prompt that the chat template makes of messages."""
    body = await read_body(request, TemplateBody)
    body.refuse_rest()
    _, engine = await chosen(request, body.model)
    return JSONResponse({"prompt": await in_thread(chat_of(body).text, engine)})

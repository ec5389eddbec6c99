"""llama-server's interface to the vocabulary and the chat template."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server.bodies import DetokenizeBody, TemplateBody, TokenizeBody, read_body
from oxillama.apps.server.chats import chat_of
from oxillama.apps.server.errors import fault
from oxillama.apps.server.json_text import JsonAnswer, WrittenAnswer
from oxillama.apps.server.prompts import LEAST, bounded
from oxillama.apps.server.running import chosen, in_thread
from oxillama.base.config import checks


async def tokenize(request: Request) -> Response:
    """Token ids of a text, with their pieces if they are wanted."""
    body = await read_body(request, TokenizeBody)
    _, engine = await chosen(request, body.model)

    def run() -> list[bytes]:
        tokenizer, how = bounded(engine, "content", fits=False), (body.add_special, body.parse_special)
        written: list[bytes] = tokenizer.written(body.content, *how, with_pieces=body.with_pieces)
        return written

    return WrittenAnswer(await in_thread(run))


async def detokenize(request: Request) -> Response:
    """The text of token ids, control tokens included."""
    body = await read_body(request, DetokenizeBody)
    _, engine = await chosen(request, body.model)
    n_vocab, most = engine.tokenizer.n_vocab, max(LEAST, engine.context_size)
    if len(body.tokens) > most:
        raise fault("tokens", f"expected at most {most}, got {len(body.tokens)}")

    def run() -> str:
        for token in body.tokens:
            if not 0 <= token < n_vocab:
                raise fault("tokens", f"expected ids below {n_vocab}, got {token}")
        return engine.tokenizer.decode(body.tokens, skip_special=False)

    return JsonAnswer({"content": await in_thread(run)})


async def apply_template(request: Request) -> Response:
    """The prompt that the chat template makes of messages."""
    body = await read_body(request, TemplateBody)
    _, engine = await chosen(request, body.model)

    def run() -> str:
        text = chat_of(engine, body).text(engine)
        return str(checks.encodable("messages", text))  # arguments of a call may spell what is no text

    return JsonAnswer({"prompt": await in_thread(run)})

"""A server whose requests, answers and prompts are kept, and which requires the first call of a tool."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from oxillama.apps.server import listening
from oxillama.apps.server.models import Hosted
from oxillama.compat.engine import InferenceEngine
from oxillama.text.chat import prompt as chat_prompts
from oxillama.text.tokenizer.escapes import unescape
from tests.support.clients.words import RESULT
from tests.support.scripted_model import N_REASONING, scripted_model
from tests.support.server import serving_models

REQUIRED: dict[str, Any] = {
    "/v1/chat/completions": "required",
    "/v1/responses": "required",
    "/v1/messages": {"type": "any"},
    "/api/chat": "required",
}
"""The ``tool_choice`` of each interface by which a tool has to be called."""


@dataclass
class Exchange:
    """A request, its answer, and the prompts that were made for the request.

    Attributes:
        server: the name of the server.
        body: as the client sent it.
    """

    server: str
    path: str
    body: Any
    status: int = 0
    answer: bytes = b""
    prompts: list[str] = field(default_factory=list)


@dataclass
class Tap:
    """The exchanges with the chats of some servers, in their order. There is one request at a time."""

    urls: dict[str, str] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)

    def around(self, app: Any, name: str) -> Any:
        """The ASGI application of a server, which notes what passes."""

        async def tapped(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http" or scope["path"] not in REQUIRED or scope["method"] != "POST":
                return await app(scope, receive, send)
            data, more = b"", True
            while more:
                part = await receive()
                data, more = data + part.get("body", b""), part.get("more_body", False)
            here = Exchange(name, scope["path"], json.loads(data))
            self.exchanges.append(here)
            import time

            here.began = time.time()
            changed = json.dumps(steered(here.path, here.body)).encode()
            heads = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
            whole = [{"type": "http.request", "body": changed, "more_body": False}]

            async def receiving() -> Any:
                return whole.pop() if whole else await receive()

            async def sending(message: Any) -> None:
                here.status = message.get("status", here.status)
                here.answer += message.get("body", b"")
                here.seconds = time.time() - here.began
                await send(message)

            length = (b"content-length", str(len(changed)).encode())
            return await app({**scope, "headers": [*heads, length]}, receiving, sending)

        tapped.state = app.state  # type: ignore[attr-defined]
        return tapped

    def noting(self, render: Callable[..., str]) -> Callable[..., str]:
        """A function that notes the prompts that ``render`` makes."""

        def noted(*given: Any, **options: Any) -> str:
            text = render(*given, **options)
            if self.exchanges:
                self.exchanges[-1].prompts.append(unescape(text)[0])
            return text

        return noted


def steered(path: str, body: Any) -> Any:
    """A body with a budget of reasoning, and with a call required where no result is there yet."""
    found = dict(body)
    if path == "/api/chat":
        found["options"] = {"reasoning_budget": N_REASONING, **(body.get("options") or {})}
    else:
        found["reasoning_budget"] = N_REASONING
    if body.get("tools") and RESULT not in json.dumps(body):
        found["tool_choice"] = REQUIRED[path]
    return found


@contextmanager
def tapped_servers(folder: Path, templates: Mapping[str, str]) -> Iterator[Tap]:
    """A server for each chat template, with a scripted model. ``urls`` has their URLs by the same names."""
    tap, create = Tap(), listening.create_app
    with pytest.MonkeyPatch.context() as patched, ExitStack() as stack:
        patched.setattr(chat_prompts, "fitted_text", tap.noting(chat_prompts.fitted_text))
        for name, template in templates.items():
            make = lambda *given, name=name: tap.around(create(*given), name)  # noqa: E731
            patched.setattr(listening, "create_app", make)
            model = scripted_model(folder / f"{name}.gguf", template)
            engine = InferenceEngine.from_gguf(model, num_threads=1)
            hosted = Hosted("scripted", engine, others=("claude-sonnet-4-0",))  # a name that LlamaIndex knows
            tap.urls[name] = stack.enter_context(serving_models(hosted)).server.url
        yield tap

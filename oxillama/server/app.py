"""The application: routes, errors, and the end of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from oxillama.config.server import ServerConfig
from oxillama.server.anthropic import messages
from oxillama.server.callers import Keys
from oxillama.server.errors import ApiError, ErrorBody
from oxillama.server.gate import Gate, InFlight
from oxillama.server.llama_server import adapters, completion, slots, status, tokens
from oxillama.server.models import Models
from oxillama.server.ollama import about, pulling, texts
from oxillama.server.ollama import vectors as ollama_vectors
from oxillama.server.openai import chat, completions, vectors
from oxillama.server.page.files import page, the_page
from oxillama.server.page.pdf import pdf
from oxillama.server.responses import endpoints
from oxillama.server.responses.store import ResponseStore
from oxillama.server.running import Leases, Served
from oxillama.server.tool_servers import ToolServers, call_tool, list_tools
from oxillama.server.workers import Pools

Endpoint = Callable[[Request], Awaitable[Any]]
Path = tuple[str, str, Endpoint]
"""Method, path, endpoint."""


@dataclass(frozen=True)
class Interface:
    """The paths of an interface.

    Attributes
    ----------
    routes : its endpoints.
    prefixes : folders of paths on which errors have its own shape, whoever finds them.
    error_body : that shape; errors on all other paths have OpenAI's.
    """

    routes: tuple[Path, ...]
    prefixes: tuple[str, ...] = ()
    error_body: ErrorBody = ApiError.body


LLAMA_SERVER = Interface(
    (
        ("GET", "/health", status.health),
        ("GET", "/v1/health", status.health),
        ("GET", "/metrics", status.metrics),
        ("GET", "/v1/models", status.models),
        ("GET", "/v1/models/{model:path}", status.model),
        ("GET", "/models", status.models),
        ("GET", "/props", status.props),
        ("GET", "/slots", slots.slots),
        ("POST", "/slots/{id_slot}", slots.change_slot),
        ("GET", "/lora-adapters", adapters.adapters),
        ("POST", "/lora-adapters", adapters.set_adapters),
        ("POST", "/completion", completion.completion),
        ("POST", "/completions", completion.completion),
        ("POST", "/infill", completion.infill),
        ("POST", "/tokenize", tokens.tokenize),
        ("POST", "/detokenize", tokens.detokenize),
        ("POST", "/apply-template", tokens.apply_template),
    )
)

OPENAI = Interface(
    (
        ("POST", "/v1/completions", completions.completions),
        ("POST", "/v1/chat/completions", chat.chat_completions),
        ("POST", "/chat/completions", chat.chat_completions),
        ("POST", "/v1/chat/completions/input_tokens", chat.input_tokens),
        ("POST", "/chat/completions/input_tokens", chat.input_tokens),
        ("POST", "/v1/embeddings", vectors.embeddings),
        ("POST", "/v1/rerank", vectors.rerank),
        ("POST", "/rerank", vectors.rerank),
    )
)

RESPONSES = Interface(
    (
        ("POST", "/v1/responses", endpoints.responses),
        ("POST", "/responses", endpoints.responses),
        ("POST", "/v1/responses/input_tokens", endpoints.count_tokens),
        ("GET", "/v1/responses/{id}", endpoints.response),
        ("DELETE", "/v1/responses/{id}", endpoints.delete_response),
    )
)

ANTHROPIC = Interface(
    (
        ("POST", "/v1/messages", messages.messages),
        ("POST", "/v1/messages/count_tokens", messages.count_tokens),
    ),
    ("/v1/messages",),
    messages.error_body,
)

OLLAMA = Interface(
    (
        ("HEAD", "/", about.alive),
        ("POST", "/api/chat", texts.chat),
        ("POST", "/api/generate", texts.generate),
        ("POST", "/api/embed", ollama_vectors.embed),
        ("POST", "/api/embeddings", ollama_vectors.embeddings),
        ("GET", "/api/tags", about.tags),
        ("POST", "/api/show", about.show),
        ("GET", "/api/ps", about.ps),
        ("GET", "/api/version", about.version),
        ("POST", "/api/pull", pulling.pull),
        ("POST", "/api/push", about.refused),
        ("POST", "/api/create", about.refused),
        ("POST", "/api/copy", about.refused),
        ("DELETE", "/api/delete", about.refused),
    ),
    ("/api",),
    texts.error_body,
)

TOOLS = Interface((("GET", "/mcp/tools", list_tools), ("POST", "/mcp/call", call_tool)))

PAGE = Interface(
    (("GET", "/", page), ("GET", "/page/{version}/{file:path}", page), ("POST", "/page/pdf", pdf))
)

INTERFACES = (LLAMA_SERVER, OPENAI, RESPONSES, ANTHROPIC, OLLAMA, TOOLS, PAGE)

OPEN_PATHS = ("/health", "/v1/health")
"""Paths that need no key, for those who watch over the process; those of the page need none, either."""

ROUTES: tuple[Path, ...] = tuple(route for interface in INTERFACES for route in interface.routes)
"""Method, path and endpoint of all interfaces."""


def create_app(
    models: Models,
    config: ServerConfig | None = None,
    failed: Callable[[BaseException], object] = lambda error: None,
    ready: Callable[[], object] = lambda: None,
) -> Starlette:
    """An ASGI application for models.

    Their engines are closed when the application is shut down, after the requests that still run.

    Parameters
    ----------
    failed : called with the error if a model that is loaded at the start cannot be loaded.
    ready : called when the default model is loaded.
    """
    config = ServerConfig() if config is None else config
    keys, pools, in_flight = Keys(config), Pools(config.job_processes), InFlight()
    tools = ToolServers(config)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        loading = asyncio.ensure_future(models.begin(failed, ready))
        tools.begin()
        yield
        loading.cancel()
        await tools.end()
        await models.end()
        pools.close()

    files = the_page().paths if config.page else frozenset()
    open_paths = (*OPEN_PATHS, *files)
    middleware = [
        Middleware(
            Gate,
            config=config,
            keys=keys,
            pools=pools,
            in_flight=in_flight,
            open_paths=open_paths,
            unlogged_paths=files,
            error_body=error_body,
        ),
        Middleware(Leases, models=models),
    ]
    if config.cors_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "request-id"],
        )
        middleware.insert(0, cors)
    app = Starlette(
        routes=[
            Route(path, endpoint, methods=[method])
            for interface in INTERFACES
            for method, path, endpoint in interface.routes
            if config.page or interface is not PAGE
        ],
        middleware=middleware,
        exception_handlers={HTTPException: refused},
        lifespan=lifespan,
    )
    app.state.served = Served(config, models, models.default)
    app.state.keys, app.state.in_flight, app.state.tool_servers = keys, in_flight, tools
    app.state.responses = ResponseStore(config.stored_response_bytes)
    return app


async def refused(request: Request, error: Exception) -> Response:
    """What the router answers: no such path, or another method."""
    assert isinstance(error, HTTPException)
    found = ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    return JSONResponse(error_body(request.url.path)(found), found.status, error.headers)


def error_body(path: str) -> ErrorBody:
    """The shape of errors on a path, known or not."""
    for interface in INTERFACES:
        if any(path == prefix or path.startswith(f"{prefix}/") for prefix in interface.prefixes):
            return interface.error_body
    return ApiError.body

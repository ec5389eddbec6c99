"""The application: routes, errors, and the end of the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from oxillama.config.server import ServerConfig
from oxillama.server.errors import ApiError
from oxillama.server.gate import Gate
from oxillama.server.hosting import Hosted
from oxillama.server.llama_server import completion, status, tokens
from oxillama.server.openai import chat, completions, vectors
from oxillama.server.page import files
from oxillama.server.state import Served

Endpoint = Callable[[Request], Awaitable[Any]]

OPEN_PATHS = ("/health", "/v1/health")
"""Paths that need no key, for those who watch over the process; those of the page need none, either."""

ROUTES: tuple[tuple[str, str, Endpoint], ...] = (
    ("GET", "/health", status.health),
    ("GET", "/v1/health", status.health),
    ("GET", "/metrics", status.metrics),
    ("GET", "/v1/models", status.models),
    ("GET", "/v1/models/{model:path}", status.model),
    ("GET", "/models", status.models),
    ("GET", "/props", status.props),
    ("POST", "/completion", completion.completion),
    ("POST", "/completions", completion.completion),
    ("POST", "/infill", completion.infill),
    ("POST", "/tokenize", tokens.tokenize),
    ("POST", "/detokenize", tokens.detokenize),
    ("POST", "/apply-template", tokens.apply_template),
    ("POST", "/v1/completions", completions.completions),
    ("POST", "/v1/chat/completions", chat.chat_completions),
    ("POST", "/chat/completions", chat.chat_completions),
    ("POST", "/v1/embeddings", vectors.embeddings),
    ("POST", "/v1/rerank", vectors.rerank),
    ("POST", "/rerank", vectors.rerank),
    *files.ROUTES,
)
"""Method, path and endpoint; the second name of a path is llama-server's."""


def create_app(hosted: Hosted, config: ServerConfig | None = None) -> Starlette:
    """An ASGI application for a model.

    Its engine is closed when the application is shut down, after the requests that still run.
    """
    config = ServerConfig() if config is None else config

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        if hosted.engine is not None:
            hosted.engine.close()

    paths = files.the_page().paths if config.page else ()
    middleware = [Middleware(Gate, config=config, open_paths=(*OPEN_PATHS, *paths))]
    if config.cors_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
        middleware.insert(0, cors)
    app = Starlette(
        routes=[
            Route(path, endpoint, methods=[method])
            for method, path, endpoint in ROUTES
            if config.page or endpoint is not files.page
        ],
        middleware=middleware,
        exception_handlers={HTTPException: refused},
        lifespan=lifespan,
    )
    app.state.served = Served(config, hosted)
    return app


async def refused(request: Request, error: Exception) -> Response:
    """What the router answers: no such path, or another method."""
    assert isinstance(error, HTTPException)
    found = ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    return JSONResponse(found.body(), found.status, error.headers)

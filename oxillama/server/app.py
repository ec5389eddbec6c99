"""The application: routes, errors, and the end of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from oxillama.config.server import ServerConfig
from oxillama.server.anthropic.routes import ANTHROPIC
from oxillama.server.errors import ApiError
from oxillama.server.gate import Gate
from oxillama.server.interface import ErrorBody, error_body_of
from oxillama.server.interface import Route as Path
from oxillama.server.llama_server.routes import LLAMA_SERVER
from oxillama.server.models import Models
from oxillama.server.ollama.routes import OLLAMA
from oxillama.server.openai.routes import OPENAI
from oxillama.server.page.files import the_page
from oxillama.server.page.routes import PAGE
from oxillama.server.responses.routes import RESPONSES
from oxillama.server.responses.store import ResponseStore
from oxillama.server.state import Leases, Served

INTERFACES = (LLAMA_SERVER, OPENAI, RESPONSES, ANTHROPIC, OLLAMA, PAGE)

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

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        loading = asyncio.ensure_future(models.begin(failed, ready))
        yield
        loading.cancel()
        await models.end()

    open_paths = (*OPEN_PATHS, *(the_page().paths if config.page else ()))
    middleware = [
        Middleware(Gate, config=config, open_paths=open_paths, error_body=error_body),
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
    app.state.responses = ResponseStore(config.stored_response_bytes)
    return app


async def refused(request: Request, error: Exception) -> Response:
    """What the router answers: no such path, or another method."""
    assert isinstance(error, HTTPException)
    found = ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    return JSONResponse(error_body(request.url.path)(found), found.status, error.headers)


def error_body(path: str) -> ErrorBody:
    """The shape of errors on a path."""
    return error_body_of(INTERFACES, path)

"""The application: routes, errors, and the end of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache, partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from oxillama.config.server import ServerConfig
from oxillama.server.callers import Keys
from oxillama.server.errors import ApiError
from oxillama.server.gate import Gate, InFlight
from oxillama.server.models import Models
from oxillama.server.openapi import document
from oxillama.server.origins import Cors
from oxillama.server.page.files import the_page
from oxillama.server.recording import folder_of
from oxillama.server.responses.store import ResponseStore
from oxillama.server.routes import INTERFACES, OPEN_PATHS, PAGE, error_body
from oxillama.server.running import Leases, Served
from oxillama.server.tool_servers import ToolServers
from oxillama.server.workers import Pools


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
    tools, records = ToolServers(config), folder_of(config)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        loading = asyncio.ensure_future(models.begin(failed, ready))
        tools.begin()
        yield
        loading.cancel()
        await tools.end()
        await models.end()
        pools.close()
        if records is not None:
            await asyncio.to_thread(records.close)

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
            records=records,
        ),
        Middleware(Leases, models=models),
    ]
    if config.cors_origins:
        middleware.insert(
            0, Middleware(Cors, allowed=config.cors_origins, credentials=config.cors_credentials)
        )
    interfaces = [each for each in INTERFACES if config.page or each is not PAGE]
    app = Starlette(
        routes=[
            Route(each.path, each.endpoint, methods=[each.method])
            for interface in interfaces
            for each in interface.routes
        ],
        middleware=middleware,
        exception_handlers={HTTPException: refused},
        lifespan=lifespan,
    )
    app.state.served = Served(config, models, models.default)
    app.state.keys, app.state.in_flight, app.state.tool_servers = keys, in_flight, tools
    app.state.records = records
    app.state.document = cache(partial(document, interfaces, config.has_keys))
    app.state.responses = ResponseStore(config.stored_response_bytes)
    return app


async def refused(request: Request, error: Exception) -> Response:
    """What the router answers: no such path, or another method."""
    assert isinstance(error, HTTPException)
    status, why = error.status_code, error.detail
    if request.url.path == "/" and not request.app.state.served.config.page:  # there is HEAD, for Ollama
        status, why = 404, "Not Found"
    found = ApiError(status, f"{request.method} {request.url.path}: {why}")
    return JSONResponse(error_body(request.url.path)(found), found.status, error.headers)

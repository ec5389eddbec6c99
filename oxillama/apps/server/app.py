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

from oxillama.apps.server.callers import Keys
from oxillama.apps.server.errors import ApiError
from oxillama.apps.server.gate import Gate, InFlight
from oxillama.apps.server.models import Models
from oxillama.apps.server.openapi import document
from oxillama.apps.server.origins import Cors
from oxillama.apps.server.page.files import the_page
from oxillama.apps.server.proxies import Proxies
from oxillama.apps.server.recording import folder_of
from oxillama.apps.server.responses.store import ResponseStore
from oxillama.apps.server.routes import INTERFACES, OPEN_PATHS, PAGE, error_body
from oxillama.apps.server.running import Leases, Served
from oxillama.apps.server.tool_servers import ToolServers
from oxillama.apps.server.workers import Pools
from oxillama.base.config.server import ServerConfig


def create_app(
    models: Models,
    config: ServerConfig | None = None,
    failed: Callable[[BaseException], object] = lambda error: None,
    ready: Callable[[], object] = lambda: None,
) -> Starlette:
    """An ASGI application for models.

    Their engines are closed when the application is shut down, after the requests that still run.

    Args:
        failed: called with the error if a model that is loaded at the start cannot be loaded.
        ready: called when the default model is loaded.
    """
    config = ServerConfig() if config is None else config
    keys, pools, in_flight = Keys(config), Pools(config.job_processes), InFlight()
    tools, records = ToolServers(config, pools.processes), folder_of(config)

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

    files = frozenset(the_page()) if config.page else frozenset[str]()
    middleware = [
        Middleware(
            Gate,
            config=config,
            keys=keys,
            pools=pools,
            in_flight=in_flight,
            open_paths=files | {*OPEN_PATHS},
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
    if config.trusted_proxies:
        middleware.insert(0, Middleware(Proxies, trusted=config.trusted_proxies))
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
    """The answer of the router to an unknown path or a wrong method."""
    assert isinstance(error, HTTPException)
    status, why = error.status_code, error.detail
    if request.url.path == "/" and not request.app.state.served.config.page:  # there is HEAD, for Ollama
        status, why = 404, "Not Found"
    found = ApiError(status, f"{request.method} {request.url.path}: {why}")
    return JSONResponse(error_body(request.url.path)(found), found.status, error.headers)

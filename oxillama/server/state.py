"""What all requests share, the options of the server and its models; and what one has, its model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from oxillama.config.server import ServerConfig
from oxillama.engine.engine import InferenceEngine
from oxillama.server.hosting import Hosted
from oxillama.server.models import Models
from oxillama.server.running import connected


@dataclass(frozen=True)
class Served:
    """What an endpoint works with.

    Attributes
    ----------
    hosted : the model of the request; the default one where it has none.
    """

    config: ServerConfig
    models: Models
    hosted: Hosted


@dataclass
class Lease:
    """A model that a request has until its answer has ended, and for how long it is then kept."""

    hosted: Hosted
    idle_seconds: float | None = None


def served(request: Request) -> Served:
    """What the application of a request has."""
    found: Served = request.app.state.served
    return found


async def chosen(request: Request, name: str | None) -> tuple[Served, InferenceEngine]:
    """The model of a name, the default one for None, loaded and kept until the answer has ended.

    The body must have been read. Raises ApiError, ClientGone if the client goes away meanwhile.
    """
    here = served(request)
    hosted = here.models.find(name)
    lease = await leased(request, hosted)
    return replace(here, hosted=lease.hosted), lease.hosted.ready()


async def leased(request: Request, hosted: Hosted) -> Lease:
    """A model, loaded and kept until the answer has ended. Raises as `chosen`."""
    models = served(request).models
    if hosted.is_ready:
        await models.acquire(hosted)
    else:
        await connected(request, models.acquire(hosted))
    lease = Lease(hosted)
    request.state.leases.append(lease)
    return lease


class Leases:
    """A layer of the application that gives the models of a request back when its answer has ended."""

    def __init__(self, app: ASGIApp, models: Models) -> None:
        self.app, self.models = app, models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        leases: list[Lease] = []
        scope.setdefault("state", {})["leases"] = leases
        try:
            await self.app(scope, receive, send)
        finally:
            for lease in leases:
                self.models.release(lease.hosted, lease.idle_seconds)

"""What all requests share: the options of the server, and its model."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from oxillama.config.server import ServerConfig
from oxillama.server.hosting import Hosted


@dataclass(frozen=True)
class Served:
    config: ServerConfig
    hosted: Hosted


def served(request: Request) -> Served:
    """What the application of a request has."""
    found: Served = request.app.state.served
    return found

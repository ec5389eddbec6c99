"""Cross-origin requests: the origins that may use the server, and the headers for browsers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from oxillama.base.config.server import LOOPBACK

THIS_MACHINE = "localhost"
"""Stands for the pages of this machine, at any port."""

LOCAL = re.compile(
    rf"https?://({'|'.join(re.escape(f'[{host}]' if ':' in host else host) for host in LOOPBACK)})(:[0-9]+)?"
)


def is_allowed(origin: str | None, allowed: Iterable[str]) -> bool:
    """Whether an origin is one of those that are allowed."""
    allowed = tuple(allowed)
    is_here = THIS_MACHINE in allowed and LOCAL.fullmatch(origin or "") is not None
    return "*" in allowed or origin in allowed or is_here


class Cors(CORSMiddleware):
    """Starlette's, which answers the preflight request of another origin without an error: the header that
    lets the page in is missing, which is what browsers look at."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str], credentials: bool = False) -> None:
        allowed = tuple(allowed)
        super().__init__(
            app,
            allow_origins=tuple(name for name in allowed if name != THIS_MACHINE),
            allow_origin_regex=LOCAL.pattern if THIS_MACHINE in allowed else None,
            allow_methods=["GET", "POST", "DELETE", "OPTIONS"],
            allow_credentials=credentials,
            allow_headers=["*"],
            allow_private_network=True,
            expose_headers=["x-request-id", "request-id"],
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        if self.is_allowed_origin(request_headers["origin"]):
            return super().preflight_response(request_headers)
        return Response(headers={"Vary": "Origin"})

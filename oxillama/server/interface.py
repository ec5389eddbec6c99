"""What the folder of an interface gives to the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from oxillama.server.errors import ApiError

Endpoint = Callable[[Request], Awaitable[Any]]
Route = tuple[str, str, Endpoint]
"""Method, path, endpoint."""

ErrorBody = Callable[[ApiError], dict[str, Any]]
"""Makes the JSON of an error."""


@dataclass(frozen=True)
class Interface:
    """The paths of an interface.

    Attributes
    ----------
    routes : its endpoints.
    prefixes : folders of paths on which errors have its own shape, whoever finds them.
    error_body : that shape; errors on all other paths have OpenAI's.
    """

    routes: tuple[Route, ...]
    prefixes: tuple[str, ...] = ()
    error_body: ErrorBody = ApiError.body


def error_body_of(interfaces: Iterable[Interface], path: str) -> ErrorBody:
    """The shape of errors on a path, known or not."""
    for interface in interfaces:
        if any(path == prefix or path.startswith(f"{prefix}/") for prefix in interface.prefixes):
            return interface.error_body
    return ApiError.body

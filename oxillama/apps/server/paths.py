"""The rows of the table of paths: `Path` and `Interface`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from oxillama.apps.server.bodies import Body
from oxillama.apps.server.errors import ApiError, ErrorBody

JSON = "application/json"

Endpoint = Callable[[Request], Awaitable[Any]]


@dataclass(frozen=True)
class Path:
    """A method and a path, with the endpoint that answers.

    Attributes:
        path: as Starlette has paths.
        body: the class that checks the body, or a JSON schema; None without a body.
        answers: media types of answers that are no errors; () for answers without a body.
        takes: media type of the body.
        needs_body: whether a request without a body is an error.
        takes_form: whether a form is taken, too: JSON in the part `REQUEST`, a file in each other part.
        statuses: of answers that paths of this kind do not have otherwise.
        queries: parameters of the query, with their JSON schemas.
    """

    method: str
    path: str
    endpoint: Endpoint
    body: type[Body] | dict[str, Any] | None = None
    answers: tuple[str, ...] = (JSON,)
    takes: str = JSON
    needs_body: bool = True
    takes_form: bool = False
    statuses: tuple[int, ...] = ()
    queries: tuple[tuple[str, dict[str, Any]], ...] = ()


@dataclass(frozen=True)
class Interface:
    """The paths of an interface.

    Attributes:
        name: whose interface it is.
        routes: its paths.
        prefixes: folders of paths on which errors have its own shape, whoever finds them.
        error_body: that shape; errors on all other paths have OpenAI's.
    """

    name: str
    routes: tuple[Path, ...]
    prefixes: tuple[str, ...] = ()
    error_body: ErrorBody = ApiError.body

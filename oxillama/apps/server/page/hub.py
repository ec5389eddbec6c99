"""``GET /page/hub``: what the page shows of the hub, for those who may download models with ``/api/pull``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server.callers import Caller, context
from oxillama.apps.server.errors import ApiError, without_paths
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.models import Models
from oxillama.apps.server.running import connected, served
from oxillama.apps.server.workers import in_daemon
from oxillama.base.config.server import ServerConfig
from oxillama.errors import ConfigError, ModelFileError
from oxillama.gguf.hub.requests import NoAnswer
from oxillama.gguf.hub.search import models, repositories

MOST_CHARACTERS = 200
"""Of the words, and of the name of a repository."""


def may_pull(models: Models, config: ServerConfig, caller: Caller) -> bool:
    """Whether a caller may download models."""
    return config.allow_pull and models.make is not None and caller.limits.admin


async def hub(request: Request) -> Response:
    """``{"repositories"}`` that fit the words ``search``, or the ``{"models"}`` of a ``repo``.

    Raises ApiError: 403 for a key that is no admin's, 501 without ``--allow-pull``, 400 for another query
    or what the hub does not have, 503 if it cannot be reached.
    """
    here = served(request)
    context().caller.check_admin("to download models")
    if not may_pull(here.models, here.config, context().caller):
        message = "hub: expected a server with --allow-pull, this one is without"
        raise ApiError(501, message, type="not_supported_error", code="not_supported")
    words, repo = request.query_params.get("search"), request.query_params.get("repo")
    given = [each for each in (words, repo) if each]
    if len(given) != 1 or len(given[0]) > MOST_CHARACTERS:
        wanted = f"search or repo, with at most {MOST_CHARACTERS} characters"
        raise ApiError(400, f"query: expected {wanted}, got others", code="invalid_value")

    def listed() -> dict[str, Any]:
        found = [
            {
                "name": str(model.name),
                "bytes": model.size,
                "is_here": here.models.get(str(model.name)) is not None,
            }
            for model in models(given[0])
        ]
        return {"models": found}

    def searched() -> dict[str, Any]:
        found = repositories(given[0])
        return {"repositories": [{"name": each.name, "downloads": each.downloads} for each in found]}

    work: Callable[[], dict[str, Any]] = searched if words else listed
    try:
        return JsonAnswer(await connected(request, in_daemon(work)))
    except NoAnswer as error:
        message = f"The hub cannot be reached: {error}"
        raise ApiError(503, message, type="unavailable_error", code="hub_unreachable") from error
    except (ConfigError, ModelFileError) as error:
        raise ApiError(400, without_paths(error), code="not_listed") from error

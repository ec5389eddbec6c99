"""``/lora-adapters``: the adapters of a model, and their default scales."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server.bodies import read_json
from oxillama.apps.server.callers import context
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.loras import listed, lora_scales
from oxillama.apps.server.running import chosen, present


async def adapters(request: Request) -> Response:
    """The adapters, with their scales."""
    _, engine = await present(request, request.query_params.get("model"))
    return JsonAnswer(listed(engine))


async def set_adapters(request: Request) -> Response:
    """Sets the scales for later requests, of all keys; an adapter that is not listed gets 0."""
    context().caller.check_admin()
    value = await read_json(request)
    _, engine = await chosen(request, request.query_params.get("model"))
    engine.adapters.stack.rescale(lora_scales(engine, "body", value))
    return JsonAnswer({"success": True})

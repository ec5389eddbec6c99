"""``/slots``: sequences that clients keep, save and restore."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server.bodies import Body, read_body, require_json
from oxillama.apps.server.callers import context
from oxillama.apps.server.errors import ApiError, fault
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.llama_server.status import refuse_unless
from oxillama.apps.server.running import chosen, connected, present, served
from oxillama.apps.server.slots import file_in, to_its_end
from oxillama.apps.server.workers import in_daemon

ACTIONS = ("save", "restore", "erase")


class SlotBody(Body):
    filename: str
    model: str | None = None


async def slots(request: Request) -> Response:
    """The slots, and how many requests run."""
    refuse_unless(served(request).config.slots, "slots")
    here, engine = await present(request, request.query_params.get("model"))
    listed = partial(here.hosted.slots.listed, engine, context().caller.name)
    found = await in_daemon(listed)  # the tokens of a cancelled text are known when its step has ended
    if request.query_params.get("fail_on_no_slot") == "1" and all(slot["is_processing"] for slot in found):
        raise ApiError(503, "slots: expected a free one, all are processing", type="unavailable_error")
    return JsonAnswer(found)


async def change_slot(request: Request) -> Response:
    """Saves a slot to a file, restores it, or erases it."""
    action, text = request.query_params.get("action", ""), request.path_params["id_slot"]
    if action not in ACTIONS:
        raise fault("action", f"expected one of {', '.join(ACTIONS)}, got {action[:200]}")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise fault("id_slot", f"expected a number, got {text[:200]}")
    body = None
    if action == "erase":
        require_json(request, if_from_page=True)
        await request.body()
    else:
        body = await read_body(request, SlotBody)
    model = request.query_params.get("model")
    here, engine = await chosen(request, model if body is None else body.model or model)
    path = None
    if body is not None:
        path = file_in(folder_of(here.config.slot_save_path), body.filename, caller_folder())
    answer = {"id_slot": int(text)}

    async def change() -> Response:
        async with here.hosted.slots.used(engine, int(text), context().caller.name) as slot:
            if path is None:
                return JsonAnswer({**answer, "n_erased": await to_its_end(slot.erase)})
            if action == "save":
                done = await to_its_end(slot.save, path)
            else:
                done = await to_its_end(slot.restore, engine, path)
            return JsonAnswer({**answer, "filename": path.name, **done})

    return await connected(request, change())


def caller_folder() -> str:
    """The folder of a key's slots, below the folder of the server; "" without keys."""
    name = context().caller.name
    return f"key-{hashlib.sha256(name.encode()).hexdigest()[:16]}" if name else ""


def folder_of(path: object) -> Path:
    """The folder for slots. Raises ApiError if the server has none."""
    if path is None:
        message = "slots: expected a server with --slot-save-path, this one has none"
        raise ApiError(501, message, type="not_supported_error", code="not_supported")
    return Path(str(path))

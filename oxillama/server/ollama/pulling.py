"""``/api/pull``: a model of the hub, if whoever started the server allows that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oxillama.errors import ConfigError, ModelFileError
from oxillama.hub.download import HubFile, fetch
from oxillama.hub.names import HubName, hub_name
from oxillama.server.bodies import read_body
from oxillama.server.callers import context
from oxillama.server.daemons import in_daemon
from oxillama.server.errors import ApiError, without_paths
from oxillama.server.json_text import JsonAnswer
from oxillama.server.models import Models
from oxillama.server.ollama.asking import LATEST
from oxillama.server.ollama.bodies import PullBody
from oxillama.server.ollama.texts import stream
from oxillama.server.running import connected, in_thread, last, served
from oxillama.server.stream import EventStream

HOSTS = ("hf.co/", "huggingface.co/")
"""What Ollama's clients put before names of the hub."""


async def pull(request: Request) -> Response | EventStream:
    """Downloads a model of the hub and adds it to those of the server; one that is there is not looked up."""
    body = await read_body(request, PullBody)
    if body.insecure:
        raise ApiError(
            400, "insecure: expected false, which is all that is supported, got True", param="insecure"
        )
    here, name = served(request), body.model or body.name
    if name is None:
        raise ApiError(400, "model: expected a value, got none", param="model", code="missing")
    known = {each.name for each in here.models}
    found = wanted(name) if here.config.allow_pull and here.models.make is not None else None
    if found is None and name not in known and name.removesuffix(LATEST) not in known:
        here.models.find(name)  # which says what there is
    is_new = found is not None and name not in known
    if is_new:
        context().caller.check_admin()
    steps = (
        pulled(here.models, name, found, here.config.pull_mmproj) if found is not None and is_new else there()
    )
    if body.stream:
        return stream(steps)
    return JsonAnswer(await connected(request, last(steps)))


def wanted(name: str) -> HubName | None:
    """The model of the hub that a name means; None if it is no such name. Raises ConfigError."""
    for host in HOSTS:
        name = name.removeprefix(host)
    return hub_name(name)


async def there() -> AsyncIterator[dict[str, Any]]:
    """What is told of a model that is there."""
    yield {"status": "success"}


async def pulled(models: Models, name: str, wanted: HubName, mmproj: bool) -> AsyncIterator[dict[str, Any]]:
    """The steps of a download, with the projector file if ``mmproj``. One goes on when the client has gone.

    Raises ApiError if the hub does not give the model, or it cannot be served.
    """
    loop = asyncio.get_running_loop()
    files: asyncio.Queue[HubFile | None] = asyncio.Queue()

    def announce(file: HubFile) -> None:
        loop.call_soon_threadsafe(files.put_nowait, file)

    def run() -> Path:
        try:
            return fetch(wanted, progress=False, announce=announce, projector=mmproj)
        finally:
            loop.call_soon_threadsafe(files.put_nowait, None)

    yield {"status": "pulling manifest"}
    task = asyncio.ensure_future(in_daemon(run))
    try:
        while (file := await files.get()) is not None:
            yield {"status": f"pulling {file.path}", "digest": file.digest, "total": file.size}
        path = await task
        assert models.make is not None
        hosted = await in_thread(models.make, name, str(path))
        if name not in models.by_name:  # two may have pulled it
            models.add(hosted)
    except (ConfigError, ModelFileError) as error:
        raise ApiError(400, without_paths(error), param="model", code="not_pulled") from error
    finally:
        task.cancel()
    yield {"status": "success"}

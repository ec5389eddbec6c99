"""``/api/pull``: a model of the hub, if whoever started the server allows that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oxillama.apps.server.bodies import read_body
from oxillama.apps.server.callers import context
from oxillama.apps.server.errors import ApiError, fault, without_paths
from oxillama.apps.server.json_text import JsonAnswer
from oxillama.apps.server.models import Models
from oxillama.apps.server.ollama.bodies import PullBody
from oxillama.apps.server.ollama.texts import stream
from oxillama.apps.server.running import connected, in_thread, last, served
from oxillama.apps.server.stream import EventStream
from oxillama.apps.server.workers import in_daemon
from oxillama.errors import ConfigError, ModelFileError
from oxillama.gguf.hub.download import fetch
from oxillama.gguf.hub.listing import HubFile
from oxillama.gguf.hub.names import HubName, hub_name

TELL_SECONDS = 0.2
"""Between two objects about the bytes of a file that have arrived."""

HOSTS = ("hf.co/", "huggingface.co/")
"""What Ollama's clients put before names of the hub."""


async def pull(request: Request) -> Response | EventStream:
    """Downloads a model of the hub and adds it to the server, unless the server has the model."""
    body = await read_body(request, PullBody)
    if body.insecure:
        raise fault("insecure", "expected false, which is all that is supported, got True")
    here, name = served(request), body.model or body.name
    if name is None:
        raise fault("model", "expected a value, got none", "missing")
    found = wanted(name) if here.config.allow_pull and here.models.make is not None else None
    if found is None:
        here.models.find(name)  # the error lists the names
    is_new = found is not None and here.models.get(name) is None
    if is_new:
        context().caller.check_admin()
    steps = (
        pulled(here.models, name, found, here.config.pull_mmproj) if found is not None and is_new else there()
    )
    if body.stream:
        return stream(steps)
    return JsonAnswer(await connected(request, last(steps)))


def wanted(name: str) -> HubName | None:
    """The model of the hub that a name means; None for other names. Raises ConfigError."""
    for host in HOSTS:
        name = name.removeprefix(host)
    return hub_name(name)


async def there() -> AsyncIterator[dict[str, Any]]:
    """The last object of a pull, for a model that the server has."""
    yield {"status": "success"}


async def pulled(models: Models, name: str, wanted: HubName, mmproj: bool) -> AsyncIterator[dict[str, Any]]:
    """The steps of a download, with the projector file if ``mmproj``. It continues without its client.

    Raises ApiError if the hub does not give the model, or it cannot be served.
    """
    loop = asyncio.get_running_loop()
    steps: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    step: dict[str, Any] = {}
    told = 0.0

    def tell(found: dict[str, Any] | None) -> None:
        loop.call_soon_threadsafe(steps.put_nowait, found)

    def announce(file: HubFile) -> None:
        step.update(status=f"pulling {file.path}", digest=file.digest, total=file.size, completed=0)
        tell(dict(step))

    def arrived(n_bytes: int) -> None:
        nonlocal told
        step["completed"] += n_bytes
        if time.monotonic() - told > TELL_SECONDS or step["completed"] == step["total"]:
            told = time.monotonic()
            tell(dict(step))

    def run() -> Path:
        try:
            return fetch(wanted, progress=False, announce=announce, arrived=arrived, projector=mmproj)
        finally:
            tell(None)

    yield {"status": "pulling manifest"}
    task = asyncio.ensure_future(in_daemon(run))
    try:
        while (found := await steps.get()) is not None:
            yield found
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

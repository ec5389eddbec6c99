"""A model of a server: its name, how it is loaded, and its engine while it is loaded."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from oxillama.server.errors import ApiError
from oxillama.server.slots import Slots

if TYPE_CHECKING:
    from oxillama import InferenceEngine


class Hosted:
    """A model by the name that clients have for it. `Models` loads and unloads it.

    Parameters
    ----------
    load : makes the engine, in a thread of its own; None for a model whose engine is given.
    path : of its file; None for the one that the engine was made with.
    n_bytes : of its weights in memory, as far as is known before it is loaded.

    Attributes
    ----------
    name : in answers, and in requests that name a model.
    created : seconds since 1970 at which the server began to have it.
    engine : None while it is not loaded.
    n_running : requests that have it now.
    waiting : a future for each request that waits until it is loaded.
    loading : the task that loads it; None while there is none.
    has_begun : whether that task has begun to load, and cannot be cancelled any more.
    is_leaving : whether it is unloaded as soon as the requests that have it have ended.
    has_been_ready : whether it was ever loaded.
    failure : why the last attempt to load it failed; None if it did not.
    last_used : of `time.monotonic`, when the last request ended.
    expires_at : seconds since 1970 at which it is unloaded if nobody uses it; infinite for never.
    slots : sequences that clients keep; they go with the engine.
    """

    def __init__(
        self,
        name: str,
        engine: InferenceEngine | None = None,
        *,
        load: Callable[[], InferenceEngine] | None = None,
        path: str | None = None,
        n_bytes: int = 0,
    ) -> None:
        self.name, self.engine, self.load, self.n_bytes = name, engine, load, n_bytes
        self.path = path
        self.created = int(time.time())
        self.n_running = 0
        self.waiting: list[asyncio.Future[None]] = []
        self.loading: asyncio.Task[None] | None = None
        self.has_begun = False
        self.is_leaving = False
        self.has_been_ready = engine is not None
        self.failure: str | None = None
        self.last_used = time.monotonic()
        self.expires_at = math.inf
        self.slots = Slots()
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_ready(self) -> bool:
        """Whether a request can have it at once."""
        return self.engine is not None and not self.is_leaving

    @property
    def state(self) -> str:
        """ "loaded", "loading", "failed" or "unloaded"."""
        if self.engine is not None:
            return "loaded"
        if self.has_begun or self.waiting:
            return "loading"
        return "unloaded" if self.failure is None else "failed"

    def ready(self) -> InferenceEngine:
        """The engine. Raises ApiError while the model is not loaded."""
        if self.engine is None:
            raise ApiError(503, "Loading model", type="unavailable_error", code="loading")
        return self.engine


def name_of_file(path: object) -> str:
    """What clients call the model of a file, if nobody says another name."""
    return Path(str(path)).stem

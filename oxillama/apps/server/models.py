"""The models of a server: loaded when a request asks for one, unloaded when others need the memory.

All methods of `Models` are for the event loop; loading and closing an engine is done in threads. Models are
loaded and unloaded one at a time. A request has its model from `acquire` to `release`, and no model is
unloaded while a request has it. One that must go, and is in use, is given to no further request: these wait
until it is loaded again, so that whoever waits for the memory gets it.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

from oxillama.apps.server.callers import context
from oxillama.apps.server.errors import ApiError, fault, without_paths
from oxillama.apps.server.media import taken_by
from oxillama.apps.server.model_names import other_name
from oxillama.apps.server.slots import Slots
from oxillama.apps.server.urgency import be_urgent
from oxillama.apps.server.workers import in_daemon
from oxillama.base.config.server import ServerConfig
from oxillama.base.memory import return_freed_memory
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.features.observability.metrics_snapshot import MetricsSnapshot
from oxillama.errors import ConfigError, OxiLlamaError, QueueFull
from oxillama.models.media.beside import found_beside, takes

MOST_WAITING = 1024
"""Requests of one client that wait for one model to be loaded."""


class Hosted:
    """A model under its name for clients. `Models` loads and unloads it.

    Args:
        load: makes the engine, in a thread of its own; None for a model whose engine is given.
        path: of its file; None for the one that the engine was made with.
        n_bytes: of its weights in memory, known before it is loaded.
        mmproj: its projector file; None for the one beside the model.
        chat_template: as in `EngineConfig`.
        others: further names that clients may have for it.
        tags: words about it, for clients.

    Attributes:
        name: in answers, and in requests that name a model.
        names: it and the others of requests.
        created: seconds since 1970 at which the server began to have it.
        engine: None while it is not loaded.
        n_running: requests that have it now.
        waiting: a future for each request that waits until it is loaded, and the client whose request it is.
        loading: the task that loads the model; None at other times.
        has_begun: whether that task has begun to load, and cannot be cancelled any more.
        is_leaving: whether it is unloaded as soon as the requests that have it have ended.
        has_been_ready: whether it was ever loaded.
        failure: why the last attempt to load it failed; None if it did not.
        last_used: of `time.monotonic`, when the last request ended.
        expires_at: seconds since 1970 at which it is unloaded if nobody uses it; infinite for never.
        slots: sequences that clients keep; they go with the engine.
        counted: what its engines had counted that are closed; None before the first one is.
    """

    def __init__(
        self,
        name: str,
        engine: InferenceEngine | None = None,
        *,
        load: Callable[[], InferenceEngine] | None = None,
        path: str | None = None,
        n_bytes: int = 0,
        mmproj: str | os.PathLike[str] | None = None,
        chat_template: str | os.PathLike[str] | None = None,
        others: Sequence[str] = (),
        tags: Sequence[str] = (),
    ) -> None:
        self.name: str = name
        self.names: tuple[str, ...] = (name, *others)
        self.tags: tuple[str, ...] = tuple(tags)
        self.mmproj = mmproj
        self.chat_template = chat_template
        self.engine: InferenceEngine | None = engine
        self.load = load
        self.n_bytes: int = n_bytes
        self.path = path
        self.created: int = int(time.time())
        self.n_running = 0
        self.waiting: dict[asyncio.Future[None], str] = {}
        self.loading: asyncio.Task[None] | None = None
        self.has_begun = False
        self.is_leaving = False
        self.has_been_ready: bool = engine is not None
        self.failure: str | None = None
        self.last_used: float = time.monotonic()
        self.expires_at: float = math.inf
        self.slots: Slots = Slots()
        self.counted: MetricsSnapshot | None = None
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_ready(self) -> bool:
        """Whether a request can use the model at once."""
        return self.engine is not None and not self.is_leaving

    @property
    def state(self) -> str:
        """ "loaded", "loading", "failed" or "unloaded"."""
        if self.engine is not None:
            return "loaded"
        if self.has_begun or self.waiting:
            return "loading"
        return "unloaded" if self.failure is None else "failed"

    @property
    def takes(self) -> tuple[str, ...]:
        """The media of the model, loaded or not: "image", "audio"."""
        if self.engine is not None:
            return taken_by(self.engine)
        if self.mmproj is not None:
            return takes(self.mmproj)
        return () if self.path is None else takes(found_beside(self.path))

    def metrics(self) -> MetricsSnapshot | None:
        """The counters of all its engines, and the gauges of the present one; None before the first."""
        return self.counted if self.engine is None else self.engine.metrics.snapshot().after(self.counted)

    def keep(self) -> None:
        """Ends the time after which it is unloaded."""
        self.expires_at = math.inf
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def ready(self) -> InferenceEngine:
        """The engine. Raises ApiError while the model is not loaded."""
        if self.engine is None:
            raise ApiError(503, "Loading model", type="unavailable_error", code="loading")
        return self.engine


class Models:
    """The models of a server, by name.

    Args:
        hosted: at least one; the first is for requests that name none.
        config: how many may be loaded, and for how long.
        make: makes a model of a name and the path of its file; None if none can be added.

    Raises:
        ConfigError: two have the same name, or one is larger than the memory for all.
    """

    def __init__(
        self,
        hosted: Sequence[Hosted],
        config: ServerConfig,
        make: Callable[[str, str], Hosted] | None = None,
    ) -> None:
        self.config: ServerConfig = config
        self.make = make
        self.by_name: dict[str, Hosted] = {}
        for each in hosted:
            self.add(each)
        self.default: Hosted = hosted[0]
        at_start = hosted if config.load_all else hosted[:1]
        if not self._fits(at_start):
            raise ConfigError("load_all: expected room for all models, models_memory or models_max is less")
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._has_ended = False

    def __iter__(self) -> Iterator[Hosted]:
        return iter(list(dict.fromkeys(self.by_name.values())))  # a model may be added meanwhile

    def __len__(self) -> int:
        return len(set(self.by_name.values()))

    def add(self, hosted: Hosted) -> None:
        """Adds a model. Raises ConfigError if its name is taken, or it exceeds the memory for all models."""
        for name in hosted.names:
            if name in self.by_name:
                raise ConfigError(f"model: expected another name for each, got {name} twice")
        most = self.config.models_memory
        if most is not None and hosted.n_bytes > most:
            raise ConfigError(
                f"models_memory: expected at least the {hosted.n_bytes} bytes of {hosted.name}, got {most}"
            )
        self.by_name |= dict.fromkeys(hosted.names, hosted)

    def get(self, name: str) -> Hosted | None:
        """The model of a name, with or without ``:latest``; None for an unknown name."""
        return self.by_name.get(name) or self.by_name.get(other_name(name))

    def find(self, name: str | None) -> Hosted:
        """The model of a name, as for `get`; the default for None. Raises ApiError."""
        if name is None:
            return self.default
        found = self.get(name)
        if found is None:
            listed = ", ".join(self.by_name)
            wanted = listed if len(self.by_name) == 1 else f"one of {listed}"
            raise fault("model", f"expected {wanted}, got {name[:200]}", "model_not_found", 404)
        return found

    # --- what requests have -------------------------------------------------------------------------

    async def acquire(self, hosted: Hosted) -> None:
        """Loads a model if necessary, and keeps it for one request until `release`.

        Raises ApiError if it cannot be loaded, QueueFull if too many wait for it already.
        """
        if hosted.is_ready:
            self._take(hosted)
            return
        client = context().client
        if list(hosted.waiting.values()).count(client) >= MOST_WAITING:
            raise QueueFull(f"{hosted.name}: {MOST_WAITING} requests of this client wait until it is loaded")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        hosted.waiting[future] = client
        if hosted.loading is None:
            hosted.loading = asyncio.ensure_future(self._bring(hosted))
        try:
            await future
        except asyncio.CancelledError:
            if future in hosted.waiting:
                del hosted.waiting[future]
            elif not future.cancelled() and future.exception() is None:
                self.release(hosted)  # the model was given in the same moment
            if not hosted.waiting and hosted.loading is not None and not hosted.has_begun:
                hosted.loading.cancel()
            raise

    def _take(self, hosted: Hosted) -> None:
        hosted.n_running += 1
        hosted.keep()

    def release(self, hosted: Hosted, idle_seconds: float | None = None) -> None:
        """Ends what `acquire` began.

        Args:
            idle_seconds: after which the model is unloaded if nobody uses it, below 0 for never; None for the
                option of the server.
        """
        hosted.n_running -= 1
        hosted.last_used = time.monotonic()
        if hosted.n_running:
            return
        self._freed.set()
        seconds = self.config.models_idle_seconds if idle_seconds is None else idle_seconds
        if seconds is not None and seconds >= 0 and hosted.load is not None:
            hosted.expires_at = time.time() + seconds
            loop = asyncio.get_running_loop()
            hosted.timer = loop.call_later(min(seconds, 1e8), self._spawn, self._retire, hosted)

    def _spawn(self, job: Callable[[Hosted], Coroutine[Any, Any, None]], hosted: Hosted) -> None:
        task = asyncio.ensure_future(job(hosted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- loading ------------------------------------------------------------------------------------

    async def _bring(self, hosted: Hosted) -> None:
        """Loads a model for all requests that wait for it; an error goes to all of them."""
        try:
            async with self._turn:
                await self._make_room(hosted)
                if hosted.engine is None:
                    hosted.has_begun = True
                    assert hosted.load is not None, "the model has no loader"
                    hosted.engine = await in_daemon(partial(loaded, hosted.load))
                    hosted.n_bytes = hosted.engine.metrics.snapshot().matrix_bytes
                hosted.has_been_ready, hosted.failure = True, None
        except asyncio.CancelledError:
            hosted.loading = None
            if hosted.waiting and not self._has_ended:  # somebody has come since
                hosted.loading = asyncio.ensure_future(self._bring(hosted))
            raise
        except Exception as error:
            hosted.failure = str(error)
            waiting, hosted.waiting = hosted.waiting, {}
            for future in waiting:
                if not future.done():
                    future.set_exception(not_loaded(hosted, error))
        else:
            waiting, hosted.waiting = hosted.waiting, {}
            for future in waiting:
                if not future.done():
                    self._take(hosted)
                    future.set_result(None)
        finally:
            hosted.has_begun = False
        hosted.loading = None

    def _fits(self, models: Sequence[Hosted]) -> bool:
        """Whether these may be loaded together."""
        most, memory = self.config.models_max, self.config.models_memory
        too_many = most is not None and len(models) > most
        too_large = memory is not None and sum(each.n_bytes for each in models) > memory
        return not (too_many or too_large)

    async def _make_room(self, hosted: Hosted) -> None:
        """Unloads models to make room for another, unused ones first, the least recently used first."""
        while True:
            loaded = [each for each in self if each.engine is not None and each is not hosted]
            movable = [each for each in loaded if each.load is not None]
            if not movable or self._fits([*loaded, hosted]):
                return
            victim = min(movable, key=lambda each: (each.n_running > 0, each.last_used))
            victim.is_leaving = True
            try:
                while victim.n_running:
                    self._freed.clear()
                    await self._freed.wait()
            except asyncio.CancelledError:
                victim.is_leaving = False
                raise
            await self._unload(victim)

    async def _retire(self, hosted: Hosted) -> None:
        """Unloads a model that nobody has used for its time."""
        async with self._turn:
            if hosted.engine is not None and not hosted.n_running and time.time() >= hosted.expires_at:
                await self._unload(hosted)

    async def _unload(self, hosted: Hosted) -> None:
        engine, hosted.engine = hosted.engine, None
        hosted.is_leaving, hosted.slots = False, Slots()
        hosted.keep()
        if engine is not None:
            metrics, earlier = engine.metrics, hosted.counted
            hosted.counted = metrics.snapshot().after(earlier).closed()
            closing = asyncio.ensure_future(in_daemon(engine.close))
            del engine
            await asyncio.shield(closing)
            # including the requests that the close has ended
            hosted.counted = metrics.snapshot().after(earlier).closed()
            del closing, metrics
            gc.collect(1)  # errors of ended requests; a full collection would stop the event loop for 0.2 s
            await in_daemon(return_freed_memory)

    # --- the beginning and the end ------------------------------------------------------------------

    async def begin(self, failed: Callable[[BaseException], object], done: Callable[[], object]) -> None:
        """Loads models at the start; calls ``done`` when the default model is loaded.

        Args:
            failed: called with the error of the first that cannot be loaded.
        """
        for hosted in self if self.config.load_all else (self.default,):
            try:
                await self.acquire(hosted)
            except Exception as error:
                failed(error.__cause__ or error)
                return
            self.release(hosted)
            if hosted is self.default:
                done()

    async def end(self) -> None:
        """Closes all engines; a model that is still loading is closed afterwards."""
        self._has_ended = True
        tasks = [*self._tasks, *(each.loading for each in self if each.loading is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for hosted in self:
            hosted.keep()
            if hosted.engine is not None:
                hosted.engine.close()


def loaded(load: Callable[[], InferenceEngine]) -> InferenceEngine:
    """A new engine, whose thread gets Python's lock early."""
    engine = load()
    engine.model.call(be_urgent)
    return engine


def not_loaded(hosted: Hosted, error: Exception) -> ApiError:
    """The answer to a request whose model cannot be loaded; it is the cause of it."""
    reason = without_paths(error) if isinstance(error, OxiLlamaError) else "its log says why"
    found = fault("model", f"expected {hosted.name} to load, got an error: {reason}", "load_failed", 500)
    found.__cause__ = error
    return found

"""The engine for asyncio: many requests at once, one batch, one thread that runs it.

The kernels run without the interpreter's lock, so the event loop goes on meanwhile. Text reaches the loop
with one call per step, however many streams it is for. A reader that falls behind pauses its own
stream alone: nothing is generated that has no place to wait in.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any

from oxillama.engine.core import EngineCore
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.request import Request, refuse_logprobs
from oxillama.engine.stepwise import Prompt
from oxillama.errors import ConfigError
from oxillama.sampling.logprobs import SampledToken

AHEAD = 16  # pieces that may wait for a reader


class AsyncGeneration(AsyncIterator[str]):
    """A request that runs; yields its text piece by piece. Made by `AsyncEngine.submit`.

    It is cancelled by `aclose` or `cancel`, or when nobody refers to it any more.

    Attributes
    ----------
    text : text yielded so far.
    """

    def __init__(self, engine: AsyncEngine, request: Request, waker: _Waker) -> None:
        self.text = ""
        self._core = engine.core
        self._request = request
        self._waker = waker

    @property
    def prompt_tokens(self) -> list[int]:
        """Ids of the prompt."""
        return self._request.prompt

    @property
    def tokens(self) -> list[int]:
        """Ids generated so far, an ending token included."""
        return self._request.tokens

    @property
    def logprobs(self) -> list[SampledToken] | None:
        """As `Generation.logprobs`."""
        return self._request.logprobs

    @property
    def finish_reason(self) -> str | None:
        """As `Generation.finish_reason`."""
        return None if self._request.pieces else self._request.finish_reason

    async def __anext__(self) -> str:
        request = self._request
        while not request.pieces and request.finish_reason is None:
            await self._waker.wait()
        if request.pieces:
            full = not request.wanted
            piece = request.pieces.popleft()
            if full and request.wanted:
                self._core.wake()
            self.text += piece
            return piece
        if request.error is not None:
            error, request.error = request.error, None
            raise error
        raise StopAsyncIteration

    async def read(self) -> str:
        """The whole text, when it has ended."""
        async for _ in self:
            pass
        return self.text

    def cancel(self) -> None:
        """Stops before the next token."""
        self._core.cancel(self._request)

    async def aclose(self) -> None:
        """Stops; text that was not read is dropped. Its pages are free when this returns."""
        self.cancel()
        while self._request.finish_reason is None:
            await self._waker.wait()
        self._request.pieces.clear()

    def __del__(self) -> None:
        if hasattr(self, "_request") and self._request.finish_reason is None:
            self._core.abandon(self._request)


class _Waker:
    """Wakes what waits in one event loop, from any thread, with one call however many there are."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()
        self._called = False

    def __call__(self) -> None:
        if not self._called:
            self._called = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits in it any more
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._called = False
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self) -> None:
        await self._event.wait()


class AsyncEngine:
    """Runs the requests of an asyncio program; one thread, one batch.

    Parameters
    ----------
    engine : whose model it runs. It may be used otherwise at the same time; its steps are shared.

    To be used as ``async with``, or closed with `aclose` or `close`. What still runs when the interpreter
    exits is cancelled.
    """

    def __init__(self, engine: InferenceEngine) -> None:
        if not engine.is_loaded:
            raise ConfigError("model_path: no model is loaded")
        self.engine = engine
        self.core: EngineCore = engine.core
        self._closed = False
        self._died: BaseException | None = None
        self._stop = threading.Event()
        self._live: weakref.WeakSet[Request] = weakref.WeakSet()
        self._wakers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Waker] = (
            weakref.WeakKeyDictionary()
        )
        # A daemon, for nobody joins those before the exit handlers run, of which one stops it
        self._thread = threading.Thread(target=self._serve, name="oxillama", daemon=True)
        self._thread.start()
        _open_engines.add(self)

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str], **config: Any) -> AsyncEngine:
        """An engine for the model at ``path``; ``config`` are fields of `EngineConfig`."""
        return cls(InferenceEngine.from_gguf(path, **config))

    def submit(self, prompt: Prompt, *, ahead: int = AHEAD, **options: Any) -> AsyncGeneration:
        """Starts a request at once; to be called in a running event loop.

        Parameters
        ----------
        ahead : pieces of text that may wait to be read; with as many the request pauses.
        options : as for `InferenceEngine.stream`.

        Raises
        ------
        Busy : too many requests are waiting.
        PromptError, TokenizerError, ConfigError : as `InferenceEngine.stream` says; or the engine is closed.
        """
        loop = asyncio.get_running_loop()
        if ahead < 1:
            raise ConfigError(f"ahead: needs at least 1, got {ahead}")
        self._check_open()
        request = self.engine.prepare(prompt, **options)
        waker = self._wakers.setdefault(loop, _Waker(loop))
        request.listener, request.ahead = waker, ahead
        self._live.add(request)
        self.core.submit(request)
        if self._stop.is_set():  # closed meanwhile, by another thread
            self.core.cancel(request)
            self._check_open()
        return AsyncGeneration(self, request, waker)

    def _check_open(self) -> None:
        if self._died is not None:
            raise ConfigError(f"engine: its thread has ended ({self._died!r})") from self._died
        if self._closed:
            raise ConfigError("engine: is closed")
        if self.core is not self.engine.core:
            raise ConfigError("engine: has loaded another model since; make another AsyncEngine")

    async def stream(self, prompt: Prompt, **options: Any) -> AsyncGenerator[str, None]:
        """Yields text piece by piece; closing the generator cancels the request. Raises as `submit`."""
        refuse_logprobs(options, "submit")
        generation = self.submit(prompt, **options)
        try:
            async for piece in generation:
                yield piece
        finally:
            generation.cancel()

    async def generate(self, prompt: Prompt, **options: Any) -> str:
        """The whole text; cancelling the task cancels the request. Raises what `submit` raises."""
        refuse_logprobs(options, "submit")
        generation = self.submit(prompt, ahead=2**31, **options)
        try:
            return await generation.read()
        finally:
            generation.cancel()

    async def aclose(self, *, finish: bool = False) -> None:
        """Ends the thread: after the running requests if ``finish``, otherwise they are cancelled."""
        await asyncio.get_running_loop().run_in_executor(None, lambda: self.close(finish=finish))

    def close(self, *, finish: bool = False) -> None:
        """The same, from outside an event loop."""
        self._closed = True
        for request in list(self._live) if finish else []:
            request.ahead = float("inf")  # it must end, read or not
            self.core.wake()
            self.core.join(request)
        self._stop.set()
        self.core.wake()
        self._thread.join()
        _open_engines.discard(self)

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def _serve(self) -> None:
        """The thread: leads steps as long as anybody wants any."""
        try:
            self.core.wait(self._stop.is_set)
            for request in list(self._live):
                self.core.cancel(request)
        except BaseException as error:
            self._died = error
            self._stop.set()
            self.core.fail(list(self._live), error)


_open_engines: weakref.WeakSet[AsyncEngine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for engine in list(_open_engines):
        engine.close()

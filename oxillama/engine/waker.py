"""Reading the events of requests in asyncio; imported where that is done."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterator
from queue import Empty

from oxillama.engine.generation import Generation
from oxillama.engine.handle import Handle
from oxillama.engine.request import Event
from oxillama.events import Event as MessageEvent


class Waker:
    """Sets ``event`` and calls ``watchers`` in one event loop, from any thread; one call serves all of them.

    The event is another one after each call. Watchers raise nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.watchers: set[Callable[[], object]] = set()
        self._loop = weakref.ref(loop)
        self.event: asyncio.Event = asyncio.Event()
        self._is_called = False

    def __call__(self) -> None:
        loop = self._loop()
        if not self._is_called and loop is not None:
            self._is_called = True
            try:
                loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                pass  # the loop is closed: nobody waits in it any more
            except BaseException:
                self._is_called = False
                raise

    def _wake(self) -> None:
        self._is_called = False
        self.event.set()
        self.event = asyncio.Event()
        for watcher in tuple(self.watchers):
            watcher()


_wakers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Waker] = weakref.WeakKeyDictionary()


def waker_of_loop() -> Waker:
    """The waker of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _wakers:
        _wakers[loop] = Waker(loop)
    return _wakers[loop]


def ready_event(handle: Handle) -> Event | None:
    """The next event, if it has come; the end, where another consumer took it."""
    is_last = handle._is_published()
    try:
        return handle._request.events.get_nowait()
    except Empty:
        return handle._lost_end() if is_last else None


async def next_event(handle: Handle) -> Event:
    """Waits for the next event."""
    waker = handle._request.listener = waker_of_loop()
    while (event := ready_event(handle)) is None:
        await waker.event.wait()
    return event


def ready_parts(generation: Generation) -> Iterator[MessageEvent]:
    """The events of a text that have come. Raises what ended the request, if that was an error."""
    while True:
        while generation._parts:
            yield generation._shown(generation._parts.popleft())
        event = ready_event(generation) if generation.finish_reason is None else None
        if event is None:
            return
        generation._take(generation._checked(event))

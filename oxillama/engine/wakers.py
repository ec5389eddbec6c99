"""How the engine thread wakes the coroutines that wait for events."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable

from oxillama.engine.handle import Handle, ready_event
from oxillama.engine.request import Event


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
        self.event = type(self.event)()
        for watcher in tuple(self.watchers):
            watcher()


_wakers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Waker] = weakref.WeakKeyDictionary()


def waker_of_loop() -> Waker:
    """The waker of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _wakers:
        _wakers[loop] = Waker(loop)
    return _wakers[loop]


async def next_event(handle: Handle) -> Event:
    """Waits for the next event."""
    waker = handle._request.listener = waker_of_loop()
    while (event := ready_event(handle)) is None:
        await waker.event.wait()
    return event

"""Wakes the coroutines that wait for events of requests; imported where a request is read in asyncio."""

from __future__ import annotations

import asyncio
import weakref


class Waker:
    """Wakes what waits in one event loop, from any thread, with one call however many there are."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._event = asyncio.Event()
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
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self) -> None:
        """Returns after the next call."""
        await self._event.wait()


_wakers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Waker] = weakref.WeakKeyDictionary()


def waker_of_loop() -> Waker:
    """The waker of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _wakers:
        _wakers[loop] = Waker(loop)
    return _wakers[loop]

"""The consumer's side of a request: it reads events in a loop that blocks, or in a coroutine."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty
from typing import Any

from oxillama.base.lazy_import import lazy
from oxillama.base.locks import ForkedOpen, NotCopied
from oxillama.engine.request import End, Event, Request
from oxillama.engine.thread import EngineThread
from oxillama.errors import EngineClosed, SamplingError

next_event: Callable[..., Any] = lazy("oxillama.engine.wakers:next_event")

POLL = 0.1
"""Seconds between two looks whether a request that was cancelled has ended."""

LOST = 0.5
"""Seconds between two looks whether the end of a request was lost to its consumer."""

SILENT = (StopIteration, StopAsyncIteration, GeneratorExit)
"""What would end the consumer's loop in silence, if it were raised as it is."""


class Handle(NotCopied):
    """The consumer's side of a request, which is cancelled when nobody refers to its handle any more.

    Threads and tasks may share it: each event goes to one of them.

    Args:
        owner: an object that must live as long as this handle.

    Attributes:
        finish_reason: why the request ended; None while there is something to be read.
    """

    def __init__(self, thread: EngineThread, request: Request, owner: object = None) -> None:
        self.finish_reason: str | None = None
        self._is_cut = False  # events were dropped
        self._thread = thread
        self._request = request
        self._reading = ForkedOpen()
        self._owner = owner
        request.consumer = weakref.ref(self)

    def cancel(self, cause: BaseException | None = None) -> None:
        """Ends the request before its next layer, from any thread; its events so far can still be read.

        The consumer then gets ``cause`` raised, if there is one.
        """
        self._request.cause = cause
        self._thread.cancel(self._request)

    def close(self) -> None:
        """Ends the request and drops what was not read."""
        self.cancel()
        self._thread.check_outside()
        while not self._is_over():
            with suppress(Empty):
                self._drop(self._request.events.get(timeout=POLL))

    @property
    def is_running(self) -> bool:
        """Whether the request goes on, read or not."""
        return self._request.finish_reason is None and self._thread.is_open

    def _open_window(self) -> None:
        """Has the request run to its end, read or not."""
        self._request.window = math.inf
        self._thread.wake()

    async def aclose(self) -> None:
        """`close`, in asyncio."""
        self.cancel()
        while not self._is_over():
            self._drop(await next_event(self))

    def _drop(self, event: Event) -> None:
        """Counts an event as read that nobody gets: what was read is then not the whole."""
        self._is_cut = self._is_cut or not isinstance(event, End)
        self._note(event)
        if self._is_cut and self.finish_reason is not None:
            self.finish_reason = "cancelled"

    def _is_over(self) -> bool:
        """Whether the end has been read, or was lost to a Ctrl-C between taking and noting it."""
        if self.finish_reason is None and self._is_published() and self._request.events.empty():
            self.finish_reason = "cancelled" if self._is_cut else self._request.finish_reason
        return self.finish_reason is not None

    def _event(self) -> Event:
        """Waits for the next event. Raises what ended the request, if that was an error."""
        self._thread.check_outside()
        request = self._request
        while True:
            is_last = request.is_published
            try:
                return self._checked(request.events.get(timeout=0 if is_last else LOST))
            except Empty:
                if is_last:
                    return self._checked(self._lost_end())
                self._is_published()

    def _is_published(self) -> bool:
        """Whether there will be no more events than there are."""
        if not self._request.is_published and self._thread.has_ended:
            self._request.finish("error", EngineClosed("engine: its thread has ended"))
            self._request.publish_end()
        return self._request.is_published

    def _lost_end(self) -> End:
        """The end, if another consumer took it, or a Ctrl-C came between taking and noting it."""
        return End(self._request.finish_reason or "error", self._request.error)

    def _checked(self, event: Event) -> Event:
        """Notes an event. Raises the error that it tells of."""
        self._note(event)
        if isinstance(event, End) and event.error is not None:
            if isinstance(event.error, SILENT):
                raise SamplingError(f"sampler: a stage raised {event.error!r}") from event.error
            raise event.error
        return event

    def _note(self, event: Event) -> None:
        """Counts an event as read, so that a request that was paused goes on."""
        request = self._request
        request.n_read += 1
        # counted first, then compared: the engine thread may emit an event, and pause, in between
        if request.n_events - request.n_read == request.window - 1:
            self._thread.wake()
        if isinstance(event, End):
            self.finish_reason = event.reason

    def __del__(self) -> None:
        if hasattr(self, "_owner") and self._request.finish_reason is None:
            self._thread.cancel(self._request)


def ready_event(handle: Handle) -> Event | None:
    """The next event, if it has come; the end, where another consumer took it."""
    is_last = handle._is_published()
    try:
        return handle._request.events.get_nowait()
    except Empty:
        return handle._lost_end() if is_last else None

"""The text of a generation on its way to a client, without a turn of the stream's task for each token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from oxillama.engine.generation import Generation
from oxillama.engine.waker import ready_parts, waker_of_loop
from oxillama.events import Event


class Relay:
    """Sends what comes of a generation, up to its end.

    When a step of the engine wakes the event loop, each relay formats and writes what has come for its
    client. The stream's task runs only for what could not be written at once, and at the end.

    Parameters
    ----------
    line_of : the line of an event; "" for an event that the client is not told.
    """

    def __init__(self, generation: Generation, line_of: Callable[[Event], str]) -> None:
        self._generation, self._line_of = generation, line_of
        self._error: BaseException | None = None

    async def run(self, write: Callable[[str], bool], send: Callable[[str], Awaitable[None]]) -> None:
        """Returns when the generation has ended. Raises what ended it, if that was an error.

        Parameters
        ----------
        write : sends lines at once; False if they could not be sent.
        send : sends lines as soon as the client takes them.
        """
        waker = self._generation._request.listener = waker_of_loop()
        self._write = write
        waker.watchers.add(self)
        try:
            while self._error is None and self._generation.finish_reason is None:
                self._rest: asyncio.Future[str] = asyncio.get_running_loop().create_future()
                self()
                await send(await self._rest)
            if self._error is not None:
                raise self._error
        finally:
            waker.watchers.discard(self)
            if self._generation.finish_reason is None:
                self._generation.cancel()

    def __call__(self) -> None:
        """Sends what has come, or leaves it to the task: at the end, and while the client is behind."""
        if self._rest.done():
            return
        lines = ""
        try:
            for part in ready_parts(self._generation):
                lines += self._line_of(part)
            goes_on = self._generation.finish_reason is None
            if goes_on and (not lines or self._write(lines)):
                return
        except BaseException as error:
            self._error = error
        self._rest.set_result(lines)

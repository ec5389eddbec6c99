"""Jobs in threads of their own, which the end of the process does not wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from oxillama.apps.server.urgency import be_patient

T = TypeVar("T")


async def in_daemon(job: Callable[[], T]) -> T:
    """The result of a job in a thread that the end of the process does not wait for.

    A task that is cancelled meanwhile leaves the job to its end; an engine that it makes is then closed.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(made: T | None, error: BaseException | None) -> None:
        if future.done():
            close(made)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(made)  # type: ignore[arg-type]

    def run() -> None:
        be_patient()
        made, error = None, None
        try:
            made = job()
        except BaseException as found:
            error = found
        try:
            loop.call_soon_threadsafe(tell, made, error)
        except RuntimeError:  # the loop has ended
            close(made)

    def close(made: object) -> None:
        with suppress(Exception):
            getattr(made, "close", lambda: None)()

    threading.Thread(target=run, name="server job", daemon=True).start()
    return await future

"""Work on many items at a time, whose results come in the order of the items."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

AHEAD = 16
"""Items that may be done or running behind the first one that is not done, in windows."""


async def in_order(
    items: Iterable[T], work: Callable[[T], Awaitable[R]], window: int, ahead: int = AHEAD
) -> AsyncIterator[R]:
    """The results of ``work`` for each item, in the order of the items.

    Parameters
    ----------
    items : taken when there is room for one more.
    window : how many are worked on at a time.
    ahead : so many windows of items are at most taken and not handed out, so that one long item does not
        stop the others, and memory is bounded.

    What an item raises ends all, when it is its turn or before.
    """
    left = iter(items)
    begun: deque[asyncio.Future[R]] = deque()
    running: set[asyncio.Future[R]] = set()
    is_over = False
    try:
        while True:
            while not is_over and len(running) < window and len(begun) < window * ahead:
                try:
                    item = next(left)
                except StopIteration:
                    is_over = True
                    break
                task: asyncio.Future[R] = asyncio.ensure_future(work(item))
                begun.append(task)
                running.add(task)
            if not begun:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # an error is raised at once
            while begun and begun[0].done():
                yield begun.popleft().result()
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)

"""Works on many items concurrently; results come in the order of the items."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

AHEAD = 16
"""Items that may be started beyond the first unfinished one, in multiples of the window."""


async def in_order(
    items: Iterable[T], work: Callable[[T], Awaitable[R]], window: int, ahead: int = AHEAD
) -> AsyncIterator[R]:
    """Yield the results of ``work`` for each item, in the order of the items.

    Args:
        items: consumed only when there is room for another item.
        window: number of items worked on at a time.
        ahead: at most this many windows of items are started and not yet yielded, so that one long item does
            not stop the others, and memory is bounded.

    An exception of any item ends all work.
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
                task.result()  # raises an item's error at once
            while begun and begun[0].done():
                yield begun.popleft().result()
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)

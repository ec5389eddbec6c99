"""Results come in order, few items run at a time, and what ran ahead is bounded."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from oxillama.apps.batch.pool import in_order


@pytest.mark.parametrize("window", [1, 2, 7, 100])
def test_results_in_the_order_of_the_items(window: int) -> None:
    draw, running, most = random.Random(window), 0, 0
    is_full = asyncio.Event()

    async def work(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == min(window, 50):
            is_full.set()
        await is_full.wait()
        for _ in range(draw.randrange(5)):
            await asyncio.sleep(0)
        running -= 1
        return -item

    async def all_of() -> list[int]:
        return [result async for result in in_order(range(50), work, window)]

    assert asyncio.run(all_of()) == [-item for item in range(50)]
    assert most == min(window, 50)


def test_a_long_item_stops_the_others_only_at_the_bound() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(1000):
            taken.append(item)
            yield item

    async def run() -> None:
        go_on = asyncio.Event()

        async def work(item: int) -> int:
            if item == 0:
                await go_on.wait()
            return item

        results = in_order(items(), work, 4, ahead=3)
        first = asyncio.ensure_future(anext(results))
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(taken) == 12 and not first.done()
        go_on.set()
        assert await first == 0
        assert [result async for result in results] == list(range(1, 1000))

    asyncio.run(run())


def test_an_error_ends_all() -> None:
    cancelled: list[int] = []

    async def work(item: int) -> Any:
        if item == 3:
            raise ValueError("of item 3")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(item)
            raise

    async def run() -> None:
        async for _ in in_order(range(9), work, 5):
            pass

    with pytest.raises(ValueError, match="of item 3"):
        asyncio.run(run())
    assert cancelled == [0, 1, 2, 4]


def test_nothing_to_do() -> None:
    async def run() -> list[Any]:
        return [each async for each in in_order([], lambda item: asyncio.sleep(0), 3)]

    assert asyncio.run(run()) == []

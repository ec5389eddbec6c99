"""Waiting for other threads, and having an engine wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oxillama import AsyncEngine, InferenceEngine


def until(ready: Callable[[], bool], seconds: float = 60) -> None:
    """Waits for what another thread is about to do."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


def idle(engine: InferenceEngine) -> None:
    """Waits until an engine has nothing to run, and its last step is over: what was cancelled is gone."""
    scheduler = engine.model.scheduler
    until(lambda: engine.model.call(lambda: not scheduler.running and not scheduler.waiting))


def check_all_free(engine: InferenceEngine) -> None:
    """Waits as `idle`; nothing but the prefix cache holds a page then, and no page is counted wrongly."""
    idle(engine)
    engine.model.check_integrity()
    engine.model.call(engine.model.prefix_cache.clear)
    assert engine.model.pool.n_used == 0


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Runs a coroutine, in a minute or not at all."""
    return asyncio.run(asyncio.wait_for(main(), 60))


def in_asyncio(engine: InferenceEngine, main: Callable[[AsyncEngine], Awaitable[Any]]) -> Any:
    """What a function of an `AsyncEngine` over an engine gives, in a minute or not at all."""

    async def opened() -> Any:
        async with AsyncEngine(engine) as many:
            return await main(many)

    return run(opened)


def together(n: int, work: Callable[[], object]) -> list[object]:
    """What ``work`` returns or raises in n threads that begin together."""
    barrier, found = threading.Barrier(n), list[object]()

    def begin() -> None:
        barrier.wait(60)
        try:
            found.append(work())
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=begin, daemon=True) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == n
    return found


def asleep(pid: int, seconds: float = 60) -> None:
    """Waits until a process waits for something: it sleeps at each of ten looks."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():  # what the system does not tell, a while must do
        time.sleep(2)
        return
    deadline, looks = time.monotonic() + seconds, 0
    while looks < 10:
        looks = looks + 1 if stat.read_text().rpartition(")")[2].split()[0] == "S" else 0
        assert time.monotonic() < deadline, "it does not sleep"
        time.sleep(0.02)


@contextmanager
def stopped(engine: InferenceEngine) -> Iterator[None]:
    """The engine's thread takes no steps and no commands. The block must not wait for one."""
    reached, go_on = threading.Event(), threading.Event()
    in_time: list[bool] = []

    def wait() -> None:
        reached.set()
        in_time.append(go_on.wait(60))

    caller = threading.Thread(target=lambda: engine.model.call(wait))
    caller.start()
    try:
        assert reached.wait(60)
        yield
    finally:
        go_on.set()
        caller.join(60)
    assert in_time == [True], "the block has waited for the engine's thread"

"""Many clients at once, some of whom go away: what `python -m benchmarks server-load` does for a minute."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from starlette.types import Message

from benchmarks.server_load import load, make_jobs
from oxillama import demo
from oxillama.apps.server.errors import ClientGone
from oxillama.apps.server.stream import EventStream


def test_many_clients_some_of_whom_go_away(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    jobs = make_jobs(demo.STORY, 20, seed=1)
    found = load(demo.STORY, jobs, clients=16, goes_on=lambda n: n < 160, seed=2)
    assert found.wrong == []
    assert set(found.seen) == {"read", "gone"}
    assert sum(found.seen.values()) >= 160
    assert (found.left, found.lost) == (0, 0)
    assert caplog.messages == []  # nothing is written to connections that are closed


def test_a_stream_that_never_waits_lets_others_have_their_turn() -> None:
    """Otherwise its client's leaving is noticed only when all of it was written."""

    async def main() -> tuple[int, int]:
        sent: list[bytes] = []
        gone = asyncio.Event()

        async def lines() -> AsyncIterator[str]:
            for i in range(1000):
                yield f"data: {i}\n\n"

        async def send(message: Message) -> None:
            sent.append(message.get("body", b""))
            if len(sent) == 20:
                gone.set()

        async def receive() -> Message:
            await gone.wait()
            return {"type": "http.disconnect"}

        with pytest.raises(ClientGone):
            await EventStream(lines(), ping_seconds=10)({}, receive, send)
        return len(sent), len(set(sent))

    n_sent, n_different = asyncio.run(main())
    assert 20 <= n_sent <= 30
    assert n_different == n_sent

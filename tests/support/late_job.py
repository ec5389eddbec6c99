"""Traces a function, as debuggers do, after a job that was late: ``python -m tests.support.late_job``."""

from __future__ import annotations

import asyncio
import sys
import time

from oxillama import GrammarError
from oxillama.server.workers import Workers


def endless() -> None:
    while True:
        time.sleep(0.001)


def traced() -> int:
    return 5


async def main() -> None:
    """Runs a job that is ended. Raises AssertionError if it is not."""
    workers = Workers("late", 1)
    try:
        await workers.run(endless, seconds=0.01)
    except GrammarError:
        workers.close()
    else:
        raise AssertionError


asyncio.run(main())
sys.settrace(lambda *event: None)
assert traced() == 5

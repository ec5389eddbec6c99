"""How far prompts are, among the deltas of a stream: llama-server's ``prompt_progress``."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from oxillama.apps.server.running import Delta, times
from oxillama.engine.generation import Generation

SECONDS = 0.1
"""Between two looks at a prompt."""


@dataclass(frozen=True)
class PromptProgress:
    """Tokens of a prompt, before its first step or after one.

    Attributes:
        index: the number of the text in the request.
        total, cache: of the prompt; those that need not be run.
        processed: those that have been run or need not be.
        time_ms: milliseconds since the request was admitted.
        run_ms: milliseconds of the steps that ran the prompt so far.
    """

    index: int
    total: int
    cache: int
    processed: int
    time_ms: float
    run_ms: float = 0.0

    @property
    def field(self) -> dict[str, Any]:
        """The field of a chunk."""
        value = {"total": self.total, "cache": self.cache, "processed": self.processed}
        return {"prompt_progress": {**value, "time_ms": self.time_ms}}

    @property
    def timings(self) -> dict[str, Any]:
        """llama-server's times at this moment, without tokens of the text."""
        n = self.processed - self.cache
        return {"timings": times(self.cache, (n, n, self.run_ms / 1000), (0, 0, 0.0))}


async def with_progress(
    generations: Sequence[Generation], found: AsyncIterator[Delta]
) -> AsyncIterator[Delta | PromptProgress]:
    """The deltas of generations, with the progress of each prompt before the first delta of its text.

    The first progress of a prompt is what was cached, then there is one for each step that runs some of it,
    and the last one is the whole prompt.
    """
    told: dict[int, int] = {}  # tokens of each prompt

    def news(has_begun: int | None) -> Iterator[PromptProgress]:
        for index, generation in enumerate(generations):
            seconds = generation.timings.spent
            if math.isnan(seconds) and index != has_begun:
                continue
            total, cache = generation.prefill_total, generation.usage.cached_tokens
            spent = 0.0 if math.isnan(seconds) else 1000 * seconds
            steps = [(cache, 0.0), *generation.prefill_steps]
            if index == has_begun:
                steps.append((total, steps[-1][1]))
            for n, run in steps:
                n = min(n, total)
                if n > told.get(index, -1):
                    told[index] = n
                    yield PromptProgress(index, total, cache, n, spent, 1000 * run)

    coming: asyncio.Future[Delta | None] | None = None
    try:
        while coming is not None or any(told.get(i) != g.prefill_total for i, g in enumerate(generations)):
            coming = coming or asyncio.ensure_future(anext(found, None))
            await asyncio.wait({coming}, timeout=SECONDS)
            delta, is_here = (coming.result(), True) if coming.done() else (None, False)
            for part in news(None if delta is None else delta.index):
                yield part
            if is_here:
                coming = None
                if delta is None:
                    return
                yield delta
    finally:
        if coming is not None:
            coming.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await coming
    async for delta in found:
        yield delta

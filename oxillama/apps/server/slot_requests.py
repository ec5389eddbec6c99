"""Requests for text, in a slot if they name one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial

from oxillama.apps.server.callers import context
from oxillama.apps.server.errors import invalid
from oxillama.apps.server.recording import with_receipt
from oxillama.apps.server.running import begin, cancel, compile_rules
from oxillama.apps.server.slots import Slots, to_its_end
from oxillama.base.config import GenerationOptions
from oxillama.engine.engine import InferenceEngine
from oxillama.engine.features.sample_seeds import seeded
from oxillama.engine.generation import Generation


@asynccontextmanager
async def started(
    engine: InferenceEngine,
    slots: Slots,
    id: int,
    prompts: Sequence[list[int]],
    options: GenerationOptions,
    n: int = 1,
) -> AsyncIterator[list[Generation]]:
    """``n`` generations of each prompt, as `begin` starts them.

    Args:
        id: of the slot whose session runs the first of them, and which is theirs until the block ends; -1 for
            none. Then there must be one prompt.

    Raises ApiError, and what `begin` raises.
    """
    if id < 0:
        yield await begin(engine, prompts, options, n)
        return
    if len(prompts) > 1:
        raise invalid("id_slot", "one prompt for a slot", len(prompts))
    await compile_rules(engine, prompts, options)
    first, *others = [options] if n == 1 else seeded(options, n, engine.config.seed)
    async with slots.used(engine, id, context().caller.name) as slot:
        start = partial(slot.start, engine, prompts[0])
        found = [await to_its_end(copy_context().run, with_receipt, start, first)]
        context().generations += found
        try:
            for each in others:
                found += await begin(engine, prompts, each)
            yield found
        finally:
            cancel(found)  # the next request of the slot finds its session idle, also if this client has left

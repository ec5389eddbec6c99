"""The memory of sequences whose layers lie in several stages: counted here, kept by each stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oxillama.base.config import EngineConfig
from oxillama.engine.cache.kv_pool import KvCachePool, KvLayout
from oxillama.engine.cache.pages import CachePool, MemoryLimit
from oxillama.engine.cache.recurrent_states import RecurrentStatePool
from oxillama.engine.features.pipeline.links import StageLink
from oxillama.engine.features.pipeline.messages import Copy, StageFacts
from oxillama.models import Decoder
from oxillama.models.page_groups import PageGroup


class CommandLog:
    """The copies of pages that were not sent to the other stages yet.

    Args:
        links: to the other stages, in order; shared with whoever replaces one.
    """

    def __init__(self, links: list[StageLink]) -> None:
        self.links = links
        self._copies: list[Copy] = []

    def note(self, copy: Copy) -> None:
        """Has a page copied before the next pass."""
        self._copies.append(copy)

    def take(self) -> list[Copy]:
        """What is to be copied before the next pass."""
        copies, self._copies = self._copies, []
        return copies

    def flush(self) -> None:
        """Has the copies made now. Raises StageFailed."""
        copies = self.take()
        for link in self.links if copies else ():
            link.call("copy_pages", copies)

    def ask(self, method: str, *args: Any) -> list[Any]:
        """What each stage returns for a method of `Stage`, after the copies. Raises StageFailed."""
        self.flush()
        return [link.call(method, *args) for link in self.links]


class SpreadPagePool(KvCachePool):
    """Pages of one page group in all stages.

    Args:
        number: of the group.
        widths: bytes of a page in each stage, 0 where the stage has no layer of the group; this one's is
            last.
    """

    def __init__(self, log: CommandLog, number: int, widths: Sequence[int], *args: Any, **kind: Any) -> None:
        super().__init__(*args, **kind)
        self._log, self._number, self._widths = log, number, widths

    def copy_page(self, to: int, source: int) -> None:
        super().copy_page(to, source)
        self._log.note(Copy(self._number, to, source))

    def read_pages(self, pages: Sequence[int]) -> np.ndarray:
        own = np.array([self.page(page) for page in pages], np.uint8).reshape(len(pages), -1)
        parts = [*self._log.ask("read_pages", self._number, list(pages)), own]
        kept = [part for part, width in zip(parts, self._widths) if width]
        return np.concatenate(kept, axis=1) if len(pages) else np.empty((0, self.page_bytes), np.uint8)

    def write_pages(self, pages: Sequence[int], data: np.ndarray) -> None:
        self._log.flush()
        ends = np.cumsum(self._widths)[:-1]
        *parts, own = np.split(np.asarray(data), ends, axis=1)
        for link, part, width in zip(self._log.links, parts, self._widths):
            if width:
                link.call("write_pages", self._number, list(pages), part)
        if self._widths[-1]:
            super().write_pages(pages, own)


class SpreadStatePool(RecurrentStatePool):
    """Recurrent states in all stages.

    Args:
        facts: of the other stages.
    """

    def __init__(
        self, log: CommandLog, facts: Sequence[StageFacts], limit: MemoryLimit, model: Decoder
    ) -> None:
        others = sum(each.state_floats for each in facts), sum(each.record_floats for each in facts)
        super().__init__(limit, model.state_floats, model.record_floats, others)
        self._log, self._sizes = log, [each.state_floats for each in facts]

    def read(self, number: int) -> np.ndarray:
        return np.concatenate([*self._log.ask("read_state", number), super().read(number)])

    def write(self, number: int, data: np.ndarray) -> None:
        *parts, own = np.split(data, np.cumsum(self._sizes))
        for link, part in zip(self._log.links, parts):
            link.call("write_state", number, part)
        super().write(number, own)


def spread_pool(
    model: Decoder,
    groups: Sequence[PageGroup],
    stages: Sequence[Sequence[PageGroup]],
    config: EngineConfig,
    log: CommandLog,
    facts: Sequence[StageFacts],
) -> CachePool:
    """The memory of a model's sequences in all stages, under one limit.

    Args:
        model: the last stage.
        groups: of the whole model.
        stages: the groups of each stage, with the layers that it runs; the last stage is last.
        facts: of the other stages.

    Raises:
        ConfigError: the limit is too low for any sequence.
    """
    limit, size = MemoryLimit(config.kv_memory_limit), config.page_size
    has_states = bool(model.state_floats or any(each.state_floats for each in facts))
    pools = []
    for number, (group, shape) in enumerate(zip(groups, model.kv_shapes(config.kv_type, size))):
        parts = [each[number] for each in stages]
        widths = [
            KvLayout(*part.sizes, config.kv_type).page_bytes(size) if part.layers else 0 for part in parts
        ]
        layout = KvLayout(*group.sizes, config.kv_type)
        pools.append(
            SpreadPagePool(
                log, number, widths, shape, layout, size, limit,
                layers=group.layers, reach=group.reach, alone=len(groups) == 1 and not has_states,
                page_bytes=layout.page_bytes(size),
            )
        )  # fmt: skip
    return CachePool(pools, SpreadStatePool(log, facts, limit, model) if has_states else None)

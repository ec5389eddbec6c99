"""The memory of all sequences: pages of each page group and recurrent states, under one limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from oxillama.cache.kv_pool import KvCachePool, KvLayout
from oxillama.cache.pages import MemoryLimit, PagePool
from oxillama.errors import ConfigError
from oxillama.models import Decoder
from oxillama.on_use import on_use

if TYPE_CHECKING:
    from oxillama.cache.recurrent_states import RecurrentStatePool

new_state_pool = on_use("oxillama.cache.recurrent_states:RecurrentStatePool")


class CachePool:
    """Pools of pages, one for each page group, and the slots of a recurrent model.

    Parameters
    ----------
    groups : the pools of pages, which share a limit and a page size.
    states : slots of recurrent states under the same limit; None for a model without recurrent layers.

    Raises
    ------
    ConfigError : the limit is less than a page of each group and two states, so no sequence could run.

    Attributes
    ----------
    limit : of memory.
    page_size : tokens per page.
    has_windows : whether rows of some groups do not see all positions before them.
    """

    def __init__(self, groups: Sequence[PagePool], states: RecurrentStatePool | None = None) -> None:
        self.groups: tuple[PagePool, ...] = tuple(groups)
        self.recurrent_states = states
        self.limit: MemoryLimit = groups[0].limit
        self.page_size: int = groups[0].page_size
        self.has_windows: bool = any(group.has_window for group in groups)
        assert all(group.limit is self.limit and group.page_size == self.page_size for group in groups)
        needed, what = self.page_stride, f"a page of {self.page_size} tokens"
        if states is not None:
            needed += 2 * states.slot_bytes
            what = "two recurrent states and a page of a sequence"
        if needed > self.limit.max_bytes:
            raise ConfigError(
                f"kv_memory_limit: expected at least {needed} bytes, for {what}, got {self.limit.max_bytes}"
            )

    @property
    def page_stride(self) -> int:
        """Bytes of a page of each group."""
        return sum(group.stride for group in self.groups)

    @property
    def n_available(self) -> int:
        """Pages of each group that can still be allocated, without reclaiming any."""
        return self.limit.available // self.page_stride

    @property
    def n_used(self) -> int:
        """Pages of all groups with a reference."""
        return sum(group.n_used for group in self.groups)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the pages and slots that have memory."""
        return self.limit.live

    def pages_for(self, n_tokens: int) -> int:
        """Pages of each group for ``n_tokens`` tokens: ceil(n_tokens / page_size)."""
        return -(-n_tokens // self.page_size)

    def allocate(self, counts: Iterable[int]) -> list[list[int]]:
        """Allocates so many pages of each group, each with one reference.

        Raises
        ------
        KvCacheFullError : fewer are available; then none is taken.
        """
        taken: list[list[int]] = []
        try:
            for group, n in zip(self.groups, counts):
                taken.append(group.allocate(n) if n else [])
        except BaseException:
            for group, pages in zip(self.groups, taken):
                group.release(pages)
            raise
        return taken

    def shrink_to_fit(self, keep_bytes: int = 0) -> None:
        """Returns unused memory to the system, but keeps about ``keep_bytes`` of each group's."""
        for group in self.groups:
            group.shrink_to_fit(keep_bytes)
        if self.recurrent_states is not None:
            self.recurrent_states.shrink_to_fit()
            self.recurrent_states.records.shrink_to_fit()

    def check_integrity(self, holders: Iterable[Sequence[Iterable[int]]] | None = None) -> None:
        """Asserts that every page is either free or referenced, and free only once.

        With ``holders``, the page numbers that each holder has of each group, also that the references are
        theirs.
        """
        held = None if holders is None else list(holders)
        for number, group in enumerate(self.groups):
            group.check_integrity(None if held is None else [pages[number] for pages in held])
        if self.recurrent_states is not None:
            self.recurrent_states.check_integrity()
            self.recurrent_states.records.check_integrity()


def cache_pool(model: Decoder, kv_type: str, page_size: int, max_bytes: int | None = None) -> CachePool:
    """Pools of pages for the groups of a model, and of its recurrent states, under one limit.

    Raises
    ------
    ConfigError : the limit is too low for any sequence.
    """
    limit = MemoryLimit(max_bytes)
    alone = len(model.page_groups) == 1 and not model.state_floats
    groups = [
        KvCachePool(
            shape,
            KvLayout(*group.sizes, kv_type),
            page_size,
            limit,
            layers=group.layers,
            reach=group.reach,
            alone=alone,
        )
        for group, shape in zip(model.page_groups, model.kv_shapes(kv_type, page_size))
    ]
    if not model.state_floats:
        return CachePool(groups)
    return CachePool(groups, new_state_pool(limit, model.state_floats, model.record_floats))

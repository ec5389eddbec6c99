"""The prefix store of an engine: the radix tree of the prefix cache in memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence as Listed

from oxillama.base.faults import note
from oxillama.engine.cache.prefix import PrefixKvCache
from oxillama.engine.protocols import Holder, PrefixStore
from oxillama.engine.request import Request
from oxillama.engine.sequence import SeqState

log: logging.Logger = logging.getLogger(__name__)

NODE = "prefix node"
"""The key of `Request.parts`."""


class CachedPrefixes(PrefixStore):
    """The prefix cache: pages and states of prompts and texts in a radix tree.

    Args:
        cache: the tree; None keeps nothing.
    """

    fetched_tokens = 0

    def __init__(self, cache: PrefixKvCache | None) -> None:
        self.cache = cache

    def arrive(self, request: Request) -> None:
        """Nothing is fetched."""

    def begin(self, request: Request) -> None:
        sequence = request.sequence
        if self.cache is not None and request.key is not None and not sequence.cached_len:
            sequence.adopt(self.cache.match(request.key, sequence.path(request.first_wanted)))
            if request.kept_after > sequence.cached_len and sequence.cache_points is not None:
                sequence.cache_points = sorted({*sequence.cache_points, request.kept_after})

    def admit(self, request: Request) -> None:
        if self.cache is not None and request.key is not None and request.sequence.state is SeqState.WAITING:
            self.cache.count(len(request.prompt), request.sequence.cached_len)

    def wait(self, request: Request) -> None:
        request.parts.pop(NODE, None)

    def at_most(self, request: Request, n: int) -> int:
        return n

    def is_coming(self, request: Request, running: Listed[Request], batched: Listed[Request]) -> bool:
        if self.cache is None or request.key is None:
            return False
        n_tokens = request.sequence.total_len
        for other in batched:
            first, end = other.sequence, other.sequence.next_shared
            if other.key == request.key and first.state is SeqState.PREFILLING and end < n_tokens:
                n = int(end)
                if first.path(n) == request.sequence.path(n):
                    return True
        return False

    def insert(self, request: Request) -> None:
        n = request.sequence.kv.settled_of(request.sequence.cached_len)
        self._insert(request, n - n % request.sequence.pool.page_size, at_end=False)

    def keep(self, request: Request) -> None:
        self._insert(request, request.sequence.kv.settled_of(request.sequence.cached_len), at_end=True)

    def _insert(self, request: Request, n: int, at_end: bool) -> None:
        """Puts the pages of the first ``n`` tokens into the tree, and the state after them."""
        if self.cache is None or request.key is None or not n:
            return
        sequence, kv, node = request.sequence, request.sequence.kv, request.parts.get(NODE)
        slot = kv.state_after(n) if at_end or n in (sequence.cache_points or ()) else None
        kv.version += 1  # some of its pages may be known ones afterwards
        try:
            pages = [table.pages for table in kv.tables]
            request.parts[NODE] = self.cache.insert(request.key, sequence.path(n), pages, node, slot)
        except Exception:  # a text does not depend on what is kept for others
            request.parts[NODE] = None
            note(
                log, logging.ERROR, "request %d: its pages could not be kept for later prompts",
                request.id, request=request.name, exc_info=True,
            )  # fmt: skip

    def end(self, request: Request) -> None:
        """Nothing is kept for a request alone."""

    def needed_from(self, request: Request) -> float:
        return math.inf

    def reclaim(self, but: Request | None = None) -> bool:
        return False  # the tree gives pages up by itself

    def lose(self) -> None:
        if self.cache is not None:
            self.cache.lose()

    def close(self) -> None:
        """Nothing lasts."""

    def holders(self) -> list[Holder]:
        if self.cache is None:
            return []
        self.cache.check_integrity()
        return [Holder(self.cache.pages(), self.cache.slots(), [])]

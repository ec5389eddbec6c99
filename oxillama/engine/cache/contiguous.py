"""Keys and values of one sequence in one page."""

from __future__ import annotations

from oxillama.engine.cache.kv import PagedKvCache
from oxillama.errors import ConfigError


class KvCache(PagedKvCache):
    """A contiguous cache: one page, so the context is the pool's ``page_size`` (a power of two)."""

    def reserve(self, start: int, end: int, n_open: int = 0) -> None:
        """As `PagedKvCache.reserve`. Raises ConfigError beyond the one page, KvCacheFullError."""
        if end > self.pool.page_size:
            raise ConfigError(f"end: expected at most {self.pool.page_size} tokens, got {end}")
        super().reserve(start, end)

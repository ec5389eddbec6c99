"""One sequence: its tokens, and the pages that hold what the model has computed of them."""

from __future__ import annotations

from collections.abc import Sequence as Tokens

from oxillama.cache.pages import PagePool


class Sequence:
    """Tokens of which the first `cached_len` have their keys and values in `pages`.

    ``0 <= cached_len <= len(tokens)`` and ``cached_len <= len(pages) * page_size`` always hold.
    """

    def __init__(self, pool: PagePool, tokens: Tokens[int] = ()) -> None:
        self.pool = pool
        self.tokens = list(tokens)
        self.pages: list[int] = []
        self.cached_len = 0

    @property
    def pending(self) -> int:
        """Tokens that have not been run."""
        return len(self.tokens) - self.cached_len

    def ensure_pages(self, n_tokens: int) -> None:
        """Allocates pages until the first ``n_tokens`` positions have a place. Raises KvCacheFullError."""
        missing = -(-n_tokens // self.pool.page_size) - len(self.pages)
        if missing > 0:
            self.pages += self.pool.allocate(missing)

    def advance(self, n: int) -> None:
        """Notes that ``n`` more tokens have been run."""
        self.cached_len += n
        assert self.cached_len <= len(self.tokens)
        assert self.cached_len <= len(self.pages) * self.pool.page_size

    def truncate(self, n_tokens: int) -> None:
        """Forgets all but the first ``n_tokens`` tokens and frees the pages behind them."""
        if not 0 <= n_tokens <= len(self.tokens):
            raise ValueError(f"truncate: needs 0 to {len(self.tokens)}, got {n_tokens}")
        del self.tokens[n_tokens:]
        self.cached_len = min(self.cached_len, n_tokens)
        kept = -(-self.cached_len // self.pool.page_size)
        self.pool.release(self.pages[kept:])
        del self.pages[kept:]

    def release(self) -> None:
        """Frees everything."""
        self.truncate(0)

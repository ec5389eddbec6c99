"""The block table of one sequence in one page group."""

from __future__ import annotations

from collections.abc import Iterable

from oxillama.cache.pages import PagePool

NO_PAGE = -1
"""In the place of the number of a page that was freed."""


def held(pages: Iterable[int]) -> list[int]:
    """The page numbers without those of freed pages."""
    return [page for page in pages if page != NO_PAGE]


class BlockTable:
    """Pages in order of position, of which the first may have been freed.

    Attributes
    ----------
    pages : page numbers; `NO_PAGE` for those before `first`.
    first : number of freed pages at the beginning, which are out of the window of all later rows.
    """

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.pages: list[int] = []
        self.first = 0

    @property
    def held(self) -> list[int]:
        """The pages that it holds a reference to."""
        return self.pages[self.first :] if self.first else self.pages

    @property
    def held_bytes(self) -> int:
        """Bytes of those pages, shared ones included."""
        return (len(self.pages) - self.first) * self.pool.stride

    def is_shared(self, start: int) -> bool:
        """Whether the page of position ``start`` has other owners, too."""
        at = start // self.pool.page_size
        return self.first <= at < len(self.pages) and self.pool.references(self.pages[at]) > 1

    def missing(self, start: int, end: int) -> int:
        """Pages to allocate before the positions ``start`` to ``end`` can be written."""
        pool, pages = (
            self.pool,
            self.pages,
        )  # asked in every step for every sequence, so without further calls
        missing, at = -(-end // pool.page_size) - len(pages), start // pool.page_size
        is_shared = self.first <= at < len(pages) and pool.reference_counts[pages[at]] > 1
        return (missing if missing > 0 else 0) + (is_shared and start < end)

    def demand(self, start: int, end: int, rows: int) -> int:
        """Pages to allocate until the positions ``start`` to ``end`` have run, ``rows`` at a time at most."""
        missing = self.missing(start, end)
        if not self.pool.reach.is_limited:
            return missing
        most = (
            self.pool.pages_for(self.pool.reach.most + rows) + 1
        )  # from the middle of a page to that of another
        return min(missing, max(0, most - (len(self.pages) - self.first)))

    def take(self, start: int, pages: list[int]) -> None:
        """Makes positions from ``start`` on writable with newly allocated pages, see `missing`."""
        if self.is_shared(start):
            at = start // self.pool.page_size
            fresh, old = pages.pop(), self.pages[at]
            self.pool.copy_page(fresh, old)
            self.pages[at] = fresh
            self.pool.release([old])
        self.pages += pages

    def adopt(self, pages: Iterable[int]) -> None:
        """Takes over pages and their references; the table must be empty."""
        assert not self.pages
        self.pages = list(pages)
        self.first = next((i for i, page in enumerate(self.pages) if page != NO_PAGE), len(self.pages))

    def can_continue(self, n_tokens: int) -> bool:
        """Whether it has all pages that the rows from position ``n_tokens`` on see."""
        return self.pool.reach.first_seen(n_tokens) // self.pool.page_size >= self.first

    def free_out_of_window(self, n_tokens: int, spare: int = 0) -> bool:
        """Frees the pages that no row from position ``n_tokens`` on sees, except the last ``spare`` of them.

        Returns whether any were freed.
        """
        end = min(self.pool.reach.first_seen(n_tokens) // self.pool.page_size, len(self.pages)) - spare
        if end <= self.first:
            return False
        self.pool.release(self.pages[self.first : end])
        self.pages[self.first : end] = [NO_PAGE] * (end - self.first)
        self.first = end
        return True

    def truncate(self, n_tokens: int) -> bool:
        """Frees the pages behind the first ``n_tokens`` tokens; returns whether any were freed."""
        kept = self.pool.pages_for(n_tokens)
        if kept >= len(self.pages):
            return False
        self.pool.release(self.pages[max(kept, self.first) :])
        del self.pages[kept:]
        self.first = min(self.first, kept)
        return True

    def fork(self, n_tokens: int) -> BlockTable:
        """A second table that shares the pages of the first ``n_tokens`` tokens."""
        other = BlockTable(self.pool)
        other.pages = self.pages[: self.pool.pages_for(n_tokens)]
        other.first = min(self.first, len(other.pages))
        self.pool.retain(other.held)
        return other

"""Keys and values of one sequence, as a view over the one pool of pages.

`PagedKvCache` is a block table: pages in order of position, some perhaps shared with other sequences
or with the prefix cache. A page that is shared is copied, whole, before a position in it is written;
what stands behind the last position is never read. `KvCache` is the case of one page as long as
the context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxillama.cache.pages import PagePool
from oxillama.errors import ConfigError

LANES = 16  # positions to a panel of keys, or all of a smaller page; values are padded to as many
Q8_BLOCK = 32  # dimensions that share a scale in q8_0


@dataclass(frozen=True)
class KvLayout:
    """What the bytes of a page mean; see the kernels' `attention`."""

    n_layers: int
    n_heads: int
    key_dim: int
    value_dim: int
    kv_type: str

    def row_bytes(self, dim: int, padded: bool) -> int:
        """Bytes of a key (not padded) or a value of one head."""
        if self.kv_type == "q8_0":
            return -(-dim // Q8_BLOCK) * (Q8_BLOCK + 2)
        return (-(-dim // LANES) * LANES if padded else dim) * (4 if self.kv_type == "f32" else 2)

    def page_bytes(self, page_size: int) -> int:
        """Bytes of a page, all layers."""
        rows = self.row_bytes(self.key_dim, False) + self.row_bytes(self.value_dim, True)
        return self.n_layers * self.n_heads * page_size * rows

    def keys(self, raw: np.ndarray, lanes: int) -> np.ndarray:
        """float32 (panels, lanes, heads, key_dim) of uint8 (heads, panels, bytes of a panel)."""
        if self.kv_type == "q8_0":
            scales, codes = self._blocks(raw, lanes)
            numbers = codes.reshape(*codes.shape[:-1], Q8_BLOCK, lanes) * scales[..., None, :]
        else:
            numbers = self._numbers(raw)
        by_dim: np.ndarray = numbers.reshape(*raw.shape[:2], -1, lanes)[:, :, : self.key_dim]
        return np.transpose(by_dim, (1, 3, 0, 2))

    def values(self, raw: np.ndarray, lanes: int) -> np.ndarray:
        """float32 (panels, lanes, heads, value_dim) of uint8 (heads, panels, bytes of a panel)."""
        if self.kv_type == "q8_0":
            scales, codes = self._blocks(raw, lanes)
            blocks = codes.reshape(*codes.shape[:-1], lanes, Q8_BLOCK) * scales[..., None]
            numbers = blocks.swapaxes(2, 3)  # (heads, panels, lanes, blocks, 32)
        else:
            numbers = self._numbers(raw)
        by_lane: np.ndarray = numbers.reshape(*raw.shape[:2], lanes, -1)[..., : self.value_dim]
        return np.transpose(by_lane, (1, 2, 0, 3))

    def _numbers(self, raw: np.ndarray) -> np.ndarray:
        """float32 of stored floats."""
        if self.kv_type == "bf16":
            return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return raw.view(np.float16 if self.kv_type == "f16" else np.float32).astype(np.float32)

    def _blocks(self, raw: np.ndarray, lanes: int) -> tuple[np.ndarray, np.ndarray]:
        """Scales float32 (heads, panels, blocks, lanes) and codes int8 (.., lanes * 32) of q8_0."""
        blocks = raw.reshape(*raw.shape[:2], -1, (Q8_BLOCK + 2) * lanes)
        scales = np.ascontiguousarray(blocks[..., : 2 * lanes]).view(np.float16).astype(np.float32)
        return scales, np.ascontiguousarray(blocks[..., 2 * lanes :]).view(np.int8)


class KvCachePool(PagePool):
    """A pool of pages that is bounded in bytes and can be read back.

    Parameters
    ----------
    shape : `KvShape` of the kernels.
    layout : the same in words.
    page_size : tokens per page.
    max_bytes : most memory it takes; None for no limit.

    Raises
    ------
    ConfigError : ``max_bytes`` is less than a page.
    """

    def __init__(self, shape: Any, layout: KvLayout, page_size: int, max_bytes: int | None = None) -> None:
        stride = -(-shape.page_bytes // 64) * 64
        max_pages = 2**31 - 1 if max_bytes is None else max_bytes // stride
        if max_pages < 1:
            raise ConfigError(
                f"kv_memory_limit: {max_bytes} bytes, but one page of {page_size} tokens takes {stride}"
            )
        super().__init__(shape, page_size, max_pages)
        self.layout = layout

    def read(self, page: int, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys float32 (page_size, heads, key_dim) and values (page_size, heads, value_dim) of a page.

        Raises ConfigError if the layout is not that of the pool's pages.
        """
        layout, size = self.layout, self.page_size
        if layout.page_bytes(size) != self.page_bytes:
            raise ConfigError(
                f"layout: pages of {layout.page_bytes(size)} bytes, the pool's {self.page_bytes}"
            )
        heads, lanes = layout.n_heads, min(size, LANES)
        per_layer = self.page_bytes // layout.n_layers
        raw = self.page(page)[layer * per_layer : (layer + 1) * per_layer]
        n_keys = heads * size * layout.row_bytes(layout.key_dim, False)
        with np.errstate(all="ignore"):  # what stands behind the last position may be anything
            keys = layout.keys(raw[:n_keys].reshape(heads, size // lanes, -1), lanes)
            values = layout.values(raw[n_keys:].reshape(heads, size // lanes, -1), lanes)
        return keys.reshape(size, heads, -1), values.reshape(size, heads, -1)


class PagedKvCache:
    """The block table of one sequence; a `SequenceState`.

    Attributes
    ----------
    pages : page numbers in order of position.
    version : goes up whenever ``pages`` changes.
    """

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.pages: list[int] = []
        self.version = 0

    @property
    def block_table(self) -> np.ndarray:
        """int32 (pages,): page numbers in order of position."""
        return np.array(self.pages, np.int32)

    @property
    def capacity(self) -> int:
        """Tokens that fit in the pages it has."""
        return len(self.pages) * self.pool.page_size

    @property
    def memory_bytes(self) -> int:
        """Bytes of its pages, shared ones included."""
        return len(self.pages) * self.pool.stride

    @property
    def slots(self) -> list[int]:
        """Slots of recurrent states that it holds a reference to: none."""
        return []

    def state_after(self, n_tokens: int) -> int | None:
        """The slot of the state after ``n_tokens`` tokens: none, for pages hold everything."""
        return None

    def _is_shared(self, start: int) -> bool:
        """Whether the page of position ``start`` belongs to others too."""
        at = start // self.pool.page_size
        return at < len(self.pages) and self.pool.references(self.pages[at]) > 1

    def _missing(self, start: int, end: int) -> int:
        """Pages that must be taken before the positions ``start`` to ``end`` can be written."""
        missing = max(0, self.pool.pages_for(end) - len(self.pages))
        return missing + int(start < end and self._is_shared(start))

    def shortage(self, start: int, end: int) -> int:
        """Pages that `reserve` would take."""
        return self._missing(start, end)

    def demand(self, start: int, end: int) -> int:
        """Pages that it will have taken when it has run from ``start`` to ``end``, in however many passes."""
        return self._missing(start, end)

    def reserve(self, start: int, end: int) -> None:
        """Makes the positions ``start`` to ``end`` writable; those from ``start`` on are not in use yet.

        Raises KvCacheFullError; then nothing has changed.
        """
        needed = self._missing(start, end)
        if not needed:
            return
        taken = self.pool.allocate(needed)
        at = start // self.pool.page_size
        if self._is_shared(start):
            fresh, old = taken.pop(), self.pages[at]
            self.pool.page(fresh)[:] = self.pool.page(old)
            self.pages[at] = fresh
            self.pool.release([old])
        self.pages += taken
        self.version += 1

    def adopt(self, pages: list[int], n_tokens: int, slot: int | None = None) -> None:
        """Begins with the pages of ``n_tokens`` tokens, whose references the caller gives up.

        It must be empty.
        """
        assert not self.pages and len(pages) == self.pool.pages_for(n_tokens)
        self.pages = list(pages)
        self.version += 1

    def truncate(self, n_tokens: int) -> int:
        """Frees the pages behind the first ``n_tokens`` tokens; returns ``n_tokens``."""
        kept = self.pool.pages_for(n_tokens)
        if kept < len(self.pages):
            self.pool.release(self.pages[kept:])
            del self.pages[kept:]
            self.version += 1
        return n_tokens

    def shrink_to_fit(self, n_tokens: int) -> None:
        """The same: nothing is kept in store."""
        self.truncate(n_tokens)

    def fork(self, n_tokens: int) -> tuple[PagedKvCache, int]:
        """Another block table over the same pages, of the first ``n_tokens`` tokens; nothing is copied."""
        other = PagedKvCache(self.pool)
        other.pages = self.pages[: self.pool.pages_for(n_tokens)]
        self.pool.retain(other.pages)
        return other, n_tokens

    def snapshot(self, n_tokens: int) -> np.ndarray:
        """uint8 (pages, page_bytes): copies of the pages of the first ``n_tokens`` tokens."""
        pages = self.pages[: self.pool.pages_for(n_tokens)]
        return np.array([self.pool.page(page) for page in pages], np.uint8).reshape(-1, self.pool.page_bytes)

    def restore(self, data: np.ndarray, n_tokens: int) -> None:
        """Takes copies of ``data`` in place of its pages. Raises ConfigError, KvCacheFullError."""
        expected = (self.pool.pages_for(n_tokens), self.pool.page_bytes)
        if data.dtype != np.uint8 or data.shape != expected:
            raise ConfigError(f"snapshot: needs uint8 {expected} for {n_tokens} tokens, got {data.shape}")
        fresh = self.pool.allocate(len(data))
        for page, source in zip(fresh, data):
            self.pool.page(page)[:] = source
        self.release()
        self.pages = fresh
        self.version += 1

    def release(self) -> None:
        """Frees everything."""
        self.truncate(0)

    def keys(self, layer: int, n_tokens: int) -> Iterator[np.ndarray]:
        """float32 (heads, key_dim) of each of the first ``n_tokens`` tokens. Raises ConfigError."""
        return self._rows(layer, n_tokens, 0)

    def values(self, layer: int, n_tokens: int) -> Iterator[np.ndarray]:
        """float32 (heads, value_dim) of each of the first ``n_tokens`` tokens. Raises ConfigError."""
        return self._rows(layer, n_tokens, 1)

    def _rows(self, layer: int, n_tokens: int, which: int) -> Iterator[np.ndarray]:
        if not isinstance(self.pool, KvCachePool):
            raise ConfigError("pool: its layout is not known, a KvCachePool is needed")
        if not 0 <= layer < self.pool.layout.n_layers or not 0 <= n_tokens <= self.capacity:
            raise ConfigError(f"layer, n_tokens: {layer} and {n_tokens} are not both there")
        size = self.pool.page_size
        for i, page in enumerate(self.pages[: self.pool.pages_for(n_tokens)]):
            yield from self.pool.read(page, layer)[which][: n_tokens - i * size]


class KvCache(PagedKvCache):
    """A contiguous cache: one page, as long as the pool's pages are.

    Its pool is best its own, made with ``page_size`` the context (a power of two).
    """

    def reserve(self, start: int, end: int) -> None:
        """As `PagedKvCache.reserve`. Raises ConfigError beyond the one page, KvCacheFullError."""
        if end > self.pool.page_size:
            raise ConfigError(f"end: {end} tokens do not fit a contiguous cache of {self.pool.page_size}")
        super().reserve(start, end)

"""Keys and values by position: how they leave a process, whatever the size of its pages.

    layer by layer    keys [head][position], values [head][position]
    f32 f16 bf16      the numbers of a key or value, little-endian
    q8_0              per block of 32 dimensions a scale (f16, little-endian) and 32 codes (int8)

Of a page (`_kernels/attention/kvpage.pxd`) this leaves out the panels, and what pads values to whole vectors.
What is stored of a position depends on its own key and value only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from oxillama.cache.kv_pool import LANES, Q8_BLOCK, KvLayout


@dataclass(frozen=True)
class _Part:
    """The keys or the values of one layer: heads, their width, and how a number is kept."""

    heads: int
    dim: int
    kv_type: str
    is_key: bool

    @property
    def row_bytes(self) -> int:
        """Bytes of a key or value, by position."""
        if self.kv_type == "q8_0":
            return self.blocks * (Q8_BLOCK + 2)
        return self.dim * self.item.itemsize

    @property
    def blocks(self) -> int:
        return -(-self.dim // Q8_BLOCK)

    @property
    def item(self) -> np.dtype:
        return np.dtype(np.uint32 if self.kv_type == "f32" else np.uint16)

    @property
    def width(self) -> int:
        """Numbers to a position in a page."""
        return self.dim if self.is_key else -(-self.dim // LANES) * LANES

    def panel_bytes(self, lanes: int) -> int:
        """Bytes of a panel in a page."""
        return lanes * (self.row_bytes if self.kv_type == "q8_0" else self.width * self.item.itemsize)

    def rows(self, panels: np.ndarray, lanes: int) -> np.ndarray:
        """uint8 (pages, heads, panels, lanes, row_bytes) of uint8 (pages, heads, panels, panel_bytes)."""
        shape = panels.shape[:3]
        if self.kv_type != "q8_0":
            numbers = panels.view(self.item)
            if self.is_key:
                by_lane = numbers.reshape(*shape, self.dim, lanes).swapaxes(3, 4)
            else:
                by_lane = numbers.reshape(*shape, lanes, self.width)[..., : self.dim]
            little = np.ascontiguousarray(by_lane, self.item.newbyteorder("<"))
            return little.view(np.uint8).reshape(*shape, lanes, self.row_bytes)
        blocks = panels.reshape(*shape, self.blocks, lanes * (Q8_BLOCK + 2))
        scales = np.ascontiguousarray(blocks[..., : 2 * lanes]).view(np.uint16).astype("<u2")
        codes = blocks[..., 2 * lanes :]
        if self.is_key:
            codes = codes.reshape(*shape, self.blocks, Q8_BLOCK, lanes).swapaxes(4, 5)
        found = np.empty((*shape, lanes, self.blocks, Q8_BLOCK + 2), np.uint8)
        found[..., :2] = scales.view(np.uint8).reshape(*shape, self.blocks, lanes, 2).swapaxes(3, 4)
        found[..., 2:] = codes.reshape(*shape, self.blocks, lanes, Q8_BLOCK).swapaxes(3, 4)
        found[..., -1, 2 + self.dim - Q8_BLOCK * (self.blocks - 1) :] = 0  # no kernel writes those of keys
        return found.reshape(*shape, lanes, self.row_bytes)

    def panels(self, rows: np.ndarray, lanes: int) -> np.ndarray:
        """uint8 (pages, heads, panels, panel_bytes): the inverse of `rows`, padded with zeros."""
        shape = rows.shape[:3]
        if self.kv_type != "q8_0":
            by_lane = rows.view(self.item.newbyteorder("<"))
            if self.is_key:
                numbers = by_lane.swapaxes(3, 4).astype(self.item, order="C")
            else:
                numbers = np.zeros((*shape, lanes, self.width), self.item)
                numbers[..., : self.dim] = by_lane
            whole: np.ndarray = numbers.reshape(*shape, lanes * self.width).view(np.uint8)
            return whole
        blocks = rows.reshape(*shape, lanes, self.blocks, Q8_BLOCK + 2).swapaxes(3, 4)
        scales = np.ascontiguousarray(blocks[..., :2]).view("<u2").astype(np.uint16)
        codes = blocks[..., 2:]
        if self.is_key:
            codes = codes.swapaxes(4, 5)
        found = np.empty((*shape, self.blocks, lanes * (Q8_BLOCK + 2)), np.uint8)
        found[..., : 2 * lanes] = scales.view(np.uint8).reshape(*shape, self.blocks, 2 * lanes)
        found[..., 2 * lanes :] = codes.reshape(*shape, self.blocks, lanes * Q8_BLOCK)
        return found.reshape(*shape, self.panel_bytes(lanes))


def position_bytes(layout: KvLayout) -> int:
    """Bytes of the keys and values of one token."""
    return layout.n_layers * layout.n_heads * sum(part.row_bytes for part in _parts(layout))


def to_positions(layout: KvLayout, page_size: int, pages: np.ndarray, first: int, end: int) -> np.ndarray:
    """uint8 ((end - first) * `position_bytes`,): the keys and values of the tokens ``first`` to ``end``.

    Parameters
    ----------
    pages : uint8 (pages, bytes of a page), in order of position, from that of position ``first`` on.
    """
    n, skipped = end - first, first % page_size
    out, at = np.empty(n * position_bytes(layout), np.uint8), 0
    lanes = min(page_size, LANES)
    for part, place in _places(layout, page_size):
        panels = np.ascontiguousarray(pages[:, place]).reshape(
            len(pages), part.heads, page_size // lanes, part.panel_bytes(lanes)
        )
        by_head = part.rows(panels, lanes).swapaxes(0, 1).reshape(part.heads, -1, part.row_bytes)
        rows = by_head[:, skipped : skipped + n]
        out[at : at + rows.size] = rows.reshape(-1)
        at += rows.size
    return out


def from_positions(layout: KvLayout, page_size: int, data: np.ndarray, first: int, end: int) -> np.ndarray:
    """uint8 (pages, bytes of a page): pages with what `to_positions` gave, and zeros beside it.

    ``data`` is uint8 ((end - first) * `position_bytes`,).
    """
    n, skipped, lanes = end - first, first % page_size, min(page_size, LANES)
    n_pages, at = -(-end // page_size) - first // page_size, 0
    pages = np.zeros((n_pages, layout.page_bytes(page_size)), np.uint8)
    for part, place in _places(layout, page_size):
        size = part.heads * n * part.row_bytes
        rows = np.zeros((part.heads, n_pages * page_size, part.row_bytes), np.uint8)
        rows[:, skipped : skipped + n] = data[at : at + size].reshape(part.heads, n, part.row_bytes)
        at += size
        shape = (part.heads, n_pages, page_size // lanes, lanes, part.row_bytes)
        by_page = np.ascontiguousarray(rows.reshape(shape).swapaxes(0, 1))
        pages[:, place] = part.panels(by_page, lanes).reshape(n_pages, place.stop - place.start)
    return pages


def joined_positions(layout: KvLayout, blocks: Sequence[np.ndarray]) -> np.ndarray:
    """uint8 (bytes,): by position, the keys and values of blocks of equally many tokens each, in order."""
    out, at = np.empty(sum(map(len, blocks)), np.uint8), 0
    n_tokens = len(blocks[0]) // position_bytes(layout) if blocks else 0
    for _ in range(layout.n_layers):
        for part in _parts(layout):
            size = part.heads * n_tokens * part.row_bytes
            rows = [block[at : at + size].reshape(part.heads, -1) for block in blocks]
            start, end = at * len(blocks), (at + size) * len(blocks)
            out[start:end] = np.concatenate(rows, axis=1).reshape(-1)
            at += size
    return out


def _parts(layout: KvLayout) -> tuple[_Part, ...]:
    """Keys and values of a layer, if it has both."""
    keys = _Part(layout.n_heads, layout.key_dim, layout.kv_type, True)
    if not layout.value_dim:
        return (keys,)
    return keys, _Part(layout.n_heads, layout.value_dim, layout.kv_type, False)


def _places(layout: KvLayout, page_size: int) -> Iterator[tuple[_Part, slice]]:
    """The keys and values of each layer, and where a page has them."""
    at, lanes = 0, min(page_size, LANES)
    for _ in range(layout.n_layers):
        for part in _parts(layout):
            size = layout.n_heads * (page_size // lanes) * part.panel_bytes(lanes)
            yield part, slice(at, at + size)
            at += size
    assert at == layout.page_bytes(page_size), "the layout is that of the pages"

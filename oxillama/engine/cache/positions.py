"""Keys and values by position: how they leave a process, whatever the size of its pages.

    layer by layer    keys [head][position], values [head][position]
    f32 f16 bf16      the numbers of a key or value, little-endian
    others            per block of 32 dimensions its scale, its minimum if there is one (f16, little-endian),
                      and its code bytes

Of a page (`_kernels/attention/kvpage.pxd`) this leaves out the panels, and what pads values to whole vectors.
What is stored of a position depends on its own key and value only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from oxillama.engine.cache.kv_pool import LANES, KvLayout, KvPart
from oxillama.engine.cache.stored import by_position, in_panels, split

LEAST_BF16 = 0x2380  # 2^-56; pages have no smaller numbers in pairs, whatever was given


def _row_bytes(part: KvPart) -> int:
    """Bytes of a key or value, by position."""
    return part.row_bytes if part.is_coded else part.dim * part.item.itemsize


def _rows(part: KvPart, panels: np.ndarray, lanes: int) -> np.ndarray:
    """uint8 (pages, heads, panels, lanes, row_bytes) of uint8 (pages, heads, panels, panel_bytes)."""
    shape = panels.shape[:3]
    if not part.is_coded:
        by_lane = by_position(part, panels.view(part.item), lanes)[..., : part.dim]
        little = np.ascontiguousarray(by_lane, part.item.newbyteorder("<"))
        return little.view(np.uint8).reshape(*shape, lanes, _row_bytes(part))
    halves, codes = split(part, panels, lanes)
    little = np.ascontiguousarray(halves).view(np.uint16).astype("<u2").view(np.uint8)
    return np.concatenate([little, codes], axis=-1).reshape(*shape, lanes, _row_bytes(part))


def _panels(part: KvPart, rows: np.ndarray, lanes: int) -> np.ndarray:
    """uint8 (pages, heads, panels, panel_bytes): the inverse of `_rows`, padded with zeros."""
    shape = rows.shape[:3]
    if not part.is_coded:
        numbers = np.zeros((*shape, lanes, part.width), part.item)
        numbers[..., : part.dim] = rows.view(part.item.newbyteorder("<"))
        if part.paired:
            numbers[(numbers & 0x7FFF) < LEAST_BF16] = 0
        return np.ascontiguousarray(in_panels(part, numbers)).view(np.uint8)
    blocks = rows.reshape(*shape, lanes, part.blocks, part.block_bytes).swapaxes(3, 4)
    halves = np.ascontiguousarray(blocks[..., : part.head_bytes]).view("<u2").astype(np.uint16)
    codes = blocks[..., part.head_bytes :]
    if part.is_key:
        codes = codes.swapaxes(4, 5)
    found = np.empty((*shape, part.blocks, lanes * part.block_bytes), np.uint8)
    in_front = found[..., : lanes * part.head_bytes]
    in_front[...] = np.ascontiguousarray(halves.swapaxes(4, 5)).view(np.uint8).reshape(in_front.shape)
    behind = found[..., lanes * part.head_bytes :]
    behind[...] = codes.reshape(behind.shape)
    return found.reshape(*shape, lanes * part.row_bytes)


def position_bytes(layout: KvLayout) -> int:
    """Bytes of the keys and values of one token."""
    return layout.n_layers * layout.n_heads * sum(_row_bytes(part) for part in _parts(layout))


def to_positions(layout: KvLayout, page_size: int, pages: np.ndarray, first: int, end: int) -> np.ndarray:
    """uint8 ((end - first) * `position_bytes`,): the keys and values of the tokens ``first`` to ``end``.

    Args:
        pages: uint8 (pages, bytes of a page), in order of position; the first page holds position ``first``.
    """
    n, skipped = end - first, first % page_size
    out, at = np.empty(n * position_bytes(layout), np.uint8), 0
    lanes = min(page_size, LANES)
    for part, place in _places(layout, page_size):
        panels = np.ascontiguousarray(pages[:, place]).reshape(
            len(pages), part.heads, page_size // lanes, lanes * part.row_bytes
        )
        by_head = _rows(part, panels, lanes).swapaxes(0, 1).reshape(part.heads, -1, _row_bytes(part))
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
        size = part.heads * n * _row_bytes(part)
        rows = np.zeros((part.heads, n_pages * page_size, _row_bytes(part)), np.uint8)
        rows[:, skipped : skipped + n] = data[at : at + size].reshape(part.heads, n, _row_bytes(part))
        at += size
        shape = (part.heads, n_pages, page_size // lanes, lanes, _row_bytes(part))
        by_page = np.ascontiguousarray(rows.reshape(shape).swapaxes(0, 1))
        pages[:, place] = _panels(part, by_page, lanes).reshape(n_pages, place.stop - place.start)
    return pages


def joined_positions(layout: KvLayout, blocks: Sequence[np.ndarray]) -> np.ndarray:
    """uint8 (bytes,): by position, the keys and values of blocks of equally many tokens each, in order."""
    out, at = np.empty(sum(map(len, blocks)), np.uint8), 0
    n_tokens = len(blocks[0]) // position_bytes(layout) if blocks else 0
    for _ in range(layout.n_layers):
        for part in _parts(layout):
            size = part.heads * n_tokens * _row_bytes(part)
            rows = [block[at : at + size].reshape(part.heads, -1) for block in blocks]
            start, end = at * len(blocks), (at + size) * len(blocks)
            out[start:end] = np.concatenate(rows, axis=1).reshape(-1)
            at += size
    return out


def _parts(layout: KvLayout) -> tuple[KvPart, ...]:
    """Keys and values of a layer, if it has both."""
    return (layout.keys, layout.values) if layout.value_dim else (layout.keys,)


def _places(layout: KvLayout, page_size: int) -> Iterator[tuple[KvPart, slice]]:
    """The keys and values of each layer, and where a page has them."""
    at, lanes = 0, min(page_size, LANES)
    for _ in range(layout.n_layers):
        for part in _parts(layout):
            size = layout.n_heads * (page_size // lanes) * lanes * part.row_bytes
            yield part, slice(at, at + size)
            at += size
    assert at == layout.page_bytes(page_size), "the layout is that of the pages"

"""Stored keys and values as NumPy reads them; `_kernels/attention/kvpage.pxd` defines the bytes."""

from __future__ import annotations

import numpy as np

from oxillama.base.formats import Layout
from oxillama.engine.cache.kv_pool import BLOCK, LANES, KvCachePool, KvPart
from oxillama.errors import ConfigError


def read_page(pool: KvCachePool, page: int, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """As `KvCachePool.read`."""
    layout, size = pool.layout, pool.page_size
    if layout.page_bytes(size) != pool.page_bytes:
        raise ConfigError(f"layout: expected pages of {pool.page_bytes} bytes, got {layout.page_bytes(size)}")
    heads, lanes = layout.n_heads, min(size, LANES)
    per_layer = pool.page_bytes // layout.n_layers
    raw = pool.page(page)[layer * per_layer : (layer + 1) * per_layer]
    n_keys = heads * size * layout.keys.row_bytes
    with np.errstate(all="ignore"):  # memory behind the last position holds anything
        keys = floats(layout.keys, raw[:n_keys].reshape(heads, size // lanes, -1), lanes)
        values = floats(layout.values, raw[n_keys:].reshape(heads, size // lanes, -1), lanes)
    return keys.reshape(size, heads, -1), values.reshape(size, heads, layout.value_dim)


def floats(part: KvPart, raw: np.ndarray, lanes: int) -> np.ndarray:
    """float32 (panels, lanes, heads, dim) of uint8 (heads, panels, bytes of a panel)."""
    shape = raw.shape[:2]
    if part.is_coded:
        heads, codes = split(part, raw, lanes)
        halves = np.ascontiguousarray(heads).view(np.float16).astype(np.float32)
        numbers = _numbers(part.layout, codes) * halves[..., :1]
        if part.layout.minima:
            numbers += halves[..., 1:]
        by_lane = numbers.reshape(*shape, lanes, part.blocks * BLOCK)
    else:
        stored = raw.view(part.item)
        if part.layout.scale == "bf16":
            stored = stored.astype(np.uint32) << 16
        wide = stored.view(np.float16 if part.layout.scale == "f16" else np.float32).astype(np.float32)
        by_lane = by_position(part, wide, lanes)
    return np.transpose(by_lane[..., : part.dim], (1, 2, 0, 3))


def by_position(part: KvPart, numbers: np.ndarray, lanes: int) -> np.ndarray:
    """(.., lanes, width) of the numbers of panels, (.., lanes * width), that are no codes."""
    shape, width = numbers.shape[:-1], part.width
    if part.paired and part.is_key:
        return numbers.reshape(*shape, width // 2, lanes, 2).swapaxes(-2, -3).reshape(*shape, lanes, width)
    if part.is_key:
        return numbers.reshape(*shape, width, lanes).swapaxes(-1, -2)
    if part.paired and lanes > 1:
        return numbers.reshape(*shape, lanes // 2, width, 2).swapaxes(-1, -2).reshape(*shape, lanes, width)
    return numbers.reshape(*shape, lanes, width)


def in_panels(part: KvPart, numbers: np.ndarray) -> np.ndarray:
    """(.., lanes * width): the inverse of `by_position`."""
    *shape, lanes, width = numbers.shape
    if part.paired and part.is_key:
        numbers = numbers.reshape(*shape, lanes, width // 2, 2).swapaxes(-2, -3)
    elif part.is_key:
        numbers = numbers.swapaxes(-1, -2)
    elif part.paired and lanes > 1:
        numbers = numbers.reshape(*shape, lanes // 2, 2, width).swapaxes(-1, -2)
    return numbers.reshape(*shape, lanes * width)


def split(part: KvPart, panels: np.ndarray, lanes: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks by position: uint8 (.., lanes, blocks, bytes of halves) and (.., lanes, blocks, code bytes).

    Args:
        panels: uint8 (.., bytes of a panel).
    """
    shape = panels.shape[:-1]
    n_halves, n_codes = part.head_bytes // 2, part.block_bytes - part.head_bytes
    blocks = panels.reshape(*shape, part.blocks, lanes * part.block_bytes)
    heads = blocks[..., : lanes * part.head_bytes].reshape(*shape, part.blocks, n_halves, lanes, 2)
    codes = blocks[..., lanes * part.head_bytes :]
    if part.is_key:
        codes = codes.reshape(*shape, part.blocks, n_codes, lanes).swapaxes(-1, -2)
    codes = codes.reshape(*shape, part.blocks, lanes, n_codes)
    by_lane = heads.swapaxes(-2, -3).reshape(*shape, part.blocks, lanes, part.head_bytes)
    return by_lane.swapaxes(-2, -3), codes.swapaxes(-2, -3)


def _numbers(layout: Layout, codes: np.ndarray) -> np.ndarray:
    """float32 (.., 32) of code bytes, uint8 (.., code bytes): values without their scales."""
    if layout.bits == 8:
        return codes.view(np.int8).astype(np.float32)
    found = np.concatenate([codes[..., :16] & 15, codes[..., :16] >> 4], axis=-1)
    if layout.bits == 5:
        found |= np.unpackbits(codes[..., 16:], axis=-1, bitorder="little") << 4
    values = layout.values or range(-layout.excess, 32 - layout.excess)
    numbers: np.ndarray = np.array(values, np.float32)[found]
    return numbers

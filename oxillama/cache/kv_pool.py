"""Pages of keys and values whose layout is known, so that they can be read back as float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxillama.cache.pages import MemoryLimit, PagePool
from oxillama.errors import ConfigError
from oxillama.formats import KV_LAYOUTS, KV_PAIRS, Layout
from oxillama.models.page_groups import EVERYTHING, Reach

LANES = 16  # positions to a panel of keys, or all of a smaller page; values are padded to as many
BLOCK = 32  # dimensions that share a scale where there are codes


@dataclass(frozen=True)
class KvPart:
    """The keys or the values of a layer: how a page has a panel of them (`_kernels/attention/kvpage.pxd`).

    Attributes
    ----------
    layout : what is stored of a number.
    heads, dim : how many, and their width.
    is_key : whether a panel goes dimension by dimension, not position by position.
    """

    layout: Layout
    heads: int
    dim: int
    is_key: bool

    @property
    def is_coded(self) -> bool:
        """Whether blocks of 32 dimensions share a scale."""
        return self.layout.bits > 0

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return -(-self.dim // BLOCK)

    @property
    def head_bytes(self) -> int:
        """Bytes of a block's halves: the scale, and the minimum if there is one."""
        return 4 if self.layout.minima else 2

    @property
    def block_bytes(self) -> int:
        """Bytes of a block at one position."""
        return self.head_bytes + BLOCK // 8 * self.layout.bits

    @property
    def item(self) -> np.dtype:
        """Of a stored float, as an unsigned integer."""
        return np.dtype(np.uint32 if self.layout.scale == "f32" else np.uint16)

    @property
    def width(self) -> int:
        """Numbers to a position in a page."""
        return self.dim if self.is_key else -(-self.dim // LANES) * LANES

    @property
    def row_bytes(self) -> int:
        """Bytes of a position in a page."""
        return self.blocks * self.block_bytes if self.is_coded else self.width * self.item.itemsize

    def floats(self, raw: np.ndarray, lanes: int) -> np.ndarray:
        """float32 (panels, lanes, heads, dim) of uint8 (heads, panels, bytes of a panel)."""
        shape = raw.shape[:2]
        if self.is_coded:
            heads, codes = self.split(raw, lanes)
            halves = np.ascontiguousarray(heads).view(np.float16).astype(np.float32)
            numbers = self._numbers(codes) * halves[..., :1]
            if self.layout.minima:
                numbers += halves[..., 1:]
            by_lane = numbers.reshape(*shape, lanes, self.blocks * BLOCK)
        else:
            stored = raw.view(self.item)
            if self.layout.scale == "bf16":
                stored = stored.astype(np.uint32) << 16
            wide = stored.view(np.float16 if self.layout.scale == "f16" else np.float32).astype(np.float32)
            if self.is_key:
                by_lane = wide.reshape(*shape, self.dim, lanes).swapaxes(2, 3)
            else:
                by_lane = wide.reshape(*shape, lanes, self.width)
        return np.transpose(by_lane[..., : self.dim], (1, 2, 0, 3))

    def split(self, panels: np.ndarray, lanes: int) -> tuple[np.ndarray, np.ndarray]:
        """Blocks by position: uint8 (.., lanes, blocks, bytes of halves) and (.., lanes, blocks, code bytes).

        Parameters
        ----------
        panels : uint8 (.., bytes of a panel).
        """
        shape = panels.shape[:-1]
        n_halves, n_codes = self.head_bytes // 2, self.block_bytes - self.head_bytes
        blocks = panels.reshape(*shape, self.blocks, lanes * self.block_bytes)
        heads = blocks[..., : lanes * self.head_bytes].reshape(*shape, self.blocks, n_halves, lanes, 2)
        codes = blocks[..., lanes * self.head_bytes :]
        if self.is_key:
            codes = codes.reshape(*shape, self.blocks, n_codes, lanes).swapaxes(-1, -2)
        codes = codes.reshape(*shape, self.blocks, lanes, n_codes)
        by_lane = heads.swapaxes(-2, -3).reshape(*shape, self.blocks, lanes, self.head_bytes)
        return by_lane.swapaxes(-2, -3), codes.swapaxes(-2, -3)

    def _numbers(self, codes: np.ndarray) -> np.ndarray:
        """float32 (.., 32) of code bytes, uint8 (.., code bytes): values without their scales."""
        if self.layout.bits == 8:
            return codes.view(np.int8).astype(np.float32)
        found = np.concatenate([codes[..., :16] & 15, codes[..., :16] >> 4], axis=-1)
        if self.layout.bits == 5:
            found |= np.unpackbits(codes[..., 16:], axis=-1, bitorder="little") << 4
        values = self.layout.values or range(-self.layout.excess, 32 - self.layout.excess)
        numbers: np.ndarray = np.array(values, np.float32)[found]
        return numbers


@dataclass(frozen=True)
class KvLayout:
    """Sizes and types of a page; the kernels' `attention` defines the order of its bytes."""

    n_layers: int
    n_heads: int
    key_dim: int
    value_dim: int
    kv_type: str

    @property
    def keys(self) -> KvPart:
        """The keys of a layer."""
        return KvPart(KV_LAYOUTS[KV_PAIRS[self.kv_type][0]], self.n_heads, self.key_dim, True)

    @property
    def values(self) -> KvPart:
        """The values of a layer; without a width, if there are none."""
        return KvPart(KV_LAYOUTS[KV_PAIRS[self.kv_type][1]], self.n_heads, self.value_dim, False)

    def page_bytes(self, page_size: int) -> int:
        """Bytes of a page, all layers."""
        return self.n_layers * self.n_heads * page_size * (self.keys.row_bytes + self.values.row_bytes)


class KvCachePool(PagePool):
    """A pool of pages whose keys and values can be read back.

    Parameters
    ----------
    shape : `KvShape` of the kernels.
    layout : the sizes and format of ``shape``.
    page_size : tokens per page.
    limit : of memory; None for none.
    layers : of the model that the pages hold, in order; by default the first.
    reach, alone, page_bytes : as for `PagePool`.
    """

    def __init__(
        self,
        shape: Any,
        layout: KvLayout,
        page_size: int,
        limit: MemoryLimit | None = None,
        *,
        layers: Sequence[int] | None = None,
        reach: Reach = EVERYTHING,
        alone: bool = True,
        page_bytes: int | None = None,
    ) -> None:
        super().__init__(shape, page_size, limit, reach, alone=alone, page_bytes=page_bytes)
        self.layout = layout
        self.layers = tuple(range(layout.n_layers) if layers is None else layers)

    def read(self, page: int, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys float32 (page_size, heads, key_dim) and values (page_size, heads, value_dim) of a page.

        Raises ConfigError if the layout is not that of the pool's pages.
        """
        layout, size = self.layout, self.page_size
        if layout.page_bytes(size) != self.page_bytes:
            raise ConfigError(
                f"layout: expected pages of {self.page_bytes} bytes, got {layout.page_bytes(size)}"
            )
        heads, lanes = layout.n_heads, min(size, LANES)
        per_layer = self.page_bytes // layout.n_layers
        raw = self.page(page)[layer * per_layer : (layer + 1) * per_layer]
        n_keys = heads * size * layout.keys.row_bytes
        with np.errstate(all="ignore"):  # memory behind the last position holds anything
            keys = layout.keys.floats(raw[:n_keys].reshape(heads, size // lanes, -1), lanes)
            values = layout.values.floats(raw[n_keys:].reshape(heads, size // lanes, -1), lanes)
        return keys.reshape(size, heads, -1), values.reshape(size, heads, layout.value_dim)

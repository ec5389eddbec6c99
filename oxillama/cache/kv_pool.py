"""Pages of keys and values whose layout is known, so that they can be read back as float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from oxillama.cache.pages import MemoryLimit, PagePool
from oxillama.formats import KV_LAYOUTS, KV_PAIRS, Layout
from oxillama.frozen import frozen
from oxillama.models.page_groups import EVERYTHING, Reach
from oxillama.on_use import on_use

read_page: Callable[..., Any] = on_use("oxillama.cache.stored:read_page")

LANES = 16  # positions to a panel of keys, or all of a smaller page; values are padded to as many
BLOCK = 32  # dimensions that share a scale where there are codes


@frozen()
class KvPart:
    """The keys or the values of a layer: how a page has a panel of them (`_kernels/attention/kvpage.pxd`).

    Attributes
    ----------
    layout : what is stored of a number.
    heads, dim : how many, and their width.
    is_key : whether a panel goes dimension by dimension, not position by position.
    paired : in pairs of dimensions, or of positions.
    """

    layout: Layout
    heads: int
    dim: int
    is_key: bool
    paired: bool = False

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
        step = LANES if not self.is_key else 2 if self.paired else 1
        return -(-self.dim // step) * step

    @property
    def row_bytes(self) -> int:
        """Bytes of a position in a page."""
        return self.blocks * self.block_bytes if self.is_coded else self.width * self.item.itemsize


@frozen()
class KvLayout:
    """Sizes and types of a page; the kernels' `attention` defines the order of its bytes."""

    n_layers: int
    n_heads: int
    key_dim: int
    value_dim: int
    kv_type: str

    def _part(self, at: int, dim: int) -> KvPart:
        types = KV_PAIRS[self.kv_type]
        return KvPart(KV_LAYOUTS[types[at]], self.n_heads, dim, at == 0, types == ("bf16", "bf16"))

    @property
    def keys(self) -> KvPart:
        """The keys of a layer."""
        return self._part(0, self.key_dim)

    @property
    def values(self) -> KvPart:
        """The values of a layer; without a width, if there are none."""
        return self._part(1, self.value_dim)

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
        self.layers: tuple[int, ...] = tuple(range(layout.n_layers) if layers is None else layers)

    def read(self, page: int, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys float32 (page_size, heads, key_dim) and values (page_size, heads, value_dim) of a page.

        Raises ConfigError if the layout is not that of the pool's pages.
        """
        return read_page(self, page, layer)  # type: ignore[no-any-return]

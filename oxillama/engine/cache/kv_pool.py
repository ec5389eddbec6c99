"""Pages of keys and values whose layout is known, so that they can be read back as float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxillama.base.formats import KV_LAYOUTS, KV_PAIRS, Layout
from oxillama.base.lazy_import import lazy
from oxillama.engine.cache.pages import CachePool, MemoryLimit, PagePool
from oxillama.models import Decoder
from oxillama.models.page_groups import EVERYTHING, Reach

read_page: Callable[..., Any] = lazy("oxillama.engine.cache.stored:read_page")
new_state_pool: Callable[..., Any] = lazy("oxillama.engine.cache.recurrent_states:RecurrentStatePool")

LANES = 16  # positions to a panel of keys, or all of a smaller page; values are padded to as many
BLOCK = 32  # dimensions that share a scale where there are codes


@dataclass(frozen=True, repr=False)
class KvPart:
    """The keys or the values of a layer: how a page has a panel of them (`_kernels/attention/kvpage.pxd`).

    Attributes:
        layout: what is stored of a number.
        heads, dim: how many, and their width.
        is_key: whether a panel goes dimension by dimension, not position by position.
        paired: in pairs of dimensions, or of positions.
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
        """The type of a stored float, as an unsigned integer."""
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


@dataclass(frozen=True, repr=False)
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
        """The values of a layer; of width 0 in a layer without values."""
        return self._part(1, self.value_dim)

    def page_bytes(self, page_size: int) -> int:
        """Bytes of a page, all layers."""
        return self.n_layers * self.n_heads * page_size * (self.keys.row_bytes + self.values.row_bytes)


class KvCachePool(PagePool):
    """A pool of pages whose keys and values can be read back.

    Args:
        shape: `KvShape` of the kernels.
        layout: the sizes and format of ``shape``.
        page_size: tokens per page.
        limit: of memory; None for unlimited memory.
        layers: of the model that the pages hold, in order; by default the first.
        reach: as for `PagePool`.
        alone: as for `PagePool`.
        page_bytes: as for `PagePool`.
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

        Raises ConfigError if the pool's pages have another layout.
        """
        return read_page(self, page, layer)  # type: ignore[no-any-return]


def cache_pool(model: Decoder, kv_type: str, page_size: int, max_bytes: int | None = None) -> CachePool:
    """Pools of pages for the groups of a model, and of its recurrent states, under one limit.

    Raises:
        ConfigError: the limit is too low for any sequence.
    """
    limit = MemoryLimit(max_bytes)
    alone = len(model.page_groups) == 1 and not model.state_floats
    groups = [
        KvCachePool(
            shape,
            KvLayout(*group.sizes, kv_type),
            page_size,
            limit,
            layers=group.layers,
            reach=group.reach,
            alone=alone,
        )
        for group, shape in zip(model.page_groups, model.kv_shapes(kv_type, page_size))
    ]
    if not model.state_floats:
        return CachePool(groups)
    return CachePool(groups, new_state_pool(limit, model.state_floats, model.record_floats))

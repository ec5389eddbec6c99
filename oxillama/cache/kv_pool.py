"""Pages of keys and values whose layout is known, so that they can be read back as float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxillama.cache.pages import MemoryLimit, PagePool
from oxillama.errors import ConfigError
from oxillama.models.page_groups import EVERYTHING, Reach

LANES = 16  # positions to a panel of keys, or all of a smaller page; values are padded to as many
Q8_BLOCK = 32  # dimensions that share a scale in q8_0


@dataclass(frozen=True)
class KvLayout:
    """Sizes and format of a page; the kernels' `attention` defines the order of its bytes."""

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
        n_keys = heads * size * layout.row_bytes(layout.key_dim, False)
        with np.errstate(all="ignore"):  # memory behind the last position holds anything
            keys = layout.keys(raw[:n_keys].reshape(heads, size // lanes, -1), lanes)
            values = layout.values(raw[n_keys:].reshape(heads, size // lanes, -1), lanes)
        return keys.reshape(size, heads, -1), values.reshape(size, heads, layout.value_dim)

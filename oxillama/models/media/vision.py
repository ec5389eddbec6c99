"""The encoder of pictures: from tiles of 8-bit pixels to the embeddings that a text model takes.

Patches are embedded, placed, run through transformer blocks (Dosovitskiy et al., ViT, 2021), merged and
projected. One encoder runs all families; `facts.VisionProjector` says how they differ.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from oxillama.errors import ConfigError, LoadError
from oxillama.models.media.blocks import Block, Memory, Segments, Shape, Steps, Tools, normed
from oxillama.models.media.facts import MOST_PATCHES, VisionFacts
from oxillama.models.media.positions import (
    Grid,
    block_order,
    coarse_places,
    grid_places,
    resized_table,
    rotation,
)
from oxillama.models.media.projectors import MERGERS, DeepStack, Pixtral

COARSE_SIDE = 70
"""Places along a side of MiniCPM-V's table."""

WINDOW_PIXELS = 112
"""Along a side of a window."""


class VisionEncoder:
    """An encoder of pictures.

    Args:
        tools: its tensors.
        facts: of the file.

    Raises:
        LoadError: a tensor is missing or has another shape, or the sizes do not fit each other.
    """

    def __init__(self, tools: Tools, facts: VisionFacts) -> None:
        self.tools: Tools = tools
        self.facts: VisionFacts = facts
        projector, weights, width = facts.projector, tools.weights, facts.width
        self.shape: Shape = Shape(
            prefix="v",
            facts=facts,
            norm=self._norm_kind(),
            activation=facts.activation,
            scale=projector.scale or 1 / math.sqrt(facts.head_dim),
            neox=projector.rope in ("vision", "halves"),
            halves=projector.rope == "halves",
            swaps=projector.swaps,
            v_norm=projector.v_norm,
        )
        if projector.rope and facts.head_dim % 4:
            raise LoadError(
                f"clip.vision.attention.head_count: expected heads of a multiple of 4, got {facts.head_dim}"
            )
        self.patches: PatchEmbedding = PatchEmbedding(tools, facts)
        self.class_row: np.ndarray | None = tools.vector("v.class_embd", width)
        self.table: np.ndarray | None = self._load_table()
        self.embd_norm = tools.optional_norm("v.norm_embd", width, "rms", facts.eps)
        self.pre_norm = tools.optional_norm("v.pre_ln", width, self.shape.norm, facts.eps)
        if self.patches.is_merged:
            self.pre_norm = tools.optional_norm("v.patch_norm.3", width, "layer", 1e-5)
        self.post_norm = tools.optional_norm("v.post_ln", width, self.shape.norm, facts.eps)
        n_blocks = max(0, facts.n_blocks - projector.bare)
        self.blocks = [Block(tools, self.shape, i) for i in range(n_blocks)]
        for i in range(len(self.blocks), facts.n_blocks):
            weights.ignore(name for name in weights.file.tensors if name.startswith(f"v.blk.{i}."))
        has_deep = any(name.startswith("v.deepstack.") for name in weights.file.tensors)
        self.deep: DeepStack | None = DeepStack(tools, facts) if has_deep else None
        self.merger = MERGERS[projector.merger](tools, facts)
        self.out_width: int = self.merger.width * (1 + (self.deep.n if self.deep else 0))

    def _norm_kind(self) -> str:
        facts = self.facts
        is_large_internvl = (facts.name, facts.width, facts.n_blocks) == ("internvl", 3200, 45)
        return "rms" if is_large_internvl else facts.projector.norm

    def _load_table(self) -> np.ndarray | None:
        """float32 (rows, width), or (2, rows, width) with one table for each axis; None without a table."""
        name, width, kind = "v.position_embd.weight", self.facts.width, self.facts.projector.positions
        weights = self.tools.weights
        if not kind or (kind == "bicubic" and not weights.has(name)):
            return None
        stored = weights.shape(name)
        if kind == "axes":
            return weights.array(name, (width, stored[1] if len(stored) > 1 else 1, 2))
        return weights.matrix(name, stored[1] if len(stored) > 1 else 1, width)

    # --- a tile -------------------------------------------------------------------------------------

    def grid_of(self, width: int, height: int) -> Grid:
        """Columns and rows of the patches of a tile. Raises ConfigError for more than an encoder takes."""
        columns, rows = width // self.patches.side, height // self.patches.side
        if not 1 <= columns * rows <= MOST_PATCHES:
            raise ConfigError(f"picture: expected 1 to {MOST_PATCHES} patches, got {columns * rows}")
        if self.facts.projector.positions == "axes" and self.table is not None:
            most = self.table.shape[1]
            if max(columns, rows) > most:
                raise ConfigError(
                    f"picture: expected at most {most} patches along a side, got {columns} x {rows}"
                )
        return columns, rows

    def tokens_of(self, width: int, height: int) -> Grid:
        """Columns and rows of the embeddings of a tile, as the positions of a text model count them."""
        return self.merger.tokens_of(self.grid_of(width, height))

    def n_tokens(self, width: int, height: int) -> int:
        """How many embeddings a tile has."""
        columns, rows = self.tokens_of(width, height)
        ends_lines = isinstance(self.merger, Pixtral) and self.merger.line_end is not None
        return columns * rows + (rows - 1 if ends_lines else 0)

    def steps(self, pixels: np.ndarray) -> Steps[np.ndarray]:
        """float32 (tokens, out_width) of a tile, uint8 (h, w, 3)."""
        grid = self.grid_of(pixels.shape[1], pixels.shape[0])
        x = self.patches.run(pixels, grid)
        order = None  # row by row
        if self.facts.projector.order == "blocks":
            order = block_order(grid, self.facts.merge)
            x = x[order]
        x, table = self._placed(x, grid, order)
        x = normed(self.pre_norm, x, self.tools.n_threads)
        windows, by_window = self._windows(grid)
        if by_window is not None:
            x, table = x[by_window], None if table is None else np.ascontiguousarray(table[by_window])
        x, deep, memory = np.array(x, np.float32, order="C"), [], Memory()
        for i, block in enumerate(self.blocks):
            period = self.facts.window_period
            is_full = not (period and self.facts.projector.has_windows) or (i + 1) % period == 0
            yield
            yield from block.steps(x, table, [(0, len(x))] if is_full else windows, memory)
            if self.deep is not None and i in self.deep.layers:
                deep.append(self.deep.run(i, x))
        yield
        x = normed(self.post_norm, x, self.tools.n_threads)
        found = self.merger.run(x, grid)
        if by_window is not None:
            found = _undone(found, by_window[:: self.facts.merge**2] // self.facts.merge**2)
        return np.concatenate([found, *deep], axis=1) if deep else found

    def _placed(
        self, x: np.ndarray, grid: Grid, order: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Patches (n, width) with what says where they are, and the table of rotations of the rows."""
        projector = self.facts.projector
        columns, rows = grid_places(grid)
        if order is not None:
            columns, rows = columns[order], rows[order]
        columns, rows = (places + np.int32(projector.rope_first) for places in (columns, rows))
        x = normed(self.embd_norm, x, self.tools.n_threads)
        if self.class_row is not None:
            x = np.concatenate([x, self.class_row[None]])
            columns, rows = (np.append(places, np.int32(0)) for places in (columns, rows))
        if self.table is not None:
            x = x + self._positions(grid, order, len(x))
        if not projector.rope or not self.blocks:
            return x, None
        kernels = self.tools.weights.kernels
        return x, rotation(kernels, projector.rope, self.facts.head_dim, projector.rope_base, columns, rows)

    def _positions(self, grid: Grid, order: np.ndarray | None, n: int) -> np.ndarray:
        """float32 (n, width): the embeddings of the rows' positions."""
        kind, table = self.facts.projector.positions, self.table
        assert table is not None
        if kind == "axes":
            x, y = grid_places(grid)
            found: np.ndarray = table[0][x] + table[1][y]
            return found
        if kind == "coarse":
            if len(table) < COARSE_SIDE**2:
                raise LoadError(f"v.position_embd.weight: expected {COARSE_SIDE**2} rows, got {len(table)}")
            return np.asarray(table[coarse_places(grid, COARSE_SIDE)])
        if kind == "table":
            if len(table) != n:
                raise ConfigError(
                    f"v.position_embd.weight: expected a row for each of {n} patches, got {len(table)}"
                )
            return table
        resized = resized_table(table, grid, kind)
        return resized if order is None else resized[order]

    def _windows(self, grid: Grid) -> tuple[Segments, np.ndarray | None]:
        """The segments of the windows, and the order of the rows that joins them; None without windows.

        Rows come in blocks of ``merge`` x ``merge`` patches, which stay together.
        """
        facts = self.facts
        if not (facts.projector.has_windows and facts.window_period):
            return [], None
        per, side = facts.merge**2, max(1, WINDOW_PIXELS // facts.patch_size // facts.merge)
        columns, rows = grid[0] // facts.merge, grid[1] // facts.merge
        numbers = np.arange(columns * rows).reshape(rows, columns)
        parts = [
            numbers[y : y + side, x : x + side].reshape(-1)
            for y in range(0, rows, side)
            for x in range(0, columns, side)
        ]
        ends = np.cumsum([0, *(len(part) * per for part in parts)]).tolist()
        order = (np.concatenate(parts)[:, None] * per + np.arange(per)).reshape(-1)
        return list(pairwise(ends)), order


def _undone(x: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The rows in the order that they had before ``order`` was applied."""
    found = np.empty_like(x)
    found[order] = x
    return found


class PatchEmbedding:
    """A row for each patch: a convolution as wide as its steps, which is a matrix product.

    Two kernels belong to the two frames of a video; a still picture gets the sum of their results.
    """

    def __init__(self, tools: Tools, facts: VisionFacts) -> None:
        self.tools: Tools = tools
        self.facts: VisionFacts = facts
        weights, side, width = tools.weights, facts.patch_size, facts.width
        stored = weights.shape("v.patch_embd.weight")
        # a matrix: of patches (llama4), or of what is merged (gemma4uv)
        self.is_flat: bool = len(stored) == 2
        self.is_merged: bool = weights.has("v.patch_norm.1.weight")
        self.side: int = side * facts.merge if self.is_merged else side
        n = 3 * self.side**2
        self.kernels = [
            tools.unrolled(name, (n, width) if self.is_flat else (side, side, 3, width))
            for name in ("v.patch_embd.weight", "v.patch_embd.weight.1")
            if name == "v.patch_embd.weight" or weights.has(name)
        ]
        self.bias: np.ndarray | None = tools.vector("v.patch_embd.bias", width)
        self.norms = [
            tools.optional_norm(f"v.patch_norm.{i}", size, "layer", 1e-5) for i, size in ((1, n), (2, width))
        ]

    def run(self, pixels: np.ndarray, grid: Grid) -> np.ndarray:
        """float32 (columns * rows, width) of uint8 (h, w, 3)."""
        x = normed(self.norms[0], self.unroll(pixels, grid), self.tools.n_threads)
        found = self.kernels[0](x)
        for kernel in self.kernels[1:]:
            found += kernel(x)
        if self.bias is not None:
            found += self.bias
        return normed(self.norms[1], found, self.tools.n_threads)

    def unroll(self, pixels: np.ndarray, grid: Grid) -> np.ndarray:
        """float32 (columns * rows, 3 * side * side): the normalized pixels of each patch, by channel."""
        (columns, rows), side = grid, self.side
        x = pixels[: rows * side, : columns * side].astype(np.float32) / np.float32(255)
        x = (x - self.facts.mean) / self.facts.std
        if self.facts.projector.doubled:
            x = x * np.float32(2) - np.float32(1)
        patches = x.reshape(rows, side, columns, side, 3).transpose(0, 2, 4, 1, 3)
        return np.ascontiguousarray(patches.reshape(rows * columns, -1))

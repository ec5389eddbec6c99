"""From the rows of an encoder to embeddings of the text model: neighbours are merged, and projected."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from oxillama.errors import LoadError
from oxillama.models.flash_attention import batched_flash_attention
from oxillama.models.media.blocks import Matrix, Tools, normed
from oxillama.models.media.facts import VisionFacts
from oxillama.models.media.positions import Grid, angles, grid_places
from oxillama.models.rope import rope_powers

EPS = 1e-5
"""Of the norms whose epsilon no file states."""


class Merger:
    """The layers after the blocks of an encoder.

    Attributes:
        side: patches along a side of a token.
        width: of its embeddings.
    """

    width: int

    def __init__(self, tools: Tools, facts: VisionFacts) -> None:
        self.tools: Tools = tools
        self.side: int = facts.merge

    def tokens_of(self, grid: Grid) -> Grid:
        """Columns and rows of the tokens of a grid of patches."""
        return grid[0] // self.side, grid[1] // self.side

    def run(self, x: np.ndarray, grid: Grid) -> np.ndarray:
        """float32 (tokens, width) of float32 (rows, width)."""
        raise NotImplementedError


# --- neighbours -----------------------------------------------------------------------------------------


def merged_grid(grid: Grid, side: int) -> Grid:
    """Columns and rows of the blocks that cover a grid."""
    return -(-grid[0] // side), -(-grid[1] // side)


def shuffled(x: np.ndarray, grid: Grid, side: int, by_columns: bool = False) -> np.ndarray:
    """float32 (blocks, side * side * width): blocks of neighbours joined, row by row inside.

    The grid is padded with zeros to whole blocks, which follow each other by rows, or by columns.
    """
    (columns, rows), (wide, tall) = grid, merged_grid(grid, side)
    padded = np.zeros((tall * side, wide * side, x.shape[1]), np.float32)
    padded[:rows, :columns] = x.reshape(rows, columns, -1)
    blocks = padded.reshape(tall, side, wide, side, -1)
    order = (2, 0, 1, 3, 4) if by_columns else (0, 2, 1, 3, 4)
    return np.ascontiguousarray(blocks.transpose(order)).reshape(tall * wide, -1)


def averaged(x: np.ndarray, grid: Grid, side: int) -> np.ndarray:
    """float32 (blocks, width): the means of blocks of neighbours, added row by row."""
    columns, rows = grid
    wide, tall = columns // side, rows // side
    blocks = x.reshape(rows, columns, -1)[: tall * side, : wide * side].reshape(tall, side, wide, side, -1)
    total = np.zeros((tall, wide, x.shape[1]), np.float32)
    for row in range(side):
        for column in range(side):
            total += blocks[:, row, :, column]
    means: np.ndarray = total / np.float32(side * side)
    return means.reshape(tall * wide, -1)


# --- mergers ----------------------------------------------------------------------------------------------


class Mlp:
    """Two matrices with an activation between them; the last one may be missing."""

    def __init__(self, tools: Tools, first: str, last: str, cols: int, activation: str = "gelu") -> None:
        self.tools: Tools = tools
        self.activation: str = activation
        self.first: Matrix = tools.matrix(first, cols)
        self.last: Matrix = tools.matrix(last, self.first.rows)
        self.rows: int = self.last.rows

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """float32 (n, rows) of float32 (n, cols)."""
        return self.last(self.tools.activate(self.first(x), self.activation))


class TwoOfBlocks(Merger):
    """Patches that come in blocks are joined block by block; then two matrices (Qwen2-VL)."""

    def __init__(self, tools: Tools, facts: VisionFacts) -> None:
        super().__init__(tools, facts)
        self.per: int = facts.merge**2
        self.mlp: Mlp = Mlp(tools, "mm.0", "mm.2", facts.width * self.per)
        self.width: int = self.mlp.rows

    def run(self, x: np.ndarray, grid: Grid) -> np.ndarray:
        return self.mlp(x.reshape(len(x) // self.per, -1))


class DeepStack:
    """Embeddings of some layers of the encoder, which layers of the text model add (Qwen3-VL).

    Attributes:
        layers: of the encoder, ascending.
        n: how many there are.
    """

    def __init__(self, tools: Tools, facts: VisionFacts) -> None:
        self.tools: Tools = tools
        self.per: int = facts.merge**2
        cols = facts.width * self.per
        self.layers = {}
        for i in range(facts.n_blocks):
            name = f"v.deepstack.{i}"
            if tools.weights.has(f"{name}.fc1.weight"):
                norm = tools.norm(f"{name}.norm", cols, "layer", facts.eps)
                self.layers[i] = norm, Mlp(tools, f"{name}.fc1", f"{name}.fc2", cols)
        self.n: int = len(self.layers)

    def run(self, layer: int, x: np.ndarray) -> np.ndarray:
        """float32 (tokens, width) of the rows behind an encoder's layer."""
        norm, mlp = self.layers[layer]
        return mlp(normed(norm, x.reshape(len(x) // self.per, -1), self.tools.n_threads))


class Gemma3(Merger):
    """Means of blocks, a norm, and a matrix that is stored the other way round."""

    def __init__(self, tools: Tools, facts: VisionFacts) -> None:
        super().__init__(tools, facts)
        self.norm = tools.norm("mm.soft_emb_norm", facts.width, "rms", facts.eps)
        name = "mm.input_projection.weight"
        stored = tools.weights.shape(name)
        self.width: int = stored[0] if stored else facts.out_width
        values = tools.weights.matrix(name, facts.width, self.width).T
        self.matrix: Matrix = Matrix(
            tools, tools.weights.linear_from(name, np.ascontiguousarray(values)), None
        )

    def run(self, x: np.ndarray, grid: Grid) -> np.ndarray:
        return self.matrix(normed(self.norm, averaged(x, grid, self.side), self.tools.n_threads))


class Gemma4(Merger):
    """Means of blocks times sqrt(width), perhaps standardized; a norm without weight, and a matrix."""

    def __init__(self, tools: Tools, facts: VisionFacts) -> None:
        super().__init__(tools, facts)
        self.side = 1 if facts.name == "gemma4uv" else facts.merge
        self.scale = np.float32(math.sqrt(facts.width)) if facts.name == "gemma4v" else None
        self.bias: np.ndarray | None = tools.vector("v.std_bias", facts.width)
        self.factor: np.ndarray | None = tools.vector("v.std_scale", facts.width)
        self.norm = tools.plain_norm(facts.eps)
        self.matrix: Matrix = tools.matrix("mm.input_projection", facts.width)
        self.width: int = self.matrix.rows

    def run(self, x: np.ndarray, grid: Grid) -> np.ndarray:
        if self.scale is not None:
            x = averaged(x, grid, self.side) * self.scale
        if self.bias is not None:
            x = x - self.bias
        if self.factor is not None:
            x = x * self.factor
        return self.matrix(normed(self.norm, x, self.tools.n_threads))


class Llava(Merger):
    """Every patch through two matrices, with norms where the file has them.

    With a class row, which follows the patches, the rows from the second on are taken, as in mtmd, if
    the file does not say that the class row is dropped.
    """

    def __init__(self, tools: Tools, facts: VisionFacts) -> None:
        super().__init__(tools, facts)
        width = facts.width
        self.has_norms: bool = tools.weights.has("mm.3.weight")
        self.mlp: Mlp = Mlp(tools, "mm.0", "mm.3" if self.has_norms else "mm.2", width)
        self.norm = tools.norm("mm.1", self.mlp.first.rows, "layer", facts.eps) if self.has_norms else None
        self.last_norm = tools.norm("mm.4", self.mlp.rows, "layer", facts.eps) if self.has_norms else None
        self.width: int = self.mlp.rows
        self.drops_last: bool = facts.drops_class_row
        tools.weights.ignore(["v.image_newline"])

    def tokens_of(self, grid: Grid) -> Grid:
        return grid

    def run(self, x: np.ndarray, grid: Grid) -> np.ndarray:
        n = grid[0] * grid[1]
        x = self.mlp.first(x[:n] if self.drops_last else x[len(x) - n :])
        x = self.tools.activate(normed(self.norm, x, self.tools.n_threads), self.mlp.activation)
        return normed(self.last_norm, self.mlp.last(x), self.tools.n_threads)


class Shuffle(Merger):
    """Blocks of neighbours joined, a norm before or behind that, and one matrix or two."""

    def __init__(
        self, tools: Tools, facts: VisionFacts, names: list[str], *, norm: str = "", joined: bool = True
    ) -> None:
        super().__init__(tools, facts)
        cols = facts.width * facts.merge**2
        self.joined = joined
        size = cols if joined else facts.width
        self.norm = tools.optional_norm(norm, size, "layer", EPS) if norm else None
        activation = facts.activation if facts.name == "paddleocr" else "gelu"
        first, *last = names
        self.projection: Mlp | Matrix = (
            Mlp(tools, first, last[0], cols, activation) if last else tools.matrix(first, cols)
        )
        self.width: int = self.projection.rows

    def tokens_of(self, grid: Grid) -> Grid:
        return merged_grid(grid, self.side)

    def run(self, x: np.ndarray, grid: Grid) -> np.ndarray:
        n_threads = self.tools.n_threads
        x = x[: grid[0] * grid[1]]
        if not self.joined:
            x = normed(self.norm, x, n_threads)
        x = shuffled(x, grid, self.side)
        if self.joined:
            x = normed(self.norm, x, n_threads)
        return self.projection(x)


class Pixtral(Merger):
    """Blocks of neighbours merged by a matrix, two matrices, and a row that ends each line of tokens."""

    def __init__(self, tools: Tools, facts: VisionFacts) -> None:
        super().__init__(tools, facts)
        self.width_in: int = facts.width
        merges = tools.weights.has("mm.patch_merger.weight")
        self.side = facts.merge if merges else 1
        self.norm = tools.optional_norm("mm.input_norm", facts.width, "rms", facts.eps)
        cols = facts.width * self.side**2
        self.merger: Matrix | None = tools.matrix("mm.patch_merger", cols, facts.width) if merges else None
        self.mlp: Mlp = Mlp(tools, "mm.1", "mm.2", facts.width)
        self.width: int = self.mlp.rows
        self.line_end: np.ndarray | None = tools.vector("v.token_embd.img_break", self.width)

    def run(self, x: np.ndarray, grid: Grid) -> np.ndarray:
        if self.merger is not None:
            x = normed(self.norm, x, self.tools.n_threads)
            x = self.merger(self._by_channel(shuffled(x, grid, self.side)))
        x = self.mlp(x)
        return x if self.line_end is None else self._with_ends(x, *self.tokens_of(grid))

    def _by_channel(self, x: np.ndarray) -> np.ndarray:
        """Joined blocks (n, places * width) with the channel outermost."""
        blocks = x.reshape(len(x), -1, self.width_in)
        return np.ascontiguousarray(blocks.transpose(0, 2, 1)).reshape(len(x), -1)

    def _with_ends(self, x: np.ndarray, columns: int, rows: int) -> np.ndarray:
        """The tokens with the end of a line behind each line but the last."""
        lines = np.empty((rows, columns + 1, self.width), np.float32)
        lines[:, :columns], lines[:, columns] = x.reshape(rows, columns, -1), self.line_end
        return lines.reshape(-1, self.width)[:-1]


class Llama4(Merger):
    """Blocks joined, and three matrices without biases.

    Blocks are taken column by column, as in mtmd, if the file does not say that they go by rows.
    """

    def __init__(self, tools: Tools, facts: VisionFacts) -> None:
        super().__init__(tools, facts)
        self.by_columns: bool = not facts.goes_by_rows
        self.mlp: Mlp = Mlp(tools, "mm.model.mlp.1", "mm.model.mlp.2", facts.width * facts.merge**2)
        self.matrix: Matrix = tools.matrix("mm.model.fc", self.mlp.rows)
        self.width: int = self.matrix.rows

    def tokens_of(self, grid: Grid) -> Grid:
        return merged_grid(grid, self.side)

    def run(self, x: np.ndarray, grid: Grid) -> np.ndarray:
        x = self.mlp(shuffled(x[: grid[0] * grid[1]], grid, self.side, self.by_columns))
        return self.matrix(self.tools.activate(x, "gelu"))


class Glm4v(Merger):
    """A convolution over each block of neighbours, a matrix, a norm, and a gated network."""

    def __init__(self, tools: Tools, facts: VisionFacts) -> None:
        super().__init__(tools, facts)
        self.activation: str = facts.activation
        self.width_in: int = facts.width
        name = "mm.patch_merger"
        stored = tools.weights.shape(f"{name}.weight")
        inner = stored[-1] if len(stored) == 4 else facts.width
        self.merger: Matrix = tools.unrolled(f"{name}.weight", (self.side, self.side, facts.width, inner))
        self.bias: np.ndarray | None = tools.vector(f"{name}.bias", inner)
        self.matrix: Matrix = tools.matrix("mm.model.fc", inner)
        self.norm = tools.norm("mm.post_norm", self.matrix.rows, "layer", EPS)
        self.gate: Matrix = tools.matrix("mm.gate", self.matrix.rows)
        self.up: Matrix = tools.matrix("mm.up", self.matrix.rows, self.gate.rows)
        self.down: Matrix = tools.matrix("mm.down", self.gate.rows)
        self.width: int = self.down.rows

    def run(self, x: np.ndarray, grid: Grid) -> np.ndarray:
        blocks = x.reshape(-1, self.side**2, self.width_in).transpose(0, 2, 1)
        x = self.merger(blocks.reshape(len(blocks), -1))
        if self.bias is not None:
            x += self.bias
        x = normed(self.norm, self.matrix(x), self.tools.n_threads)
        x = self.tools.activate(x, "gelu_erf")
        gates = self.tools.activate(self.gate(x), self.activation)
        return self.down(gates * self.up(x))


class Resampler(Merger):
    """A fixed number of learned queries that attend to the patches (MiniCPM-V)."""

    HEAD = 128

    def __init__(self, tools: Tools, facts: VisionFacts) -> None:
        super().__init__(tools, facts)
        stored = tools.weights.shape("resampler.query")
        width, n = (*stored, 0, 0)[:2]
        self.width = width
        self.n_tokens: int = n
        if not width or width % self.HEAD or (facts.n_queries and n != facts.n_queries):
            raise LoadError(
                f"resampler.query: expected {facts.n_queries or 'some'} queries "
                f"of a multiple of {self.HEAD}, got shape {stored}"
            )

        def norm(name: str) -> Callable[[np.ndarray], np.ndarray]:
            found = tools.norm(f"resampler.{name}", width, "layer", facts.eps)
            return lambda x: normed(found, x, tools.n_threads)

        self.queries: np.ndarray = norm("ln_q")(tools.weights.matrix("resampler.query", n, width))
        self.kv: Matrix = tools.matrix("resampler.kv", facts.width, width)
        self.kv_norm, self.post_norm = norm("ln_kv"), norm("ln_post")
        self.q, self.k, self.v, self.out = (
            tools.matrix(f"resampler.attn.{name}", width, width) for name in ("q", "k", "v", "out")
        )
        self.projection: Matrix = tools.matrix("resampler.proj", width, width)
        if not tools.weights.has("resampler.pos_embed_k"):
            raise LoadError("resampler.pos_embed_k: expected a tensor, got none")
        tools.weights.ignore(["resampler.pos_embed_k"])

    def tokens_of(self, grid: Grid) -> Grid:
        return self.n_tokens, 1

    def run(self, x: np.ndarray, grid: Grid) -> np.ndarray:
        v = self.kv_norm(self.kv(x))
        k = v + self._places(grid)
        heads = self.width // self.HEAD
        attended = batched_flash_attention(
            [self.q(self.queries)], [self.k(k)], [self.v(v)], heads, self.HEAD,
            causal_mask=False, num_threads=self.tools.n_threads,
        )[0]  # fmt: skip
        return self.projection(self.post_norm(self.out(attended)))

    def _places(self, grid: Grid) -> np.ndarray:
        """float32 (n, width): sines and cosines of x, then of y."""
        frequencies = rope_powers(self.width // 2, 10000.0)
        kernels = self.tools.weights.kernels
        tables = [angles(kernels, places, frequencies) for places in grid_places(grid)]
        return np.concatenate([part for table in tables for part in (table[:, 1], table[:, 0])], axis=1)


MERGERS: dict[str, Callable[[Tools, VisionFacts], Merger]] = {
    "two": TwoOfBlocks,
    "gemma3": Gemma3,
    "gemma4": Gemma4,
    "llava": Llava,
    "shuffle one": partial(Shuffle, names=["mm.model.fc"]),
    "shuffle two": partial(Shuffle, names=["mm.1", "mm.2"], norm="mm.input_norm"),
    "norm shuffle": partial(Shuffle, names=["mm.1", "mm.2"], norm="mm.input_norm", joined=False),
    "internvl": partial(Shuffle, names=["mm.model.mlp.1", "mm.model.mlp.3"], norm="mm.model.mlp.0"),
    "pixtral": Pixtral,
    "llama4": Llama4,
    "glm4v": Glm4v,
    "resampler": Resampler,
}
"""By `VisionProjector.merger`."""

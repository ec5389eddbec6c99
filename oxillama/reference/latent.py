"""Multi-head latent attention (DeepSeek-V2, 2024): one key head, whose keys are short vectors.

The matrices that make keys and values of a vector work on the queries and on what is attended instead.
"""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np

from oxillama.reference.attention import View, attend
from oxillama.reference.floats import F32, to_f16
from oxillama.reference.kv import store
from oxillama.reference.products import Matrix
from oxillama.reference.rotation import Rotation
from oxillama.reference.rows import norm
from oxillama.reference.selector import Selectors, attend_to_chosen
from oxillama.reference.source import Source, Unsupported


class LatentHeads:
    """The sizes of the heads of a model with latent attention, and the scale of its scores.

    Attributes
    ----------
    heads, key_dim, value_dim : as if keys and values were made.
    rank : of the vector that is kept. turned : dimensions of a key that rotate, and stand behind it.
    scale : of scores: 1 / sqrt(key_dim), unless the file states it, times the gain twice.
    """

    def __init__(self, source: Source, heads: int, key_dim: int, value_dim: int) -> None:
        self.source = source
        self.heads = heads
        source.key("attention.q_lora_rank")
        self.rank: int = source.key("attention.kv_lora_rank")
        self.key_dim: int = source.key("attention.key_length_mla", 0) or key_dim
        self.value_dim: int = source.key("attention.value_length_mla", 0) or value_dim
        self.turned: int = source.key("rope.dimension_count")
        plain = source.key("attention.scale") or 1 / math.sqrt(self.key_dim)
        self.scale: float = plain * score_gain(source) ** 2 if source.facts.gain_on_scores else plain
        self.selectors: Selectors | None = None
        if source.facts.selector:
            self.selectors = Selectors(source, source.n_layers)
        self.chosen: list[np.ndarray] = []  # positions of rows, by the last selector

    def attention(
        self,
        i: int,
        h: np.ndarray,
        rotation: Rotation | None,
        eps: float,
        kv_type: str,
        onto: np.ndarray | None = None,
        grows: np.ndarray | None = None,
    ) -> np.ndarray:
        """The attention block of layer ``i`` for h (n, n_embd); ``grows`` (n, 1, 1) multiplies queries."""
        source, block, n, rank = self.source, f"blk.{i}", len(h), self.rank
        if source.has(f"{block}.attn_q.weight"):
            q = source.linear(f"{block}.attn_q", h)
        else:
            short = source.linear(f"{block}.attn_q_a", h)
            short = norm(short, eps, source.vector(f"{block}.attn_q_a_norm.weight"))
            q = source.linear(f"{block}.attn_q_b", short)
            if self.selectors is not None and self.selectors.own[i]:
                self.chosen = self.selectors.choose(i, h, short, rotation, kv_type)
        both = source.linear(f"{block}.attn_kv_a_mqa", h)
        kept = norm(both[:, :rank], eps, source.vector(f"{block}.attn_kv_a_norm.weight"))
        q = q.reshape(n, self.heads, self.key_dim)
        still = self.key_dim - self.turned
        turned_q, turned_k = (np.ascontiguousarray(x) for x in (q[:, :, still:], both[:, None, rank:]))
        if rotation is not None:
            turned_q, turned_k = rotation.apply(turned_q, turned_k)
        absorbed = self.by_heads(block, "k", q[:, :, :still])
        queries = np.concatenate([absorbed, turned_q], axis=2)
        if grows is not None:
            queries = queries * grows
        kv = store(np.concatenate([kept[:, None], turned_k], axis=2), kept[:, None], kv_type)
        if self.selectors is None:
            attended = attend(queries, kv, self.scale, View())
        else:
            attended = attend_to_chosen(queries, kv, self.scale, self.chosen)
        made = self.by_heads(block, "v", attended).reshape(n, -1)
        return source.linear(f"{block}.attn_output", made, onto=onto)

    def by_heads(self, block: str, part: str, x: np.ndarray) -> np.ndarray:
        """x (n, heads, dim) times the matrices of the heads, (n, heads, ...).

        Those of "k" make a vector of the still part of a query, those of "v" a value of a vector.
        """
        source, heads = self.source, [np.ascontiguousarray(x[:, head]) for head in range(self.heads)]
        if source.has(f"{block}.attn_kv_b.weight"):
            matrices = self.split_matrices(block)[part == "v"]
            made = [matrix.times(x) for matrix, x in zip(matrices, heads)]
        else:
            made = [source.linear(f"{block}.attn_{part}_b", x, head) for head, x in enumerate(heads)]
        return np.stack(made, axis=1)

    def split_matrices(self, block: str) -> tuple[list[Matrix], list[Matrix]]:
        """Both kinds of a file that has them in one tensor, [keys | values] of each head.

        Its numbers are rounded to halves, unless they are stored as float32.
        """
        source = self.source
        tensor = source.vector(f"{block}.attn_kv_b.weight").reshape(self.heads, -1, self.rank)
        if source.file.tensors[f"{block}.attn_kv_b.weight"].format.name != "F32":
            tensor = to_f16(tensor)
        keys, values = np.split(tensor, [self.key_dim - self.turned], axis=1)
        return [plain_matrix(each.T) for each in keys], [plain_matrix(each) for each in values]


def plain_matrix(values: np.ndarray) -> Matrix:
    """A matrix of floats, (rows, cols)."""
    rows, cols = values.shape
    return Matrix(rows, cols, np.ascontiguousarray(values, F32), None, "")


def score_gain(source: Source) -> float:
    """What YaRN multiplies queries and keys with: DeepSeek has it in the scores, and not in the rotation.

    Raises Unsupported for GLM 4.7 Flash, whose files leave out how experts are chosen.
    """
    if source.n_layers in (47, 48) and source.shape("token_embd.weight")[1] == 154880:
        raise Unsupported(f"reference: {source.name}: no statement of models of this size")
    stretch = float(Decimal(source.key("rope.scaling.factor", 0.0) or 1.0).ln())
    multiplier = source.key("rope.scaling.yarn_log_multiplier", 0.0)
    is_yarn = source.key("rope.scaling.type", "linear") == "yarn"
    plain: float = source.key("rope.scaling.attn_factor", 1.0)
    gain: float = plain * (1 + multiplier * stretch)
    return gain * (1.0 if is_yarn and multiplier else 1 + 0.1 * stretch)

"""Multi-head latent attention (DeepSeek-V2, 2024): one key head, whose keys are short latent vectors.

The matrices that would expand a latent vector to keys and values are applied to queries and outputs instead.
"""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np

from oxillama.reference.attention import View, attend, output_gate
from oxillama.reference.blocks_of_tokens import pooled_lists
from oxillama.reference.floats import F32, to_f16
from oxillama.reference.kv import store
from oxillama.reference.products import Matrix
from oxillama.reference.rotation import Rotation
from oxillama.reference.rows import norm
from oxillama.reference.selector import Selectors, attend_to_chosen
from oxillama.reference.source import Source, Unsupported
from oxillama.reference.sparse import attend_to_lists


class LatentHeads:
    """The head sizes of a model with latent attention, and the scale of its scores.

    Attributes:
        heads: of each layer.
        windows: of each layer, 0: none.
        rank, key_dim: size of the stored latent vector and of an expanded key; with a window they may differ.
        turned: number of rotated dimensions of a key, after the vector.
        scale: scale of scores: 1 / sqrt(key_dim) unless the file states it, times gain^2.
    """

    def __init__(self, source: Source, heads: list[int], key_dim: int, windows: list[int]) -> None:
        self.source = source
        self.heads = heads
        self.windows = windows
        source.key("attention.q_lora_rank")
        self.rank: int = source.key("attention.kv_lora_rank")
        self.key_dim: int = source.key("attention.key_length_mla", 0) or key_dim
        source.key("attention.value_length_mla")
        self.turned: int = source.key("rope.dimension_count")
        plain = source.key("attention.scale") or 1 / math.sqrt(self.key_dim)
        self.scale: float = plain * score_gain(source) ** 2 if source.facts.gain_on_scores else plain
        self.selectors: Selectors | None = None
        pooled = source.facts.selector == "pooled"
        if source.facts.selector and not pooled and source.key("attention.indexer.top_k", 0):
            self.selectors = Selectors(source, [not window for window in windows])
        self.chosen: list[np.ndarray] = []  # positions for each row, from the last selector

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
        source, block, n, rank, key_dim = self.source, f"blk.{i}", len(h), self.rank, self.key_dim
        scale, window, heads = self.scale, self.windows[i], self.heads[i]
        if window and source.facts.local_latent:
            rank, key_dim = (
                source.key("attention.kv_lora_rank_swa"),
                source.key("attention.key_length_mla_swa"),
            )
            source.key("attention.value_length_mla_swa")
            scale = 1 / math.sqrt(key_dim)
        if source.has(f"{block}.attn_q.weight"):
            q = source.linear(f"{block}.attn_q", h)
        else:
            short = source.linear(f"{block}.attn_q_a", h)
            short = norm(short, eps, source.vector(f"{block}.attn_q_a_norm.weight"))
            q = source.linear(f"{block}.attn_q_b", short)
            if source.facts.selector == "pooled":
                if source.per_layer("attention.indexer.types", source.n_layers, True)[i]:
                    self.chosen = pooled_lists(source, block, h, short, kv_type)
            elif self.selectors is not None and self.selectors.own[i]:
                self.chosen = self.selectors.choose(i, h, short, rotation, kv_type)
        both = source.linear(f"{block}.attn_kv_a_mqa", h)
        kept = norm(both[:, :rank], eps, source.vector(f"{block}.attn_kv_a_norm.weight"))
        q = q.reshape(n, heads, key_dim)
        still = key_dim - self.turned
        turned_q, turned_k = (np.ascontiguousarray(x) for x in (q[:, :, still:], both[:, None, rank:]))
        if source.facts.qk_norm:
            turned_k = norm(turned_k, eps, source.vector(f"{block}.attn_k_norm.weight"))
        if rotation is not None:
            turned_q, turned_k = rotation.apply(turned_q, turned_k)
        absorbed = self.by_heads(block, "k", q[:, :, :still])
        queries = np.concatenate([absorbed, turned_q], axis=2)
        if grows is not None:
            queries = queries * grows
        kv = store(np.concatenate([kept[:, None], turned_k], axis=2), kept[:, None], kv_type)
        sinks = source.vector(f"{block}.attn_sinks.weight") if source.facts.sinks else None
        view = View(causal=self.source.key("attention.causal", True), window=window, sinks=sinks)
        if source.facts.selector == "pooled":
            attended = attend_to_lists(queries, kv, scale, self.chosen, view)
        elif self.selectors is None or window:
            attended = attend(queries, kv, scale, view)
        else:
            attended = attend_to_chosen(queries, kv, scale, self.chosen, view)
        made = self.by_heads(block, "v", attended).reshape(n, -1)
        if source.facts.attn_gate and source.has(f"{block}.attn_gate.weight"):
            made = output_gate(source, block, h, made)
        return source.linear(f"{block}.attn_output", made, onto=onto)

    def by_heads(self, block: str, part: str, x: np.ndarray) -> np.ndarray:
        """x (n, heads, dim) times each head's matrix, (n, heads, ...).

        The matrices of "k" map the unrotated part of a query to latent space; the matrices of "v" map latent
        vectors to values.
        """
        source, heads = self.source, [np.ascontiguousarray(x[:, head]) for head in range(x.shape[1])]
        if source.has(f"{block}.attn_kv_b.weight"):
            matrices = self.split_matrices(block, x.shape[1])[part == "v"]
            made = [matrix.times(x) for matrix, x in zip(matrices, heads)]
        else:
            made = [source.linear(f"{block}.attn_{part}_b", x, head) for head, x in enumerate(heads)]
        return np.stack(made, axis=1)

    def split_matrices(self, block: str, heads: int) -> tuple[list[Matrix], list[Matrix]]:
        """The matrices of both kinds from a file that has them in one tensor, [keys | values] for each head.

        Numbers are rounded to halves, unless they are stored as float32.
        """
        source = self.source
        tensor = source.vector(f"{block}.attn_kv_b.weight").reshape(heads, -1, self.rank)
        if source.file.tensors[f"{block}.attn_kv_b.weight"].format.name != "F32":
            tensor = to_f16(tensor)
        keys, values = np.split(tensor, [self.key_dim - self.turned], axis=1)
        return [plain_matrix(each.T) for each in keys], [plain_matrix(each) for each in values]


def plain_matrix(values: np.ndarray) -> Matrix:
    """A matrix of floats (rows, cols)."""
    rows, cols = values.shape
    return Matrix(rows, cols, np.ascontiguousarray(values, F32), None, "")


def score_gain(source: Source) -> float:
    """YaRN's factor of queries and keys; DeepSeek multiplies the scores with it, not the rotations.

    Raises Unsupported for GLM 4.7 Flash, whose files do not state how experts are chosen.
    """
    if source.n_layers in (47, 48) and source.shape("token_embd.weight")[1] == 154880:
        raise Unsupported(f"reference: {source.name}: no statement of models of this size")
    factor = source.key("rope.scaling.factor", 0.0) or 1.0
    stretch = float(Decimal(1.0 if source.key("rope.scaling.type") == "none" else factor).ln())
    multiplier = source.key("rope.scaling.yarn_log_multiplier", 0.0)
    is_yarn = source.key("rope.scaling.type", "linear") == "yarn"
    plain: float = source.key("rope.scaling.attn_factor", 1.0)
    gain: float = plain * (1 + multiplier * stretch)
    return gain * (1.0 if is_yarn and multiplier else 1 + 0.1 * stretch)

"""A selector of positions beside latent attention (DeepSeek-V3.2, 2025): a row attends to some only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oxillama.reference.attention import View, attend
from oxillama.reference.floats import F32, fma, select_max
from oxillama.reference.kv import Stored, store
from oxillama.reference.rotation import Rotation
from oxillama.reference.rows import best, norm
from oxillama.reference.source import Source

EPSILON = 1e-6
"""Of the norm of a selector's keys, whatever the file states."""
LONG = 1 << 20
"""Context from which on files leave out which layers have selectors (GLM-5.2)."""


class Selectors:
    """The selectors of a model: their sizes, and which layers have their own.

    A layer without its own takes the positions of the last one before it.

    Attributes
    ----------
    heads, width : of queries; there is one key. n_chosen : positions that a row attends to, at most.
    own : of each layer.
    """

    def __init__(self, source: Source, n_layers: int) -> None:
        self.source = source
        self.heads: int = source.key("attention.indexer.head_count")
        self.width: int = source.key("attention.indexer.key_length")
        self.n_chosen: int = source.key("attention.indexer.top_k")
        key = "attention.indexer.types"
        is_few = key in source.facts.options and source.key("context_length") >= LONG
        stated = source.per_layer(key, n_layers)
        usual = [not is_few or i < 2 or i % 4 == 2 for i in range(n_layers)]
        self.own: list[bool] = usual if stated[0] is None else [bool(each) for each in stated]
        for i, own in enumerate(self.own):
            if not own:
                source.ignore(f"blk.{i}.indexer.")

    def choose(
        self, i: int, h: np.ndarray, short: np.ndarray, rotation: Rotation | None, kv_type: str
    ) -> list[np.ndarray]:
        """Of each row beyond the first ``n_chosen``, the positions that it attends to, ascending.

        Parameters
        ----------
        h : float32 (n, n_embd), the input of layer ``i``'s attention.
        short : float32 (n, q_rank), its compressed queries after their norm.
        """
        source, block, n = self.source, f"blk.{i}.indexer", len(h)
        scale, shift = (source.vector(f"{block}.k_norm.{part}") for part in ("weight", "bias"))
        keys = norm(source.linear(f"{block}.attn_k", h), EPSILON, scale, shift, centred=True)[:, None]
        weights = source.linear(f"{block}.proj", h) * F32((self.width * self.heads) ** -0.5)
        queries = source.linear(f"{block}.attn_q_b", short).reshape(n, self.heads, self.width)
        if rotation is not None:
            turned = replace(rotation, neox=source.facts.selector == "neox")
            queries, keys = turned.apply(queries, keys)
        scores = position_scores(queries, weights, store(keys, keys, kv_type))
        return [chosen_positions(scores[row, : row + 1], self.n_chosen) for row in range(self.n_chosen, n)]


def position_scores(queries: np.ndarray, weights: np.ndarray, kv: Stored) -> np.ndarray:
    """float32 (rows, positions): sum over heads h in order of weight * max(0, q_h k), fused.

    ``queries`` (rows, heads, width), ``weights`` (rows, heads); one key for each position.
    """
    rows, heads = weights.shape
    products = kv.scores(queries, np.arange(len(kv.keys)), heads)
    scores = np.zeros((rows, len(kv.keys)), F32)
    for head in range(heads):
        above = select_max(products[:, head], np.zeros_like(scores))
        scores = fma(above, weights[:, head, None], scores)
    return scores


def chosen_positions(scores: np.ndarray, most: int) -> np.ndarray:
    """The ``most`` positions of the highest scores (positions,), ascending; of equals the first, NaN last."""
    return np.flatnonzero(best(scores, most))


def attend_to_chosen(q: np.ndarray, kv: Stored, scale: float, chosen: list[np.ndarray]) -> np.ndarray:
    """`attend` where the last rows have lists of positions: a position's place in the list stands for it."""
    first = len(q) - len(chosen)
    found = [attend(q[:first], kv.at(np.arange(first)), scale, View())]
    for row, positions in enumerate(chosen, first):
        found.append(attend(q[row : row + 1], kv.at(positions), scale, View()))
    return np.concatenate(found)

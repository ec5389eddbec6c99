"""A selector of positions for latent attention (DeepSeek-V3.2, 2025): a row attends only to some."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oxillama.reference.attention import EVERYTHING, View, attend
from oxillama.reference.floats import F32, fma, select_max
from oxillama.reference.kv import Stored, store
from oxillama.reference.rotation import Rotation
from oxillama.reference.rows import best, norm
from oxillama.reference.source import Source

EPSILON = 1e-6
"""Epsilon of the norm of a selector's keys, whatever the file states."""
LONG = 1 << 20
"""Context size from which on files do not state which layers have selectors (GLM-5.2)."""


class Selectors:
    """The selectors of a model: their sizes, and which of the layers that attend to chosen positions have
    one.

    A layer without a selector uses the positions of the last selector before it.

    Attributes:
        heads, width: of queries; there is one key.
        n_chosen: max positions that a row attends to.
        own: for each layer, whether it has a selector.
    """

    def __init__(self, source: Source, selects: list[bool]) -> None:
        n_layers = len(selects)
        self.source = source
        self.heads: int = source.key("attention.indexer.head_count")
        self.width: int = source.key("attention.indexer.key_length")
        self.n_chosen: int = source.key("attention.indexer.top_k")
        key = "attention.indexer.types"
        is_few = key in source.facts.options and source.key("context_length") >= LONG
        stated = source.per_layer(key, n_layers)
        usual = [not is_few or i < 2 or i % 4 == 2 for i in range(n_layers)]
        kinds = usual if stated[0] is None else stated
        self.own: list[bool] = [bool(kind) and chooses for kind, chooses in zip(kinds, selects)]
        for i, own in enumerate(self.own):
            if not own:
                source.ignore(f"blk.{i}.indexer.")

    def choose(
        self, i: int, h: np.ndarray, short: np.ndarray, rotation: Rotation | None, kv_type: str
    ) -> list[np.ndarray]:
        """The positions that each row after the first ``n_chosen`` attends to, ascending.

        Args:
            h: float32 (n, n_embd), the input of layer ``i``'s attention.
            short: float32 (n, q_rank), the compressed queries after their norm.
        """
        source, block, n = self.source, f"blk.{i}.indexer", len(h)
        scale, shift = (source.vector(f"{block}.k_norm.{part}") for part in ("weight", "bias"))
        eps = source.key("attention.layer_norm_rms_epsilon") if source.facts.selector == "last" else EPSILON
        keys = norm(source.linear(f"{block}.attn_k", h), eps, scale, shift, centred=True)[:, None]
        weights = source.linear(f"{block}.proj", h) * F32((self.width * self.heads) ** -0.5)
        queries = source.linear(f"{block}.attn_q_b", short).reshape(n, self.heads, self.width)
        if rotation is not None:
            kind = source.facts.selector
            turned = replace(rotation, neox=kind == "neox")
            if kind == "last":
                still = self.width - 2 * len(rotation.turns)
                queries, keys = (
                    np.concatenate([x[..., :still], *turned.apply(x[..., still:])], axis=-1)
                    for x in (queries, keys)
                )
            else:
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
    """The ``most`` positions with the highest scores (positions,), ascending; first of equals, NaN last."""
    return np.flatnonzero(best(scores, most))


def attend_to_chosen(
    q: np.ndarray, kv: Stored, scale: float, chosen: list[np.ndarray], view: View = EVERYTHING
) -> np.ndarray:
    """`attend` where the last rows have lists of positions, each replaced by its index in the list."""
    first = len(q) - len(chosen)
    found = [attend(q[:first], kv.at(np.arange(first)), scale, view)]
    for row, positions in enumerate(chosen, first):
        found.append(attend(q[row : row + 1], kv.at(positions), scale, view))
    return np.concatenate(found)

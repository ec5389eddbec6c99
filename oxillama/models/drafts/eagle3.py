"""EAGLE-3 (Li et al., 2025): one layer that drafts from hidden states of three layers of its target.

W_fc makes one state g of the features f, the inputs of those layers side by side. The row at position p has
the token of position p + 1 and the state g of position p, or the row's own output x for drafted tokens:

    x = g + attention([norm(embedding) | norm_2(g)]), then x += feed_forward(norm(x)).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from oxillama.models.decoder import Decoder
from oxillama.models.drafts.draft_model import DraftInput, DraftModel, check_same, read_tapped
from oxillama.models.layers.layer import load_plain_layer
from oxillama.models.layers.norm import Norm, load_norm
from oxillama.models.metadata import Reader
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Embedding
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Batch, Step, Threads, Workspace

if TYPE_CHECKING:
    from oxillama.models.weights.low_rank import AdaptedRows


class JoinedNorm(Norm):
    """The norm before the attention, which reads the normed embedding and the normed state side by side.

    Attributes:
        joined: float32 (rows, 2 n_embd), the block's input, whose first half `Eagle3Input` has set.
        in_place: whether the block's output is added to the normed state.
    """

    def __init__(self, norm: Norm, in_place: bool) -> None:
        super().__init__(norm.kernels, False, norm.eps, norm.weight, None)
        self.joined: np.ndarray = np.zeros((0, 0), np.float32)
        self.in_place = in_place

    def apply(self, x: np.ndarray, out: np.ndarray, n_threads: int) -> np.ndarray:
        self.joined[:, x.shape[1] :] = super().apply(x, x if self.in_place else out, n_threads)
        return self.joined


class Eagle3Input(DraftInput):
    """States of rows: ``hidden`` are features (rows, width) of the target, or the drafter's own states."""

    def __init__(self, spec: Spec, weights: Weights, table: Embedding, width: int, has_norm: bool) -> None:
        super().__init__(table, weights.linear([("fc", spec.n_embd)], width))
        self.norm: Norm | None = load_norm(spec, weights, "enc.output_norm", width) if has_norm else None
        self.token_norm: Norm = load_norm(spec, weights, "blk.0.attn_norm")
        in_place = Reader(weights.file, spec.family.name).flag("norm_before_residual", False)
        self.state_norm: JoinedNorm = JoinedNorm(load_norm(spec, weights, "blk.0.attn_norm_2"), in_place)

    def look_up(self, batch: Batch, x: np.ndarray, step: Step) -> None:
        """x (n, d) = the states of the rows; the normed embeddings of their tokens go to `JoinedNorm`."""
        n, d = x.shape
        self.table.lookup(batch.tokens, x)
        self.state_norm.joined = step.work.rows["eagle3", n, 2 * d]
        self.state_norm.joined[:, :d] = self.token_norm.apply(x, x, step.n_threads)
        if not self.observed:
            x[:] = self.hidden
            return
        features = self.hidden
        if self.norm is not None:
            features = self.norm.apply(features, np.empty_like(features), step.n_threads)
        self.projection.apply(features, x, step)


class Eagle3(DraftModel):
    """An EAGLE-3 drafter; see `DraftModel`. Its hidden states are those before the last norm.

    Raises LoadError if a tensor is missing or has a wrong shape, or something does not fit the target.
    """

    inputs: Eagle3Input  # type: ignore[assignment]

    def __init__(self, spec: Spec, weights: Weights, target: Decoder) -> None:
        super().__init__(spec, weights, target)
        read, width = Reader(weights.file, spec.family.name), target.spec.n_embd
        check_same(f"{read.prefix}.target_hidden_size", read.size("target_hidden_size"), width)
        read.expect(spec.n_layers == 1, "block_count", "1", spec.n_layers)
        self.tapped = read_tapped(read, target.spec.n_layers)
        table, width = self.load_ends(weights, target), len(self.tapped) * width
        self.inputs = Eagle3Input(spec, weights, table, width, read.flag("norm_before_fc", False))
        self.layers = [replace(load_plain_layer(spec, 0, weights), attn_norm=self.inputs.state_norm)]
        assert self.output_norm is not None
        self._last_norm: Norm = self.output_norm
        self.output_norm = None  # the states before it go on

    def logits(
        self, rows: np.ndarray, work: Workspace, tuner: Threads, adapted: AdaptedRows | None = None
    ) -> np.ndarray:
        """As `DraftModel.logits`, of states before the last norm."""
        normed = self._last_norm.apply(rows, np.empty_like(rows), tuner.n_threads)
        return super().logits(normed, work, tuner, adapted)

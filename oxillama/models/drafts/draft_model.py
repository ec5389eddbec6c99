"""What the models of drafters share: they take from their target what their file lacks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from oxillama._kernels import Kernels
from oxillama.errors import LoadError
from oxillama.models.decoder import Decoder, load_output
from oxillama.models.frequencies import load_frequencies
from oxillama.models.layers.layer import AnyLayer
from oxillama.models.layers.norm import Norm, load_norm
from oxillama.models.metadata import Reader
from oxillama.models.spec import Spec
from oxillama.models.weights.linear import Embedding, Linear, PanelStore, Pass
from oxillama.models.weights.loader import Weights
from oxillama.models.workspace import Threads, Workspace

if TYPE_CHECKING:
    from oxillama.models.weights.low_rank import AdaptedRows


class DraftInput:
    """What the layers of a drafter begin with: an embedding of each row's token, and a state.

    Attributes:
        table: the embeddings.
        projection: a matrix for the states.
        hidden: float32 (rows, width), the states of the next pass; set before it.
        observed: whether they are the target's, and not the drafter's own.
    """

    observed: bool = True

    def __init__(self, table: Embedding, projection: Linear) -> None:
        self.table = table
        self.projection = projection
        self.hidden: np.ndarray = np.zeros((0, projection.cols), np.float32)

    def tables(self) -> list[Embedding]:
        """The tables of embeddings."""
        return [self.table]

    def linears(self) -> list[Linear]:
        return [self.projection]


class DraftModel(Decoder):
    """The model of a drafter, without its inputs and its layers.

    Args:
        spec: of its file.
        weights: of its file.
        target: the model that it drafts for.

    Attributes:
        tapped: layers of the target whose inputs it reads, in order. The number behind the last layer stands
            for the hidden states after the last norm.
        ids: int64 (n,), the target's id of each of its tokens; None where they are the same.
    """

    tapped: tuple[int, ...] = ()
    ids: np.ndarray | None = None

    def __init__(self, spec: Spec, weights: Weights, target: Decoder) -> None:
        self.spec: Spec = spec
        self.target_spec: Spec = target.spec
        self.kernels: Kernels = weights.kernels
        self.context: int = target.context
        self.store: PanelStore = target.store  # has the output matrix
        self.streams: Any | None = None
        self.classifier: Any | None = None
        self.projection: Any | None = None
        self.layers: list[AnyLayer] = []
        self.state_floats = self.record_floats = 0
        self.output_norm: Norm | None = None
        self.output: Linear | None = target.output
        self.frequencies: list[np.ndarray] = [
            load_frequencies(spec, i, weights, self.context) for i in range(len(spec.ropes))
        ]

    def load_ends(self, weights: Weights, target: Decoder) -> Embedding:
        """Loads the last norm and the output matrix, and returns the table of embeddings.

        Raises LoadError if a tensor has a wrong shape, or does not fit the target.
        """
        self.ids = load_ids(weights, target.spec.n_vocab)
        spec, rows, name = self.spec, target.spec.n_vocab, "token_embd.weight"
        self.output_norm = load_norm(spec, weights, "output_norm")
        assert target.inputs is not None, "a pipeline has no drafters"
        table = target.inputs.tokens
        if weights.has(name):
            if spec.n_vocab < rows:
                raise LoadError(f"{name}: expected the model's {rows} rows, got {spec.n_vocab}")
            table = weights.embedding(name, spec.n_vocab, spec.n_embd)
        if self.ids is not None:
            spec = self.spec = replace(spec, n_vocab=len(self.ids))
        has_output = spec.family.output == "tied" or weights.has("output.weight")
        if not (has_output and weights.has(name)):
            check_same(f"{spec.family.name}.embedding_length", spec.n_embd, target.spec.n_embd)
        if has_output:
            self.output = load_output(spec, weights)
        elif spec.n_vocab != rows:
            raise LoadError(f"d2t: expected {rows} ids without a tensor output, got {spec.n_vocab}")
        return table

    def linear_pass(self, work: Workspace, tuner: Threads) -> Pass:
        """What linear layers need that follow a pass."""
        return Pass(work.scratch, tuner.n_threads)

    def logits(
        self, rows: np.ndarray, work: Workspace, tuner: Threads, adapted: AdaptedRows | None = None
    ) -> np.ndarray:
        """As `Decoder.logits`, of the target's tokens; -inf for those that the drafter does not know."""
        found = super().logits(rows, work, tuner, adapted)
        if self.ids is None:
            return found
        of_target = np.full((len(found), self.target_spec.n_vocab), -np.inf, np.float32)
        of_target[:, self.ids] = found
        return of_target


def check_same(key: str, found: int, wanted: int) -> None:
    """Raises LoadError unless a drafter's number equals its target's."""
    if found != wanted:
        raise LoadError(f"{key}: expected {wanted}, as the model has, got {found}")


def load_ids(weights: Weights, n_vocab: int) -> np.ndarray | None:
    """int64 (n,), the target's id of each of the drafter's tokens (``d2t``); None where they are the same."""
    if not weights.has("d2t"):
        return None
    info = weights.file.tensors["d2t"]
    if info.format.name != "I64" or len(info.shape) != 1:
        raise LoadError(f"d2t: expected one row of I64, got {info.format.name} of shape {info.shape}")
    weights.taken.add("d2t")
    ids = weights.file.data("d2t").view(np.int64)
    if not ((ids >= 0) & (ids < n_vocab)).all():
        raise LoadError(f"d2t: expected ids of the model's {n_vocab} tokens, got {ids.min()} to {ids.max()}")
    return ids


def read_tapped(read: Reader, n_layers: int) -> tuple[int, ...]:
    """The layers of a target of ``n_layers`` that a drafter names (`DraftModel.tapped`). Raises LoadError."""
    ids: list[int] = read.get("target_layers", list[int], None)
    are_there = ids and all(0 <= i <= n_layers for i in ids)
    read.expect(are_there, "target_layers", f"layers of the model's {n_layers}", ids)
    return tuple(ids)

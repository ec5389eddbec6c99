"""The given rows of a sequence in a snapshot: embeddings of media, where they stand, and whose they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from oxillama.base.config import checks
from oxillama.base.config.engine import MAX_CONTEXT
from oxillama.engine.features.media.feature import position_axes, ready
from oxillama.engine.features.media.input_embeddings import InputEmbeddings, Span, Use
from oxillama.engine.loading import LoadedModel
from oxillama.models.media.encoder import Rows

Place = Annotated[int, (0, MAX_CONTEXT)]
Digest = Annotated[str, 64]


@dataclass(frozen=True)
class SpanState:
    """A span without its values.

    Attributes:
        start, n: its first token, and how many it has.
        grid, both_ways: as in `Rows`.
    """

    start: Place
    n: Annotated[int, (1, MAX_CONTEXT)]
    grid: tuple[int, int] | None
    both_ways: Annotated[str, ("", "all", "windowed")]

    def __post_init__(self) -> None:
        if self.grid is not None and (min(self.grid) < 1 or self.grid[0] * self.grid[1] != self.n):
            raise checks.refuse("grid", f"columns and rows of {self.n} tokens", self.grid)


@dataclass(frozen=True)
class UseState:
    """A medium: the digest of the decoded medium, and the first tokens of its spans."""

    digest: Digest
    starts: list[Place]


@dataclass(frozen=True, eq=False)
class MediaState:
    """`InputEmbeddings`, for a snapshot.

    Attributes:
        projector: content hash of the projector file.
        preprocessing: as in `InputEmbeddings`.
        media, spans: in order.
        values: float32 (tokens, width), of all spans.
    """

    projector: Digest
    media: list[UseState]
    spans: list[SpanState]
    values: Annotated[np.ndarray, "<f4", 2]
    preprocessing: Annotated[int, (1, 1 << 16)] = 1

    def __post_init__(self) -> None:
        end = 0
        for span in self.spans:
            if span.start < end:
                raise checks.refuse("spans", f"a start from {end} on", span.start)
            end = span.start + span.n
        starts = [start for use in self.media for start in use.starts]
        if starts != [span.start for span in self.spans] or not all(use.starts for use in self.media):
            raise checks.refuse("media", "the starts of all spans", starts)
        if not self.spans or sum(span.n for span in self.spans) != len(self.values):
            raise checks.refuse("spans", f"those of {len(self.values)} rows", len(self.spans))
        if not np.isfinite(self.values).all():
            raise checks.refuse("values", "finite numbers", "others")

    @property
    def end(self) -> int:
        """The first token behind the last span."""
        return self.spans[-1].start + self.spans[-1].n

    @classmethod
    def of(cls, embeddings: InputEmbeddings) -> MediaState:
        """The state of given rows."""
        return cls(
            projector=embeddings.projector().hex(),
            media=[UseState(use.digest.hex(), list(use.starts)) for use in embeddings.media],
            spans=[
                SpanState(at, len(rows.values), rows.grid, rows.both_ways) for at, rows in embeddings.spans
            ],
            values=np.concatenate([rows.values for _, rows in embeddings.spans]),
            preprocessing=embeddings.preprocessing,
        )

    def embeddings(self, model: LoadedModel) -> InputEmbeddings:
        """The input embeddings, for a model. Raises LoadError if the model takes another width."""
        ready(model, self.values.shape[1])
        spans, at = [], 0
        for span in self.spans:
            values = np.ascontiguousarray(self.values[at : at + span.n])
            spans.append(Span(span.start, Rows(values, span.grid, span.both_ways)))
            at += span.n
        media = tuple(Use(bytes.fromhex(use.digest), tuple(use.starts)) for use in self.media)
        content = bytes.fromhex(self.projector)
        return InputEmbeddings(spans, position_axes(model), media, lambda: content, self.preprocessing)

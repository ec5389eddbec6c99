"""Snapshots of a `SpeculativeEngine`: two snapshots, and the maximum draft length.

    header     "kind" is "speculative"; "model" and "draft" are the model facts of the two snapshots
    target     bytes of an `EngineSnapshot`: of the running text, or else of the engine
    draft      bytes of an `EngineSnapshot` without tokens: the draft model's options and its fingerprint

A draft does not change the text, so the draft model's keys and values are not stored; it runs the text again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

from blake3 import blake3

from oxillama.base.version import __version__
from oxillama.errors import OxiLlamaError, SnapshotIncompatible, SpecSnapshotIncompatible
from oxillama.sessions.codec import Plain, decode, encode
from oxillama.sessions.container import SPECULATIVE, Buffer, Container, pieces, write_file
from oxillama.sessions.snapshot import EngineSnapshot, Length, ModelFacts

KIND = "speculative"
SECTIONS = ("target", "draft")
MOST_BYTES = 1 << 62


@dataclass(frozen=True)
class PairHeader:
    """The header: ``kind``, ``num_speculative``, the draft model, and the target's facts as in `Header`."""

    kind: Annotated[str, (KIND,)]
    library: str
    fingerprint: str
    model: ModelFacts
    draft: ModelFacts
    num_speculative: Annotated[int, (1, 64)]
    n_tokens: Length
    n_cached: Length

    @classmethod
    def of(cls, plain: Plain) -> PairHeader:
        """The header of a container. Raises ConfigError."""
        return decode(cls, {name: value for name, value in plain.items() if name != "sections"})


@dataclass(frozen=True, eq=False)
class SpeculativeEngineSnapshot:
    """Snapshots of two engines, one of which drafts for the other.

    Attributes:
        target: of the running text, with kind "generation"; or of the engine.
        draft: of the draft model, without tokens.
        num_speculative: max tokens of a draft.
    """

    target: EngineSnapshot
    draft: EngineSnapshot
    num_speculative: int

    @property
    def accepted_tokens(self) -> int:
        """Drafted tokens accepted in the running text; 0 without one."""
        drafts = self.target.parts.get("speculation")
        return 0 if drafts is None else int(drafts.accepted)

    @property
    def rng_state(self) -> int | None:
        """The state of the running text's random numbers; None without one."""
        return None if self.target.request is None else self.target.request.sampler.random

    @property
    def header(self) -> PairHeader:
        """The header of the container."""
        target, model = self.target, self.target.model
        return PairHeader(
            KIND, __version__, model.fingerprint.display(), model, self.draft.model, self.num_speculative,
            len(target.tokens), target.n_cached,
        )  # fmt: skip

    def pieces(self, compress: bool = False) -> Iterator[Buffer]:
        """Yield the bytes of the snapshot piece by piece."""
        contents = {name: getattr(self, name).serialize(compress=compress) for name in SECTIONS}
        return pieces(encode(PairHeader, self.header), contents, False, SPECULATIVE)

    def encode(self, *, compress: bool = False) -> bytes:
        """The bytes of the snapshot in the format ``OXISPEC1``."""
        return b"".join(self.pieces(compress))

    def write(self, path: str | os.PathLike[str], *, compress: bool = False) -> None:
        """Write the bytes to a file atomically. Raises ModelFileError."""
        write_file(path, self.pieces(compress))

    def fingerprint(self) -> bytes:
        """32 bytes: BLAKE3 of `encode`."""
        return blake3(self.encode()).digest()

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> SpeculativeEngineSnapshot:
        """Read a snapshot from its bytes. Raises SpecSnapshotIncompatible if damaged, or not a snapshot."""
        try:
            return cls._decode(Container.parse(data, SPECULATIVE))
        except SnapshotIncompatible as error:
            raise SpecSnapshotIncompatible(error.detail) from error
        except OxiLlamaError as error:
            raise SpecSnapshotIncompatible(str(error)) from error

    @classmethod
    def _decode(cls, container: Container) -> SpeculativeEngineSnapshot:
        if container.sections.keys() != set(SECTIONS):
            raise SnapshotIncompatible(f"expected the sections target and draft, got {[*container.sections]}")
        header = PairHeader.of(container.header)
        target, draft = (
            EngineSnapshot.deserialize(memoryview(container.bytes(name, MOST_BYTES))) for name in SECTIONS
        )
        found = cls(target, draft, header.num_speculative)
        if replace(found.header, library=header.library) != header:
            raise SnapshotIncompatible("header: expected what its sections say, got other values")
        if target.kind not in ("engine", "generation") or draft.kind != "engine" or len(draft.tokens):
            raise SnapshotIncompatible(
                f"expected a text or an engine and a draft model, got {target.kind} and {draft.kind}"
            )
        return found

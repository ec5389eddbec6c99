"""What a snapshot of a `SpeculativeEngine` holds: two snapshots, and how long a draft may be.

    header     "kind" is "speculative"; "model" and "draft" are those of the two snapshots
    target     bytes of an `EngineSnapshot`: of the text that is under way, else of the engine
    draft      bytes of an `EngineSnapshot` without tokens: the draft model's options and its fingerprint

A draft changes no text, so of the draft model no keys and values are kept: it runs the text again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from blake3 import blake3

from oxillama._version import __version__
from oxillama.config import checks
from oxillama.errors import OxiLlamaError, SnapshotIncompatible, SpecSnapshotIncompatible
from oxillama.sessions.container import SPECULATIVE, Buffer, Container, pieces
from oxillama.sessions.snapshot import EngineSnapshot
from oxillama.sessions.values import MOST_BYTES, Reader

KIND = "speculative"
SECTIONS = ("target", "draft")


@dataclass(frozen=True, eq=False)
class SpeculativeEngineSnapshot:
    """Two engines, one of which drafts.

    Attributes
    ----------
    target : of the text that is under way, of kind "generation"; or of the engine.
    draft : of the draft model, without tokens.
    num_speculative : most tokens of a draft.
    """

    target: EngineSnapshot
    draft: EngineSnapshot
    num_speculative: int

    @property
    def accepted_tokens(self) -> int:
        """Drafted tokens in the text that is under way; 0 without one."""
        request = self.target.request
        counts = None if request is None else request.speculation
        return 0 if counts is None else counts["accepted"] or 0

    @property
    def rng_state(self) -> int | None:
        """Of the random numbers of the text that is under way; None without one."""
        return None if self.target.request is None else self.target.request.random

    def pieces(self, compress: bool = False) -> Iterator[Buffer]:
        """The bytes of it, one after another."""
        header = {
            "kind": KIND,
            "library": __version__,
            "model": self.target.model.plain(),
            "draft": self.draft.model.plain(),
            "num_speculative": self.num_speculative,
            "n_tokens": len(self.target.tokens),
            "n_cached": self.target.n_cached,
        }
        contents = {name: getattr(self, name).serialize(compress=compress) for name in SECTIONS}
        return pieces(header, contents, False, SPECULATIVE)

    def encode(self, *, compress: bool = False) -> bytes:
        """The bytes of a snapshot, in the format ``OXISPEC1``."""
        return b"".join(self.pieces(compress))

    def fingerprint(self) -> bytes:
        """32 bytes: BLAKE3 of `encode`."""
        return blake3(self.encode()).digest()

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> SpeculativeEngineSnapshot:
        """A snapshot from its bytes. Raises SpecSnapshotIncompatible if they are damaged, or are none."""
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
        read = Reader("header", container.header)
        checks.one_of("kind", read.value("kind"), (KIND,))
        target, draft = (
            EngineSnapshot.deserialize(memoryview(container.bytes(name, MOST_BYTES))) for name in SECTIONS
        )
        facts = {
            "model": target.model.plain(),
            "draft": draft.model.plain(),
            "n_tokens": len(target.tokens),
            "n_cached": target.n_cached,
        }
        for name, found in facts.items():
            if read.value(name) != found:
                raise SnapshotIncompatible(f"header: {name}: expected that of its sections, got another")
        if target.kind not in ("engine", "generation") or draft.kind != "engine" or len(draft.tokens):
            raise SnapshotIncompatible(
                f"expected a text or an engine and a draft model, got {target.kind} and {draft.kind}"
            )
        return cls(target, draft, read.integer("num_speculative", 1, 64))

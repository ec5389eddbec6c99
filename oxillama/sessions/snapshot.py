"""The content of a snapshot as Python values, checked against each other but not against a model.

The header has the facts that are shown without reading the rest. The sections ``engine``, ``options``,
``request``, ``notes`` and the sections of features are JSON. All others are arrays: ``tokens``, ``kv``,
``state``, and arrays that the codec names by their path, such as ``request.sampler.mus``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from oxillama.base.config import checks
from oxillama.base.config.engine import MAX_CONTEXT
from oxillama.base.formats import KV_PAIRS
from oxillama.base.version import __version__
from oxillama.engine import features
from oxillama.engine.cache.kv_pool import KvLayout
from oxillama.engine.cache.positions import position_bytes
from oxillama.gguf.fingerprint import ModelFingerprint
from oxillama.models.page_groups import PageGroup
from oxillama.sessions.codec import ANY_TEXT, Plain, decode, encode
from oxillama.sessions.container import (
    Buffer,
    Container,
    array_bytes,
    json_bytes,
    pieces,
    read_bytes,
    refusals,
    write_file,
)
from oxillama.sessions.request_state import RequestState

KINDS = ("engine", "session", "generation")
MEDIA = "media"
"""The name of the section of input embeddings."""
MOST_DIM = 1 << 24
Length = Annotated[int, (0, MAX_CONTEXT)]


@dataclass(frozen=True)
class ModelFacts:
    """The model of a snapshot.

    Attributes:
        architecture, name, path: from the model's file; ``path`` is its former place, "" for a model from
            bytes.
        fingerprint: fingerprint of the file and of the options that affect bits.
        tokenizer: hexadecimal BLAKE3 of a tokenizer.json that replaced the file's vocabulary; "" without.
        n_vocab: size of the logits.
        kv_type: type of keys and values.
        page_groups: the attention layers, their sizes, and how far back they attend.
        state_floats: size of the recurrent state.
    """

    architecture: str
    name: str
    path: Annotated[str, ANY_TEXT]
    fingerprint: ModelFingerprint
    tokenizer: str
    n_vocab: Annotated[int, (1, checks.INT_MAX)]
    kv_type: Annotated[str, tuple(KV_PAIRS)]
    page_groups: tuple[PageGroup, ...]
    state_floats: Annotated[int, (0, 2**40)]

    def __post_init__(self) -> None:
        for group in self.page_groups:
            sizes = (group.n_heads, group.key_dim, 1 + group.value_dim)
            if not group.layers or not all(0 < size <= MOST_DIM for size in sizes) or min(group.reach) < 0:
                raise checks.refuse("page_groups", "layers, sizes and a reach of a model", group)

    def kv_bytes(self, n_tokens: int) -> list[int]:
        """The bytes of each group's keys and values that a row after ``n_tokens`` tokens needs."""
        return [
            (n_tokens - group.reach.first_seen(n_tokens))
            * position_bytes(KvLayout(*group.sizes, self.kv_type))
            for group in self.page_groups
        ]


@dataclass(frozen=True)
class AdapterFacts:
    """An adapter of a sequence, or an engine's default adapter.

    Attributes:
        fingerprint: hash of its tensors, 64 hexadecimal digits.
        scale: the user's scale.
        start: position of the first token that it applies to.
        name, path: name in its file, and the file's former path; "" if it was not loaded from a file.
        everywhere: the option that it was loaded with.
    """

    fingerprint: Annotated[str, 64]
    scale: float
    start: Length
    name: str
    path: Annotated[str, ANY_TEXT]
    everywhere: bool


@dataclass(frozen=True)
class Header:
    """The facts in the header of a snapshot.

    Attributes:
        kind: one of `KINDS`.
        library: version of the library that wrote the snapshot.
        fingerprint: the model's fingerprint as displayed.
        n_tokens, n_cached: number of tokens, and how many of them were run.
        others: as in `EngineSnapshot`.
    """

    kind: Annotated[str, KINDS]
    library: str
    fingerprint: str
    model: ModelFacts
    n_tokens: Length
    n_cached: Length
    adapters: tuple[AdapterFacts, ...]
    engine_adapters: tuple[AdapterFacts, ...]

    @classmethod
    def of(cls, plain: Plain) -> Header:
        """The header of a container. Raises ConfigError."""
        found = decode(cls, {name: value for name, value in plain.items() if name != "sections"})
        checks.integer("n_cached", found.n_cached, 0, found.n_tokens)
        return found


@dataclass(frozen=True, eq=False)
class EngineSnapshot:
    """A sequence with everything needed to continue it elsewhere.

    Attributes:
        kind: "engine" (with one session), "session" or "generation".
        model: facts of the model.
        engine: the engine's options, from `plain_options`.
        tokens: int32 (n,) ids.
        n_cached: number of tokens that were run.
        kv: uint8, their keys and values, by position (`cache.positions`).
        state: float32 (state_floats,), the recurrent state after them; None without one.
        adapters: the sequence's adapters.
        engine_adapters: the default adapters of requests.
        options: for kind "generation": the request's options, from `plain_options`.
        request: for kind "generation": the state of the request.
        media: state of the sequence's input embeddings (`oxillama.engine.features.media.state`), or None.
        parts: states of the request's features, by name (`engine.features.STATES`).
        notes: the caller's own JSON-serializable data.
    """

    kind: str
    model: ModelFacts
    engine: Plain
    tokens: np.ndarray
    n_cached: int
    kv: np.ndarray
    state: np.ndarray | None
    adapters: tuple[AdapterFacts, ...] = ()
    engine_adapters: tuple[AdapterFacts, ...] = ()
    options: Plain | None = None
    request: RequestState | None = None
    media: Any = None
    parts: dict[str, Any] = field(default_factory=dict)
    notes: Plain = field(default_factory=dict)

    def pieces(self, compress: bool = False) -> Iterator[Buffer]:
        """Yield the bytes of the snapshot piece by piece."""
        header = Header(
            self.kind, __version__, self.model.fingerprint.display(), self.model, len(self.tokens),
            self.n_cached, self.adapters, self.engine_adapters,
        )  # fmt: skip
        arrays = {"tokens": self.tokens.astype("<i4"), "kv": self.kv}
        if self.state is not None:
            arrays["state"] = self.state.astype("<f4")
        values = {"options": self.options, "notes": self.notes or None}
        values["request"] = encode(RequestState, self.request, arrays=arrays, name="request")
        states = self.parts | ({} if self.media is None else {MEDIA: self.media})
        values |= {name: encode(type(part), part, arrays=arrays, name=name) for name, part in states.items()}
        contents: dict[str, Buffer] = {"engine": json_bytes(self.engine)}
        contents |= {name: json_bytes(value) for name, value in values.items() if value is not None}
        contents |= {name: array_bytes(array) for name, array in arrays.items()}
        return pieces(encode(Header, header), contents, compress)

    def serialize(self, *, compress: bool = False) -> bytes:
        """The bytes of the snapshot in the format ``OXISNAP1``."""
        return b"".join(self.pieces(compress))

    def write(self, path: str | os.PathLike[str], *, compress: bool = False) -> None:
        """Write the bytes to a file atomically. Raises ModelFileError."""
        write_file(path, self.pieces(compress))

    @classmethod
    def deserialize(cls, data: bytes | bytearray | memoryview) -> EngineSnapshot:
        """Read a snapshot from its bytes. Raises SnapshotIncompatible if they are damaged, or no snapshot."""
        with refusals():
            return cls._read(Container.parse(data))

    @classmethod
    def _read(cls, container: Container) -> EngineSnapshot:
        header, array = Header.of(container.header), container.array
        kind, model, n = header.kind, header.model, header.n_cached
        tokens = array("tokens", "<i4", (header.n_tokens,)).astype(np.int32)
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < model.n_vocab:
            raise checks.refuse("tokens", f"ids below {model.n_vocab}", int(tokens.max()))
        of_request: dict[str, Any] = {}
        media = None
        if MEDIA in container.sections:
            media = decode(features.load("state of media"), container.json(MEDIA), array=array, name=MEDIA)
            if media.end > len(tokens):
                raise checks.refuse("media", f"spans of {len(tokens)} tokens", media.end)
        if kind == "generation":
            known = [name for name in features.STATES if name in container.sections]
            of_request = {
                "options": container.json("options"),
                "request": decode(RequestState, container.json("request"), array=array, name="request"),
                "parts": {
                    name: decode(features.state(name), container.json(name), array=array, name=name)
                    for name in known
                },
            }
        found = cls(
            kind,
            model,
            container.json("engine"),
            tokens,
            n,
            array("kv", "|u1", (sum(model.kv_bytes(n)),)),
            array("state", "<f4", (model.state_floats,)) if model.state_floats and n else None,
            header.adapters,
            header.engine_adapters,
            notes=container.json("notes") if "notes" in container.sections else {},
            media=media,
            **of_request,
        )
        container.check_all_read()
        return found


Source = bytes | bytearray | memoryview | str | os.PathLike[str] | EngineSnapshot
"""A snapshot, its bytes, or the path of a file with them."""


def read(source: Source) -> EngineSnapshot:
    """Read a snapshot and check it for consistency.

    Raises:
        ModelFileError: the file cannot be read.
        SnapshotIncompatible: the bytes are damaged, or no snapshot.
    """
    if isinstance(source, EngineSnapshot):
        return source
    if isinstance(source, (bytes, bytearray, memoryview)):
        return EngineSnapshot.deserialize(source)
    if not isinstance(source, (str, os.PathLike)):
        raise checks.refuse("snapshot", "bytes, or the path of a file", source)
    return EngineSnapshot.deserialize(read_bytes(source))

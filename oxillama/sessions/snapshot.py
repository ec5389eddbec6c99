"""What a snapshot holds, as Python values, which agree with each other; they may not fit a model.

The header says what can be known without the rest. The sections ``engine``, ``options``, ``request`` and
``notes`` and those of features are JSON, all others are arrays: ``tokens``, ``kv``, ``state``, and those that
the codec names after their place: ``request.sampler.mus``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from oxillama._version import __version__
from oxillama.cache.kv_pool import KvLayout
from oxillama.cache.positions import position_bytes
from oxillama.config import checks
from oxillama.config.engine import MAX_CONTEXT
from oxillama.engine import features
from oxillama.formats import KV_PAIRS
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
"""Section of given rows."""
MOST_DIM = 1 << 24
Length = Annotated[int, (0, MAX_CONTEXT)]


@dataclass(frozen=True)
class ModelFacts:
    """The model that a snapshot is of.

    Attributes
    ----------
    architecture, name, path : as its file says; the path is where it was, "" for one from bytes.
    fingerprint : of the file and of the options that decide bits.
    tokenizer : hexadecimal BLAKE3 of a tokenizer.json that took the place of its vocabulary; "" without.
    n_vocab : rows of its logits.
    kv_type : how keys and values are kept.
    page_groups : the layers that have keys, their sizes, and how far back they see.
    state_floats : size of its recurrent state.
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
        """Of each group, bytes of the keys and values that a row behind ``n_tokens`` tokens sees."""
        return [
            (n_tokens - group.reach.first_seen(n_tokens))
            * position_bytes(KvLayout(*group.sizes, self.kv_type))
            for group in self.page_groups
        ]


@dataclass(frozen=True)
class AdapterFacts:
    """An adapter of a sequence, or of an engine.

    Attributes
    ----------
    fingerprint : of its tensors, 64 hexadecimal digits.
    scale : of the user.
    start : position of the first token that it applies to.
    name, path : as its file says, and where it was; "" for one that was not loaded from a file.
    everywhere : as it was loaded.
    """

    fingerprint: Annotated[str, 64]
    scale: float
    start: Length
    name: str
    path: Annotated[str, ANY_TEXT]
    everywhere: bool


@dataclass(frozen=True)
class Header:
    """What the header of a snapshot says.

    Attributes
    ----------
    kind : one of `KINDS`.
    library : version that wrote it.
    fingerprint : of the model, as it is displayed.
    n_tokens, n_cached : tokens, and those that were run.
    others : as in `EngineSnapshot`.
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
    """A sequence with what is needed to go on with it elsewhere.

    Attributes
    ----------
    kind : "engine" (with its own session), "session" or "generation".
    model : of which it is.
    engine : options of the engine, as `plain_options` gives them.
    tokens : int32 (n,) ids.
    n_cached : tokens that were run.
    kv : uint8, their keys and values, by position (`cache.positions`).
    state : float32 (state_floats,), the recurrent state after them; None where there is none.
    adapters : of the sequence. engine_adapters : of requests that name none.
    options, request : of kind "generation": the request's, as `plain_options` gives them, and its state.
    media : the state of the sequence's given rows (`oxillama.media.state`); None for none.
    parts : states of what features keep of the request, by name (`engine.features.STATES`).
    notes : what the caller wants to keep with it, as what JSON can hold.
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
        """The bytes of it, one after another."""
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
        """The bytes of a snapshot, in the format ``OXISNAP1``."""
        return b"".join(self.pieces(compress))

    def write(self, path: str | os.PathLike[str], *, compress: bool = False) -> None:
        """Writes the bytes to a file, which others see whole or not at all. Raises ModelFileError."""
        write_file(path, self.pieces(compress))

    @classmethod
    def deserialize(cls, data: bytes | bytearray | memoryview) -> EngineSnapshot:
        """A snapshot from its bytes. Raises SnapshotIncompatible if they are damaged, or are none."""
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
    """A snapshot, checked against itself.

    Raises
    ------
    ModelFileError : its file cannot be read.
    SnapshotIncompatible : it is damaged, or is none.
    """
    if isinstance(source, EngineSnapshot):
        return source
    if isinstance(source, (bytes, bytearray, memoryview)):
        return EngineSnapshot.deserialize(source)
    if not isinstance(source, (str, os.PathLike)):
        raise checks.refuse("snapshot", "bytes, or the path of a file", source)
    return EngineSnapshot.deserialize(read_bytes(source))

"""The container format of snapshots: a header and named sections.

    8 bytes    "OXISNAP1"; or "OXISPEC1" for two engines, one of which drafts
    u32        version, 2
    u64        size of the header in bytes
    32 bytes   BLAKE3 of the header
    header     a JSON object; its list ``sections`` has the facts of each section, in order
    sections   the stored bytes of each section, one after another

The facts of a section are its name, codec (0 uncompressed, 1 zlib), size, stored size, and the BLAKE3 of the
stored bytes. Numbers are little-endian. Every byte is covered by a checksum, so sections of different
snapshots cannot be mixed.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from blake3 import blake3

from oxillama.base.atomic_file import replaced_file
from oxillama.errors import ConfigError, ModelFileError, OxiLlamaError, SnapshotIncompatible
from oxillama.sessions.codec import parse_json

MAGIC, SPECULATIVE, VERSION = b"OXISNAP1", b"OXISPEC1", 2
START = struct.Struct("<8sIQ32s")
MOST_HEADER = 16 << 20
"""The maximum size of a header in bytes."""
MOST_RATIO = 1040
"""The maximum compression ratio: zlib's is 1032."""
THREADED_BYTES = 1 << 20
AS_IT_IS, ZLIB = 0, 1
LEVEL = 1
"""The zlib level: higher levels do not compress KV caches better."""

Buffer = bytes | memoryview


@dataclass(frozen=True)
class Section:
    """A section in its stored form.

    Attributes:
        name, codec: its name, and `AS_IT_IS` or `ZLIB`.
        size: uncompressed size in bytes.
        stored: the stored bytes.
    """

    name: str
    codec: int
    size: int
    stored: Buffer

    @property
    def facts(self) -> list[Any]:
        """The section's facts for the header."""
        threads = blake3.AUTO if len(self.stored) >= THREADED_BYTES else 1
        digest = blake3(self.stored, max_threads=threads).hexdigest()
        return [self.name, self.codec, self.size, len(self.stored), digest]

    def data(self, most: int) -> Buffer:
        """The uncompressed bytes. Raises SnapshotIncompatible if there are more than ``most``."""
        if self.size > most:
            raise SnapshotIncompatible(f"{self.name}: expected at most {most} bytes, got {self.size}")
        if self.codec == AS_IT_IS:
            return self.stored
        unpacker = zlib.decompressobj()
        try:
            found = unpacker.decompress(self.stored, self.size or 1)
        except zlib.error as error:
            raise SnapshotIncompatible(f"{self.name}: cannot be decompressed: {error}") from error
        if len(found) != self.size or not unpacker.eof or unpacker.unused_data:
            raise SnapshotIncompatible(f"{self.name}: expected {self.size} bytes, got another number")
        return found


def pieces(
    header: Mapping[str, Any], contents: Mapping[str, Buffer], compress: bool, magic: bytes = MAGIC
) -> Iterator[Buffer]:
    """Yield the bytes of a snapshot piece by piece.

    Args:
        header: JSON-serializable facts.
        contents: the sections by name, in order.
        compress: whether to compress sections with zlib, if that makes them smaller.
        magic: the first 8 bytes.
    """
    sections = [_stored(name, data, compress) for name, data in contents.items()]
    text = json_bytes({**header, "sections": [section.facts for section in sections]})
    yield START.pack(magic, VERSION, len(text), blake3(text).digest())
    yield text
    for section in sections:
        yield section.stored


def _stored(name: str, data: Buffer, compress: bool) -> Section:
    packed = zlib.compress(data, LEVEL) if compress else data
    if len(packed) < len(data):
        return Section(name, ZLIB, len(data), packed)
    return Section(name, AS_IT_IS, len(data), data)


def write_file(path: str | os.PathLike[str], pieces: Iterable[Buffer]) -> None:
    """Write a snapshot's file atomically. Raises ModelFileError."""
    with replaced_file(Path(path)) as file:
        for piece in pieces:
            file.write(piece)


@dataclass(frozen=True)
class Container:
    """A snapshot's header and sections, with verified checksums.

    Attributes:
        header: the facts.
        sections: all sections by name.
        read: names of the sections that were read.
    """

    header: dict[str, Any]
    sections: dict[str, Section]
    read: set[str] = field(default_factory=set)

    @classmethod
    def parse(cls, data: Buffer | bytearray, magic: bytes = MAGIC) -> Container:
        """Parse and check every byte. Raises SnapshotIncompatible; the message names the damaged section."""
        view = memoryview(data).cast("B").toreadonly()
        size, digest = _start(view[: START.size], magic)
        at = START.size + size
        header = _header(view[START.size : at], size, digest)
        sections: dict[str, Section] = {}
        for name, codec, size, stored, *_ in header["sections"]:
            section = sections[name] = Section(name, codec, size, view[at : at + stored])
            at += stored
            if at > len(view):
                raise SnapshotIncompatible(f"section {name}: expected the whole of it, got its beginning")
        if at != len(view):
            raise SnapshotIncompatible(f"expected {at} bytes, got {len(view)}")
        for facts, section in zip(header["sections"], sections.values()):
            if facts != section.facts:
                raise SnapshotIncompatible(
                    f"section {section.name}: expected its checksum, got another: it is damaged"
                )
        return cls(header, sections)

    def json(self, name: str) -> dict[str, Any]:
        """Parse a section that is a JSON object."""
        return json_object(name, self.bytes(name, MOST_HEADER))

    def bytes(self, name: str, most: int) -> Buffer:
        """The bytes of a section. Raises SnapshotIncompatible if it is missing or larger than ``most``."""
        if name not in self.sections:
            raise SnapshotIncompatible(f"{name}: expected this section, got none")
        self.read.add(name)
        return self.sections[name].data(most)

    def array(self, name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """The read-only array of a section. Raises SnapshotIncompatible if the size differs."""
        size = np.dtype(dtype).itemsize * math.prod(shape)
        data = self.bytes(name, size)
        if len(data) != size:
            raise SnapshotIncompatible(f"{name}: expected {size} bytes, got {len(data)}")
        return np.frombuffer(data, dtype).reshape(shape)

    def check_all_read(self) -> None:
        """Raise SnapshotIncompatible if a section was not read."""
        for name in sorted(self.sections.keys() - self.read):
            raise SnapshotIncompatible(f"expected sections that are known, got {name!r}")


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """The JSON text of a section. Raises ConfigError for values that JSON cannot hold."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"snapshot: expected values that JSON can hold: {error}") from error
    if len(text) > MOST_HEADER:
        raise ConfigError(f"snapshot: expected at most {MOST_HEADER} bytes of JSON, got {len(text)}")
    return text


def array_bytes(values: np.ndarray) -> Buffer:
    """The bytes of an array's section."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


@contextmanager
def refusals() -> Iterator[None]:
    """Turn errors about values in a snapshot into SnapshotIncompatible."""
    try:
        yield
    except SnapshotIncompatible:
        raise
    except OxiLlamaError as error:
        raise SnapshotIncompatible(str(error)) from error


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a snapshot's file. Raises ModelFileError if it cannot be read."""
    with _readable(path) as file:
        return file.read()


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The facts in a snapshot file's header; reads only the header.

    Raises:
        ModelFileError: the file cannot be read.
        SnapshotIncompatible: the file is not a snapshot, or its header is damaged.
    """
    with _readable(path) as file:
        return _read_header(file)


@contextmanager
def _readable(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a snapshot's file. Raises ModelFileError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        if isinstance(error, SnapshotIncompatible):
            raise
        raise ModelFileError(f"path: expected no NUL and no lone surrogate, got {path!r}") from error


def _read_header(file: BinaryIO) -> dict[str, Any]:
    start = file.read(START.size)
    size, digest = _start(start, SPECULATIVE if start[: len(SPECULATIVE)] == SPECULATIVE else MAGIC)
    header = _header(file.read(min(size, MOST_HEADER + 1)), size, digest)
    expected = START.size + size + sum(stored for _, _, _, stored, _ in header["sections"])
    found = file.seek(0, os.SEEK_END)
    if found != expected:
        raise SnapshotIncompatible(f"expected {expected} bytes, got {found}")
    return header


def _start(start: Buffer, magic: bytes) -> tuple[int, bytes]:
    """The size and checksum of the header."""
    if bytes(start[:8]) != magic:
        raise SnapshotIncompatible(f"expected {magic.decode()} at the beginning, got {bytes(start[:8])!r}")
    if len(start) < START.size:
        raise SnapshotIncompatible(f"expected {START.size} bytes at least, got {len(start)}")
    _, version, size, digest = START.unpack(start)
    if version != VERSION:
        raise SnapshotIncompatible(f"expected version {VERSION}, got {version}")
    return size, digest


def _header(data: Buffer, size: int, digest: bytes) -> dict[str, Any]:
    if size > MOST_HEADER:
        raise SnapshotIncompatible(f"header: expected at most {MOST_HEADER} bytes, got {size}")
    if len(data) < size:
        raise SnapshotIncompatible("header: expected the whole of it, got its beginning")
    if blake3(data).digest() != digest:
        raise SnapshotIncompatible("header: expected its checksum, got another: it is damaged")
    header = json_object("header", data)
    listed = header.get("sections")
    if not isinstance(listed, list) or not all(map(_is_facts, listed)):
        raise SnapshotIncompatible("header: expected a list of sections, with known codecs and their sizes")
    if len({name for name, *_ in listed}) < len(listed):
        raise SnapshotIncompatible("header: expected sections of different names, got two of one name")
    return header


def _is_facts(value: Any) -> bool:
    """Whether a value has the form of `Section.facts`."""
    if not isinstance(value, list) or [type(part) for part in value] != [str, int, int, int, str]:
        return False
    _, codec, size, stored, _ = value
    most = stored if codec == AS_IT_IS else MOST_RATIO * stored
    return codec in (AS_IT_IS, ZLIB) and 0 <= size <= most and (codec == ZLIB or size == stored)


def json_object(name: str, data: Buffer) -> dict[str, Any]:
    """Parse the JSON object of a section or the header. Raises SnapshotIncompatible."""
    try:
        found = parse_json(bytes(data))
    except (ValueError, RecursionError) as error:
        raise SnapshotIncompatible(f"{name}: expected JSON: {error}") from error
    if not isinstance(found, dict):
        raise SnapshotIncompatible(f"{name}: expected a JSON object, got a {type(found).__name__}")
    return found

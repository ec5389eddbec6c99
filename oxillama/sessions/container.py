"""The container of snapshots: named sections, and a header that says what they are.

    8 bytes    "OXISNAP1", or "OXISPEC1" of two engines, one of which drafts
    u32        version, 2
    u64        bytes of the header
    32 bytes   BLAKE3 of the header
    header     a JSON object; its list ``sections`` has the facts of each section, in order
    sections   the stored bytes of each, one after another

Facts of a section are its name, codec (0 as it is, 1 zlib), bytes, stored bytes, and the BLAKE3 of the stored
bytes. Numbers are little-endian. Every byte is covered, and no section can be taken from another snapshot.
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

from oxillama.atomic_file import replaced_file
from oxillama.errors import ConfigError, ModelFileError, OxiLlamaError, SnapshotIncompatible
from oxillama.sessions.codec import parse_json

MAGIC, SPECULATIVE, VERSION = b"OXISNAP1", b"OXISPEC1", 2
START = struct.Struct("<8sIQ32s")
MOST_HEADER = 16 << 20
"""Bytes of a header."""
MOST_RATIO = 1040
"""Times that zlib makes data smaller at most (1032), and some more."""
THREADED_BYTES = 1 << 20
AS_IT_IS, ZLIB = 0, 1
LEVEL = 1
"""Of zlib: the numbers of a cache do not get smaller with more effort."""

Buffer = bytes | memoryview


@dataclass(frozen=True)
class Section:
    """A section as it is stored.

    Attributes
    ----------
    name, codec : what it is called, and how it is stored.
    size : bytes of it, before it is stored.
    stored : the stored bytes.
    """

    name: str
    codec: int
    size: int
    stored: Buffer

    @property
    def facts(self) -> list[Any]:
        """For the header."""
        threads = blake3.AUTO if len(self.stored) >= THREADED_BYTES else 1
        digest = blake3(self.stored, max_threads=threads).hexdigest()
        return [self.name, self.codec, self.size, len(self.stored), digest]

    def data(self, most: int) -> Buffer:
        """The bytes before they were stored. Raises SnapshotIncompatible if they are more than ``most``."""
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
    """The bytes of a snapshot, one after another.

    Parameters
    ----------
    header : facts, as what JSON can hold.
    contents : sections, in order.
    compress : store with zlib what gets smaller by it.
    magic : what it begins with.
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
    """Writes a snapshot's file, which others see whole or not at all. Raises ModelFileError."""
    with replaced_file(Path(path)) as file:
        for piece in pieces:
            file.write(piece)


@dataclass(frozen=True)
class Container:
    """A snapshot whose bytes are those that were written.

    Attributes
    ----------
    header : its facts.
    sections : all others, by name.
    read : names of those that were read.
    """

    header: dict[str, Any]
    sections: dict[str, Section]
    read: set[str] = field(default_factory=set)

    @classmethod
    def parse(cls, data: Buffer | bytearray, magic: bytes = MAGIC) -> Container:
        """Checks every byte. Raises SnapshotIncompatible; the message names the section at fault."""
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
        """A section that is a JSON object."""
        return json_object(name, self.bytes(name, MOST_HEADER))

    def bytes(self, name: str, most: int) -> Buffer:
        """The bytes of a section. Raises SnapshotIncompatible if it is missing, or has more than ``most``."""
        if name not in self.sections:
            raise SnapshotIncompatible(f"{name}: expected this section, got none")
        self.read.add(name)
        return self.sections[name].data(most)

    def array(self, name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """The array of a section, read-only. Raises SnapshotIncompatible if the section has not its size."""
        size = np.dtype(dtype).itemsize * math.prod(shape)
        data = self.bytes(name, size)
        if len(data) != size:
            raise SnapshotIncompatible(f"{name}: expected {size} bytes, got {len(data)}")
        return np.frombuffer(data, dtype).reshape(shape)

    def check_all_read(self) -> None:
        """Raises SnapshotIncompatible if there are sections that were not read."""
        for name in sorted(self.sections.keys() - self.read):
            raise SnapshotIncompatible(f"expected sections that are known, got {name!r}")


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """The JSON text of a section. Raises ConfigError for what JSON cannot hold."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"snapshot: expected values that JSON can hold: {error}") from error
    if len(text) > MOST_HEADER:
        raise ConfigError(f"snapshot: expected at most {MOST_HEADER} bytes of JSON, got {len(text)}")
    return text


def array_bytes(values: np.ndarray) -> Buffer:
    """The bytes of the section of an array."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


@contextmanager
def refusals() -> Iterator[None]:
    """Turns errors of the values in a snapshot into SnapshotIncompatible."""
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
    """The facts of a snapshot's file; nothing else of it is read.

    Raises
    ------
    ModelFileError : it cannot be read.
    SnapshotIncompatible : it is no snapshot, or its header is damaged.
    """
    with _readable(path) as file:
        return _read_header(file)


@contextmanager
def _readable(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file of a snapshot. Raises ModelFileError if it cannot be read."""
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
    """Size and checksum of the header."""
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
    """The JSON object of a section, or of the header. Raises SnapshotIncompatible."""
    try:
        found = parse_json(bytes(data))
    except (ValueError, RecursionError) as error:
        raise SnapshotIncompatible(f"{name}: expected JSON: {error}") from error
    if not isinstance(found, dict):
        raise SnapshotIncompatible(f"{name}: expected a JSON object, got a {type(found).__name__}")
    return found

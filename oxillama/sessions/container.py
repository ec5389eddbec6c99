"""The container of snapshots: named sections with checksums, the first of which says what is inside.

    8 bytes    "OXISNAP1", or "OXISPEC1" of two engines, one of which drafts
    u32        version, 2
    u32        sections that follow
    section    u8 length of the name, name (ASCII)
               u8 codec: 0 as it is, 1 zlib
               u64 stored bytes, u64 bytes
               32 bytes BLAKE3 of all of this section but these 32
               the stored bytes

Numbers are little-endian. The first section, ``header``, is JSON; its list ``sections`` has name, bytes,
stored bytes and checksum of all others in order. So every byte is covered, and no section can be taken from
another snapshot.
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
START = struct.Struct("<8sII")
SIZES = struct.Struct("<BQQ")
DIGEST = 32
HEADER = "header"
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
    def frame(self) -> bytes:
        """What stands before the checksum."""
        name = self.name.encode("ascii")
        return bytes([len(name)]) + name + SIZES.pack(self.codec, len(self.stored), self.size)

    @property
    def digest(self) -> bytes:
        """The checksum."""
        hashed = blake3(self.frame, max_threads=blake3.AUTO if len(self.stored) >= THREADED_BYTES else 1)
        hashed.update(self.stored)
        return hashed.digest()

    @property
    def facts(self) -> list[Any]:
        """For the header."""
        return [self.name, self.size, len(self.stored), self.digest.hex()]

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
    facts = {**header, "sections": [section.facts for section in sections]}
    text = json_bytes(facts)
    yield START.pack(magic, VERSION, 1 + len(sections))
    for section in (Section(HEADER, AS_IT_IS, len(text), text), *sections):
        yield section.frame + section.digest
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
        n_sections = _start(view[: START.size], magic)
        found: list[Section] = []
        at = START.size
        while len(found) < n_sections:
            section, at = _section(view, at, found)
            found.append(section)
        if at != len(view):
            raise SnapshotIncompatible(f"expected {at} bytes, got {len(view)}")
        header = _header(found[0])
        if header["sections"] != [section.facts for section in found[1:]]:
            raise SnapshotIncompatible("header: expected the sections that follow, got others")
        return cls(header, {section.name: section for section in found[1:]})

    def json(self, name: str) -> dict[str, Any]:
        """A section that is a JSON object."""
        return _object(name, self.bytes(name, MOST_HEADER))

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
    _start(start, SPECULATIVE if start[: len(SPECULATIVE)] == SPECULATIVE else MAGIC)
    head = file.read(1 + len(HEADER) + SIZES.size + DIGEST)
    size = min(MOST_HEADER, int.from_bytes(head[2 + len(HEADER) : 10 + len(HEADER)], "little"))
    section, _ = _section(memoryview(head + file.read(size)), 0, [])
    header = _header(section)
    expected = START.size + len(head) + size
    for name, _, stored, _ in header["sections"]:
        expected += 1 + len(name) + SIZES.size + DIGEST + stored
    found = file.seek(0, os.SEEK_END)
    if found != expected:
        raise SnapshotIncompatible(f"expected {expected} bytes, got {found}")
    return header


def _start(start: Buffer, magic: bytes) -> int:
    """How many sections there are."""
    if len(start) < START.size or bytes(start[:8]) != magic:
        raise SnapshotIncompatible(f"expected {magic.decode()} at the beginning, got {bytes(start[:8])!r}")
    _, version, n = START.unpack(start)
    if version != VERSION:
        raise SnapshotIncompatible(f"expected version {VERSION}, got {version}")
    if not n:
        raise SnapshotIncompatible("expected a header, got no sections")
    return int(n)


def _section(view: memoryview, at: int, before: list[Section]) -> tuple[Section, int]:
    """The section at a place, and where it ends."""
    place = f"after {before[-1].name}" if before else "the first"
    short = SnapshotIncompatible(f"section {place}: expected the whole of it, got its beginning")
    if at >= len(view):
        raise short
    start = at + 1 + view[at]
    if start + SIZES.size + DIGEST > len(view):
        raise short
    try:
        name = bytes(view[at + 1 : start]).decode("ascii")
    except UnicodeDecodeError:
        raise SnapshotIncompatible(f"section {place}: expected a name, got other bytes") from None
    codec, stored, size = SIZES.unpack(view[start : start + SIZES.size])
    data = start + SIZES.size + DIGEST
    if stored > len(view) - data:
        raise short
    section = Section(name, codec, size, view[data : data + stored])
    if section.digest != bytes(view[data - DIGEST : data]):
        raise SnapshotIncompatible(f"section {place}: expected its checksum, got another: it is damaged")
    if (name == HEADER) != (not before) or name in {other.name for other in before}:
        raise SnapshotIncompatible(f"section {place}: got {name!r} there")
    most = stored if codec == AS_IT_IS else MOST_RATIO * stored
    if codec not in (AS_IT_IS, ZLIB) or (codec == AS_IT_IS and size != stored) or size > most:
        raise SnapshotIncompatible(f"{name}: expected a known codec and sizes, got {codec, stored, size}")
    return section, data + stored


def _header(section: Section) -> dict[str, Any]:
    header = _object(HEADER, section.data(MOST_HEADER))
    listed = header.get("sections")
    if not isinstance(listed, list) or not all(map(_is_facts, listed)):
        raise SnapshotIncompatible("header: expected a list of sections, got none")
    return header


def _is_facts(value: Any) -> bool:
    """Whether a value describes a section."""
    if not isinstance(value, list) or [type(part) for part in value] != [str, int, int, str]:
        return False
    return min(value[1:3]) >= 0 and value[0].isascii() and 0 < len(value[0]) < 256


def _object(name: str, data: Buffer) -> dict[str, Any]:
    """The JSON object of a section."""
    try:
        found = parse_json(bytes(data))
    except (ValueError, RecursionError) as error:
        raise SnapshotIncompatible(f"{name}: expected JSON: {error}") from error
    if not isinstance(found, dict):
        raise SnapshotIncompatible(f"{name}: expected a JSON object, got a {type(found).__name__}")
    return found

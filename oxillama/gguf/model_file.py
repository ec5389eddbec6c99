"""Opens GGUF model files: metadata and tensor directory at once, tensor bytes on demand.

A file is mapped: opening one reads its header only (`oxillama.gguf.header`), and tensors are views of the
mapping. Split files follow llama.cpp's gguf-split, which names them
``NAME-00001-of-00003.gguf`` and numbers them in ``split.no`` (from 0), ``split.count`` and
``split.tensors.count``; all shards open as one.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np

from oxillama.errors import GGUFError, ModelFileError
from oxillama.gguf.header import Buffer, StringArray, TensorInfo, parse_header
from oxillama.gguf.metadata import REQUIRED, Metadata

__all__ = ["ModelFile", "StringArray", "TensorInfo"]

T = TypeVar("T")
D = TypeVar("D")

MAX_SHARDS = 65535  # split.count is a uint16
PER_SHARD_KEYS = ("split.no", "general.alignment")


class FileIdentity(NamedTuple):
    """What the system says of a file; a file whose identity is the same has not been changed."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class _Shard:
    """One file: its header, and its bytes while it is open. ``identity`` is None for bytes."""

    def __init__(self, buffer: Buffer, label: str, index: int, identity: FileIdentity | None = None) -> None:
        self.identity = identity
        self.header = parse_header(buffer, label, index)
        self.label = label
        self.size = len(buffer)
        self.mapping = buffer if isinstance(buffer, mmap.mmap) else None
        self.bytes: np.ndarray | None = np.frombuffer(buffer, np.uint8)

    def close(self) -> None:
        self.mapping = self.bytes = None  # the memory is unmapped with the last view of it


def _map(path: Path) -> tuple[Buffer, FileIdentity]:
    """Map a regular file for reading; never blocks on a pipe or a device."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode):
                raise ModelFileError(f"{path}: expected a file, got a directory")
            if not stat.S_ISREG(status.st_mode):
                raise ModelFileError(f"{path}: expected a regular file, got a pipe, socket or device")
            mapped = mmap.mmap(fd, 0, access=mmap.ACCESS_READ) if status.st_size else memoryview(b"")
            return mapped, FileIdentity.of(status)
        finally:
            os.close(fd)
    except ModelFileError:
        raise
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be opened: {error.strerror or error}") from error
    except ValueError as error:  # NUL or a lone surrogate in the path
        raise ModelFileError(f"path: expected no NUL and no lone surrogate, got {str(path)!r}") from error


def _open_shard(path: Path, index: int) -> _Shard:
    buffer, identity = _map(path)
    try:
        return _Shard(buffer, path.name, index, identity)
    except BaseException:
        if isinstance(buffer, mmap.mmap):
            buffer.close()  # or the traceback would keep the file mapped
        raise


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return type(a) is type(b) and bool(a == b)


class ModelFile:
    """An open GGUF file, or all shards of a split one. Made by `ModelFile.open`.

    The file must not be changed while it is open: it is mapped, and shortening a mapped file makes
    the operating system end the process that reads it.

    Attributes
    ----------
    metadata : values by key. Numbers are int, float or bool; strings are str; arrays of numbers are
        read-only ndarrays of their own type; arrays of strings are `StringArray`; arrays of arrays
        are nested lists. Strings that are not UTF-8 are decoded with ``surrogateescape``.
        Of a split file: those of the first shard, then any that only later ones have.
    tensors : directory by name, in file order.
    version, alignment : of the (first) file.
    paths : the files; empty when opened from bytes.
    file_size : bytes of all files together.
    """

    def __init__(self, first: _Shard, path: Path | None) -> None:
        self._shards = [first]
        self.paths: tuple[Path, ...] = (path,) if path else ()
        self.version = first.header.version
        self.alignment = first.header.alignment
        self.file_size = first.size
        self.metadata = first.header.metadata
        self._typed = Metadata(
            self.metadata, lambda key, message: GGUFError(f"{message}, in {first.label}", key=key)
        )
        self.tensors = first.header.tensors

    @classmethod
    def open(cls, source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> ModelFile:
        """Open a path (of the first shard, if split) or the bytes of one whole file, which are not copied.

        Raises
        ------
        ModelFileError : a file is missing, not a regular file, or may not be read.
        GGUFError : a file is malformed, or the shards of a split file do not belong together.
        """
        if isinstance(source, (bytes, bytearray, memoryview)):
            view = memoryview(source).toreadonly()
            model = cls(_Shard(view.cast("B") if view.nbytes else memoryview(b""), "<bytes>", 0), None)
        else:
            path = Path(os.fsdecode(source))
            model = cls(_open_shard(path, 0), path)
        try:
            model._join_shards()
        except BaseException:
            model.close()
            raise
        return model

    @property
    def path(self) -> Path | None:
        """The (first) file, or None when opened from bytes."""
        return self.paths[0] if self.paths else None

    @property
    def identity(self) -> tuple[FileIdentity, ...]:
        """The identity of each file when it was opened; () when opened from bytes."""
        return tuple(shard.identity for shard in self._shards if shard.identity is not None)

    def current_identity(self) -> tuple[FileIdentity, ...]:
        """The identity of each file that is found at `paths` now; () if one is missing."""
        try:
            return tuple(FileIdentity.of(os.stat(path)) for path in self.paths)
        except OSError:
            return ()

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: D) -> T | D: ...
    def get(self, key: str, kind: Any, default: Any = REQUIRED) -> Any:
        """The value of a metadata key, as `Metadata.get`.

        Raises
        ------
        GGUFError : the key is absent and has no default, or its value is of another kind.
        """
        return self._typed.get(key, kind, default)

    def data(self, name: str) -> np.ndarray:
        """The raw bytes of a tensor: (nbytes,) uint8, a read-only view of the file.

        Raises
        ------
        GGUFError : there is no such tensor.
        ModelFileError : the file is closed.
        """
        shard, info = self._locate(name)
        assert shard.bytes is not None
        return shard.bytes[info.offset : info.offset + info.nbytes]

    def release(self, name: str) -> None:
        """Tell the system that the pages of a tensor are not needed now; a later access reads them again.

        Does nothing to bytes, or where the system has no ``madvise``. Raises as `data` does.
        """
        shard, info = self._locate(name)
        if shard.mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            start = info.offset // mmap.PAGESIZE * mmap.PAGESIZE
            shard.mapping.madvise(mmap.MADV_DONTNEED, start, info.offset + info.nbytes - start)

    def raw_metadata(self) -> dict[str, np.ndarray]:
        """The encoded key, type and value of each key, by key: uint8, views of the file.

        Raises ModelFileError if the file is closed.
        """
        found: dict[str, np.ndarray] = {}
        for shard in self._shards:
            if shard.bytes is None:
                raise ModelFileError(f"metadata: expected an open file, got {shard.label} closed")
            for key, (start, end) in shard.header.spans.items():
                found.setdefault(key, shard.bytes[start:end])
        return found

    def close(self) -> None:
        """Close the files. Metadata stay; views of tensors stay valid and keep their file mapped."""
        for shard in self._shards:
            shard.close()

    def __enter__(self) -> ModelFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ModelFile {self._shards[0].label}: {len(self.tensors)} tensors, {self.file_size} bytes>"

    def _locate(self, name: str) -> tuple[_Shard, TensorInfo]:
        if name not in self.tensors:
            raise GGUFError(f"expected a tensor of {self._shards[0].label}, got no such name", key=name)
        info = self.tensors[name]
        shard = self._shards[info.shard]
        if shard.bytes is None:
            raise ModelFileError(f"{name}: expected an open file, got {shard.label} closed")
        return shard, info

    def _join_shards(self) -> None:
        """Open the other shards where this is the first of several."""
        label = self._shards[0].label
        number, count = self.get("split.no", int, 0), self.get("split.count", int, 0)
        if number != 0:
            raise GGUFError(
                f"expected the first shard, got shard {number + 1} of {count}, in {label}", key="split.no"
            )
        if count in (0, 1):  # gguf-split leaves 0 in a file it has merged
            return
        if not 0 <= count <= MAX_SHARDS:
            raise GGUFError(f"expected 0 to {MAX_SHARDS}, got {count}, in {label}", key="split.count")
        ending = f"-00001-of-{count:05d}.gguf"
        if self.path is None or not label.endswith(ending):
            raise GGUFError(f"expected a path that ends in {ending}, got {label}", key="split.count")
        for index in range(1, count):
            name = f"{label.removesuffix(ending)}-{index + 1:05d}-of-{count:05d}.gguf"
            self._add(self.path.with_name(name), index)
        total, found = self.get("split.tensors.count", int), len(self.tensors)
        if total != found:
            key = "split.tensors.count"
            raise GGUFError(f"expected {total} tensors in all shards, got {found}", key=key)

    def _add(self, path: Path, index: int) -> None:
        """Open one more shard and check that it belongs to the first."""
        shard = _open_shard(path, index)
        self._shards.append(shard)
        self.paths += (path,)
        self.file_size += shard.size
        metadata = shard.header.metadata
        number = metadata.get("split.no")
        if type(number) is not int or number != index:
            raise GGUFError(f"expected {index}, got {number!r:.40}, in {shard.label}", key="split.no")
        if "split.count" not in metadata:
            raise GGUFError(f"expected an integer, got no such key, in {shard.label}", key="split.count")
        for key, value in metadata.items():
            if key not in PER_SHARD_KEYS and not _equal(self.metadata.setdefault(key, value), value):
                raise GGUFError(f"expected the value of other shards, got another, in {shard.label}", key=key)
        for name, info in shard.header.tensors.items():
            if self.tensors.setdefault(name, info) is not info:
                raise GGUFError(f"expected the tensor in one shard, got it again, in {shard.label}", key=name)

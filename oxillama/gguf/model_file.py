"""Opens GGUF model files: metadata and tensor directory at once, tensor bytes on demand.

Opening a file reads its header only (`oxillama.gguf.header`); tensors are read on demand
(`oxillama.gguf.extent`). Split files follow llama.cpp's gguf-split, which names them
``NAME-00001-of-00003.gguf`` and numbers them in ``split.no`` (from 0), ``split.count`` and
``split.tensors.count``; all shards open as one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np

from oxillama.errors import GGUFError, ModelFileError
from oxillama.gguf.extent import Extent, FileIdentity, OpenFile
from oxillama.gguf.header import Header, StringArray, TensorInfo, parse_header
from oxillama.gguf.metadata import REQUIRED, Metadata

__all__ = ["ModelFile", "StringArray", "TensorInfo"]

T = TypeVar("T")
D = TypeVar("D")

MAX_SHARDS = 65535  # split.count is a uint16
PER_SHARD_KEYS = ("split.no", "general.alignment")


class _Shard:
    """A shard: its header, and its bytes while it is open: a file, or uint8 (n,)."""

    def __init__(self, holder: OpenFile | np.ndarray, label: str, index: int) -> None:
        self.size: int = holder.size
        self.header: Header = parse_header(Extent(holder, 0, self.size), label, index)
        self.label = label
        self.holder: OpenFile | np.ndarray | None = holder
        self.identity: FileIdentity | None = None if isinstance(holder, np.ndarray) else holder.identity

    def bytes(self, start: int, nbytes: int, name: str) -> Extent:
        """Some of the bytes, needed for ``name``. Raises ModelFileError if the shard is closed."""
        if self.holder is None:
            raise ModelFileError(f"{name}: expected an open file, got {self.label} closed")
        return Extent(self.holder, start, nbytes)

    def close(self) -> None:
        self.holder = None  # the file is closed with the last extent of it


def _open_shard(path: Path, index: int) -> _Shard:
    file = OpenFile(path)
    try:
        return _Shard(file, path.name, index)
    except BaseException:
        file.close()  # otherwise the traceback would keep the file open
        raise


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return type(a) is type(b) and bool(a == b)


class ModelFile:
    """An open GGUF file, or all shards of a split one. Made by `ModelFile.open`.

    A file that is changed while it is open can no longer be read: `data` raises ModelFileError. It may be
    deleted or renamed.

    Attributes:
        metadata: values by key. Numbers are int, float or bool; strings are str; arrays of numbers are
            read-only ndarrays of their own type; arrays of strings are `StringArray`; arrays of arrays are
            nested lists. Strings that are not UTF-8 are decoded with ``surrogateescape``. The metadata of a
            split file: the first shard's, then keys that only later shards have.
        tensors: directory by name, in file order.
        version, alignment: of the (first) file.
        paths: the files; empty when opened from bytes.
        file_size: bytes of all files together.
    """

    def __init__(self, first: _Shard, path: Path | None) -> None:
        self._shards = [first]
        self.paths: tuple[Path, ...] = (path,) if path else ()
        self.version: int = first.header.version
        self.alignment: int = first.header.alignment
        self.file_size: int = first.size
        self.metadata: dict[str, Any] = first.header.metadata
        self._typed = Metadata(
            self.metadata, lambda key, message: GGUFError(f"{message}, in {first.label}", key=key)
        )
        self.tensors: dict[str, TensorInfo] = first.header.tensors

    @classmethod
    def open(cls, source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> ModelFile:
        """Open a path (of the first shard, if split) or the bytes of one whole file, which are not copied.

        Raises:
            ModelFileError: a file is missing, not a regular file, or may not be read.
            GGUFError: a file is malformed, or the shards of a split file do not belong together.
        """
        if isinstance(source, (bytes, bytearray, memoryview)):
            view = memoryview(source).toreadonly()
            held = np.frombuffer(view.cast("B"), np.uint8) if view.nbytes else np.empty(0, np.uint8)
            model = cls(_Shard(held, "<bytes>", 0), None)
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

        Raises:
            GGUFError: the key is absent and has no default, or its value is of another kind.
        """
        return self._typed.get(key, kind, default)

    def data(self, name: str) -> np.ndarray:
        """The raw bytes of a tensor: uint8 (nbytes,), read-only; new memory, or a view of the opened bytes.

        Raises:
            GGUFError: there is no such tensor.
            ModelFileError: the file is closed, cannot be read, or has changed since it was opened.
        """
        found = self.extent(name).read()
        found.flags.writeable = False
        return found

    def extent(self, name: str) -> Extent:
        """Where the bytes of a tensor lie. It reads them even when this object is closed.

        Raises GGUFError if there is no such tensor, and ModelFileError if the file is closed.
        """
        if name not in self.tensors:
            raise GGUFError(f"expected a tensor of {self._shards[0].label}, got no such name", key=name)
        info = self.tensors[name]
        return self._shards[info.shard].bytes(info.offset, info.nbytes, name)

    def raw_metadata(self) -> dict[str, np.ndarray]:
        """The encoded key, type and value of each key, by key: uint8. Raises ModelFileError as `data`."""
        found: dict[str, np.ndarray] = {}
        for shard in self._shards:
            spans = shard.header.spans
            end = max((end for _, end in spans.values()), default=0)
            head = shard.bytes(0, end, "metadata").read()
            for key, (start, end) in spans.items():
                found.setdefault(key, head[start:end])
        return found

    def close(self) -> None:
        """Close the files. Metadata and arrays stay; an `Extent` keeps its file open."""
        for shard in self._shards:
            shard.close()

    def __enter__(self) -> ModelFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ModelFile {self._shards[0].label}: {len(self.tensors)} tensors, {self.file_size} bytes>"

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

"""Names of tensors, and random access to the bytes of a file.

A `LayerPager` does not need these classes: they are for programs that use the reference's names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol, runtime_checkable

from oxillama.base.config import checks
from oxillama.errors import ModelFileError
from oxillama.gguf.extent import Extent, OpenFile


class TensorId(str):
    """The name of a tensor in the model file, as `LayerPager.is_pinned` takes it."""

    __slots__ = ()


class OffloadEof(ModelFileError, EOFError):
    """A read beyond the end of a source.

    Attributes:
        offset, n_bytes: start and length of the read.
        total: size of the source in bytes.
    """

    def __init__(self, offset: int, n_bytes: int, total: int) -> None:
        self.offset: int = offset
        self.n_bytes: int = n_bytes
        self.total: int = total
        super().__init__(f"offset: expected {n_bytes} bytes at {offset}, got a file of {total}")


@runtime_checkable
class PagerSource(Protocol):
    """A source of bytes with random access, for any thread."""

    @property
    def total_size_bytes(self) -> int:
        """The size of the source in bytes."""
        ...

    def read_bytes_at(self, offset: int, n_bytes: int) -> bytes:
        """Read ``n_bytes`` bytes at ``offset``. Raises OffloadEof if there are fewer."""
        ...


class FilePagerSource:
    """A `PagerSource` that reads a file; the file stays open until `close`.

    Args:
        path: path of a regular file.

    Raises:
        ModelFileError: the file is missing, not a regular file, or may not be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = OpenFile(Path(path))

    @property
    def total_size_bytes(self) -> int:
        """The size of the file in bytes when it was opened."""
        return self._file.size

    def read_bytes_at(self, offset: int, n_bytes: int) -> bytes:
        """Read ``n_bytes`` bytes at ``offset``.

        Raises:
            ConfigError: ``offset`` or ``n_bytes`` is not a nonnegative integer.
            OffloadEof: the file is too short.
            ModelFileError: the file is closed, cannot be read, or has changed since it was opened.
        """
        offset = checks.integer("offset", offset, 0)
        n_bytes = checks.integer("n_bytes", n_bytes, 0)
        if offset + n_bytes > self.total_size_bytes:
            raise OffloadEof(offset, n_bytes, self.total_size_bytes)
        return Extent(self._file, offset, n_bytes).read().tobytes()

    def close(self) -> None:
        """Close the file. No other thread may be reading it."""
        self._file.close()

    def __enter__(self) -> FilePagerSource:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class MmapPagerSource(FilePagerSource):
    """A `FilePagerSource` under the reference's name for memory maps; it reads the file instead.

    Access to a mapped page that no longer exists would kill the process; a read raises ModelFileError.
    """

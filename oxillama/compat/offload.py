"""Tensors by name, and sources of the bytes of a file.

A `LayerPager` reads the model file by itself: these are for programs that read files by the same names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol, runtime_checkable

from oxillama.config import checks
from oxillama.errors import ModelFileError
from oxillama.gguf.extent import Extent, OpenFile


class TensorId(str):
    """The name of a tensor in the model file, as `LayerPager.is_pinned` takes it."""

    __slots__ = ()


class OffloadEof(ModelFileError, EOFError):
    """Bytes behind the end of a source were asked for.

    Attributes
    ----------
    offset, n_bytes : where they were to begin, and how many.
    total : bytes of the source.
    """

    def __init__(self, offset: int, n_bytes: int, total: int) -> None:
        self.offset: int = offset
        self.n_bytes: int = n_bytes
        self.total: int = total
        super().__init__(f"offset: expected {n_bytes} bytes at {offset}, got a file of {total}")


@runtime_checkable
class PagerSource(Protocol):
    """Bytes that can be read from any place, by any thread."""

    @property
    def total_size_bytes(self) -> int:
        """Bytes of the source."""
        ...

    def read_bytes_at(self, offset: int, n_bytes: int) -> bytes:
        """``n_bytes`` bytes from ``offset`` on. Raises OffloadEof if there are fewer."""
        ...


class FilePagerSource:
    """A `PagerSource` of a file, which is open until `close`.

    Parameters
    ----------
    path : of a regular file.

    Raises
    ------
    ModelFileError : the file is missing, not a regular file, or may not be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = OpenFile(Path(path))

    @property
    def total_size_bytes(self) -> int:
        """Bytes of the file when it was opened."""
        return self._file.size

    def read_bytes_at(self, offset: int, n_bytes: int) -> bytes:
        """``n_bytes`` bytes from ``offset`` on.

        Raises
        ------
        ConfigError : ``offset`` or ``n_bytes`` is no integer of 0 or more.
        OffloadEof : the file ends before.
        ModelFileError : the file is closed, cannot be read, or has changed since it was opened.
        """
        offset = checks.integer("offset", offset, 0)
        n_bytes = checks.integer("n_bytes", n_bytes, 0)
        if offset + n_bytes > self.total_size_bytes:
            raise OffloadEof(offset, n_bytes, self.total_size_bytes)
        return Extent(self._file, offset, n_bytes).read().tobytes()

    def close(self) -> None:
        """Closes the file. No other thread may be reading it."""
        self._file.close()

    def __enter__(self) -> FilePagerSource:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class MmapPagerSource(FilePagerSource):
    """A `FilePagerSource` by another name: it reads, too.

    An access to a mapped page that no longer exists would end the process. A read raises ModelFileError.
    """

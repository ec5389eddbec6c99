"""Reads the rows of a file: lines of JSONL, or rows of Parquet as such lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from blake3 import blake3

from oxillama.base.distribution import install
from oxillama.errors import ConfigError

PARQUET = ".parquet"
PIECE_BYTES = 8 << 20
ROWS_AT_A_TIME = 1024


def is_parquet(path: Path) -> bool:
    return path.suffix.lower() == PARQUET


@dataclass(frozen=True)
class Source:
    """A file of rows.

    Attributes:
        n_rows: number of lines, including blank ones and an unterminated last one.
        digest: BLAKE3 of the file in hexadecimal.
    """

    path: Path
    n_rows: int
    digest: str

    @classmethod
    def of(cls, path: Path) -> Source:
        """Read a file once. Raises ConfigError if it cannot be read."""
        with reading(path):
            if path.exists() and not path.is_file():
                raise ConfigError(f"input: expected a file, which can be read twice, got {path}")
            n_lines, digest = counted(path)
        if not is_parquet(path):
            return cls(path, n_lines, digest)
        with parquet_file(path) as file:
            return cls(path, file.metadata.num_rows, digest)

    def lines(self, first: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield (number, JSON line) of each row from ``first`` on. Raises ConfigError on a read error."""
        if not is_parquet(self.path):
            with reading(self.path), self.path.open("rb") as file:
                yield from islice(enumerate(file), first, None)
            return
        with reading(self.path), parquet_file(self.path) as file:
            batches = file.iter_batches(batch_size=ROWS_AT_A_TIME)
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in islice(enumerate(rows), first, None):
                yield number, json_of(row)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn file errors inside the block into ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"input: {path} cannot be read: {error.strerror or error}") from error


def counted(path: Path) -> tuple[int, str]:
    """The number of lines of a file, and BLAKE3 of its bytes."""
    hashed, n_lines, last = blake3(), 0, b"\n"
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            hashed.update(piece)
            n_lines += piece.count(b"\n")
            last = piece[-1:]
    return n_lines + (last != b"\n"), hashed.hexdigest()


def json_of(row: dict[str, Any]) -> bytes:
    """A row of a table as a JSON line, without null fields. A value that JSON cannot hold becomes invalid
    JSON, so that reading the line reports an error."""
    said = {name: without_nulls(value) for name, value in row.items() if value is not None}
    try:
        return json.dumps(said).encode()
    except TypeError as error:
        return f"a table with {error}".encode()


def without_nulls(value: Any) -> Any:
    """Remove null fields: a table gives all objects of a column the same fields, null where absent."""
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


@contextmanager
def parquet_file(path: Path) -> Iterator[Any]:
    """Open a Parquet file. Raises ConfigError if it is not Parquet, or pyarrow is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        wanted = f"pyarrow for Parquet ({install('parquet')})"
        raise ConfigError(f"input: expected {wanted}, got none of {error.name}") from error
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"input: expected a Parquet file, got {path}: {error}"[:300]) from error
    with file:
        yield file

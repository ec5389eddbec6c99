"""A record: what a client asked of a server and what it got, as a file of two lines of JSON.

The first line is the head, which a list of records shows; the second one has the texts, with the receipts
from which they are generated again. Files are named by time and id.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from oxillama.errors import ConfigError, ReceiptError
from oxillama.sessions.codec import ANY_TEXT, decode, encode, parse_json
from oxillama.sessions.receipt import MOST_BYTES, Receipt

FORMAT = "oxillama record"
VERSION = 1
TEXTS = ("all", "hashes")
"""What is kept of prompts and texts."""

END = ".record.json"
SNAPSHOT_END = ".oxisnap"
STAMP = "%Y%m%dT%H%M%S.%fZ"
NAME = re.compile(r"(\d{8}T\d{6}\.\d{6}Z)-(.+?)(\.record\.json|\.\d+\.oxisnap)", re.ASCII)
"""Names of a record's files: the time at which it was kept, the id of the request, the kind of file."""
MOST_HEAD = 1 << 16
"""Bytes of the first line."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text that a request got.

    Attributes
    ----------
    finish_reason : why it ended; "cancelled" for one that its client left.
    n_tokens : that the client got.
    n_bytes, hash : of the text as the model wrote it, reasoning and calls included, in UTF-8; the hash is
        BLAKE3, 64 hexadecimal digits.
    receipt : as JSON; None where texts are kept as hashes, or where there is none.
    receipt_hash : of that JSON, 64 hexadecimal digits; None where there is none.
    without : why there is no receipt; "" where there is one.
    """

    finish_reason: str
    n_tokens: Annotated[int, (0, 2**31)]
    n_bytes: Annotated[int, (0, 2**63)]
    hash: Annotated[str, 64]
    receipt: Annotated[str, ANY_TEXT] | None = None
    receipt_hash: Annotated[str, 64] | None = None
    without: Annotated[str, ANY_TEXT] = ""


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a list of records shows.

    Attributes
    ----------
    id : of the request.
    time : seconds since 1970 at which it came.
    path, status, seconds : of the request and its answer.
    model, model_path : name and file of the model.
    key : name of the key that asked; "" for none.
    library, contract : versions of the library and of the specification.
    kept : one of `TEXTS`.
    n_texts, n_tokens : of the answer.
    finish_reasons : of each text.
    """

    id: str
    time: float
    path: Annotated[str, ANY_TEXT]
    status: Annotated[int, (0, 999)]
    seconds: float
    model: Annotated[str, ANY_TEXT]
    model_path: Annotated[str, ANY_TEXT]
    key: Annotated[str, ANY_TEXT]
    library: str
    contract: Annotated[int, (1, 2**31)]
    kept: Annotated[str, TEXTS]
    n_texts: Annotated[int, (0, 2**31)] = 0
    n_tokens: Annotated[int, (0, 2**63)] = 0
    finish_reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Record:
    """A request, its answer, and what both follow from.

    Attributes
    ----------
    request : the value of its body; None where texts are kept as hashes.
    request_hash, request_bytes : of the body as it came.
    removed : places of the body from which credentials were removed.
    answer : the body of the answer as it was sent; None where texts are kept as hashes.
    answer_hash, answer_bytes : of the same.
    texts : in the order in which they were begun.
    snapshots : names of files beside the record, from which texts that the server's end cut go on.
    """

    head: Head
    request: Any = None
    request_hash: Annotated[str, 64]
    request_bytes: Annotated[int, (0, 2**63)]
    removed: list[Annotated[str, ANY_TEXT]] = field(default_factory=list)
    answer: Annotated[str, ANY_TEXT] | None = None
    answer_hash: Annotated[str, 64]
    answer_bytes: Annotated[int, (0, 2**63)]
    texts: tuple[Text, ...] = ()
    snapshots: list[str] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """The two lines of its file."""
        body = encode(Record, self)
        head = {"format": FORMAT, "version": VERSION, **body.pop("head")}
        return b"".join(json.dumps(line).encode() + b"\n" for line in (head, body))


def _value(line: bytes, where: str) -> dict[str, Any]:
    try:
        found = parse_json(line)
    except (ValueError, RecursionError) as error:
        raise ReceiptError(f"{where}: expected a record, got other text: {error}") from None
    if not isinstance(found, dict):
        raise ReceiptError(f"{where}: expected a record, got another value")
    return found


def _head(line: bytes, where: str) -> dict[str, Any]:
    found = _value(line, where)
    version = found.pop("version", None)
    if found.pop("format", None) != FORMAT or version != VERSION or isinstance(version, bool):
        raise ReceiptError(f"{where}: expected a record of version {VERSION}, got another file")
    return found


def read_head(path: Path) -> Head:
    """The head of a record. Raises ReceiptError if it is none, or cannot be read."""
    try:
        with open(path, "rb") as file:
            line = file.readline(MOST_HEAD)
        return decode(Head, _head(line, str(path)), name="record")
    except (OSError, ConfigError) as error:
        raise unreadable(path, error) from error


def read_record(path: Path) -> Record:
    """A record. Raises ReceiptError if it is none, or cannot be read."""
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        found = {"head": _head(head, str(path)), **_value(body, str(path))}
        return decode(Record, found, name="record")
    except (OSError, ConfigError) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> ReceiptError:
    """The error for a record or a folder that cannot be read."""
    if isinstance(error, ReceiptError):
        return error
    reason = getattr(error, "strerror", None) or error
    return ReceiptError(f"{path}: cannot be read: {reason}")


def names_in(folder: str | os.PathLike[str]) -> Iterator[tuple[str, re.Match[str]]]:
    """The names of all records' files, the oldest first. Raises ReceiptError if the folder is unreadable."""
    try:
        names = sorted(os.listdir(folder))
    except (OSError, ValueError) as error:
        raise unreadable(Path(os.fspath(folder)), error) from error
    for name in names:
        found = NAME.fullmatch(name)
        if found:
            yield name, found


def records_in(folder: str | os.PathLike[str]) -> list[Path]:
    """The files of the records of a folder, the oldest first. Raises ReceiptError as `names_in`."""
    return [Path(folder, name) for name, found in names_in(folder) if found[3] == END]


def find(folder: str | os.PathLike[str], id: str) -> Path:
    """The record of a request, by its id or by the name of its file.

    Raises ReceiptError if there is none, or several: clients may use an id again.
    """
    paths = [p for p in records_in(folder) if id in (p.name, NAME.fullmatch(p.name)[2])]  # type: ignore[index]
    if len(paths) != 1:
        others = f"{len(paths)}: {', '.join(path.name for path in paths[:8])}" if paths else "none"
        raise ReceiptError(f"{os.fspath(folder)}: expected one record of {id[:200]}, got {others}")
    return paths[0]


def stamp(time: float) -> str:
    """The beginning of the names of a record's files."""
    return datetime.fromtimestamp(time, UTC).strftime(STAMP)


def time_of(name: str) -> float:
    """The time in the name of a record's file, seconds since 1970."""
    return datetime.strptime(name.partition("-")[0], STAMP).replace(tzinfo=UTC).timestamp()


def receipt_from(text: Text, given: bytes | None = None) -> Receipt:
    """The receipt of a text: the recorded one, or one that is given, if its hash is the recorded one.

    Raises ReceiptError if there is none, or another one is given.
    """
    from oxillama.records.redaction import digest

    if text.receipt_hash is None:
        raise ReceiptError(f"receipt: expected one, got none: {text.without}")
    data = given if given is not None else text.receipt
    if data is None:
        raise ReceiptError("receipt: expected one with --receipt, as the record has its hash alone")
    if len(data) > MOST_BYTES or digest(data) != text.receipt_hash:
        raise ReceiptError("receipt: expected the one that was recorded, got another one")
    return Receipt.from_json(data)

"""A record: a client's request and the server's answer, as a file of two lines of JSON.

The first line is the head, which is enough to list records. The second line has the texts, with the receipts
needed to generate them again. Files are named by time and id.
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
"""How prompts and texts are kept."""

END = ".record.json"
SNAPSHOT_END = ".oxisnap"
STAMP = "%Y%m%dT%H%M%S.%fZ"
NAME = re.compile(r"(\d{8}T\d{6}\.\d{6}Z)-(.+?)(\.record\.json|\.\d+\.oxisnap)", re.ASCII)
"""Names of a record's files: time of recording, id of the request, kind of file."""
MOST_HEAD = 1 << 16
"""The maximum size of the first line in bytes."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text that was generated for a request.

    Attributes:
        finish_reason: why the text ended; "cancelled" if the client disconnected.
        n_tokens: number of tokens that the client received.
        n_bytes, hash: size and hash of the model's output in UTF-8, reasoning and tool calls included; the
            hash is BLAKE3, 64 hexadecimal digits.
        receipt: the receipt as JSON; None if texts are kept as hashes, or without a receipt.
        receipt_hash: hash of the receipt's JSON, 64 hexadecimal digits; None without a receipt.
        without: why there is no receipt, or "".
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
    """The facts of a record that a list shows.

    Attributes:
        id: id of the request.
        time: when the request arrived, in seconds since 1970.
        path, status, seconds: path of the request, status and duration of the answer.
        model, model_path: name and file of the model.
        key: name of the API key; "" without one.
        library, contract: versions of the library and of the specification.
        kept: one of `TEXTS`.
        n_texts, n_tokens: counts of the answer.
        finish_reasons: of each text.
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
    """A request, its answer, and everything needed to generate the answer again.

    Attributes:
        request: the parsed body; None if texts are kept as hashes.
        request_hash, request_bytes: hash and size of the body as received.
        removed: paths in the body from which credentials were removed.
        answer: the body of the answer as sent; None if texts are kept as hashes.
        answer_hash, answer_bytes: hash and size of the answer's body.
        texts: in the order in which they were begun.
        snapshots: names of snapshot files in the same folder, of texts that a server shutdown interrupted.
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
        """The two lines of the record's file."""
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
    """The head of a record. Raises ReceiptError if the file is not a record, or cannot be read."""
    try:
        with open(path, "rb") as file:
            line = file.readline(MOST_HEAD)
        return decode(Head, _head(line, str(path)), name="record")
    except (OSError, ConfigError) as error:
        raise unreadable(path, error) from error


def read_record(path: Path) -> Record:
    """A record. Raises ReceiptError if the file is not a record, or cannot be read."""
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
    """The names of all records' files, oldest first. Raises ReceiptError if the folder is unreadable."""
    try:
        names = sorted(os.listdir(folder))
    except (OSError, ValueError) as error:
        raise unreadable(Path(os.fspath(folder)), error) from error
    for name in names:
        found = NAME.fullmatch(name)
        if found:
            yield name, found


def records_in(folder: str | os.PathLike[str]) -> list[Path]:
    """The files of a folder's records, oldest first. Raises ReceiptError as `names_in` does."""
    return [Path(folder, name) for name, found in names_in(folder) if found[3] == END]


def find(folder: str | os.PathLike[str], id: str) -> Path:
    """The record of a request, by its id or by its file name.

    Raises ReceiptError unless there is exactly one: clients may reuse an id.
    """
    paths = [p for p in records_in(folder) if id in (p.name, NAME.fullmatch(p.name)[2])]  # type: ignore[index]
    if len(paths) != 1:
        others = f"{len(paths)}: {', '.join(path.name for path in paths[:8])}" if paths else "none"
        raise ReceiptError(f"{os.fspath(folder)}: expected one record of {id[:200]}, got {others}")
    return paths[0]


def stamp(time: float) -> str:
    """The time stamp that begins the names of a record's files."""
    return datetime.fromtimestamp(time, UTC).strftime(STAMP)


def time_of(name: str) -> float:
    """The time in a file name of a record, in seconds since 1970."""
    return datetime.strptime(name.partition("-")[0], STAMP).replace(tzinfo=UTC).timestamp()


def receipt_from(text: Text, given: bytes | None = None) -> Receipt:
    """The receipt of a text: the recorded one, or a given one whose hash equals the recorded hash.

    Raises ReceiptError without a receipt, or if the hashes differ.
    """
    from oxillama.sessions.records.redaction import digest

    if text.receipt_hash is None:
        raise ReceiptError(f"receipt: expected one, got none: {text.without}")
    data = given if given is not None else text.receipt
    if data is None:
        raise ReceiptError("receipt: expected one with --receipt, as the record has its hash alone")
    if len(data) > MOST_BYTES or digest(data) != text.receipt_hash:
        raise ReceiptError("receipt: expected the one that was recorded, got another one")
    return Receipt.from_json(data)

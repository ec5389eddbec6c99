"""Bodies before their fields are read: compressed ones, and texts that UTF-8 cannot express."""

from __future__ import annotations

import gzip
import io
import re
import sys
import zlib
from collections.abc import Callable
from email.message import Message
from email.parser import Parser
from importlib import import_module
from typing import Any

from oxillama.apps.server.errors import ApiError, body_too_large, invalid

HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""The escape of half a surrogate pair. Other bytes of UTF-8 cannot spell one."""


def gunzip(data: bytes, most: int) -> bytes:
    """The first ``most`` bytes of a gzip file. Raises OSError, EOFError, zlib.error."""
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        return file.read(most)


def inflate(data: bytes, most: int) -> bytes:
    """The first ``most`` bytes of a zlib stream, or of a bare deflate stream, which some clients send.

    Raises EOFError, zlib.error.
    """
    is_zlib = len(data) > 1 and data[0] & 15 == 8 and int.from_bytes(data[:2], "big") % 31 == 0
    stream = zlib.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)
    found = stream.decompress(data, most)
    if len(found) < most and not stream.eof:
        raise EOFError("the stream has no end")
    return found


CODINGS: dict[str, Callable[[bytes, int], bytes]] = {"gzip": gunzip, "x-gzip": gunzip, "deflate": inflate}
"""The values of ``Content-Encoding`` that are understood (RFC 9110, 8.4.1)."""

try:
    zstd: Any = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
except ImportError:  # an older Python without the package
    pass
else:

    def unzstd(data: bytes, most: int) -> bytes:
        """The first ``most`` bytes of a Zstandard file (RFC 8878). Raises EOFError, ZstdError."""
        with zstd.ZstdFile(io.BytesIO(data)) as file:
            found: bytes = file.read(most)
        return found

    CODINGS["zstd"] = unzstd


def decompressed(data: bytes, coding: str, most: int) -> bytes:
    """The bytes of a body that has the header ``Content-Encoding``.

    Args:
        coding: the header's value, in lower case.
        most: bytes that the decompressed body may have.

    Raises ApiError.
    """
    if coding not in CODINGS:
        known = ", ".join(CODINGS)
        message = f"content-encoding: expected one of {known}, got {coding[:100]}"
        raise ApiError(415, message, code="content_encoding")
    try:
        found = CODINGS[coding](data, most + 1)
    except Exception as error:  # the error of each coding is of its own class
        raise ApiError(400, f"body: expected {coding}, got {error}"[:300], code="invalid_body") from error
    if len(found) > most:
        raise body_too_large(len(found), most)
    return found


MOST_FORM_PARTS = 256


def form_parts(data: bytes, kind: str) -> dict[str, bytes]:
    """The parts of a form (RFC 7578), by their names. Raises ApiError.

    Args:
        kind: the header ``Content-Type`` of the body.
    """
    boundary = header("content-type", kind).get_boundary("")
    pieces = (b"\r\n" + data).split(b"\r\n--" + boundary.encode(errors="replace"), MOST_FORM_PARTS + 2)
    found: dict[str, bytes] = {}
    ends = [i for i, piece in enumerate(pieces) if piece.startswith(b"--")]
    if not boundary or not ends or len(pieces) > MOST_FORM_PARTS + 2:
        raise invalid(
            "body", f"a form of at most {MOST_FORM_PARTS} parts, with its boundary and an end", kind
        )
    for piece in pieces[1 : ends[0]]:
        head, is_there, content = piece.partition(b"\r\n\r\n")
        fields = Parser().parsestr(head.decode("utf-8", "replace").lstrip(), headersonly=True)
        name = fields.get_param("name", header="content-disposition")
        if not is_there or not isinstance(name, str) or name in found:
            raise invalid("body", "parts of a form with names that are different", name)
        if fields.get("content-transfer-encoding", "binary").lower() not in ("binary", "8bit", "7bit"):
            raise invalid(name[:100], "bytes as they are", fields["content-transfer-encoding"])
        found[name] = content
    return found


def header(name: str, value: str) -> Message:
    """A header, whose parameters can be read."""
    found = Message()
    found[name] = value
    return found


def check_texts(value: Any) -> None:
    """Raises ApiError, which names the field, for a text of a body that UTF-8 cannot express."""
    waiting = [("", value)]
    while waiting:
        where, item = waiting.pop()
        if isinstance(item, str):
            check_encodable(where, item)
        elif isinstance(item, list):
            waiting += [(f"{where}[{i}]", part) for i, part in enumerate(item)]
        elif isinstance(item, dict):
            for name in item:
                check_encodable(where, name)
            waiting += [(f"{where}.{name}" if where else name, part) for name, part in item.items()]


def check_encodable(where: str, text: str) -> None:
    """Raises ApiError for a text with half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise invalid(where or "body", "text that UTF-8 can express", text) from error

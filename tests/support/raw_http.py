"""Plain sockets of clients that send what no library of clients would, and a certificate for HTTPS."""

from __future__ import annotations

import shutil
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs openssl to make a certificate"
)


def sent(port: int, *parts: bytes) -> socket.socket:
    """A connection on which something was sent."""
    found = socket.create_connection(("127.0.0.1", port), timeout=60)
    for part in parts:
        found.sendall(part)
    return found


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    parts = []
    with connection, suppress(OSError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def statuses(found: bytes) -> list[int]:
    """The statuses of the answers that have come."""
    return [int(part[:3]) for part in found.split(b"HTTP/1.1 ")[1:]]


def certificate(folder: Path) -> tuple[Path, Path]:
    """The files of a certificate for localhost, and of its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key

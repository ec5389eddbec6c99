"""Whatever call about a client's socket fails, the server goes on, and keeps nothing of the client."""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oxillama import demo
from tests.support.raw_http import certificate
from tests.support.server import Client, serving
from tests.support.socket_faults import FAULTS, SocketCalls, failing_sockets
from tests.support.spread import few, slow
from tests.support.waiting import until

Connect = Callable[[], socket.socket]

ROOMS = ("http", "unix", "https")
MOST = 60
"""Calls of one operation that are tried."""


def request(path: str, body: object = None, *, last: bool = False) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: localhost\r\n"
    head += "Content-Type: application/json\r\n" + "Connection: close\r\n" * last
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


COMPLETION = {"prompt": "Once upon a time", "max_tokens": 3, "temperature": 0}
REQUESTS = (
    request("/v1/completions", COMPLETION),
    request("/v1/completions", {**COMPLETION, "stream": True}),
    request("/detokenize", {"tokens": [5] * 30_000}),
    request("/health", last=True),
)


@pytest.fixture(scope="module", params=few(ROOMS, ("http",)))
def room(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Client, Connect]]:
    """A server, and what makes a connection to it."""
    folder = tmp_path_factory.mktemp("room")
    options: dict[str, object] = {"head_seconds": 0.5, "body_seconds": 5}
    if request.param == "unix":
        if not hasattr(socket, "AF_UNIX"):
            pytest.skip("needs Unix sockets")
        options["unix_socket"] = str(folder / "socket")
    if request.param == "https":
        if shutil.which("openssl") is None:
            pytest.skip("needs openssl to make a certificate")
        options["ssl_certfile"], options["ssl_keyfile"] = certificate(folder)
        context = ssl.create_default_context(cafile=str(folder / "cert.pem"))

    def connect() -> socket.socket:
        if request.param == "unix":
            found = socket.socket(socket.AF_UNIX)
            found.settimeout(20)
            found.connect(str(folder / "socket"))
            return found
        found = socket.create_connection(("127.0.0.1", client.port), timeout=20)
        if request.param == "http":
            return found
        try:
            return context.wrap_socket(found, server_hostname="localhost")
        except BaseException:
            found.close()
            raise

    with serving(demo.DRAFT, **options) as client:
        yield client, connect


def used(connect: Connect) -> bytes:
    """What a client is answered that sends requests one after the other, until the server closes."""
    found = b""
    try:
        with connect() as connection:
            for each in REQUESTS:
                connection.sendall(each)
                n = found.count(b"HTTP/1.1 ")
                while found.count(b"HTTP/1.1 ") == n or not is_whole(found):
                    if not (part := connection.recv(1 << 20)):
                        return found
                    found += part
    except OSError:
        pass
    return found


def is_whole(found: bytes) -> bool:
    """Whether the last answer has ended."""
    head, _, body = found[found.rindex(b"HTTP/1.1 ") :].partition(b"\r\n\r\n")
    for line in head.lower().splitlines():
        if line.startswith(b"content-length:"):
            return len(body) == int(line.partition(b":")[2])
    return body.endswith(b"0\r\n\r\n")


def texts(found: bytes) -> list[bytes]:
    """Status lines and texts of answers, without what differs from one time to the next."""
    kept = []
    for answer in found.split(b"HTTP/1.1 ")[1:]:
        status, _, body = answer[:3], *answer.partition(b"\r\n\r\n")[1:]
        parts = [part.removeprefix(b"data: ") for part in body.splitlines()]
        values = [json.loads(part) for part in parts if part.startswith(b"{")]
        text = "".join(v["choices"][0]["text"] if "choices" in v else json.dumps(v) for v in values)
        kept.append(status + b" " + text.encode())
    return kept


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors")
@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")  # its socket is closed
@pytest.mark.parametrize("n_codes", [1, slow(99)])
@pytest.mark.parametrize("operation", FAULTS)
def test_a_fault_of_a_socket_is_the_end_of_one_client_at_most(
    room: tuple[Client, Connect],
    operation: str,
    n_codes: int,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    client, connect = room
    server, engine = client.server, client.hosted.ready()
    assert server._sockets
    expected = texts(used(connect))
    assert [text[:3] for text in expected] == [b"200"] * len(REQUESTS)

    def is_at_rest() -> bool:
        connections, now = server._connections, engine.metrics.snapshot()
        return not (
            connections._open
            or connections._idle
            or connections._coming
            or server._server.server_state.tasks
            or server._server.server_state.connections
            or len(server._app.state.in_flight)
            or now.running + now.waiting
            or connections._spare in (None, -1)
        )

    until(is_at_rest)
    gc.collect()
    n_open, n_tried, n_whole = descriptors(), 0, 0
    most = n_codes if request.node.callspec.params["room"] == "http" else 2  # a code is a code in each room
    for code in FAULTS[operation][: min(n_codes, most)]:
        for n in range(1, MOST):
            where = f"{operation} {n} failed with {errno.errorcode[code]}"
            calls = SocketCalls(server._sockets[0], "serve", operation, n, code)
            caplog.clear()
            with failing_sockets(calls):
                found = used(connect)
                other = used(connect)
                until(is_at_rest)
            if not calls.has_failed:
                break
            n_tried += 1
            gc.collect()
            until(lambda: descriptors() <= n_open)
            whole = [expected in (texts(found), texts(other))]
            if operation == "accept" and not any(whole):  # whoever waited in that moment was refused
                whole.append(texts(used(connect)) == expected)
                until(is_at_rest)
            assert any(whole), where
            for each in (found, other):
                ended = texts(each) if is_or_was_whole(each) else texts(each)[:-1]
                refused = bool(ended) and ended[-1][:3] in (b"408", b"503")
                assert (ended[:-1] if refused else ended) == expected[: len(ended) - refused], where
            n_whole += texts(found) == expected
            faults = [r for r in caplog.records if r.exc_info or "Traceback" in r.getMessage()]
            assert not faults, f"{where}: {faults[0].getMessage()}"
            lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
            assert len(lines) <= 1, f"{where}: {lines}"
        print(f"| server {request.node.callspec.id} | {errno.errorcode[code]} | {n - 1} | {n_whole} whole |")
    assert n_tried or operation == "setsockopt"  # Unix sockets need no setsockopt


def is_or_was_whole(found: bytes) -> bool:
    return b"HTTP/1.1 " in found and is_whole(found)

"""Clients that send halves, nothing, or nonsense take nothing from others."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import ssl
import struct
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from oxillama import ConfigError, InferenceEngine, demo
from oxillama.apps.server.listening import Listening
from oxillama.apps.server.models import Hosted, Models
from oxillama.base.config.server import ServerConfig
from tests.support.command_line import ENVIRONMENT, started
from tests.support.raw_http import certificate, needs_openssl, received, sent, statuses
from tests.support.server import Client, serving
from tests.support.spread import pairs, slow
from tests.support.waiting import until

MODEL = demo.DRAFT
HALF = b"POST /v1/completions HTTP/1.1\r\nHost: loc"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


def test_small_answers_are_sent_at_once(engine: InferenceEngine) -> None:
    """Without TCP_NODELAY the second part of an answer waits for the client's acknowledgement, 40 ms."""
    with serving(engine) as client, sent(client.port, GET):
        found = client.server._connections._open
        until(lambda: len(found) == 1)
        (connection,) = found
        raw = connection.transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@needs_openssl
def test_https(engine: InferenceEngine, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with serving(engine, ssl_certfile=cert, ssl_keyfile=key) as client:
        assert client.server.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(cert))
        with sent(client.port) as raw, context.wrap_socket(raw, server_hostname="localhost") as secure:
            secure.sendall(closed())
            assert statuses(received(secure)) == [200]
        assert b"200" not in received(sent(client.port, GET + b"\r\n"))
        connections = client.server._connections
        until(lambda: not connections._open and not connections._idle)
        tracemalloc.start()
        with ExitStack() as stack:
            for _ in range(20):
                stack.enter_context(sent(client.port))
            until(lambda: len(connections._idle) == 20)
            n_bytes, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert n_bytes < 20 * 150_000


def test_half_a_head_is_given_up(engine: InferenceEngine) -> None:
    with serving(engine, head_seconds=0.5) as client:
        began = time.monotonic()
        found = [sent(client.port), sent(client.port, HALF), sent(client.port, GET + b"\r\n", HALF)]
        assert [statuses(received(each)) for each in found] == [[408], [408], [200]]
        assert time.monotonic() - began > 0.4


def test_a_head_that_trickles_has_one_deadline(engine: InferenceEngine) -> None:
    with serving(engine, head_seconds=0.5) as client:
        connection = sent(client.port, HALF)
        with pytest.raises(OSError):
            for _ in range(200):  # each within the deadline, all of them not
                connection.sendall(b"x")
                time.sleep(0.05)
        connection.close()


@pytest.mark.slow
def test_half_a_body_is_given_up(engine: InferenceEngine) -> None:
    with serving(engine, body_seconds=0.5) as client:
        found = received(sent(client.port, HEAD + b"Content-Length: 100\r\n\r\n", b'{"prompt"'))
        assert statuses(found) == [408]
        assert b"body: expected all of it within 0.5 s, got 9 bytes" in found


def test_the_rest_of_a_body_that_was_answered_has_a_deadline(engine: InferenceEngine) -> None:
    with serving(engine, head_seconds=0.5, api_keys=("k",)) as client:
        connection = sent(client.port, HEAD + b"Content-Length: 1000\r\n\r\n", b'{"prompt"')
        assert statuses(connection.recv(65536)) == [401]
        with pytest.raises(OSError):
            for _ in range(200):
                connection.sendall(b" ")
                time.sleep(0.05)
        connection.close()


LONG = b'{"prompt": "a", "max_tokens": 400, "ignore_eos": true, "stream": true}'


@pytest.mark.parametrize("body", [None, LONG])
def test_a_connection_that_was_reset_leaves_no_timer(engine: InferenceEngine, body: bytes | None) -> None:
    """A timer would keep its buffers for 30 s."""
    with serving(engine) as client:
        data = GET + b"\r\n" if body is None else HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        raw = sent(client.port, data)
        assert raw.recv(10)
        (connection,) = client.server._connections._open
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.close()
        until(lambda: not client.server._connections._open)
        until(lambda: connection.cycle.response_complete)
        until(lambda: not client.server._app.state.in_flight)
        connection._read_on()  # may follow in a turn of its own
        assert connection._deadline is None and connection.timeout_keep_alive_task is None


def test_idle_connections_make_room(engine: InferenceEngine) -> None:
    with serving(engine, max_connections=8) as client, ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(sent(client.port, HALF))
        assert [client.ask("/health").status for _ in range(5)] == [200] * 5


@pytest.mark.parametrize("half", [HALF, b""])
def test_clients_that_came_while_the_loop_was_busy_make_room(engine: InferenceEngine, half: bytes) -> None:
    """All connect at once, so none is idle yet when the server reaches its limit of connections."""

    def block(begun: threading.Event) -> None:
        begun.set()
        time.sleep(0.05)

    with serving(engine, max_connections=8) as client, ExitStack() as stack:
        loop = client.server._server._loop
        assert loop is not None
        for _ in range(20):
            begun = threading.Event()
            loop.call_soon_threadsafe(block, begun)
            assert begun.wait(60)
            for _ in range(30):
                stack.enter_context(sent(client.port, half))
            assert statuses(received(sent(client.port, closed()))) == [200]


def test_as_many_requests_as_connections(engine: InferenceEngine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), serving(engine, max_connections=3) as client:
        held = []
        for n in (1, 2, 3):  # half of the connections may be idle: one
            held.append(sent(client.port, HEAD + b"Content-Length: 100\r\n\r\n", b'{"prompt"'))
            until(lambda n=n: len(client.server._app.state.in_flight) == n)  # type: ignore[misc]
        found = [received(sent(client.port)) for _ in range(20)]
        assert [statuses(each) for each in found] == [[503]] * 20
        for connection in held:
            connection.close()
        until(lambda: client.ask("/health").status == 200)
    assert 1 <= len([record for record in caplog.records if "were refused" in record.message]) <= 3


COMMAND = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from oxillama.apps.server import connections
if sys.argv[1] == "unlimited":
    connections.most_connections = lambda config: 10**6
from oxillama.apps.cli import main
sys.exit(main(["serve", "--port", sys.argv[2], "--threads", "1", "--head-seconds", "3"]))
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs limits of descriptors")
@pytest.mark.parametrize("kind", ["limited", slow("unlimited")])
def test_more_connections_than_descriptors(kind: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path / "log"
    line, environment = [sys.executable, "-c", COMMAND, kind, str(port)], {**ENVIRONMENT, "COLUMNS": "80"}
    with log.open("wb") as file, started(line, stderr=file, env=environment) as run:
        until(lambda: b"is ready" in log.read_bytes(), 60)
        held = []
        for _ in range(100):
            connection = socket.create_connection(("127.0.0.1", port), timeout=60)
            connection.sendall(HALF)
            held.append(connection)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as last:
            last.sendall(closed())
            assert statuses(last.recv(1000))[0] in (200, 503)

        def healthy() -> bool:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as other:
                other.sendall(closed())
                return statuses(other.recv(1000)) == [200]

        until(healthy)
        for each in held:
            each.close()
        run.terminate()
        run.wait(60)
    assert len(log.read_bytes()) < 4000, log.read_text()[:2000]
    assert b"Traceback" not in log.read_bytes()


def closed(target: bytes = b"GET /health", host: bytes = b"localhost") -> bytes:
    """A request without a body, after which the connection is closed."""
    return b"%b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (target, host)


POST = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
JSON = HEAD.replace(b"/v1/completions", b"/tokenize") + b"Connection: close\r\n"
CODED, END = b"Transfer-Encoding: ", b"0\r\n\r\n"
CHUNKED = JSON + CODED + b"chunked\r\n\r\n"
TEXT = b'{"content":"a"}'
GATE = {
    "two lengths that differ": (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", [400]),
    "a length that is signed": (POST + b"Content-Length: +2\r\n\r\n{}", [400]),
    "a length and chunks": (HEAD + b"Content-Length: 5\r\n" + CODED + b"chunked\r\n\r\n" + END, [400]),
    "chunks and a length": (
        HEAD + CODED + b"chunked\r\nContent-Length: 5\r\n\r\n" + END + b"GET /", [400]),
    "two equal lengths": (JSON + b"Content-Length: 15\r\nContent-Length: 15\r\n\r\n" + TEXT, [200]),
    "a list of equal lengths": (JSON + b"Content-Length: 15, 15\r\n\r\n" + TEXT, [200]),
    "a list of lengths": (JSON + b"Content-Length: 15, 3\r\n\r\n" + TEXT, [400]),
    "a negative length": (JSON + b"Content-Length: -1\r\n\r\n", [400]),
    "a length in hexadecimal": (JSON + b"Content-Length: 0xf\r\n\r\n" + TEXT, [400]),
    "a length with an underscore": (JSON + b"Content-Length: 1_5\r\n\r\n" + TEXT, [400]),
    "a length of 30 digits": (JSON + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", [400, 413]),
    "a length in superscript": (JSON + b"Content-Length: \xb2\r\n\r\n", [400]),
    "a folded length": (JSON + b"Content-Length:\r\n 15\r\n\r\n" + TEXT, [200, 400]),
    "no encoding": (JSON + CODED + b"identity\r\n\r\n", [400, 501]),
    "an unknown encoding": (JSON + CODED + b"xchunked\r\n\r\n" + END, [400, 501]),
    "chunks twice": (JSON + (CODED + b"chunked\r\n") * 2 + b"\r\n" + END, [400, 501]),
    "a vertical tab before chunked": (JSON + b"Transfer-Encoding:\x0bchunked\r\n\r\n" + END, [400, 501]),
    "a space before the colon of chunked": (JSON + b"Transfer-Encoding : chunked\r\n\r\n" + END, [400]),
    "chunked in quotes": (JSON + CODED + b'"chunked"\r\n\r\n' + END, [400, 501]),
    "chunked in capitals": (JSON + CODED.upper() + b"ChunKED\r\n\r\nf\r\n" + TEXT + b"\r\n" + END, [200]),
    "chunks of HTTP/1.0": (CHUNKED.replace(b"1.1", b"1.0") + b"f\r\n" + TEXT + b"\r\n" + END, [400]),
    "another transfer encoding": (HEAD + CODED + b"chunked, gzip\r\n\r\n" + END, [400, 501]),
    "a space before the colon": (b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n", [400]),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", [400]),
    "two hosts": (GET + b"Host: evil.example\r\n\r\n", [400]),
    "a host of brackets": (closed(host=b"[::1"), [400]),
    "a host of a user": (closed(host=b"localhost@evil.example"), [403]),
    "another host": (closed(host=b"evil.example"), [403]),
    "an absolute target": (closed(b"GET http://localhost/health", b"evil.example"), [200]),
    "an absolute target without a path": (closed(b"GET HTTP://localhost?x"), [200]),
    "an absolute target of another host": (closed(b"GET http://evil.example/health"), [403]),
    "an absolute target of a user": (closed(b"GET http://localhost@evil.example/"), [403]),
    "an asterisk as the target": (closed(b"OPTIONS *"), [404]),
    "a host and port as the target": (closed(b"CONNECT localhost:80"), [404]),
    "a target of UTF-8": ("GET /h\u00e4 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), [400]),
    "a tab in the target": (b"GET /hea\tlth HTTP/1.1\r\nHost: localhost\r\n\r\n", [400]),
    "two spaces before the target": (b"GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n", [400]),
    "no version": (b"GET /health\r\n\r\n", [400]),
    "a control character in the method": (b"GE\x01T /health HTTP/1.1\r\nHost: localhost\r\n\r\n", [400]),
    "no method": (b" / HTTP/1.1\r\nHost: localhost\r\n\r\n", [400]),
    "another version": (b"GET /health HTTP/9\r\nHost: localhost\r\n\r\n", [400, 505]),
    "a NUL in the target": (b"GET /hea\0lth HTTP/1.1\r\nHost: localhost\r\n\r\n", [400]),
    "a bare CR in a header": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nx: a\rb\r\n\r\n", [400]),
    "a NUL in a header": (GET + b"x: a\0b\r\n\r\n", [400]),
    "a control character in a header's name": (GET + b"x\x01: a\r\n\r\n", [400]),
    "a header without a name": (GET + b": a\r\n\r\n", [400]),
    "a header's name beyond ASCII": (GET + b"x\xe4: a\r\n\r\n", [400]),
    "a tab in a header": (GET + b"x: a\tb\r\nConnection: close\r\n\r\n", [200]),
    "a folded first header": (b"GET /health HTTP/1.1\r\n Host: localhost\r\n\r\n", [400]),
    "a header without a colon": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nnonsense\r\n\r\n", [400]),
    "a head of 200 kB": (GET + b"x: " + b"a" * 200_000 + b"\r\n\r\n", [400, 431]),
    "a chunk of no size": (HEAD + CODED + b"chunked\r\n\r\nzz\r\n{}\r\n" + END, [400]),
    "bytes that are no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00" * 20 + b"\r\n\r\n", [400]),
    "chunks with extensions": (CHUNKED + b"f;a=b;c\r\n" + TEXT + b"\r\n0;d\r\n\r\n", [200]),
    "a bare LF in an extension": (CHUNKED + b"f;a\nb\r\n" + TEXT + b"\r\n0\r\n\r\n", [400]),
    "an extension of 200 kB": (CHUNKED + b"f;" + b"a" * 200_000 + b"\r\n" + TEXT, [400]),
    "a chunk size of 23 digits": (CHUNKED + b"0" * 22 + b"f\r\n" + TEXT + b"\r\n0\r\n\r\n", [400]),
    "a negative chunk size": (CHUNKED + b"-f\r\n" + TEXT + b"\r\n0\r\n\r\n", [400]),
    "a chunk size with 0x": (CHUNKED + b"0xf\r\n" + TEXT + b"\r\n0\r\n\r\n", [400]),
    "a space before a chunk size": (CHUNKED + b" f\r\n" + TEXT + b"\r\n0\r\n\r\n", [400]),
    "a chunk longer than its size": (CHUNKED + b"e\r\n" + TEXT + b"\r\n0\r\n\r\n", [400]),
    "a chunk without its end": (CHUNKED + b"f\r\n" + TEXT + b"XX0\r\n\r\n", [400]),
    "trailers": (CHUNKED + b"f\r\n" + TEXT + b"\r\n0\r\nContent-Length: 99\r\nHost: evil.example\r\n"
        + CODED + b"chunked\r\n\r\n", [200]),
    "a trailer without a colon": (CHUNKED + b"f\r\n" + TEXT + b"\r\n0\r\nnonsense\r\n\r\n", [400]),
    "a trailer of 200 kB": (
        CHUNKED + b"f\r\n" + TEXT + b"\r\n0\r\nx: " + b"a" * 200_000 + b"\r\n\r\n", [400]),
    "a chunk with an extension": (
        HEAD + CODED + b'chunked\r\nConnection: close\r\n\r\n2;a="b"\r\n{}\r\n' + END, [400]),
    "a folded header": (GET + b"x: a\r\n b\r\nConnection: close\r\n\r\n", [200]),
    "lines that end with LF": (b"GET /health HTTP/1.1\nHost: localhost\nConnection: close\n\n", [200, 400]),
    "two requests in one write": (GET + b"\r\n" + closed(), [200]),
}  # fmt: skip
"""What is sent, and the statuses that the first answer may have."""


@pytest.fixture(scope="module")
def plain(engine: InferenceEngine) -> Iterator[Client]:
    with serving(engine, head_seconds=2) as client:
        yield client


@pytest.mark.parametrize(("name", "n"), pairs(GATE, [1, 7, 100_000]))
def test_what_passes_the_gate(plain: Client, name: str, n: int) -> None:
    data, allowed = GATE[name]
    if len(data) > 10_000:
        n = max(n, 1000)
    connection = sent(plain.port)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        for start in range(0, len(data), n):
            connection.sendall(data[start : start + n])
    except OSError:
        pass  # it was refused in the middle
    found = statuses(received(connection))
    assert found and found[0] in allowed, found
    if name == "two requests in one write":
        assert found == [200, 200]
    else:
        assert len(found) == 1  # no second request is smuggled after the first
    assert plain.ask("/health").status == 200


@pytest.mark.parametrize("name", ["a length and chunks", "chunks and a length"])
def test_nothing_follows_a_body_of_two_lengths(plain: Client, name: str) -> None:
    data, _ = GATE[name]
    found = received(sent(plain.port, data.removesuffix(b"GET /") + GET + b"\r\n"))
    assert statuses(found) == [400] and b"connection: close\r\n" in found.lower()


def test_requests_sent_ahead_are_answered_in_their_order(plain: Client) -> None:
    texts = ["a", "b", "toad", "sea"]
    bodies = [json.dumps({"content": text}).encode() for text in texts]
    head = HEAD.replace(b"/v1/completions", b"/tokenize")
    found = received(
        sent(
            plain.port,
            b"".join(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body) for body in bodies),
            closed(),
        )
    )
    assert statuses(found) == [200] * 5
    answers = [part.partition(b"\r\n\r\n")[2] for part in found.split(b"HTTP/1.1 ")[1:]]
    assert answers[:4] == [plain.ask("/tokenize", {"content": text}).text.encode() for text in texts]


@pytest.mark.parametrize("path", [b"/nowhere", b"/tokenize"])
@pytest.mark.parametrize("wait", [0, 0.1])
def test_nonsense_behind_an_early_answer_is_no_fault(
    plain: Client, path: bytes, wait: float, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer does not wait for the body, of which one chunk is wrong."""
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n" % path
    connection = sent(plain.port, head)
    time.sleep(wait)
    connection.sendall(b"zz\r\n")
    assert len(statuses(received(connection))) == 1
    until(lambda: not plain.server._connections._open and not len(plain.server._app.state.in_flight))
    assert not [record for record in caplog.records if record.levelno > logging.WARNING], caplog.text


def test_nonsense_is_one_line_of_the_log_a_second(plain: Client, caplog: pytest.LogCaptureFixture) -> None:
    began = time.monotonic()
    upgrade = GET + b"Connection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n"
    for _ in range(30):
        assert statuses(received(sent(plain.port, b"nonsense\r\n\r\n"))) == [400]
        assert statuses(received(sent(plain.port, upgrade))) == [200]
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) <= 2 + time.monotonic() - began, lines


def test_clients_are_accepted_again_when_no_descriptor_could_be_kept(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real_accept, real_open, n_short = socket.socket.accept, os.open, 3

    def accept(self: socket.socket) -> Any:
        if n_short and self is client.server._sockets[0]:
            raise OSError(errno.EMFILE, "none")
        return real_accept(self)

    def open_(path: Any, *arguments: Any, **how: Any) -> int:
        nonlocal n_short
        if path == os.devnull and n_short:
            n_short -= 1
            raise OSError(errno.EMFILE, "none")
        return real_open(path, *arguments, **how)

    with serving(demo.DRAFT) as client:
        monkeypatch.setattr(socket.socket, "accept", accept)
        monkeypatch.setattr(os, "open", open_)
        assert client.ask("/health").status == 200
        assert n_short == 0
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("code", [errno.EPERM, errno.EMFILE])
def test_accept_is_not_tried_all_the_time(
    code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, n_calls, fails = socket.socket.accept, 0, True

    def accept(self: socket.socket) -> Any:
        nonlocal n_calls
        if self is client.server._sockets[0]:
            n_calls += 1
            if fails:
                raise OSError(code, os.strerror(code))
        return real(self)

    with serving(demo.DRAFT) as client:
        monkeypatch.setattr(socket.socket, "accept", accept)
        with sent(client.port, closed()) as waiting:
            until(lambda: n_calls >= 1)
            time.sleep(0.5)
            assert n_calls <= 25
            fails = False
            assert statuses(received(waiting)) == [200]
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) <= 2 and not any(record.exc_info for record in lines)


@pytest.mark.parametrize("call", ["__init__", "setsockopt", "bind", "listen", "getsockname"])
def test_an_address_that_cannot_be_had(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: socket.socket, *arguments: Any, **how: Any) -> Any:
        raise OSError(errno.ENOBUFS, "no buffers")

    config = ServerConfig(port=0)
    listening = Listening(Models([Hosted("a", load=lambda: None)], config), config)  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(socket.socket, call, fails)
    message = r"host, port: expected a free address, got 127\.0\.0\.1:0: no buffers"
    with pytest.raises(ConfigError, match=message), listening.bound():
        raise AssertionError


def test_a_client_that_leaves_in_its_body_is_no_fault(
    engine: InferenceEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), serving(engine) as client:
        connection = sent(client.port, HEAD + b"Content-Length: 100\r\n\r\n", b'{"prompt"')
        time.sleep(0.05)
        connection.close()
        until(lambda: any("499" in record.message for record in caplog.records))
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_a_path_cannot_forge_a_line_of_the_log(
    engine: InferenceEngine, caplog: pytest.LogCaptureFixture
) -> None:
    path = "/x%0a2026-01-01%20req_forged%1b[2J%c2%9b%e2%80%a8"
    with caplog.at_level(logging.INFO), serving(engine, api_keys=("k",)) as client:
        assert client.ask(path).status == 401
        assert client.ask("/health", headers={"x-request-id": "a b\tc"}).status == 200
    lines = [record.getMessage() for record in caplog.records if record.name == "oxillama.apps.server.gate"]
    assert any(f" GET {path} 401 " in line for line in lines)
    assert all(line.isprintable() for line in lines)


@pytest.mark.slow
def test_a_slow_reader_is_given_up(engine: InferenceEngine) -> None:
    with serving(engine, body_seconds=0.5) as client:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", client.port))
        body = json.dumps({"tokens": [5] * 1_000_000}).encode()
        head = HEAD.replace(b"/v1/completions", b"/detokenize")
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        connections = client.server._connections
        until(lambda: len(connections._open) == 1)
        until(lambda: not connections._open)
        connection.close()

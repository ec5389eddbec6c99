"""Clients between whom and the server something fails, floods or stops: the server serves the others."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oxillama import ConfigError, InferenceEngine, demo
from oxillama.apps.server import protocol
from oxillama.apps.server.connections import Connection
from oxillama.apps.server.gate import word
from oxillama.apps.server.openai import served_tools
from oxillama.apps.server.openai.served_tools import ServedTools
from oxillama.apps.server.proxies import Proxies
from oxillama.base.config.server import ServerConfig
from oxillama.base.events import TextPart
from tests.support.fault_proxy import FAULTS, fault_proxy
from tests.support.raw_http import certificate, needs_openssl, received, sent, statuses
from tests.support.server import Client, serving
from tests.support.spread import few, slow
from tests.support.waiting import until

MODEL = demo.DRAFT
HEAD = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def plain(engine: InferenceEngine) -> Iterator[Client]:
    with serving(engine) as client:
        yield client


def answer(port: int, data: bytes) -> bytes:
    """All that a server answers, also while the data is sent."""
    connection = sent(port)

    def send() -> None:
        with suppress(OSError):
            connection.sendall(data)

    threading.Thread(target=send, daemon=True).start()
    return received(connection)


def chunks(body: bytes, size: int, more: bytes = b"") -> bytes:
    """A body in chunks of one size."""
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x%b\r\n%b\r\n" % (len(part), more, part) for part in parts) + b"0\r\n\r\n"


# --- bodies and heads ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "size", "more", "is_taken"),
    [
        (10_000, 1, b"", True),
        (10_000, 1, b";a=b", True),
        (100_000, 1, b"", False),
        (100_000, 5, b"", False),
        (2_000_000, 100, b"", True),
        (3_000_000, 70_000, b"", True),
    ],
)
def test_small_chunks(plain: Client, n: int, size: int, more: bytes, is_taken: bool) -> None:
    body = json.dumps({"content": "a", "model": None}).encode()
    body = body[:-1] + b" " * (n - len(body)) + b"}"
    found = answer(plain.port, CHUNKED + chunks(body, size, more))
    assert statuses(found) == [200 if is_taken else 400]
    if not is_taken:
        assert b"body: expected chunks of at least 64 bytes on average, got smaller ones" in found
    assert plain.ask("/health").status == 200


def test_a_turn_of_the_loop_reads_a_few_chunks_alone(plain: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast the machine is: the clock of this test makes each piece take a whole turn."""
    n_turns, n_events, most = 0, 0, 0
    loop_now = [0]
    real = protocol.Messages.next_event

    def next_event(self: Any) -> Any:
        nonlocal n_events, most, n_turns
        turn = loop_now[0]
        n_events = n_events + 1 if turn == n_turns else 1
        n_turns, most = turn, max(most, n_events)
        return real(self)

    monkeypatch.setattr(protocol.Messages, "next_event", next_event)
    monkeypatch.setattr("oxillama.apps.server.connections.TURN", -1.0)
    loop = plain.server._connections._loop
    is_over = threading.Event()

    def count() -> None:
        loop_now[0] += 1
        if not is_over.is_set():
            loop.call_soon(count)

    loop.call_soon_threadsafe(count)
    try:
        answer(plain.port, CHUNKED + chunks(b" " * 16_000, 1))
    finally:
        is_over.set()
    assert most <= 2 * (protocol.PIECE // 6 + 2)  # the chunks of two pieces, six bytes each


@pytest.mark.parametrize(
    ("before", "head"),
    [
        (b"", CHUNKED),
        (b"", CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 10000000\r\n\r\n")),
        (GET + b"\r\n", CHUNKED),
    ],
)
def test_chunks_are_read_in_pieces_and_not_while_an_answer_is_made(
    plain: Client, before: bytes, head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, real = [], protocol.Messages.receive_data

    def receive_data(self: Any, data: bytes) -> None:
        sizes.append(len(data))
        assert not self.is_paused
        real(self, data)

    monkeypatch.setattr(protocol.Messages, "receive_data", receive_data)
    monkeypatch.setattr("oxillama.apps.server.connections.TURN", 60.0)
    found = answer(plain.port, before + head + chunks(b" " * 16_000, 1))
    assert len(sizes) > 2 and max(sizes) <= protocol.PIECE
    assert 400 in statuses(found)  # spaces are no JSON


@pytest.mark.parametrize(
    ("head", "status", "said"),
    [
        (b"a: b\r\n" * 200, 200, b""),
        (b"a: b\r\n" * 300, 400, b"headers: expected at most 256, got 302"),
        (b"a:b\r\n" * 40_000, 400, b""),
        (b"a: " + b"b" * 8000 + b"\r\n", 200, b""),
        (b"a: " + b"b" * 200_000 + b"\r\n", 400, b""),
    ],
)
def test_heads(plain: Client, head: bytes, status: int, said: bytes) -> None:
    found = answer(plain.port, GET + head + b"Connection: close\r\n\r\n")
    assert statuses(found) == [status] and said in found


def test_headers_behind_a_body(plain: Client) -> None:
    body = chunks(b'{"content": "a"}', 100)[:-2]
    assert statuses(answer(plain.port, CHUNKED + body + b"a: b\r\n" * 100 + b"\r\n")) == [200]
    assert statuses(answer(plain.port, CHUNKED + body + b"a: b\r\n" * 100_000 + b"\r\n"))[0] in (200, 400)
    assert plain.ask("/health").status == 200


def test_little_is_read_ahead(plain: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many requests are sent ahead: what is read of them waits in memory."""
    most, real = 0, Connection.data_received

    def data_received(self: Connection, data: bytes) -> None:
        nonlocal most
        most = max(most, len(self._unread) + len(data))
        real(self, data)

    monkeypatch.setattr(Connection, "data_received", data_received)
    body = json.dumps({"content": "a" * 12_000}).encode()
    one = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    found = answer(plain.port, one * 120 + GET + b"Connection: close\r\n\r\n")
    assert statuses(found) == [200] * 121
    assert most < 1_000_000


def test_thousands_of_requests_sent_ahead(plain: Client) -> None:
    data = (GET + b"\r\n") * 2000 + HEAD + b"Content-Length: 16\r\n\r\n" + b'{"content": "a"}'
    data += GET + b"Connection: close\r\n\r\n"
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(answer(plain.port, data)))
    thread.start()
    assert plain.ask("/health").status == 200
    thread.join(60)
    assert statuses(found[0]) == [200] * 2002


def test_bodies_sent_ahead_wait_for_their_turn(plain: Client) -> None:
    """What follows a request is not read while its answer is made, and is whole then."""
    body = json.dumps({"content": "toad " * 40_000}).encode()
    one = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    two = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks(body, 1000)
    found = answer(plain.port, one + two + one + two + GET + b"Connection: close\r\n\r\n")
    assert statuses(found) == [200] * 5
    texts = [part.partition(b"\r\n\r\n")[2] for part in found.split(b"HTTP/1.1 ")[1:5]]
    assert len(set(texts)) == 1


# --- something between client and server --------------------------------------------------------------

N_EVENTS = 7
"""Events of the requests below: there are fewer for some, and then nothing fails."""
FAST = (("reset", 2), ("half", 1), ("stall", 1), ("twice", 1), ("garbage", 2), ("half_close", 1))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "n"), few(((fault, n) for fault in FAULTS for n in range(1, N_EVENTS + 1)), FAST)
)
def test_the_nth_part_of_a_stream_fails(
    engine: InferenceEngine, fault: str, n: int, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(engine, head_seconds=0.5, body_seconds=1) as client:
        with fault_proxy(client.port, fault, n) as proxy:
            for _ in range(3):
                body = json.dumps({"prompt": "a", "max_tokens": 20, "stream": stream}).encode()
                head = HEAD.replace(b"/tokenize", b"/v1/completions")
                data = head + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body
                with (
                    suppress(OSError),
                    socket.create_connection(("127.0.0.1", proxy.port), timeout=2) as connection,
                ):
                    connection.sendall(data[:100])
                    time.sleep(0.02)
                    connection.sendall(data[100:])
                    while connection.recv(65536):
                        pass
                assert client.ask("/health").status == 200
        until(lambda: not len(client.server._app.state.in_flight))
        until(lambda: not client.server._connections._open)
    assert not [record for record in caplog.records if record.exc_info]


# --- TLS ----------------------------------------------------------------------------------------------


@needs_openssl
@pytest.mark.parametrize("part", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", slow(b"whole")])
def test_half_open_handshakes_make_room(engine: InferenceEngine, tmp_path: Path, part: bytes) -> None:
    cert, key = certificate(tmp_path)
    context = ssl._create_unverified_context()

    def status(port: int) -> int:
        with sent(port) as raw, context.wrap_socket(raw, server_hostname="localhost") as secure:
            secure.sendall(GET + b"Connection: close\r\n\r\n")
            return int(secure.recv(65536).split()[1])

    with serving(engine, ssl_certfile=cert, ssl_keyfile=key, max_connections=8, head_seconds=2) as client:
        connections, held = client.server._connections, []
        for _ in range(30):
            raw = sent(client.port)
            if part == b"whole":
                with suppress(OSError):
                    raw = context.wrap_socket(raw, server_hostname="localhost")
            else:
                raw.sendall(part)
            held.append(raw)
        assert [status(client.port) for _ in range(3)] == [200] * 3
        assert len(connections._open) + len(connections._coming) <= 8
        until(lambda: not connections._coming and not connections._open and not connections._idle, 30)
        for each in held:
            each.close()
        assert status(client.port) == 200


# --- proxies ------------------------------------------------------------------------------------------


def told(trusted: tuple[str, ...], peer: str | None, *headers: tuple[str, str]) -> tuple[str, str]:
    """The address and the scheme that an application sees behind proxies."""
    found: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.update(scope)

    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    client = None if peer is None else (peer, 1234)
    scope = {"type": "http", "client": client, "scheme": "http", "headers": pairs}
    asyncio.run(Proxies(app, ServerConfig(trusted_proxies=trusted).trusted_proxies)(scope, None, None))  # type: ignore[arg-type]
    return (found["client"] or ("-",))[0], found["scheme"]


FOR = "x-forwarded-for"


@pytest.mark.parametrize(
    ("trusted", "peer", "headers", "client", "scheme"),
    [
        (("10.0.0.1",), "10.0.0.2", [(FOR, "1.2.3.4")], "10.0.0.2", "http"),
        (("10.0.0.1",), "10.0.0.1", [(FOR, "1.2.3.4")], "1.2.3.4", "http"),
        (("10.0.0.1",), "::ffff:10.0.0.1", [(FOR, "1.2.3.4")], "1.2.3.4", "http"),
        (("10.0.0.0/8",), "10.9.9.9", [(FOR, "8.8.8.8, 1.2.3.4,10.1.1.1")], "1.2.3.4", "http"),
        (("10.0.0.0/8",), "10.9.9.9", [(FOR, "10.2.2.2, 10.1.1.1")], "10.2.2.2", "http"),
        (("10.0.0.0/8,::1",), "::1", [(FOR, "[2001:db8::1]:99")], "2001:db8::1", "http"),
        (("fd00::/8",), "fd00::5", [(FOR, "1.2.3.4:99")], "1.2.3.4", "http"),
        (("unix",), None, [(FOR, "1.2.3.4")], "1.2.3.4", "http"),
        (("10.0.0.1",), None, [(FOR, "1.2.3.4")], "-", "http"),
        (("unix",), "10.0.0.1", [(FOR, "1.2.3.4")], "10.0.0.1", "http"),
        (("::1",), "::1", [(FOR, "\x1b[2J")], "::1", "http"),
        (("::1",), "::1", [(FOR, "fe80::1%\x1b[2J")], "::1", "http"),
        (("::1",), "::1", [(FOR, "1.2.3.4 alice GET / 200")], "::1", "http"),
        (("::1",), "::1", [(FOR, "1.2.3.4"), (FOR, "unknown")], "::1", "http"),
        (("::1",), "::1", [(FOR, "9.9.9.9"), (FOR, "1.2.3.4")], "1.2.3.4", "http"),
        (("::1",), "::1", [("forwarded", 'for=1.2.3.4;proto=https;by="x"')], "1.2.3.4", "https"),
        (("::1",), "::1", [("forwarded", 'For="[2001:db8::1]:80"')], "2001:db8::1", "http"),
        (("::1",), "::1", [("forwarded", "for=_hidden, for=1.2.3.4")], "1.2.3.4", "http"),
        (("::1",), "::1", [("forwarded", "for=1.2.3.4, for=_hidden")], "::1", "http"),
        (("::1",), "::1", [("forwarded", "for=9.9.9.9"), (FOR, "1.2.3.4")], "::1", "http"),
        (("::1",), "::1", [("x-forwarded-proto", "https")], "::1", "https"),
        (("::1",), "::1", [("x-forwarded-proto", "javascript")], "::1", "http"),
        (("::1",), "::2", [("x-forwarded-proto", "https")], "::2", "http"),
        (("::1",), "::1", [("x-forwarded-prefix", "/x"), ("x-forwarded-host", "evil")], "::1", "http"),
    ],
)
def test_the_client_that_a_proxy_tells(
    trusted: Any, peer: Any, headers: Any, client: str, scheme: str
) -> None:
    assert told(trusted, peer, *headers) == (client, scheme)


@pytest.mark.parametrize("wrong", ["localhost", "10.0.0.1/8", "10.0.0.0/33", "", "*"])
def test_proxies_that_are_no_addresses(wrong: str) -> None:
    with pytest.raises(ConfigError, match="trusted_proxies: expected addresses, networks"):
        ServerConfig(trusted_proxies=(wrong,))


def test_long_headers_of_a_proxy_take_no_time() -> None:
    began = time.process_time()
    for value in ("a" * 16_000, "," * 16_000, "for=" * 4000, 'for="' * 3000, "1.2.3.4," * 2000):
        told(("::1",), "::1", ("forwarded", value), ("x-forwarded-for", value))
    assert time.process_time() - began < 5


def test_a_server_trusts_nobody_by_default(engine: InferenceEngine, caplog: pytest.LogCaptureFixture) -> None:
    forged = {"X-Forwarded-For": "9.9.9.9", "Forwarded": "for=9.9.9.9", "X-Forwarded-Prefix": "/x"}
    with caplog.at_level("INFO"):
        with serving(engine) as client:
            client.ask("/v1/models", headers=forged)
        assert "9.9.9.9" not in caplog.text and " 127.0.0.1 GET /v1/models 200 " in caplog.text
        with serving(engine, trusted_proxies=("127.0.0.1",)) as client:
            client.ask("/v1/models", headers=forged)
        assert " 9.9.9.9 GET /v1/models 200 " in caplog.text


def test_words_of_the_log() -> None:
    assert word("1.2.3.4") == "1.2.3.4" and word("/ä") == "/ä"
    assert word("a b\x1b[2J\n\u2028") == "a\\x20b\\x1b[2J\\n\\u2028"


# --- what waits inside the server ---------------------------------------------------------------------


@pytest.mark.parametrize("n_taken", [0, 1, 136, 137, 199, 200, 201])
def test_a_reader_of_a_chat_with_tools_leaves(n_taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer waits for room in the queue, is about to put its end, or has put it."""
    ended = []

    async def arun_tools(*arguments: Any, progress: Any, **fields: Any) -> None:
        try:
            for _ in range(200):
                await progress(TextPart("a"))
        finally:
            ended.append(True)

    async def leaving() -> None:
        answer = object.__new__(ServedTools)
        answer.tools, answer.rounds, answer.client = {}, [], None  # type: ignore[assignment]
        answer.body = SimpleNamespace(messages=[], tool_choice=None)  # type: ignore[assignment]
        parts = answer.parts()
        for _ in range(n_taken):
            await anext(parts, None)
        await asyncio.sleep(0)
        await asyncio.wait_for(parts.aclose(), 10)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    monkeypatch.setattr(served_tools, "arun_tools", arun_tools)
    asyncio.run(leaving())
    assert ended or not n_taken

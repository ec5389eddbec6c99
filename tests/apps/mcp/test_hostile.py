"""A tool server that misbehaves at its n-th message, for every n: others are served, and every wait ends."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from oxillama.apps.mcp import McpClient, McpLimits, connection as module, servers_of, transports
from oxillama.apps.mcp.inflow import BYTE_RATE, MOST_ASKED, MOST_ITEMS, PIECE, Incoming, Outgoing, Pace, Shape
from oxillama.apps.mcp.transports import ToolServerError
from tests.support.fault_proxy import FAULTS as WIRE_FAULTS, fault_proxy
from tests.support.hostile_mcp import FAULTS, N_STREAMS, PROGRAM_FAULTS, http_server
from tests.support.paths import ROOT
from tests.support.spread import pairs
from tests.support.waiting import until

pytest.importorskip("mcp", reason="needs the package mcp: pip install 'oxillama-cpu[mcp]'")

PATIENT = McpLimits(connect_seconds=20, call_seconds=20)
HURRIED = McpLimits(connect_seconds=2, call_seconds=1)
"""Of the hostile server alone, where a test waits for them to pass."""
ENDS = 120.0
"""Seconds after which something is taken to hang. All deadlines of a call together are less than half."""


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Little time is left to servers that are late, or that are to leave."""
    monkeypatch.setattr(module, "LATE_SECONDS", 1.0)
    monkeypatch.setattr(transports, "LEAVE_SECONDS", 0.2)
    return monkeypatch


def program(fault: str, n: int) -> dict[str, Any]:
    path = ROOT / "tests/support/hostile_mcp.py"
    return {"command": sys.executable, "args": [str(path), fault, str(n)]}


@contextmanager
def client_of(hostile: dict[str, Any], limits: McpLimits = HURRIED) -> Iterator[McpClient]:
    """A client of a hostile server and of a good one, whose end does not hang either."""
    servers = servers_of({"mcpServers": {"hostile": hostile, "good": program("none", 0)}})
    client = McpClient(servers, PATIENT)
    client._connections["hostile"].limits = limits
    try:
        yield client
    finally:
        began = time.monotonic()
        client.close()
        assert time.monotonic() - began < ENDS and not client._thread.is_alive()


def longest_stall(work: Any) -> float:
    """Seconds of this process's CPU time in which a waiting thread could not run while the work did.

    CPU time, because another process that has the core stops every thread.
    """
    worst, done = 0.0, threading.Event()

    def look() -> None:
        nonlocal worst
        while not done.is_set():
            began = time.process_time()
            time.sleep(0.005)
            worst = max(worst, time.process_time() - began)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        work()
    finally:
        done.set()
        thread.join()
    return worst


def check(hostile: dict[str, Any]) -> None:
    with client_of(hostile) as client:
        listing = threading.Thread(target=client.tools)
        until(lambda: not client.call("good__echo", {}).failed)  # a slow machine takes a while to start it

        def use() -> None:
            began = time.monotonic()
            listing.start()
            for _ in range(3):
                assert client.call("good__echo", {"a": 1}).value == '{"a": 1}'
            assert time.monotonic() - began < ENDS / 2
            found = [client.call("hostile__echo", {"a": i}) for i in range(2)]
            assert all(each.failed or each.value for each in found)
            assert client.call("good__echo", {"a": 2}).value == '{"a": 2}'
            listing.join(ENDS)
            assert not listing.is_alive() and time.monotonic() - began < ENDS

        assert longest_stall(use) < 1.5
        failures = {each.name: each.failure for each in client.servers()}
        assert failures["good"] is None


def check_program(fault: str, n: int) -> None:
    check(program(fault, n))


def check_address(fault: str, n: int, events: bool) -> None:
    with http_server(fault, n, events) as url:
        check({"url": url})


def check_stream(fault: str, n: int, events: bool) -> None:
    """The n-th part of what a good server sends is lost."""
    with http_server("none", 0, events) as url, fault_proxy(urlsplit(url).port or 0, fault, n) as proxy:
        check({"url": f"http://127.0.0.1:{proxy.port}/mcp"})


Case = tuple[Callable[..., None], str, int] | tuple[Callable[..., None], str, int, bool]
FAST: list[Case] = [
    *((check_program, "silence", n) for n in (2, 4, 5)),
    *((check_program, fault, n) for fault, n in (("many_parts", 5), ("asking_flood", 4), ("deaf", 4))),
    *((check_address, "silence", 4, events) for events in (False, True)),
    *((check_stream, fault, n, e) for fault, n in (("stall", 8), ("reset", 4)) for e in (False, True)),
]
SLOW: list[list[Case]] = [
    *([(check_program, fault, n) for n in range(1, 6)] for fault in (*FAULTS, *PROGRAM_FAULTS)),
    *([(check_address, fault, n, e) for n in range(1, 6) for e in (False, True)] for fault in FAULTS),
    *([(check_stream, fault, n, e) for n in range(1, 13) for e in (False, True)] for fault in WIRE_FAULTS),
]


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(FAST, id="some"),
        *(pytest.param(e, id=f"{e[0][0].__name__}-{e[0][1]}", marks=pytest.mark.slow) for e in SLOW),
    ],
)
@pytest.mark.usefixtures("hurried")
def test_a_fault_at_a_message(cases: list[Case]) -> None:
    """The cases run at the same time, because each spends its time waiting for limits to pass."""
    with ThreadPoolExecutor(len(cases)) as pool:
        running = {pool.submit(*case): case for case in cases}
    for each, case in running.items():
        if error := each.exception():
            raise AssertionError(f"{case[0].__name__}{case[1:]}") from error


SAID = {
    "many_parts": "expected messages of at most 65536 values, got a larger one",
    "many_keys": "expected messages of at most 65536 values, got a larger one",
    "deep": "expected messages of at most 100 levels, got a deeper one",
    "long_lists": f"content: expected at most {MOST_ITEMS} items in a result, got 5000",
    "huge": f"expected messages of at most {16 << 20} bytes, got a longer one",
}


@pytest.mark.parametrize(("fault", "events"), pairs(SAID, [None, False, True]))
def test_errors_name_the_limit(fault: str, events: bool | None) -> None:
    with http_server(fault, 5, bool(events)) as url:
        hostile = program(fault, 5) if events is None else {"url": url}
        with client_of(hostile, PATIENT) as client:
            client.tools()
            assert client.call("hostile__echo", {}).error == f"hostile: {SAID[fault]}"
            assert client.call("hostile__echo", {"a": 1}).value == '{"a": 1}'


@pytest.mark.slow
def test_calls_to_a_silent_server_share_one_attempt(hurried: pytest.MonkeyPatch) -> None:
    opened, real = [], module.Connection._open

    async def open_(self: module.Connection) -> None:
        opened.append(self.server.name)
        await real(self)

    hurried.setattr(module.Connection, "_open", open_)
    with client_of(program("silence", 1)) as client:
        threads = [threading.Thread(target=client.call, args=("hostile__echo", {})) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert opened.count("hostile") <= 2


def test_nobody_waits_for_a_server_that_has_failed(hurried: pytest.MonkeyPatch) -> None:
    with client_of(program("silence", 1)) as client:
        client.tools()
        assert [each.failure is None for each in client.servers()] == [False, True]
        hostile = client._connections["hostile"]
        hostile.limits = McpLimits(connect_seconds=600)
        for _ in range(3):
            client.tools()
        assert client.servers()[0].failure != "it has not listed its tools yet"  # no new attempt yet
        hurried.setattr(module, "RETRY_SECONDS", 0.0)
        began = time.monotonic()
        for _ in range(3):
            assert [tool.server for tool in client.tools()] == ["good"]
        assert time.monotonic() - began < ENDS
        until(lambda: client.servers()[0].failure == "it has not listed its tools yet")


@pytest.mark.slow
def test_streams_that_end_are_continued_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "MOST_STREAMS", 25)
    limits = McpLimits(connect_seconds=20, call_seconds=2)
    with http_server("again", 5, True) as url, client_of({"url": url}, limits) as client:
        client.tools()
        N_STREAMS.clear()
        found = client.call("hostile__echo", {})
        assert found.failed and "hostile: expected" in (found.error or "")
        time.sleep(2)
        assert 1 < len(N_STREAMS) <= 26
        assert client.call("hostile__echo", {"a": 1}).value == '{"a": 1}'


def test_a_server_may_ask_only_so_much_without_reading_answers() -> None:
    class Stream:
        async def receive(self) -> Any:
            await asyncio.sleep(0)
            return SimpleNamespace(message=next(messages))

        async def send(self, item: Any) -> None:
            pass

    def asking() -> Iterator[Any]:
        for i in range(200):
            yield SimpleNamespace(id=i, method="ping")
        yield SimpleNamespace(method="notifications/cancelled")

    async def received(n: int, seconds: float = 60) -> None:
        for _ in range(n):
            await asyncio.wait_for(incoming.receive(), seconds)

    async def run() -> None:
        await received(MOST_ASKED)
        with pytest.raises(TimeoutError):
            await received(1, 0.2)
        for _ in range(10):
            await Outgoing(Stream(), incoming).send(SimpleNamespace(message=SimpleNamespace(id=1, result={})))
        await received(10)
        with pytest.raises(TimeoutError):
            await received(1, 0.2)

    messages = asking()
    incoming = Incoming(Stream())
    asyncio.run(run())


def test_shapes_are_those_of_the_values() -> None:
    limits = McpLimits(message_values=10, message_levels=3, message_bytes=200)
    fine = [b'{"a": [1, 2, 3, {"b": "[[[[,,,,,,,,,{{{"}]}', rb'["\"[[[[,,,,,,,,,,", "\\", ["\\\""]]']
    for text in fine:
        for step in (1, 2, 3, 100):
            shape = Shape(limits)
            for start in range(0, len(text), step):
                shape.add(text[start : start + step])
    for text, said in (
        (b"[" + b"1," * 10 + b"1]", "10 values"),
        (b'["\\\\",[[[1]]]]', "3 levels"),
        (b" " * 201, "200 bytes"),
    ):
        for step in (1, 2, 100):
            shape = Shape(limits)
            with pytest.raises(ToolServerError, match=said):
                for start in range(0, len(text), step):
                    shape.add(text[start : start + step])


def test_events_are_counted_one_by_one() -> None:
    text = b"data: [1, 2, 3, 4, 5, 6]\r\n\r\n: it's a \"comment\n\ndata: [1, 2, 3, 4, 5, 6]\n\n"
    for step in (1, 2, 3, 100):
        shape, n = Shape(McpLimits(message_values=8)), 0
        for start in range(0, len(text), step):
            n += shape.add_events(text[start : start + step])
        assert n == 2


def test_a_flood_waits_and_a_burst_does_not() -> None:
    async def seconds(n: int, n_bytes: int) -> float:
        pace, began = Pace(), time.monotonic()
        for _ in range(n):
            await pace.spend(1, n_bytes)
        return time.monotonic() - began

    assert asyncio.run(seconds(400, 100)) > 0.5
    assert asyncio.run(seconds(3, BYTE_RATE // 2)) > 0.5


def test_lines_are_read_in_pieces() -> None:
    async def found(data: bytes, most: int) -> list[bytes]:
        stream = asyncio.StreamReader()
        stream.feed_data(data)
        stream.feed_eof()
        return [line async for line in transports.lines(stream, most)]

    long = b"x" * (3 * PIECE + 5)
    data = b"a\n\n" + long + b"\nb\nno end"
    assert asyncio.run(found(data, 4 * PIECE)) == [b"a\n", b"\n", long + b"\n", b"b\n"]
    with pytest.raises(ToolServerError, match=f"at most {2 * PIECE} bytes"):
        asyncio.run(found(data, 2 * PIECE))


def test_what_a_program_sends_ahead_waits_in_its_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "LEAVE_SECONDS", 0.2)
    flood = "import os\nwhile True:\n    os.write(1, b'x' * 999 + b'\\n')"

    async def held() -> int:
        server = servers_of({"mcpServers": {"a": {"command": sys.executable, "args": ["-c", flood]}}})[0]
        process = await transports.start(server)
        assert process.stdout is not None
        try:
            reading = transports.lines(process.stdout, 16 << 20)
            for _ in range(300):
                await anext(reading)
                await asyncio.sleep(0)
            await asyncio.sleep(0.2)
            return len(process.stdout._buffer)  # type: ignore[attr-defined]
        finally:
            await transports.stop(process)

    assert asyncio.run(held()) <= 4 * PIECE


def test_log_lines_and_progress_do_not_reach_the_session() -> None:
    methods = ["message", "progress", "message", "tools/list_changed", "cancelled"]
    messages = [SimpleNamespace(message=SimpleNamespace(method=f"notifications/{each}")) for each in methods]

    class Stream:
        async def receive(self) -> Any:
            return messages.pop(0)

    async def received() -> list[str]:
        incoming = Incoming(Stream())
        return [(await incoming.receive()).message.method for _ in range(2)]

    assert asyncio.run(received()) == ["notifications/tools/list_changed", "notifications/cancelled"]

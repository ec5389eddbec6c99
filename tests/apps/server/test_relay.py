"""Texts that are relayed to clients past the stream's task: nothing is lost, turned round, or told twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oxillama import InferenceEngine, demo
from oxillama.apps.server.connections import Connection
from oxillama.apps.server.running import text_of
from oxillama.apps.server.stream import EventForwarder, TextLine, data_line
from oxillama.base.events import Event
from oxillama.engine.wakers import waker_of_loop
from oxillama.errors import RequestFailed
from tests.support.raw_http import received, sent
from tests.support.server import serving
from tests.support.tiny_file import CHATML, write_tiny_model
from tests.support.waiting import until

MODEL = demo.STORY
PROMPT = "Once upon a time"


def relayed(
    engine: InferenceEngine, write: Callable[[str], bool], sent: list[str], line_of: Callable[[Event], str]
) -> None:
    """Relays a text; what could not be written is added to ``sent`` by and by."""

    async def send(lines: str) -> None:
        await asyncio.sleep(0.01)
        sent.append(lines)

    async def main() -> None:
        generation = engine.stream(PROMPT, max_tokens=40, temperature=0)
        try:
            await EventForwarder(generation, line_of).run(write, send)
        finally:
            assert waker_of_loop().watchers == set()
            assert generation.finish_reason is not None or generation._request.cancelled

    asyncio.run(main())


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_lines_come_in_order_however_far_behind_the_client_is(engine: InferenceEngine, taken: int) -> None:
    """One of so many writes is refused; 0 for all of them."""
    sent: list[str] = []
    n_asked = 0

    def write(lines: str) -> bool:
        nonlocal n_asked
        n_asked += 1
        if not taken or n_asked % taken == 0:
            return False
        sent.append(lines)
        return True

    relayed(engine, write, sent, text_of)
    assert "".join(sent) == engine.generate(PROMPT, max_tokens=40, temperature=0)
    assert n_asked


def test_what_came_before_an_error_is_sent(engine: InferenceEngine) -> None:
    sent: list[str] = []

    def line_of(event: Event) -> str:
        if len("".join(sent)) > 20:
            raise ZeroDivisionError("a fault")
        sent.append(text_of(event))
        return ""

    with pytest.raises(ZeroDivisionError):
        relayed(engine, lambda lines: True, [], line_of)
    assert engine.generate(PROMPT, max_tokens=40, temperature=0).startswith("".join(sent))


def test_the_error_of_a_request_comes_behind_its_text(engine: InferenceEngine) -> None:
    sent: list[str] = []
    n_rows = 0

    def fails(logits: object) -> object:
        nonlocal n_rows
        n_rows += 1
        if n_rows == 10:
            raise ZeroDivisionError("a fault")
        return logits

    async def send(lines: str) -> None:
        sent.append(lines)

    async def main() -> None:
        generation = engine.stream(PROMPT, temperature=0, max_tokens=40)
        request = generation._text_request
        row = request.row
        request.row = lambda logits: fails(row(logits))  # type: ignore[method-assign, assignment, return-value]
        await EventForwarder(generation, text_of).run(lambda lines: False, send)

    with pytest.raises(RequestFailed, match="a fault"):
        asyncio.run(main())
    whole = engine.generate(PROMPT, max_tokens=40, temperature=0)
    text = "".join(sent)
    assert text and whole.startswith(text) and len(text) < len(whole)


def test_a_client_that_leaves_ends_its_text(engine: InferenceEngine) -> None:
    async def main() -> None:
        generation = engine.stream(PROMPT, max_tokens=None, ignore_eos=True)
        begun = asyncio.Event()

        def write(lines: str) -> bool:
            begun.set()
            return True

        async def send(lines: str) -> None:
            raise AssertionError(lines)

        task = asyncio.ensure_future(EventForwarder(generation, text_of).run(write, send))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert waker_of_loop().watchers == set()
        until(lambda: not generation.is_running)

    asyncio.run(main())


@pytest.mark.parametrize(
    "text", ["a", "", 'a "quoted" \\ text', "line\nline\t\0\x7f", "ä\u2028\U0001f600", "%s{}"]
)
def test_a_line_of_a_text_is_that_of_its_value(text: str) -> None:
    def value(text: str) -> object:
        return {"a": [text, {"b": text}], "c": 'other "text"'}

    assert TextLine(value)(text) == data_line(value(text))


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_relayed_chunks_are_like_others(tmp_path: Path, path: str) -> None:
    """The texts of several choices are not relayed."""
    ask: dict[str, Any] = {"max_tokens": 20, "temperature": 0, "stream": True, "ignore_eos": True}
    ask["stream_options"] = {"include_usage": True}
    messages = [{"role": "user", "content": "a"}]
    ask |= {"prompt": "hello"} if path == "/v1/completions" else {"messages": messages}
    with serving(write_tiny_model(tmp_path / "model.gguf", chat_template=CHATML)) as client:
        relayed = client.ask(path, ask).events
        others = client.ask(path, {**ask, "n": 2}).events
    varying = ("id", "created", "timings")
    found, expected = (
        [
            {name: value for name, value in event.items() if name not in varying}
            for event in events[:-2]  # the usage of all choices, and the end
            if event["choices"][0]["index"] == 0
        ]
        for events in (relayed, others)
    )
    assert found == expected
    assert len(found) > 10
    assert len({each["id"] for each in relayed[:-1]}) == 1


def test_a_client_of_http_1_0_gets_no_chunks(engine: InferenceEngine) -> None:
    body = json.dumps({"prompt": PROMPT, "stream": True, "max_tokens": 20, "temperature": 0}).encode()
    head = "POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    with serving(demo.STORY) as client:
        answer = received(sent(client.port, head.encode() + body))
    _, _, events = answer.partition(b"\r\n\r\n")
    lines = [line for line in events.decode().split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    texts = [json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in lines]
    assert "".join(texts) == engine.generate(PROMPT, max_tokens=20, temperature=0)


def test_a_chunk_is_written_unless_the_client_is_behind_or_gone() -> None:
    written: list[bytes] = []
    connection = object.__new__(Connection)
    connection.flow = SimpleNamespace(write_paused=False)  # type: ignore[assignment]
    connection.transport = SimpleNamespace(write=written.append)  # type: ignore[assignment]
    cycle: Any = SimpleNamespace(disconnected=False)
    data = b"x" * 26
    assert connection._write_now(cycle, data)
    assert written == [b"1a\r\n" + data + b"\r\n"]
    cycle.disconnected = True
    assert not connection._write_now(cycle, data)
    cycle.disconnected, connection.flow.write_paused = False, True
    assert not connection._write_now(cycle, data)
    assert len(written) == 1

"""Connects to a tool server: starts a program, or uses an HTTP address. Both bound what the server sends.

Only `connection` uses this module, inside the client's event loop.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from oxillama.apps.mcp.configuration import McpLimits, ToolServer
from oxillama.apps.mcp.errors import ToolServerError
from oxillama.apps.mcp.inflow import PIECE, Incoming, Outgoing, Pace, Shape

MOST_STDERR = 8192
"""The maximum number of stderr bytes that are kept."""
LEAVE_SECONDS = 2.0
"""Time for a server to exit after its stdin is closed, and again after SIGTERM."""
KILLED_SECONDS = 10.0
"""Time for a killed server to be gone, which is at once unless the machine is very busy."""
MOST_STREAMS, STREAM_COST = 500, 20
"""The maximum number of streams of a session, each a request GET; the messages that one counts as."""
EVENTS = 8192
"""Bytes of a stream of events that are read before other tasks run."""


class Tail:
    """The end of a program's stderr, including lines of its stdout that are not messages."""

    def __init__(self) -> None:
        self._data = b""

    def add(self, data: bytes) -> None:
        self._data = (self._data + data)[-MOST_STDERR:]

    @property
    def text(self) -> str:
        return self._data.decode("utf-8", "replace")


# --- a program ----------------------------------------------------------------------------------------


@asynccontextmanager
async def stdio(
    server: ToolServer, limits: McpLimits, stderr: Tail, ended: Callable[[str], object]
) -> AsyncIterator[tuple[Any, Any]]:
    """Start a program and communicate over its stdin and stdout; stop it at the end.

    Args:
        stderr: receives the program's stderr.
        ended: called with a reason when the program closes its stdout, or violates the protocol.

    Raises ToolServerError if the program cannot be started.
    """
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    process = await start(server)
    assert process.stdin and process.stdout and process.stderr
    stdin, stdout, errors = process.stdin, process.stdout, process.stderr
    coming, to_us = anyio.create_memory_object_stream[Any](0), anyio.create_memory_object_stream[Any](0)
    (received, incoming), (outgoing, leaving) = coming, to_us

    async def read() -> None:
        reason, pace, shape = "it has ended", Pace(), Shape(limits)
        try:
            async for line in lines(stdout, limits.message_bytes):
                await pace.spend(1, len(line))
                try:
                    if not line.lstrip(b" \t").startswith(b"{"):
                        raise ValueError
                    shape.begin()
                    shape.add(line)
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:  # probably a log line
                    stderr.add(b"[no message, on stdout] " + line[:200].strip() + b"\n")
                    continue
                await received.send(SessionMessage(message))
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 0.5)
            if process.returncode is not None:
                reason = f"it has ended with status {process.returncode}"
        except ToolServerError as error:
            reason = str(error)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return
        finally:
            received.close()
        ended(reason)

    async def write() -> None:
        with suppress(OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for message in leaving:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                stdin.write(text.encode() + b"\n")
                try:
                    await asyncio.wait_for(stdin.drain(), limits.call_seconds)
                except TimeoutError:
                    ended(f"expected the program to read its input within {limits.call_seconds:g} s")
                    return

    async def keep_errors() -> None:
        pace = Pace()
        while data := await errors.read(PIECE):
            stderr.add(data)
            await pace.spend(0, len(data))

    tasks = [asyncio.ensure_future(job()) for job in (read, write, keep_errors)]
    try:
        yield bounded(incoming, outgoing)
    finally:
        try:
            await stop(process)
        finally:
            for task in tasks:
                task.cancel()
            for stream in (received, incoming, outgoing, leaving):
                stream.close()
        await asyncio.gather(*tasks, return_exceptions=True)


async def lines(stream: asyncio.StreamReader, most: int) -> AsyncIterator[bytes]:
    """The lines of a stream, each with its end; a last one without an end is left out.

    A piece is read when the lines of the one before have been taken: the rest waits in the sender's pipe, and
    not in a buffer of the size of the largest message. Raises ToolServerError for more than ``most`` bytes.
    """
    parts: list[bytes] = []
    while data := await stream.read(PIECE):
        *whole, rest = data.split(b"\n")
        for line in whole:
            yield b"".join((*parts, line, b"\n"))
            parts.clear()
        parts.append(rest)
        if sum(map(len, parts)) > most:
            raise ToolServerError(f"expected messages of at most {most} bytes, got a longer one")


async def start(server: ToolServer) -> asyncio.subprocess.Process:
    """Start the program of a server. Raises ToolServerError if it cannot be started."""
    from mcp.client.stdio import get_default_environment

    assert server.command is not None
    environment = {**get_default_environment(), **server.env}
    program = shutil.which(server.command, path=environment.get("PATH"))
    if program is None:
        raise ToolServerError(f"expected a program, found none of the name {server.command}")
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            program,
            *server.args,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=environment,
            cwd=server.cwd,
            limit=PIECE,
            start_new_session=True,  # so that Ctrl-C on the terminal does not reach it
        )
    except (OSError, ValueError) as error:
        raise ToolServerError(f"{server.command} cannot be started: {error}") from error


async def stop(process: asyncio.subprocess.Process) -> None:
    """Stop a program: close its stdin, then terminate it, then kill it and its children.

    The pipes are closed even if the task is cancelled.
    """
    try:
        if process.stdin is not None:
            process.stdin.close()
        for name in ("SIGTERM", "SIGKILL"):
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), LEAVE_SECONDS)
            if process.returncode is not None:
                break
            with suppress(ProcessLookupError, PermissionError):
                if sys.platform == "win32":
                    process.kill()
                else:
                    os.killpg(process.pid, getattr(signal, name))
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), KILLED_SECONDS)
    finally:
        transport = getattr(process, "_transport", None)  # a child process may still hold a pipe open
        if transport is not None:
            with suppress(PermissionError):
                transport.close()  # kills a program that still runs


def bounded(incoming: Any, outgoing: Any) -> tuple[Incoming, Outgoing]:
    """The streams of a transport, with bounds of the messages that come."""
    found = Incoming(incoming)
    return found, Outgoing(outgoing, found)


# --- an address ---------------------------------------------------------------------------------------


@asynccontextmanager
async def http(
    server: ToolServer, limits: McpLimits, ended: Callable[[str], object]
) -> AsyncIterator[tuple[Any, Any]]:
    """Connect to a server by streamable HTTP.

    Args:
        ended: called with a reason when the server violates the protocol.
    """
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    assert server.url is not None
    pace, n_streams = Pace(), 0

    async def ask(request: Any) -> None:
        nonlocal n_streams
        if request.method == "GET":  # a server that ends its streams may have each continued at once
            n_streams += 1
            await pace.spend(STREAM_COST, 0)
            if n_streams > MOST_STREAMS:
                ended(f"expected at most {MOST_STREAMS} streams in a session, got more")
                raise httpx2.ReadError("too many streams")

    async def bound(response: Any) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.ReadError(f"{server.name}: expected an answer that is not compressed, got another")
        has_events = response.headers.get("content-type", "").startswith("text/event-stream")
        response.stream = limited_stream(response.stream, limits, has_events, pace, ended)

    timeout = httpx2.Timeout(
        limits.connect_seconds, read=max(limits.connect_seconds, limits.call_seconds) + 5
    )
    headers = {"Accept-Encoding": "identity", **server.headers}
    hooks = {"request": [ask], "response": [bound]}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks=hooks) as client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=limits.message_bytes
        ) as streams,
    ):
        yield bounded(*streams)


def limited_stream(
    stream: Any, limits: McpLimits, has_events: bool, pace: Pace, ended: Callable[[str], object]
) -> Any:
    """A response body of one message, or of events with a message each, that ends at a larger message.

    The body raises ReadError then, after it has called ``ended`` with the reason.
    """
    import httpx2

    class Limited(httpx2.AsyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            shape = Shape(limits)
            async for chunk in stream:
                for start in range(0, len(chunk), EVENTS):
                    piece = chunk[start : start + EVENTS]
                    try:
                        n_messages = shape.add_events(piece) if has_events else 0
                        if not has_events:
                            shape.add(piece)
                    except ToolServerError as error:
                        ended(str(error))
                        raise httpx2.ReadError(str(error)) from error
                    await pace.spend(n_messages, len(piece))
                    yield piece

        async def aclose(self) -> None:
            await stream.aclose()

    return Limited()

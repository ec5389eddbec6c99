"""How a tool server is reached: a program that is started, or an address. Both bound what a message may hold.

Only `connection` uses this module, inside the event loop of a client.
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

from oxillama.mcp.configuration import McpLimits, ToolServer
from oxillama.mcp.errors import ToolServerError

MOST_STDERR = 8192
"""Bytes of a server's stderr that are kept."""
LEAVE_SECONDS = 2.0
"""Within which a server must exit when its stdin is closed, and again after SIGTERM."""


class Tail:
    """The end of what a program writes to its stderr, with the lines of its stdout that are no messages."""

    def __init__(self) -> None:
        self._data = b""

    def add(self, data: bytes) -> None:
        """The next bytes."""
        self._data = (self._data + data)[-MOST_STDERR:]

    @property
    def text(self) -> str:
        """What is kept of it."""
        return self._data.decode("utf-8", "replace")


# --- a program ----------------------------------------------------------------------------------------


@asynccontextmanager
async def stdio(
    server: ToolServer, limits: McpLimits, stderr: Tail, ended: Callable[[str], object]
) -> AsyncIterator[tuple[Any, Any]]:
    """Starts a program, and talks to it over its stdin and stdout; stops it in the end.

    Parameters
    ----------
    stderr : takes what the program writes there.
    ended : called with a reason when the program closes its stdout, or breaks the protocol.

    Raises ToolServerError if the program cannot be started.
    """
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    process = await start(server, limits)
    assert process.stdin and process.stdout and process.stderr
    stdin, stdout, errors = process.stdin, process.stdout, process.stderr
    coming, to_us = anyio.create_memory_object_stream[Any](0), anyio.create_memory_object_stream[Any](0)
    (received, incoming), (outgoing, leaving) = coming, to_us

    async def read() -> None:
        reason = "it has ended"
        try:
            while True:
                line = await stdout.readuntil(b"\n")
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:  # a line of a log, most likely
                    stderr.add(b"[no message, on stdout] " + line[:200].strip() + b"\n")
                    continue
                await received.send(SessionMessage(message))
        except asyncio.IncompleteReadError:
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 0.5)
            if process.returncode is not None:
                reason = f"it has ended with status {process.returncode}"
        except asyncio.LimitOverrunError:
            reason = f"expected messages of at most {limits.message_bytes} bytes, got a longer one"
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return
        finally:
            await received.aclose()
        ended(reason)

    async def write() -> None:
        with suppress(OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for message in leaving:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                stdin.write(text.encode() + b"\n")
                await stdin.drain()

    async def keep_errors() -> None:
        while data := await errors.read(4096):
            stderr.add(data)

    tasks = [asyncio.ensure_future(job()) for job in (read, write, keep_errors)]
    try:
        yield incoming, outgoing
    finally:
        await stop(process)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in (received, incoming, outgoing, leaving):
            await stream.aclose()


async def start(server: ToolServer, limits: McpLimits) -> asyncio.subprocess.Process:
    """The running program of a server. Raises ToolServerError if it cannot be started."""
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
            limit=limits.message_bytes,
            start_new_session=True,  # a Ctrl-C on the terminal is not for it
        )
    except (OSError, ValueError) as error:
        raise ToolServerError(f"{server.command} cannot be started: {error}") from error


async def stop(process: asyncio.subprocess.Process) -> None:
    """Ends a program: closes its stdin, then asks it to end, then kills it and what it has started."""
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
        await asyncio.wait_for(process.wait(), LEAVE_SECONDS)
    transport = getattr(process, "_transport", None)  # a pipe may be open in a process that it has started
    if transport is not None:
        with suppress(PermissionError):
            transport.close()


# --- an address ---------------------------------------------------------------------------------------


@asynccontextmanager
async def http(server: ToolServer, limits: McpLimits) -> AsyncIterator[tuple[Any, Any]]:
    """Talks to a server by streamable HTTP."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    assert server.url is not None

    async def bound(response: Any) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.ReadError(f"{server.name}: expected an answer that is not compressed, got another")
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = limited_stream(response.stream, server.name, limits.message_bytes)

    timeout = httpx2.Timeout(
        limits.connect_seconds, read=max(limits.connect_seconds, limits.call_seconds) + 5
    )
    headers = {"Accept-Encoding": "identity", **server.headers}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks={"response": [bound]}) as client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=limits.message_bytes
        ) as streams,
    ):
        yield streams


def limited_stream(stream: Any, name: str, most: int) -> Any:
    """A body that raises ReadError when more than ``most`` bytes have come."""
    import httpx2

    class Limited(httpx2.AsyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            n_bytes = 0
            async for chunk in stream:
                n_bytes += len(chunk)
                if n_bytes > most:
                    raise httpx2.ReadError(f"{name}: expected at most {most} bytes in a message, got more")
                yield chunk

        async def aclose(self) -> None:
            await stream.aclose()

    return Limited()

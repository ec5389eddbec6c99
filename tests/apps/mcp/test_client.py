"""The client against real servers: over stdio and streamable HTTP, kind ones and hostile ones."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oxillama.apps.mcp import McpClient, McpLimits, ToolServerError, connect, servers_of, transports
from oxillama.base.events import ToolCall
from oxillama.text.toolcalls import definitions
from tests.support.paths import ROOT
from tests.support.spread import few
from tests.support.waiting import until

pytest.importorskip("mcp", reason="needs the package mcp: pip install 'oxillama-cpu[mcp]'")

PATIENT = McpLimits(call_seconds=60, result_chars=1000, message_bytes=1 << 20)
QUICK = replace(PATIENT, call_seconds=3)
RAW = ROOT / "tests/support/raw_mcp_server.py"


def real(**env: str) -> dict[str, Any]:
    path = os.pathsep.join([str(ROOT), *sys.path])
    command = {"command": sys.executable, "args": ["-m", "tests.support.mcp_server"]}
    return {**command, "env": {"PYTHONPATH": path, **env}, "cwd": str(ROOT)}


def raw(kind: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": [RAW.name, kind], "cwd": str(RAW.parent)}


def connected(limits: McpLimits = PATIENT, **servers: Any) -> McpClient:
    return connect({"mcpServers": servers}, limits)


@pytest.fixture(scope="module")
def client() -> Iterator[McpClient]:
    with connected(PATIENT, t=real(SECRET="s"), raw=raw("plain")) as found:
        yield found


def test_tools_of_all_servers(client: McpClient) -> None:
    tools = {tool.name: tool for tool in client.tools()}
    assert {"t__add", "t__odd_name", "raw__echo"} <= set(tools)
    assert all(tool.refused is None for tool in tools.values())
    assert tools["t__odd_name"].own_name == "odd name/ü!"
    assert set(tools["t__add"].parameters["properties"]) == {"a", "b"}
    assert definitions(client.definitions()) == client.definitions()
    assert [(server.name, server.is_connected) for server in client.servers()] == [("t", True), ("raw", True)]


@pytest.mark.parametrize(
    ("name", "arguments", "value"),
    [
        ("t__add", {"a": 1, "b": 2}, "3"),
        ("t__odd_name", {}, "odd"),
        ("t__environment", {"name": "SECRET"}, "s"),
        ("t__environment", {"name": "HOME"}, os.environ.get("HOME", "none")),
        ("t__environment", {"name": "PYTEST_CURRENT_TEST"}, "none"),
        ("t__picture", {}, "[image, image/png: left out]"),
        ("t__huge", {"n": 2000}, "x" * 1000 + "\n[cut: 1000 of 2000 characters]"),
        ("raw__echo", {"ü": ["\n"]}, '{"\\u00fc": ["\\n"]}'),
        ("raw__line", {}, "done"),
    ],
)
def test_calls(client: McpClient, name: str, arguments: dict[str, Any], value: str) -> None:
    assert client.call(name, arguments).value == value


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("t__fails", {}, "Error executing tool fails"),
        ("t__add", {"a": "x"}, "Error executing tool add"),
        ("no", {}, "no: expected a tool that can be used, got one of another name"),
        ("t__add", [], "arguments: expected an object"),
        ("raw__wrong", {}, "raw: "),
    ],
)
def test_what_goes_wrong_is_a_result(client: McpClient, name: str, arguments: Any, error: str) -> None:
    assert (client.call(name, arguments).error or "").startswith(error)
    assert client.call("t__add", {"a": 1, "b": 2}).value == "3"


def test_many_calls_at_a_time_and_in_asyncio(client: McpClient) -> None:
    async def several() -> list[Any]:
        calls = [client.acall("t__add", {"a": i, "b": i}) for i in range(20)]
        assert (await client.adispatch(ToolCall("raw__echo"))).value == "{}"
        return [result.value for result in await asyncio.gather(*calls)]

    assert asyncio.run(several()) == [str(2 * i) for i in range(20)]


@pytest.mark.slow
def test_calls_that_never_end() -> None:
    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.acall("t__never", {}), 0.2)

    with connected(t=real(), raw=raw("plain")) as client:
        for name in ("t__never", "raw__silent"):
            connection = client._connections[name.partition("__")[0]]
            connection.limits = QUICK
            result = client.call(name, {})
            assert result.error == f"{name.partition('__')[0]}: expected a result within 3 s, got none"
            connection.limits = PATIENT
        assert client.call("raw__echo", {}).value == "{}"
        asyncio.run(cancelled())
        assert client.call("t__add", {"a": 1, "b": 2}).value == "3"


def test_a_server_that_dies_is_told_and_started_again(client: McpClient) -> None:
    assert client.call("t__die", {}).error == "t: it has ended with status 7"
    assert client.servers()[0].failure == "it has ended with status 7"
    assert client.call("t__add", {"a": 1, "b": 2}).value == "3"
    assert client.call("raw__die", {}).error == "raw: it has ended with status 3"
    assert client.servers()[1].stderr.count("last words") == 1  # the call was sent once
    assert client.call("raw__echo", {}).value == "{}"


def test_a_list_that_is_nested_too_deeply() -> None:
    with connected(a=raw("deep")) as client:
        (server,) = client.servers()
        assert server.failure == "expected messages of at most 100 levels, got a deeper one"


def test_a_message_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "LEAVE_SECONDS", 0.2)
    with connected(raw=raw("plain")) as client:
        error = client.call("raw__shout", {}).error
        assert error == f"raw: expected messages of at most {1 << 20} bytes, got a longer one"
        assert client.call("raw__echo", {}).value == "{}"


def test_pages_of_tools() -> None:
    with connected(a=raw("pages"), b=raw("endless"), c=raw("many")) as client:
        assert [tool.name for tool in client.tools()] == [f"a__tool{i}" for i in range(5)]
        failures = {server.name: server.failure for server in client.servers()}
        assert failures["b"] == "expected at most 100 pages of tools, got more"
        assert failures["c"] == "expected at most 512 tools, got more"


def test_a_list_that_changes() -> None:
    with connected(a=raw("changes"), t=real()) as client:
        names = [tool.name for tool in client.tools()]
        assert names[:2] == ["a__first", "a__grow"] and "t__learned" not in names
        assert client.call("a__grow", {}).value == "grown"
        assert client.call("t__learn", {}).value == "learned"
        until(lambda: {"a__second", "t__learned"} <= {tool.name for tool in client.tools()})
        assert client.call("t__learned", {}).value == "new"


def test_tools_that_cannot_be_used() -> None:
    with connected(a=raw("schemas")) as client:
        reasons = {tool.own_name: tool.refused or "" for tool in client.tools() if tool.refused}
        assert "'http://x/y' is neither in the schema nor in the registry" in reasons["refused"]
        assert reasons["wide"].startswith("parameters: expected at most 100000 characters of JSON")
        assert reasons["told"] == "description: expected at most 10000 characters, got 20000"
        assert reasons[""] == "name: expected 1 to 200 characters, got 0"
        assert reasons["good"] == "the server lists the name twice"
        usable = [tool for tool in client.tools() if tool.refused is None]
        assert {"good", "a b", "a/b", "x" * 150} <= {tool.own_name for tool in usable}
        assert definitions(client.definitions())
        refused = next(tool.name for tool in client.tools() if tool.own_name == "refused")
        assert "expected a tool that can be used" in (client.call(refused, {}).error or "")
        assert client.tool(refused) is None and client.tool("a__good") is not None


def test_a_list_that_is_invalid() -> None:
    with connected(a=raw("invalid")) as client:
        (failure,) = [server.failure or "" for server in client.servers()]
        assert (
            "inputSchema.properties Input should be a valid dictionary" in failure and "http" not in failure
        )


@pytest.mark.slow
def test_servers_that_do_not_start(caplog: pytest.LogCaptureFixture) -> None:
    limits = McpLimits(connect_seconds=10)
    servers = {
        "none": {"command": "no-such-program"},
        "fails": raw("fails"),
        "mute": raw("mute"),
        "nobody": {"url": "http://127.0.0.1:9/mcp"},
        "good": raw("plain"),
    }
    with connected(limits, **servers) as client:
        failures = {server.name: server.failure or "" for server in client.servers()}
        assert failures["none"] == "expected a program, found none of the name no-such-program"
        assert failures["fails"] == "it has ended with status 4"
        assert failures["mute"] == "expected an answer within 10 s, got none"
        assert failures["nobody"]
        assert [tool.server for tool in client.tools()] == ["good"] * 6
        stderr = {server.name: server.stderr for server in client.servers()}
        assert stderr["fails"] == "cannot go on\n"
    assert len(caplog.records) >= 4


@pytest.mark.slow
def test_nothing_is_written_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    program = (
        "import sys, oxillama.apps.mcp as m\n"
        f"with m.connect({{'mcpServers': {{'t': {real()!r}, 'raw': {raw('plain')!r}}}}}) as c:\n"
        "    c.call('raw__line', {}); c.call('raw__die', {}); c.call('t__fails', {})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def children(pid: int) -> list[int]:
    if not Path(f"/proc/{pid}/task/{pid}/children").exists():
        pytest.skip("needs /proc with the children of a process")
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


@pytest.mark.parametrize("end", few(["exit", "error", "kill", "no close"], ("kill",)))
def test_programs_end_with_the_process(end: str) -> None:
    kind = raw("plain" if end == "kill" else "stubborn")
    program = (
        "import sys, time, oxillama.apps.mcp as m, oxillama.apps.mcp.transports as t\n"
        "t.LEAVE_SECONDS = 0.2\n"
        f"c = m.connect({{'mcpServers': {{'a': {kind!r}}}}})\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        f"if {end!r} == 'error': raise ValueError\n"
        f"if {end!r} == 'exit': c.close()\n"
        f"if {end!r} == 'kill': time.sleep(3600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin and process.stdout
    with process:
        assert process.stdout.readline() == b"ready\n"
        started = children(process.pid)
        assert started
        if end == "kill":
            process.send_signal(signal.SIGKILL)
        else:
            process.stdin.write(b"\n")
        process.stdin.close()
        process.wait(60)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


@pytest.mark.skipif(sys.platform == "win32", reason="has no signals")
@pytest.mark.parametrize(
    ("program", "seconds", "status"),
    [("sys.stdin.read()", 60.0, 0), ("time.sleep(60)", 0.2, -signal.SIGTERM)],
)
def test_a_program_has_time_to_end(
    program: str, seconds: float, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ended() -> int | None:
        command = {"command": sys.executable, "args": ["-c", f"import sys, time\n{program}"]}
        process = await transports.start(servers_of({"mcpServers": {"a": command}})[0])
        await transports.stop(process)
        return process.returncode

    monkeypatch.setattr(transports, "LEAVE_SECONDS", seconds)
    assert asyncio.run(ended()) == status


def test_pipes_are_closed_by_a_task_that_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    async def left() -> list[bool]:
        command = {"command": sys.executable, "args": ["-c", "import time\ntime.sleep(60)"]}
        process = await transports.start(servers_of({"mcpServers": {"a": command}})[0])
        task = asyncio.ensure_future(transports.stop(process))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        pipes = [process._transport.get_pipe_transport(i) for i in range(3)]  # type: ignore[attr-defined]
        found = [each.is_closing() for each in pipes]
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        return found

    monkeypatch.setattr(transports, "LEAVE_SECONDS", 60.0)
    assert all(asyncio.run(left()))


def test_a_closed_client() -> None:
    client = connected(a=raw("plain"))
    client.close()
    client.close()
    assert client.call("a__echo", {}).error == "mcp: the client is closed"
    with pytest.raises(ToolServerError, match="the client is closed"):
        client.tools()


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def http_server(port: int) -> subprocess.Popen[bytes]:
    """The server of tests at a port, ready."""
    found = real()
    process = subprocess.Popen(
        [found["command"], *found["args"], "http", str(port)],
        env={**os.environ, **found["env"]},
        cwd=found["cwd"],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    until(answers, 60)
    return process


@pytest.mark.slow
def test_streamable_http(port: int) -> None:
    process = http_server(port)
    try:
        with connected(h={"url": f"http://127.0.0.1:{port}/mcp", "headers": {"X-Key": "k"}}) as client:
            assert client.call("h__add", {"a": 1, "b": 2}).value == "3"
            assert client.call("h__fails", {}).error == "Error executing tool fails"
            connection = client._connections["h"]
            connection.limits = QUICK
            assert client.call("h__never", {}).error == "h: expected a result within 3 s, got none"
            assert (client.call("h__huge", {"n": 3 << 20}).error or "").startswith("h: ")
            connection.limits = PATIENT
            assert (
                client.call("h__huge", {"n": 5000}).value == "x" * 1000 + "\n[cut: 1000 of 5000 characters]"
            )
            assert client.call("h__add", {"a": 1, "b": 2}).value == "3"
            connection.limits = QUICK
            assert (client.call("h__die", {}).error or "").startswith("h: ")
            connection.limits = PATIENT
            process.wait(60)
            assert (client.call("h__add", {"a": 1, "b": 2}).error or "").startswith("h: ")
            process = http_server(port)
            assert client.call("h__add", {"a": 1, "b": 2}).value == "3"
            process.kill()
            process.wait(30)
            process = http_server(port)  # which knows nothing of the session
            found = [client.call("h__add", {"a": 1, "b": 2}) for _ in range(2)]
            assert found[-1].value == "3"
    finally:
        process.kill()
        process.wait(30)

"""The hostile clients and tool servers of `tools/soak_server.py`: all parts of `--hostile`.

python tools/soak_hostile.py PORT BEGIN END SEED    the clients, from BEGIN to END seconds after the start
python tools/soak_hostile.py PORT END               asks for /health; prints the moment and the time of each
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

FAULTS = {"good": ("none", 0), "mute": ("silence", 2), "silent": ("silence", 5), "chatty": ("log_flood", 4)}
FAULTS |= {"mortal": ("death", 5)}
"""The tool servers: a fault of `tests/support/hostile_mcp.py`, and the message at which it begins."""

OPEN = 3 * len(FAULTS)
"""The number of pipes to tool servers, which may be open or not."""

MOST_CONNECTIONS, N_HALF_OPEN = 300, 200
N_READERS, N_CALLERS = 3, 3

ABOVE_SECONDS = 0.05
"""Seconds by which `/health` may be slower than before the hostile clients came."""

TEMPLATE = (
    "{% for t in tools or [] %}<tools>{{ t | tojson }}</tools>\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    '{{ "\\n" }}<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A chat template with tools."""

HALVES = (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.1\r\n")
"""What a client sends of a handshake, or in its place."""


def options(folder: Path) -> list[str]:
    """Options of a server with HTTPS, a template with tools, and the tool servers; files go to the folder."""
    key, cert, template, config = (folder / name for name in ("key", "cert", "template", "mcp.json"))
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    make += ["-days", "2", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(make, check=True, capture_output=True)
    template.write_text(TEMPLATE)
    program = str(ROOT / "tests/support/hostile_mcp.py")
    servers = {
        name: {"command": sys.executable, "args": [program, fault, str(n)]}
        for name, (fault, n) in FAULTS.items()
    }
    config.write_text(json.dumps({"mcpServers": servers}))
    found = ["--tls-cert", str(cert), "--tls-key", str(key), "--chat-template", str(template)]
    found += ["--mcp", str(config), "--mcp-connect-seconds", "3", "--mcp-call-seconds", "2"]
    return [*found, "--max-connections", str(MOST_CONNECTIONS)]


class Hostile:
    """The processes of the hostile clients, and of the one that asks for `/health`."""

    def __init__(self, port: int, begin: float, end: float, seed: int) -> None:
        self._began, self._begin, program = time.time(), begin, [sys.executable, __file__, str(port)]
        self._times = tempfile.TemporaryFile("w+")  # noqa: SIM115  # until the end
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        clients = [*program, str(begin), str(end), str(seed)]
        self._clients = subprocess.Popen(clients, stdout=self._said, text=True)
        self._health = subprocess.Popen([*program, str(end)], stdout=self._times, text=True)

    def stop(self) -> None:
        """Ends both processes."""
        for each in (self._clients, self._health):
            each.kill()

    def ended(self) -> list[str]:
        """Waits for the end; prints what was done and the times, and returns faults."""
        codes = [each.wait(120) for each in (self._clients, self._health)]
        self._said.seek(0)
        faults = [line.strip() for line in self._said if line.startswith("fault")]
        self._said.seek(0)
        print(*(line.strip() for line in self._said if not line.startswith("fault")), sep="\n")
        self._times.seek(0)
        pairs = [tuple(map(float, line.split())) for line in self._times]
        before = sorted(took for at, took in pairs if at < self._began + self._begin)
        after = sorted(took for at, took in pairs if at >= self._began + self._begin)
        if not before or not after or any(codes):
            return [*faults, f"the hostile clients ended with {codes}, after {len(after)} answers"]
        for name, share in (("half", 0.5), ("99%", 0.99), ("all", 1.0)):
            first, last = (part[min(len(part) - 1, int(share * len(part)))] for part in (before, after))
            print(f"/health, {name} within: {first:.4f} s before, {last:.4f} s with hostile clients")
            if last > first + ABOVE_SECONDS and share < 1:
                faults.append(f"/health is {last - first:.3f} s slower ({name})")
        return faults


def ask_for_health(port: int, end: float) -> None:
    """Prints the moment and the seconds of each answer to `/health`, until the end."""
    began, context = time.time(), ssl._create_unverified_context()
    while time.time() < began + end:
        at, before = time.time(), time.perf_counter()
        try:
            client = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
            client.request("GET", "/health", headers={"Host": "localhost"})
            client.getresponse().read()
            client.close()
        except OSError as error:
            print(repr(error), file=sys.stderr)
            before -= 60  # counts as the longest time
        print(at, time.perf_counter() - before, flush=True)
        time.sleep(0.2)


class Clients:
    """Hostile clients in one event loop; counts what they did."""

    def __init__(self, port: int, end: float, seed: int) -> None:
        self.port, self.end, self.rng = port, end, random.Random(seed)
        self.secure = ssl._create_unverified_context()
        self.seen: dict[str, int] = {}

    async def run(self) -> None:
        jobs = [*[self.half_open] * N_HALF_OPEN, *[self.reader] * N_READERS, *[self.caller] * N_CALLERS]
        await asyncio.gather(*map(self.repeated, jobs))
        print(f"hostile clients: {self.seen}")

    async def repeated(self, job: Any) -> None:
        await asyncio.sleep(10 * self.rng.random())  # all at once would take each other's places
        while time.monotonic() < self.end:
            name = job.__name__
            self.seen[name] = self.seen.get(name, 0) + 1
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                await asyncio.wait_for(job(), 60)
            await asyncio.sleep(2 * self.rng.random())

    async def half_open(self) -> None:
        """Begins no handshake, or a part of one, and waits until the server closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(self.rng.choice(HALVES))
            async with asyncio.timeout(self.rng.random() * 20):
                await reader.read(1000)
        finally:
            writer.transport.abort()
            await asyncio.sleep(4 * self.rng.random())  # else each takes the place of an honest client

    async def reader(self) -> None:
        """Begins a chat with tools, reads slowly, and leaves."""
        tool = {"type": "mcp", "server_label": "good", "require_approval": "never"}
        body = {"messages": [{"role": "user", "content": "Mia"}], "tools": [tool], "stream": True}
        body |= {"metadata": {"a": "x" * 100_000}, "max_tokens": 500, "ignore_eos": True}
        await self.ask("/v1/chat/completions", body, leaves=True)

    async def caller(self) -> None:
        """Calls a tool; the server that answers must do so whatever the others do."""
        server = self.rng.choice(list(FAULTS))
        began = time.monotonic()
        status = await self.ask("/mcp/call", {"name": f"{server}__echo", "arguments": {}})
        seconds = time.monotonic() - began
        self.seen[f"{server} {status}"] = self.seen.get(f"{server} {status}", 0) + 1
        if server == "good" and (status != 200 or seconds > 5):
            print(f"fault: a call of a good tool took {seconds:.1f} s, status {status}")

    async def ask(self, path: str, body: Any, leaves: bool = False) -> int:
        """The status of an answer. A client that leaves reads a little of it, for a while."""
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(
            sock=raw, ssl=self.secure, server_hostname="localhost", limit=2048
        )
        try:
            data = json.dumps(body).encode()
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer hostile\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + data)
            status = int((await reader.readline()).split()[1])
            if leaves:
                await asyncio.sleep(self.rng.random() * 4)
            return status
        finally:
            writer.transport.abort()


def main() -> None:
    port, *times = map(float, sys.argv[1:])
    if len(times) == 1:
        return ask_for_health(int(port), times[0])
    begin, end, seed = times
    began = time.monotonic()
    time.sleep(begin)
    os.nice(10)  # hostile clients have processors of their own; here they would take the server's
    asyncio.run(Clients(int(port), began + end, int(seed)).run())


if __name__ == "__main__":
    main()

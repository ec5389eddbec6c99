"""Servers in processes of their own, and requests to them: `oxillama serve`, llama-server, vLLM's."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from oxillama.errors import ConfigError

START_SECONDS = 120


@dataclass(frozen=True)
class Served:
    """A server in a process of its own."""

    port: int
    pid: int

    def loop_seconds(self) -> float:
        """Processor time of its main thread, which has the event loop; nan where the system does not tell."""
        file = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat")
        return int(file.read_text().split()[0]) / 1e9 if file.exists() else float("nan")


def served(
    model: Path, threads: int, context: int | None = None, *more: str
) -> AbstractContextManager[Served]:
    """Our server, with more options."""
    command = [sys.executable, "-m", "oxillama", "serve", str(model), "-t", str(threads)]
    command += [*(["-c", str(context)] if context else []), *more]
    return running(command, f"server: expected one that serves {model}")


def llama_server(
    path: Path, model: Path, threads: int, slots: int, context: int, *more: str
) -> AbstractContextManager[Served]:
    """llama-server with batches of all slots, and more options."""
    command = [
        *(str(path), "-m", str(model), "-np", str(slots), "-cb"),
        *("-c", str(slots * context), "-t", str(threads), "--no-ui", *more),
    ]
    return running(command, f"--peer: expected a llama-server that serves {model}")


@contextmanager
def running(command: Sequence[str], expected: str, env: Mapping[str, str] | None = None) -> Iterator[Served]:
    """A server, once it answers ``/health``.

    Args:
        command: to which ``--port`` is added.
        expected: how the ConfigError begins if it ends; the last line that it wrote follows.
        env: of the process; None for this one's.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [*command, "--port", str(port)], env=env, stdout=subprocess.DEVNULL, stderr=said
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not is_ready(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    said.seek(0)
                    last = said.read().decode(errors="replace").strip().rpartition("\n")[2]
                    raise ConfigError(
                        f"{expected}, got none from {command[0]}" + (f": {last}" if last else "")
                    )
                time.sleep(0.05)
            yield Served(port, process.pid)
        finally:
            process.terminate()  # vLLM's ends its other processes
            try:
                process.wait(START_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def is_ready(port: int) -> bool:
    """Whether a server says that its model is loaded."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def request_of(path: str, text: str) -> bytes:
    """A request with a body of JSON, over a connection of its own."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    body = text.encode()
    return f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def post(port: int, path: str, body: str | Mapping[str, Any]) -> HTTPConnection:
    """A connection on which a request with a body of JSON was sent."""
    connection = HTTPConnection("127.0.0.1", port)
    text = body if isinstance(body, str) else json.dumps(body)
    connection.request("POST", path, text, {"Content-Type": "application/json"})
    return connection

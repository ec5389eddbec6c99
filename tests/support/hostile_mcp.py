"""A tool server that misbehaves at its n-th message: `python hostile_mcp.py FAULT N`, or over HTTP.

It speaks MCP of 2025-11-25 by hand. The messages of a session are, in this order: a probe of later
protocols, ``initialize``, ``notifications/initialized``, ``tools/list``, then calls. After the fault it goes
on as usual, unless the fault says otherwise. `FAULTS` lists the faults that every transport has,
`PROGRAM_FAULTS` the further faults of a program.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = (
    *("silence", "half", "death", "garbage", "other_id", "twice", "error", "no_result", "wrong_type"),
    *("many_parts", "many_keys", "deep", "huge", "long_lists", "progress_flood", "log_flood", "change_flood"),
    *("asking_flood", "answer_flood", "trickle"),
)
PROGRAM_FAULTS = ("noise", "noise_flood", "brackets", "no_line", "stderr_flood", "deaf", "empty_lines")
SECONDS = 600.0
"""Seconds of a fault that lasts."""


CONTINUED = "id: 1\nretry: 0\ndata:\n\n"
"""An event that has a client continue the stream at once when it ends."""
N_STREAMS: list[str] = []
"""The paths of all requests for streams."""


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": "A tool.", "inputSchema": {"type": "object", "properties": {}}}


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
    """The usual answer to a message; None to a notification."""
    method, id = message.get("method"), message.get("id")
    if id is None or method is None:
        return None
    if method == "initialize":
        facts = {"name": "hostile", "version": "1"}
        version = message["params"]["protocolVersion"]
        result: dict[str, Any] = {
            "protocolVersion": version,
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": facts,
        }
    elif method == "tools/list":
        result = {"tools": [tool("echo")]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": json.dumps(message["params"].get("arguments"))}]}
    else:
        return {"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "unknown"}}
    return {"jsonrpc": "2.0", "id": id, "result": result}


def notification(method: str, **params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params})


def endless(line: str) -> Iterator[str]:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        yield line


def faulty(fault: str, usual: dict[str, Any] | None) -> Iterator[str]:
    """The texts of messages in the place of the usual answer; the generator may wait or end the process."""
    id = (usual or {}).get("id", 1)
    text = json.dumps(usual) if usual else ""
    result = dict((usual or {}).get("result", {}))

    def with_result(**more: Any) -> str:
        return json.dumps({"jsonrpc": "2.0", "id": id, "result": {**result, **more}})

    if fault == "silence":
        time.sleep(SECONDS)
    elif fault == "death":
        raise SystemExit(3)
    elif fault == "garbage":
        yield '{"jsonrpc": "2.0", "id": 1, "result": {"a": tru'
    elif fault == "other_id":
        yield json.dumps({**(usual or {}), "id": 987_654})
    elif fault == "twice":
        yield from (text, text, text)
    elif fault == "error":
        yield json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": 1, "message": "x" * 100_000}})
    elif fault == "no_result":
        yield json.dumps({"jsonrpc": "2.0", "id": id})
    elif fault == "wrong_type":
        yield json.dumps({"jsonrpc": "2.0", "id": id, "result": dict.fromkeys(result, 7)})
    elif fault == "many_parts":
        yield with_result(content=[{"type": "text", "text": "z"}] * 200_000)
    elif fault == "many_keys":
        yield with_result(structuredContent={str(i): i for i in range(100_000)})
    elif fault == "deep":
        yield f'{{"jsonrpc": "2.0", "id": {id}, "result": {{"a": {"[" * 5000}{"]" * 5000}}}}}'
    elif fault == "huge":
        yield with_result(content=[{"type": "text", "text": "z" * (20 << 20)}])
    elif fault == "long_lists":
        yield with_result(content=[{"type": "text", "text": "z"}] * 5000, tools=[tool("t")] * 5000)
    elif fault == "progress_flood":
        yield from endless(notification("progress", progressToken=id, progress=1))
    elif fault == "log_flood":
        yield from endless(notification("message", level="info", data="x" * 1000))
    elif fault == "change_flood":
        yield from endless(notification("tools/list_changed"))
    elif fault == "asking_flood":
        yield from (
            json.dumps({"jsonrpc": "2.0", "id": i, "method": "ping"}) for i, _ in enumerate(endless(""))
        )
    elif fault == "answer_flood":
        yield from endless(json.dumps({"jsonrpc": "2.0", "id": 999, "result": {}}))
    else:
        yield text


# --- a program ----------------------------------------------------------------------------------------


def write(text: str) -> None:
    os.write(1, text.encode())


def program_fault(fault: str, usual: dict[str, Any] | None) -> None:
    text = json.dumps(usual) if usual else "{}"
    end = time.monotonic() + SECONDS
    if fault == "half":
        write(text[: len(text) // 2])
        time.sleep(SECONDS)
    elif fault == "trickle":
        for char in text:
            write(char)
            time.sleep(0.5)
    elif fault == "noise":
        write("a log line\n\n\n[1, 2]\n" + text + "\n")
    elif fault == "deaf":
        write(text + "\n")
        time.sleep(SECONDS)
    else:
        endless_text = {
            "noise_flood": "a log line\n",
            "empty_lines": "\n" * 10_000,
            "brackets": "[" + "{}," * 100_000 + "1]\n",
            "no_line": "x" * 100_000,
            "stderr_flood": "x" * 100_000,
        }[fault]
        if fault == "stderr_flood":
            write(text + "\n")
        while time.monotonic() < end:
            os.write(2 if fault == "stderr_flood" else 1, endless_text.encode())


def main(fault: str, n: int) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        usual = answer(message)
        n -= 1
        if n:
            if usual is not None:
                write(json.dumps(usual) + "\n")
        elif fault in (*PROGRAM_FAULTS, "half", "trickle"):
            program_fault(fault, usual)
        else:
            for text in faulty(fault, usual):
                write(text + "\n")


# --- an address ---------------------------------------------------------------------------------------


@contextmanager
def http_server(fault: str, n: int, events: bool) -> Iterator[str]:
    """Serves in a thread; gives the address. Answers are JSON, or streams of events.

    With the fault `again` streams end at once, and ask to be continued at once.
    """
    state, lock = {"n": n}, threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            N_STREAMS.append(self.path)
            if fault == "again":
                self.close_connection = True
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                self.wfile.write(CONTINUED.encode())
                return
            self.send_response(405)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_DELETE = do_GET

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            usual = answer(message)
            with lock:
                state["n"] -= 1
                is_faulty = state["n"] == 0
            with suppress(OSError, SystemExit):
                self.close_connection = True
                if usual is None and not is_faulty:
                    self.send_response(202)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                texts = self.texts(usual) if is_faulty else iter([json.dumps(usual)])
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream" if events else "application/json")
                self.send_header("Connection", "close")
                self.end_headers()
                if is_faulty and fault == "again":
                    self.wfile.write(CONTINUED.encode())
                    return
                for text in texts:
                    data = f"event: message\ndata: {text}\n\n" if events else text
                    self.wfile.write(data.encode())
                    self.wfile.flush()

        def texts(self, usual: dict[str, Any] | None) -> Iterator[str]:
            text = json.dumps(usual)
            if fault == "half":
                self.wfile.write(f"HTTP/1.1 200 OK\r\n\r\n{text[:20]}".encode())
                time.sleep(SECONDS)
            elif fault == "trickle":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
                for char in text:
                    self.wfile.write(char.encode())
                    time.sleep(0.5)
            return faulty(fault, usual)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
    finally:
        server.shutdown()
        server.socket.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

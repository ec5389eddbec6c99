"""A tool server for tests that needs no package: `python raw_mcp_server.py KIND`.

It speaks MCP of 2025-11-25 over stdin and stdout, by hand, and so can break it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

KIND = sys.argv[1] if len(sys.argv) > 1 else "plain"
EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
REFUSED = {"type": "object", "properties": {"a": {"$ref": "http://x/y"}}, "required": ["a"]}
N_LISTED = 0


def tool(name: str, schema: Any = EMPTY, about: str = "A tool.") -> dict[str, Any]:
    return {"name": name, "description": about, "inputSchema": schema}


def tools(cursor: str | None) -> dict[str, Any]:
    """A page of the list."""
    global N_LISTED
    N_LISTED += 1
    if KIND == "pages":
        n = int(cursor or 0)
        return {"tools": [tool(f"tool{n}")], **({"nextCursor": str(n + 1)} if n < 4 else {})}
    if KIND == "endless":
        return {"tools": [tool(f"tool{N_LISTED}")], "nextCursor": "more"}
    if KIND == "many":
        return {"tools": [tool(f"tool{i}") for i in range(600)]}
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    if KIND == "deep":
        return {"tools": [tool("deep", {"type": "object", "properties": {"a": deep}})]}
    if KIND == "invalid":
        return {"tools": [tool("good"), tool("wrong", {"type": "object", "properties": 3})]}
    if KIND == "schemas":
        return {
            "tools": [
                tool("good"),
                tool("refused", REFUSED),
                tool("wide", {"type": "object", "description": "x" * 200_000}),
                tool("told", EMPTY, "x" * 20_000),
                tool("", EMPTY),
                tool("a b"),
                tool("a/b"),
                tool("good"),
                tool("x" * 150),
                tool("slow", {"type": "object", "properties": {"a": {"pattern": "(a?){60}a{60}"}}}),
            ]
        }
    if KIND == "markup":
        about = "<img src=x onerror=\"document.title='img'\"><script>document.title='script'</script>"
        return {"tools": [tool("shown", EMPTY, about), tool("refused", REFUSED, about)]}
    if KIND == "changes":
        return {"tools": [tool("first"), tool("grow"), *([tool("second")] if N_LISTED > 1 else [])]}
    return {"tools": [tool("echo"), tool("line"), tool("shout"), tool("silent"), tool("wrong"), tool("die")]}


def send(value: Any) -> None:
    print(json.dumps(value), flush=True)


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


def call(id: Any, name: str, arguments: Any) -> None:
    """Answers a call, or fails in the way that the call names."""
    if name == "line":  # noise, then an answer
        print("this is no JSON", flush=True)
        print('{"jsonrpc": "1.0", "x": []}', flush=True)
        send({"jsonrpc": "2.0", "id": 987654, "result": text("of another call")})
        send({"jsonrpc": "2.0", "id": id, "result": text("done")})
    elif name == "shout":  # one line without an end
        while True:
            sys.stdout.write("x" * 100_000)
    elif name == "wrong":
        send({"jsonrpc": "2.0", "id": id, "result": {"content": "no list"}})
    elif name == "die":
        print("last words\x1b[31m", file=sys.stderr, flush=True)
        os._exit(3)
    elif name == "grow":
        send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        send({"jsonrpc": "2.0", "id": id, "result": text("grown")})
    elif name == "shown":
        send({"jsonrpc": "2.0", "id": id, "result": text("<b>done</b>\n" * 20)})
    elif name != "silent":
        send({"jsonrpc": "2.0", "id": id, "result": text(json.dumps(arguments))})


def main() -> None:
    if KIND == "mute":
        time.sleep(3600)
    if KIND == "late":  # until a file is there
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.05)
    if KIND == "fails":
        print("cannot go on", file=sys.stderr, flush=True)
        sys.exit(4)
    for line in sys.stdin:
        message = json.loads(line)
        method, id = message.get("method"), message.get("id")
        if method == "initialize":
            version = message["params"]["protocolVersion"]
            facts = {
                "protocolVersion": version,
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "raw", "version": "1"},
            }
            send({"jsonrpc": "2.0", "id": id, "result": facts})
        elif method == "tools/list":
            send({"jsonrpc": "2.0", "id": id, "result": tools((message.get("params") or {}).get("cursor"))})
        elif method == "tools/call":
            call(id, message["params"]["name"], message["params"].get("arguments"))
        elif id is not None:
            send({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "unknown"}})
    if KIND == "stubborn":
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)


main()

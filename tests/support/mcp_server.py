"""A tool server for tests, written with the package `mcp`: `python -m tests.support.mcp_server [http PORT]`.

Run as a program it talks over stdin and stdout, or by streamable HTTP.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("tests")


@server.tool()
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@server.tool(name="odd name/ü!")
def odd() -> str:
    """Has an odd name. <img src=x onerror=alert(1)><script>alert(2)</script>"""
    return "odd"


@server.tool()
def huge(n: int) -> str:
    """Writes so many characters."""
    return "x" * n


@server.tool()
async def never() -> str:
    """Takes forever."""
    await asyncio.sleep(3600)
    return "late"


@server.tool()
def fails() -> str:
    """Raises an error."""
    raise ValueError("no luck")


@server.tool()
def die() -> str:
    """Ends the process of the server."""
    os._exit(7)


@server.tool()
def environment(name: str) -> str:
    """A variable of the environment."""
    return os.environ.get(name, "none")


@server.tool()
def picture() -> Any:
    """A picture."""
    from mcp.server.mcpserver import Image

    return Image(data=b"no picture", format="png")


@server.tool()
async def learn(context: Context) -> str:
    """Adds a tool."""

    def learned() -> str:
        """Is new."""
        return "new"

    server.add_tool(learned)
    await context.notify_tools_changed()
    return "learned"


if __name__ == "__main__":
    print("a word to stderr", file=sys.stderr, flush=True)
    if sys.argv[1:2] == ["http"]:
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        server.run("stdio")

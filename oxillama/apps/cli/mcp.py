"""``--mcp``: tools of MCP servers in a chat. The user sees each call and allows it before it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from oxillama.apps.cli.console import printable, say
from oxillama.apps.cli.terminal import shown_text, styled
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama.apps.mcp import McpClient, McpTool
    from oxillama.base.events import ToolCall
    from oxillama.text.toolcalls.dispatch import ToolResult

QUESTION = "run it? [y]es, [n]o, [a]lways for this tool: "
REFUSED = "the user refused the call"
NOBODY = "refused: the chat is on no terminal, so nobody can be asked"
MOST_LINES, MOST_CHARS = 8, 600
"""Of a result, on the terminal."""
MOST_ABOUT = 100
"""Characters of a description."""


def ask(question: str) -> str | None:
    """The user's answer on the terminal; None without a terminal, "" for Ctrl-C and the end of input."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    print(styled(question, "dim", sys.stderr), end="", file=sys.stderr, flush=True)
    try:
        return sys.stdin.readline().strip().lower()
    except KeyboardInterrupt:
        print(file=sys.stderr, flush=True)
        return ""


class AskingDispatcher:
    """Runs the calls that the user allows.

    Args:
        client: of the servers; closed with `close`.
        ask: puts a question to the user.
    """

    def __init__(self, client: McpClient, ask: Callable[[str], str | None] = ask) -> None:
        self.client: McpClient = client
        self._ask = ask
        self._allowed: set[str] = set()
        for server in client.servers():
            if server.failure is not None:
                say("warning", f"--mcp: {server.name}: {server.failure}")
        for tool in client.tools():
            if tool.refused is not None:
                say("warning", f"--mcp: {tool.name} cannot be used: {tool.refused}")

    def owns(self, call: ToolCall) -> bool:
        return self.client.tool(call.name) is not None

    def dispatch(self, call: ToolCall) -> ToolResult:
        """The result of a call, after the user was asked."""
        from oxillama.text.toolcalls.dispatch import ToolResult

        tool = self.client.tool(call.name)
        if tool is not None and tool.digest not in self._allowed:
            answer = self._ask(QUESTION)
            if answer is None:
                return ToolResult(error=NOBODY)
            if answer in ("a", "always"):
                self._allowed.add(tool.digest)
            elif answer not in ("y", "yes"):
                return ToolResult(error=REFUSED)
        return self.client.call(call.name, call.args)

    def close(self) -> None:
        self.client.close()


def connected(path: str) -> AskingDispatcher:
    """The tools of a configuration. Raises ConfigError."""
    from oxillama.apps.mcp import connect

    return AskingDispatcher(connect(path))


def in_short(text: str) -> str:
    """The beginning of a result, which cannot steer the terminal."""
    whole = shown_text(text)
    shown = "\n".join(whole[:MOST_CHARS].split("\n")[:MOST_LINES])
    rest = len(whole) - len(shown)
    return shown if rest <= 0 else f"{shown} ... ({rest} more characters)"


def listed(tools: list[McpTool]) -> list[str]:
    lines = []
    for tool in tools:
        about = f"cannot be used: {tool.refused}" if tool.refused else tool.description
        about = printable(" ".join(about.split()))
        lines.append(f"{tool.name}  {about[:MOST_ABOUT]}{'...' if len(about) > MOST_ABOUT else ''}")
    return lines


def status(client: McpClient, name: str) -> list[str]:
    """A line for each server, or the stderr of one. Raises ConfigError for an unknown name."""
    servers = {server.name: server for server in client.servers()}
    if not name:
        return [f"{each.name}: {each.failure or f'{each.n_tools} tools'}" for each in servers.values()] or [
            "there are no servers"
        ]
    if name not in servers:
        raise ConfigError(f"/mcp: expected one of {', '.join(servers)}, got {name}")
    text = shown_text(servers[name].stderr).rstrip("\n")
    return text.split("\n") if text else [f"{name} wrote nothing to stderr"]

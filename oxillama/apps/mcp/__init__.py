"""Tools of MCP servers (Model Context Protocol), for chats and for `run_tools`.

`configuration` reads the file that lists the servers, `transports` starts or connects to a server,
`connection` manages a session, `tools` converts tool lists and results of servers. `McpClient` combines all
servers: its connections run in one asyncio loop in a background thread. The package `mcp` is
imported when a client is made.
"""

from oxillama.apps.mcp.client import McpClient, ServerStatus, connect
from oxillama.apps.mcp.configuration import McpLimits, ToolServer, read_servers, servers_of
from oxillama.apps.mcp.errors import ToolServerError
from oxillama.apps.mcp.tools import McpTool

__all__ = [
    "McpClient",
    "McpLimits",
    "McpTool",
    "ServerStatus",
    "ToolServer",
    "ToolServerError",
    "connect",
    "read_servers",
    "servers_of",
]

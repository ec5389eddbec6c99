"""Work: tools of MCP servers (Model Context Protocol), for chats and for `run_tools`.

`configuration` reads the file that names the servers, `transports` starts or reaches one, `connection` keeps
the session with one, `tools` makes definitions and results of what servers send. `McpClient` has all servers
behind one face: its connections live in one asyncio loop in a thread of its own. The package `mcp` is
imported when a client is made.
"""

from oxillama.mcp.client import McpClient, ServerStatus, connect
from oxillama.mcp.configuration import McpLimits, ToolServer, read_servers, servers_of
from oxillama.mcp.errors import ToolServerError
from oxillama.mcp.tools import McpTool

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

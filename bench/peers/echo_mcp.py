"""A server with one tool, `echo`, by MCP's Python SDK: `stdio`, or `http` without sessions."""

import sys

from free_port import print_address
from mcp.server.mcpserver import MCPServer

server = MCPServer("echo", log_level="CRITICAL")


@server.tool()
def echo(text: str) -> str:
    """Return the text."""
    return text


if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    server.run("streamable-http", port=print_address(), json_response=True, stateless_http=True)

"""A server with one tool, `echo`, by FastMCP: `stdio`, or `http` without sessions."""

import sys

from fastmcp import FastMCP
from free_port import print_address

server = FastMCP("echo")


@server.tool
def echo(text: str) -> str:
    """Return the text."""
    return text


if sys.argv[1] == "stdio":
    server.run("stdio", show_banner=False, log_level="CRITICAL")
else:
    server.run(
        "http",
        show_banner=False,
        log_level="critical",
        port=print_address(),
        json_response=True,
        stateless_http=True,
    )

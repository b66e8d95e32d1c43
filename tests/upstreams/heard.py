"""An MCP server on FastMCP that returns the headers of its calls.

Usage: heard.py PORT ELSEWHERE. The tool `heard` returns the headers of its call. The path `/away`
redirects to the URL ELSEWHERE.
"""

import json
import sys

from fastmcp import FastMCP
from fastmcp.server.dependencies import get_http_headers
from starlette.responses import RedirectResponse

port, elsewhere = sys.argv[1:]
server = FastMCP("heard")


@server.tool
def heard() -> str:
    return json.dumps(get_http_headers(include_all=True))


@server.custom_route("/away", methods=["POST", "GET"])
async def away(request):
    return RedirectResponse(elsewhere, status_code=307)


server.run(transport="http", host="127.0.0.1", port=int(port), show_banner=False)

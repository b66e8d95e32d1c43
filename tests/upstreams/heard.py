"""An MCP server on FastMCP that tells what is said beside its calls.

Usage: heard.py PORT ELSEWHERE. Its tool `heard` answers with the headers of its call; a request to
`/away` is sent on to ELSEWHERE.
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

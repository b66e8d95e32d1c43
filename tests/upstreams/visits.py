"""An MCP server of the Python SDK whose tools need a person to visit a page.

The argument `been` of both tools is the path of a file. A test creates the file to report a visit.

Tools:
  secret  fails with the URL of a page until the file exists. When it does, the server sends a
          notification that the visit is complete, unless VISITS_QUIET is set
  pay     asks the person to visit a page, waits for the file, sends the notification and succeeds

The file that VISITS_LOG names gets one line for each call.
"""

import asyncio
import os
import pathlib

from mcp import UrlElicitationRequiredError
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ElicitRequestURLParams

server = MCPServer("visits")
waiting = {}


def note(line):
    with open(os.environ["VISITS_LOG"], "a", encoding="utf-8") as log:
        log.write(line + "\n")


async def there_is(been):
    while not pathlib.Path(been).exists():
        await asyncio.sleep(0.02)


async def notify_visited(session, visit, been):
    await there_is(been)
    if "VISITS_QUIET" not in os.environ:
        await session.send_elicit_complete(visit)


@server.tool()
async def secret(been: str, ctx: Context) -> str:
    note("secret")
    if pathlib.Path(been).exists():
        return "the secret"
    visit = f"visit of {been}"
    if visit not in waiting:
        waiting[visit] = asyncio.create_task(notify_visited(ctx.session, visit, been))
    page = ElicitRequestURLParams(
        message="Sign in first.", url="https://example.com/in", elicitation_id=visit
    )
    raise UrlElicitationRequiredError([page], "sign in first")


@server.tool()
async def pay(been: str, ctx: Context) -> str:
    note("pay")
    asked = await ctx.elicit_url("Pay.", "https://example.com/pay", "the payment")
    if asked.action != "accept":
        return "not paid"
    await there_is(been)
    await ctx.session.send_elicit_complete("the payment", ctx.request_id)
    return "paid"


server.run("stdio")

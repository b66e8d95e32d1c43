"""An MCP server on the SDK's own classes that wants a page to be visited.

`secret` refuses until there is a file that is called as its argument `been`: somebody has been to the page. `pay` sends a person to a page, waits for that file, says that the visit is done and answers. With VISITS_QUIET `secret` says nothing when there is the file. Each call is a line in the file that VISITS_LOG names.
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


async def tells(session, visit, been):
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
        waiting[visit] = asyncio.create_task(tells(ctx.session, visit, been))
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

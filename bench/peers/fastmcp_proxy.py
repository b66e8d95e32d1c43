"""FastMCP's proxy of another server: `fastmcp_proxy.py http URL` or `fastmcp_proxy.py stdio
COMMAND ARGUMENT...`, where one session with the upstream is held, which is the fastest; with
`fresh` before that, what `create_proxy` does by itself: over HTTP, a new session for every call.
"""

import asyncio
import sys

from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from fastmcp.server import create_proxy
from fastmcp.server.providers.proxy import FastMCPProxy, ProxyClient
from free_port import said


async def serve(proxy: FastMCPProxy) -> None:
    await proxy.run_async(
        "http", show_banner=False, log_level="critical", port=said(), json_response=True
    )


async def main(fresh: bool, kind: str, *target: str) -> None:
    if kind == "stdio":
        upstream = StdioTransport(target[0], list(target[1:]))
    else:
        upstream = StreamableHttpTransport(target[0])
    if fresh:
        await serve(create_proxy(upstream))
    else:
        async with ProxyClient(upstream) as client:
            await serve(FastMCPProxy(client_factory=lambda: client))


said_to = sys.argv[1:]
fresh = said_to[0] == "fresh"
asyncio.run(main(fresh, *said_to[fresh:]))

"""FastMCP's proxy of another server: `fastmcp_proxy.py [fresh] http URL` or `fastmcp_proxy.py
[fresh] stdio COMMAND ARGUMENT...`. It keeps one session with the upstream, which is the fastest.
With `fresh`, it uses `create_proxy`, which opens a new session for every call over HTTP.
"""

import asyncio
import sys

from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from fastmcp.server import create_proxy
from fastmcp.server.providers.proxy import FastMCPProxy, ProxyClient
from free_port import print_address


async def serve(proxy: FastMCPProxy) -> None:
    await proxy.run_async(
        "http", show_banner=False, log_level="critical", port=print_address(), json_response=True
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


arguments = sys.argv[1:]
fresh = arguments[0] == "fresh"
asyncio.run(main(fresh, *arguments[fresh:]))

"""Any server over stdio, over WebSockets: each connection is a process of its own.

    over_websocket.py PROGRAM ARG...

No package on the registries serves MCP over WebSockets any more; the transport here is the
`websockets` library's, and the server behind it whichever is named.
"""

import asyncio
import signal
import sys

from websockets.asyncio.server import serve


async def bridge(socket):
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(*sys.argv[1:], stdin=pipe, stdout=pipe)

    async def down():
        async for line in server.stdout:
            await socket.send(line.decode().rstrip("\n"))

    sending = asyncio.create_task(down())
    try:
        async for message in socket:
            server.stdin.write(message.encode() + b"\n")
            await server.stdin.drain()
    finally:
        sending.cancel()
        server.kill()
        await server.wait()


async def main():
    async with serve(bridge, "127.0.0.1", 0, subprotocols=["mcp"]) as serving:
        port = serving.sockets[0].getsockname()[1]
        print(f"serving at ws://127.0.0.1:{port}/", file=sys.stderr, flush=True)
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        await told.wait()


asyncio.run(main())

"""Where a server is to listen, which it says as toolgate does."""

import socket
import sys


def said() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    print(f"serving at http://127.0.0.1:{port}/mcp", file=sys.stderr, flush=True)
    return port

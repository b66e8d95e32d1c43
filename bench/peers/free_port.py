"""Chooses a free port for a server and prints its address as toolgate does."""

import socket
import sys


def print_address() -> int:
    """Prints the address of a free port to standard error, and returns the port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    print(f"serving at http://127.0.0.1:{port}/mcp", file=sys.stderr, flush=True)
    return port

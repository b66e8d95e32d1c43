"""A small client of Zyra's wire, as its documentation has one: list, status, call.

    example_client.py list
    example_client.py status
    example_client.py call STAGE COMMAND ARGS_JSON [sync|async]

ZYRA_API_BASE says where (http://localhost:8000 if it does not), ZYRA_API_KEY with which key, and
API_KEY_HEADER in which header, X-API-Key if it does not.
"""

import json
import os
import sys
from urllib.request import Request, urlopen


def ask(method, **params):
    base = os.environ.get("ZYRA_API_BASE", "http://localhost:8000")
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    request = Request(base.rstrip("/") + "/mcp", json.dumps(message).encode())
    request.add_header("Content-Type", "application/json")
    if key := os.environ.get("ZYRA_API_KEY"):
        request.add_header(os.environ.get("API_KEY_HEADER") or "X-API-Key", key)
    with urlopen(request, timeout=30) as answer:
        return json.load(answer)


def main(word, *rest):
    if word == "list":
        return ask("listTools")
    if word == "status":
        return ask("statusReport")
    if word == "call":
        stage, command, args, *mode = rest
        args = json.loads(args)
        return ask("callTool", stage=stage, command=command, args=args, mode=(mode or ["sync"])[0])
    raise SystemExit(__doc__)


if __name__ == "__main__":
    print(json.dumps(main(*(sys.argv[1:] or [""])), indent=2))

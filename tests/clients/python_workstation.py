#!/usr/bin/env python3
"""The MCP Python SDK's own client and a server of ours that speaks the workstation contract.

The contract is older than MCP's content blocks, and its refusals are errors of JSON-RPC: what the
SDK makes of both is checked here. What is printed is what `python_client.py` prints.

    python_workstation.py --workspace DIR --mode legacy --url http://127.0.0.1:8000/workstation
    python_workstation.py --workspace DIR --revision 2025-03-26 --stdio toolgate stdio DIR --dialect workstation
"""

import argparse

import anyio
import mcp_types as types
from jsonschema import Draft202012Validator
from python_client import INVALID_PARAMS, METHOD_NOT_FOUND, Peer, Report, refuses, run, text_of, want

INTERNAL_ERROR = -32603
FIRST = ["filesystem/read", "filesystem/write", "filesystem/list"]
CONCURRENT_CALLS = 20


def main() -> None:
    run(run_checks, __doc__)


async def run_checks(peer: Peer, options: argparse.Namespace, report: Report) -> None:
    readme = (options.workspace / "README.md").read_text(encoding="utf-8")

    async def negotiated() -> None:
        info = peer.session.server_info
        want(info and info.name, "the server does not say its name")
        want(peer.revision in ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"), f"{peer.revision}")
        if options.revision:
            want(peer.revision == options.revision, f"{peer.revision}, not {options.revision}")

    async def listed() -> None:
        page = await peer.page(None)
        names = [tool.name for tool in page.tools]
        want(page.next_cursor is None, "there is more than one page")
        want(names[:3] == FIRST and len(names) == len(set(names)), f"{names}")
        for tool in page.tools:
            Draft202012Validator.check_schema(tool.input_schema)

    async def read() -> None:
        result = await peer.call("filesystem/read", {"path": "README.md"})
        want(not result.is_error and text_of(result) == readme, f"{result!r}")
        want(isinstance(result.content[0], types.TextContent), f"{result.content!r}")

    async def written() -> None:
        await peer.call("filesystem/write", {"path": "py/made.txt", "content": "by python\n"})
        text = (options.workspace / "py/made.txt").read_text(encoding="utf-8")
        want(text == "by python\n", f"{text!r}")

    async def ran() -> None:
        result = await peer.call("ci/run", {"command": "printf hi-7f3a"})
        want(text_of(result) == "Exit Code: 0\nhi-7f3a", f"{text_of(result)!r}")

    async def refused() -> None:
        error = await refuses(INTERNAL_ERROR, peer.call("filesystem/read", {"path": "no-such-file"}))
        want(error.message == "Internal error", error.message)
        error = await refuses(INVALID_PARAMS, peer.call("filesystem/read", {"path": 5}))
        want(error.message == "Invalid params", error.message)
        error = await refuses(METHOD_NOT_FOUND, peer.call("no_such_tool", {}))
        want(error.message == "Method not found", error.message)

    async def many() -> None:
        results: list[str] = []

        async def one() -> None:
            results.append(text_of(await peer.call("filesystem/read", {"path": "README.md"})))

        async with anyio.create_task_group() as group:
            for _ in range(CONCURRENT_CALLS):
                group.start_soon(one)
        want(results == [readme] * CONCURRENT_CALLS, f"{len(results)} answers")

    await report.check("negotiated", negotiated)
    await report.check("ping", peer.session.send_ping)
    await report.check("tools-list", listed)
    await report.check("read", read)
    await report.check("write", written)
    await report.check("run", ran)
    await report.check("refusals", refused)
    await report.check("calls-at-once", many)


if __name__ == "__main__":
    main()

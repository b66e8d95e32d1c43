#!/usr/bin/env python3
"""The MCP Python SDK's own client against a server of ours.

The server must serve a workspace that has a `README.md`, and allow the programs
`printf` and `sleep`. Prints `ok NAME` or `FAIL NAME: why` for each check, then
`N passed, M failed`; exits 0 only if nothing failed. Lines that begin with `#`
are for the reader.

    python_client.py --workspace DIR --mode auto --url http://127.0.0.1:8000/mcp
    python_client.py --workspace DIR --revision 2025-06-18 --stdio toolgate stdio DIR
"""

import argparse
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from jsonschema import Draft202012Validator
from mcp.client import Client
from mcp.client.extension import ClientExtension
from mcp.client.session import ClientSession
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

INVALID_PARAMS = -32602
METHOD_NOT_FOUND = -32601
ONE_CHECK_S = 12
PAGES_MAX = 100
CONCURRENT_CALLS = 20
MISSING = "no-such-file-7f3a.txt"
UNKNOWN = "no_such_tool_7f3a"
PRINTED = "hi-7f3a"
CLIENT = types.Implementation(name="python-driver", version="1")


def main() -> None:
    run(run_checks, __doc__)


def run(checks: "Checks", about: str | None, extensions: list[ClientExtension] | None = None) -> None:
    """Reads the options, runs `checks` and ends the process."""
    options = read_options(about)
    report = Report()
    watch_clock(report, options.timeout + 5)
    complaints = Complaints()
    print(f"# mcp {installed('mcp')}, {options.transport}, {options.revision or options.mode}", flush=True)
    try:
        anyio.run(drive, options, report, complaints, checks, extensions or [])
    except BaseException as err:
        report.fail("run", innermost(err))
    report.end()


class Report:
    """What has been printed so far; one line per check."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0
        self._lock = threading.Lock()

    def ok(self, name: str) -> None:
        with self._lock:
            self.passed += 1
            print(f"ok {name}", flush=True)

    def fail(self, name: str, why: object) -> None:
        with self._lock:
            self.failed += 1
            print(f"FAIL {name}: {one_line(why)}", flush=True)

    async def check(self, name: str, work: Callable[[], Awaitable[None]], within_s: float = ONE_CHECK_S) -> None:
        """Runs one check; whatever it raises, and no end in sight, is its failure."""
        try:
            with anyio.fail_after(within_s):
                await work()
        except anyio.get_cancelled_exc_class():
            raise
        except TimeoutError as err:
            self.fail(name, str(err) or f"no end within {within_s:g} s")
        except Exception as err:
            self.fail(name, innermost(err))
        else:
            self.ok(name)

    def end(self) -> None:
        """Prints the sum and ends the process, whatever is still running."""
        with self._lock:
            print(f"{self.passed} passed, {self.failed} failed", flush=True)
            sys.stderr.flush()
            os._exit(0 if self.failed == 0 and self.passed > 0 else 1)


class Complaints(logging.Handler):
    """What the SDK warned of: it logs, and goes on, where a server's message breaks its schema."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        # It takes what comes while it closes a stream for a message that it could not read.
        if record.exc_info and isinstance(record.exc_info[1], anyio.BrokenResourceError | anyio.ClosedResourceError):
            return
        cause = f" ({record.exc_info[1]})" if record.exc_info and record.exc_info[1] else ""
        self.lines.append(f"{record.getMessage()}{cause}")


class Refused(Exception):
    """A check did not find what it wants; the text says what it found."""


def want(holds: object, otherwise: str) -> None:
    if not holds:
        raise Refused(otherwise)


# The connection


class Peer:
    """A connected server, reached through the SDK's client or through its session."""

    def __init__(self, session: ClientSession, client: Client | None = None) -> None:
        self.session = session
        self.client = client
        self.call = client.call_tool if client else session.call_tool

    @property
    def revision(self) -> str:
        return str(self.session.protocol_version)

    async def page(self, cursor: str | None) -> types.ListToolsResult:
        if self.client:
            return await self.client.list_tools(cursor=cursor)
        return await self.session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))


@asynccontextmanager
async def connect(options: argparse.Namespace, extensions: list[ClientExtension]) -> AsyncIterator[Peer]:
    async with AsyncExitStack() as stack:
        if options.stdio:
            server = StdioServerParameters(command=options.stdio[0], args=options.stdio[1:])
            transport = stdio_client(server)
        elif options.url:
            http = await stack.enter_async_context(create_mcp_http_client(headers=options.header))
            transport = streamable_http_client(options.url, http_client=http)
        else:
            transport = sse_client(options.sse, headers=options.header)

        if options.revision is None:
            client = Client(transport, mode=options.mode, client_info=CLIENT, extensions=extensions)
            await stack.enter_async_context(client)
            yield Peer(client.session, client)
        else:
            # The client offers only its newest handshake revision; the session lets us offer another.
            read, write = await stack.enter_async_context(transport)
            session = await stack.enter_async_context(ClientSession(read, write, client_info=CLIENT))
            offer = types.InitializeRequestParams(
                protocol_version=options.revision, capabilities=types.ClientCapabilities(), client_info=CLIENT
            )
            session.adopt(await session.send_request(types.InitializeRequest(params=offer), types.InitializeResult))
            await session.send_notification(types.InitializedNotification())
            yield Peer(session)


Checks = Callable[[Peer, argparse.Namespace, Report], Awaitable[None]]


async def drive(
    options: argparse.Namespace,
    report: Report,
    complaints: Complaints,
    checks: Checks,
    extensions: list[ClientExtension],
) -> None:
    """Connects, runs every check and leaves, all within the total time."""
    connected = False
    left_at = 0.0
    try:
        with anyio.fail_after(options.timeout):
            async with connect(options, extensions) as peer:
                connected = True
                await checks(peer, options, report)
                left_at = time.monotonic()
    except TimeoutError:
        report.fail("total-time" if connected else "connect", f"no end within {options.timeout:g} s")
        return
    except Exception as err:
        report.fail("close" if connected else "connect", innermost(err))
        return

    # The SDK gives a process 2 s after closing its stdin before it sends SIGTERM.
    took_s = time.monotonic() - left_at
    if took_s < 1.9:
        report.ok("close")
    else:
        report.fail("close", f"the server let the client wait {took_s:.1f} s")
    if complaints.lines:
        report.fail("no-complaints", "; ".join(complaints.lines))
    else:
        report.ok("no-complaints")


# The checks


async def run_checks(peer: Peer, options: argparse.Namespace, report: Report) -> None:
    readme = (options.workspace / "README.md").read_text(encoding="utf-8")
    modern = peer.revision == LATEST_MODERN_VERSION
    structured = peer.revision >= "2025-06-18"
    tools: list[types.Tool] = []

    async def negotiated() -> None:
        want(peer.revision == options.expect, f"{peer.revision}, not {options.expect}")
        if options.mode != LATEST_MODERN_VERSION:
            info = peer.session.server_info
            want(info and info.name, "the server does not say its name")
            capabilities = peer.session.server_capabilities
            want(capabilities and capabilities.tools is not None, "the server does not declare `tools`")

    async def discovered() -> None:
        found = types.DiscoverResult.model_validate(await peer.session.send_discover(LATEST_MODERN_VERSION))
        want(LATEST_MODERN_VERSION in found.supported_versions, f"supported are {found.supported_versions}")
        want(found.capabilities.tools is not None, "the server does not declare `tools`")

    async def pinged() -> None:
        await peer.session.send_ping()

    async def ping_is_gone() -> None:
        await refuses(METHOD_NOT_FOUND, peer.session.send_ping())

    async def listed() -> None:
        cursor: str | None = None
        seen: set[str] = set()
        for _ in range(PAGES_MAX):
            page = await peer.page(cursor)
            tools.extend(page.tools)
            cursor = page.next_cursor
            if cursor is None:
                break
            want(cursor not in seen, f"cursor {cursor!r} came twice")
            seen.add(cursor)
        want(cursor is None, f"more than {PAGES_MAX} pages")
        names = [tool.name for tool in tools]
        print(f"# {len(names)} tools on {len(seen) + 1} pages", flush=True)
        for name in ("files_read", "exec_run"):
            want(name in names, f"{name} is not among {names}")

    async def ordered() -> None:
        names = [tool.name for tool in tools]
        want(names, "no tools")
        want(names == sorted(names), f"not sorted: {names}")

    async def unique() -> None:
        names = [tool.name for tool in tools]
        want(names, "no tools")
        want(len(names) == len(set(names)), f"not unique: {names}")

    async def schemas() -> None:
        want(tools, "no tools")
        for tool in tools:
            want(tool.input_schema.get("type") == "object", f"{tool.name}: inputSchema is not of type object")
            Draft202012Validator.check_schema(tool.input_schema)
            if tool.output_schema is not None:
                Draft202012Validator.check_schema(tool.output_schema)

    async def read() -> None:
        result = await peer.call("files_read", {"path": "README.md"})
        want(not result.is_error, f"isError: {text_of(result)}")
        want(readme in text_of(result), f"not the file's text: {text_of(result)!r}")

    async def read_structured() -> None:
        result = await peer.call("files_read", {"path": "README.md"})
        found = result.structured_content
        want(isinstance(found, dict), f"structuredContent is {found!r}")
        want(readme in strings_in(found), f"the file's text is not in structuredContent: {found!r}")

    async def missing_file() -> None:
        result = await peer.call("files_read", {"path": MISSING})
        want(result.is_error, f"not isError: {text_of(result)!r}")
        want(MISSING in text_of(result), f"does not name the path: {text_of(result)!r}")

    async def invalid_argument() -> None:
        if peer.revision < "2025-11-25":
            await refuses(INVALID_PARAMS, peer.call("files_read", {"path": 5}))
            return
        result = await peer.call("files_read", {"path": 5})
        want(result.is_error, f"not isError: {text_of(result)!r}")
        want("/path" in text_of(result), f"does not point at /path: {text_of(result)!r}")

    async def unknown_tool() -> None:
        error = await refuses(INVALID_PARAMS, peer.call(UNKNOWN, {}))
        want(UNKNOWN in error.message, f"does not name the tool: {error.message!r}")

    async def exec_run() -> None:
        heard: list[float] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            heard.append(progress)

        result = await peer.call("exec_run", command(tools, "printf", PRINTED), progress_callback=on_progress)
        want(not result.is_error, f"isError: {text_of(result)}")
        want(PRINTED in text_of(result), f"stdout is not in the text: {text_of(result)!r}")
        if structured:
            found = result.structured_content
            want(PRINTED in strings_in(found), f"stdout is not in structuredContent: {found!r}")
        want(all(a < b for a, b in zip(heard, heard[1:])), f"progress does not grow: {heard}")
        print(f"# {len(heard)} progress notifications", flush=True)

    async def cancel() -> None:
        await abandoned(peer, tools, options.workspace, by_timeout=False)

    async def time_out() -> None:
        await abandoned(peer, tools, options.workspace, by_timeout=True)

    async def works_still() -> None:
        result = await peer.call("files_read", {"path": "README.md"})
        want(readme in text_of(result), f"not the file's text: {text_of(result)!r}")

    async def concurrent() -> None:
        answers: dict[int, str] = {}

        async def one(at: int) -> None:
            path = "README.md" if at % 2 == 0 else f"{at}-{MISSING}"
            answers[at] = text_of(await peer.call("files_read", {"path": path}))

        async with anyio.create_task_group() as group:
            for at in range(CONCURRENT_CALLS):
                group.start_soon(one, at)
        for at, answer in answers.items():
            expected = readme if at % 2 == 0 else f"{at}-{MISSING}"
            want(expected in answer, f"call {at} got another answer: {answer!r}")
        want(len(answers) == CONCURRENT_CALLS, f"{len(answers)} answers")

    await report.check("negotiate", negotiated)
    if modern:
        await report.check("discover", discovered)
        await report.check("ping-is-gone", ping_is_gone)
    else:
        await report.check("ping", pinged)
    await report.check("tools-list", listed)
    await report.check("tools-sorted", ordered)
    await report.check("tools-unique", unique)
    await report.check("tools-schemas", schemas)
    await report.check("read", read)
    if structured:
        await report.check("read-structured", read_structured)
    await report.check("missing-file", missing_file)
    await report.check("invalid-argument", invalid_argument)
    await report.check("unknown-tool", unknown_tool)
    await report.check("exec", exec_run)
    await report.check("cancel", cancel)
    await report.check("call-after-cancel", works_still, within_s=3)
    await report.check("timeout", time_out)
    await report.check("call-after-timeout", works_still, within_s=3)
    await report.check("concurrent", concurrent)


async def refuses(code: int, request: Awaitable[Any]) -> MCPError:
    """The protocol error with which `request` is refused; it must have `code`."""
    try:
        answer = await request
    except MCPError as err:
        want(err.code == code, f"error {err.code}, not {code}: {err.message}")
        return err
    raise Refused(f"not a protocol error but {answer.model_dump(by_alias=True, exclude_none=True)}")


async def abandoned(peer: Peer, tools: list[types.Tool], workspace: Path, *, by_timeout: bool) -> None:
    """Starts a long command, gives it up once it runs, and sees that it does not run on."""
    # A unique duration, by which the process is found.
    seconds = f"30.{os.getpid():07d}{int(by_timeout)}"
    arguments = command(tools, "sleep", seconds)
    ended: list[object] = []

    async def call(scope: anyio.CancelScope) -> None:
        with scope:
            try:
                limit_s = 2 if by_timeout else None
                ended.append(await peer.call("exec_run", arguments, read_timeout_seconds=limit_s))
            except MCPError as err:
                ended.append(err)

    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()
        group.start_soon(call, scope)
        with anyio.move_on_after(1.5 if by_timeout else 4) as patience:
            while not running(seconds) and not ended:
                await anyio.sleep(0.05)
        if patience.cancelled_caught or ended:
            scope.cancel()
            got = text_of(ended[0]) if ended and isinstance(ended[0], types.CallToolResult) else ended
            raise Refused(f"`sleep` never ran: {got}")
        if not by_timeout:
            await anyio.sleep(0.2)
            scope.cancel()

    if by_timeout:
        err = ended[0] if ended else None
        want(isinstance(err, MCPError) and err.code == types.REQUEST_TIMEOUT, f"the call ended with {err!r}")
    else:
        want(not ended, f"the call ended with {ended}")
    deadline = time.monotonic() + 4
    while running(seconds):
        want(time.monotonic() < deadline, "the command still runs 4 s later")
        await anyio.sleep(0.05)


# What they share


def command(tools: list[types.Tool], program: str, *args: str) -> dict[str, Any]:
    """`exec_run`'s arguments for one command, as its own schema names them."""
    schema = next((tool.input_schema for tool in tools if tool.name == "exec_run"), None)
    want(schema, "exec_run is not listed")
    properties = schema["properties"]
    for name in ("argv", "command", "program", "cmd"):
        if name not in properties:
            continue
        if properties[name].get("type") == "array":
            return {name: [program, *args]}
        if "args" in properties:
            return {name: program, "args": list(args)}
        return {name: " ".join([program, *args])}
    raise Refused(f"no known way to name a command in {sorted(properties)}")


def running(argument: str) -> bool:
    """Whether some process has `argument` on its command line."""
    if Path("/proc/self/cmdline").exists():
        wanted = b"\0" + argument.encode() + b"\0"
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if process.read_bytes().endswith(wanted):
                    return True
            except OSError:
                pass
        return False
    listing = subprocess.run(["ps", "-axo", "command="], capture_output=True, text=True, check=True)
    return any(line.endswith(f" {argument}") for line in listing.stdout.splitlines())


def text_of(result: types.CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, types.TextContent))


def strings_in(value: Any) -> list[str]:
    """Every string anywhere inside a JSON value."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [found for part in parts for found in strings_in(part)]


def innermost(err: BaseException) -> str:
    while isinstance(err, BaseExceptionGroup):
        err = err.exceptions[0]
    if isinstance(err, Refused):
        return str(err)
    if isinstance(err, MCPError):
        return f"protocol error {err.code}: {err.message}"
    return f"{type(err).__name__}: {err}"


def one_line(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 600 else text[:600] + "…"


def watch_clock(report: Report, within_s: float) -> None:
    """Ends the process even if the event loop is stuck."""

    def end() -> None:
        report.fail("total-time", f"stuck after {within_s:g} s")
        report.end()

    timer = threading.Timer(within_s, end)
    timer.daemon = True
    timer.start()


def read_options(about: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    server = parser.add_mutually_exclusive_group(required=True)
    server.add_argument("--url", help="a Streamable HTTP endpoint")
    server.add_argument("--sse", help="an HTTP+SSE endpoint, as in 2024-11-05")
    server.add_argument("--stdio", nargs=argparse.REMAINDER, metavar="CMD ARGS", help="a command to start; comes last")
    parser.add_argument("--workspace", type=Path, required=True, help="the directory the server serves")
    parser.add_argument("--mode", choices=["legacy", "auto", LATEST_MODERN_VERSION], default="auto")
    parser.add_argument("--revision", choices=HANDSHAKE_PROTOCOL_VERSIONS, help="offer this one in the handshake")
    parser.add_argument("--expect", help="the revision that must come out; by default the one asked for")
    parser.add_argument("--header", action="append", default=[], metavar="NAME: VALUE", help="send with every request")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for everything")
    options = parser.parse_args()
    if options.stdio == []:
        parser.error("--stdio needs a command")
    options.header = dict(line.split(": ", 1) for line in options.header)
    options.transport = "stdio" if options.stdio else "http" if options.url else "sse"
    if options.revision:
        options.mode = "legacy"
    by_mode = {"legacy": LATEST_HANDSHAKE_VERSION, "auto": LATEST_MODERN_VERSION}
    options.expect = options.expect or options.revision or by_mode.get(options.mode, options.mode)
    return options


if __name__ == "__main__":
    main()

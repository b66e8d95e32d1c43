#!/usr/bin/env python3
"""Runs two Python clients against two servers: toolgate with a workspace, and
`example-everything`. `--client mcp` is the client of the MCP Python SDK. `--client fastmcp` is
FastMCP's client, which uses the SDK.

The checks run in this process, in every revision that the client supports, over both transports.
The output has the form of the output of `python_client.py`. README.md in this folder lists the
files that the workspace must contain.

    python_library.py --client mcp --workspace DIR --toolgate FILE --toolgate-url URL
                      [--everything FILE --everything-url URL] [--revision REVISION]…
"""

import argparse
import base64
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import anyio
import mcp.client.session
import mcp_types as types
from fastmcp.client import Client as FastClient
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from fastmcp.skills.client import SkillsClientExtension
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import listen
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION
from python_client import (
    CLIENT,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Complaints,
    Report,
    innermost,
    refuses,
    running,
    text_of,
    want,
    watch_clock,
)

FORMS_SINCE = "2025-06-18"
STRUCTURE_SINCE = "2025-06-18"
SOUND_SINCE = "2025-03-26"
NOT_FOUND = -32002
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
ROOT = types.Root(uri="file:///a/folder", name="A folder")
AT_ONCE = 4
IN_ALL_S = 100

Check = Callable[[str, Callable[[], Awaitable[None]]], Awaitable[None]]


def main() -> None:
    options = read_options()
    report = Report()
    watch_clock(report, IN_ALL_S)
    complaints = Complaints()
    package = "mcp" if options.client == "mcp" else "fastmcp-slim"
    print(f"# {package} {installed(package)}", flush=True)
    try:
        anyio.run(drive_all, options, report)
    except BaseException as err:
        report.fail("run", innermost(err))
    if complaints.lines:
        report.fail("no-complaints", "; ".join(complaints.lines))
    else:
        report.ok("no-complaints")
    report.end()


async def drive_all(options: argparse.Namespace, report: Report) -> None:
    limiter = anyio.CapacityLimiter(AT_ONCE)
    # The handshake's offer is a constant of the SDK, so only one at a time may be connecting.
    connecting = anyio.Lock()
    servers = ["toolgate", "everything"] if options.everything else ["toolgate"]

    async def one(record: "ConnectionRecord") -> None:
        async with limiter:
            await drive(record, options, report, connecting)

    async with anyio.create_task_group() as group:
        for revision in options.revision or [LATEST_MODERN_VERSION, *reversed(HANDSHAKE_PROTOCOL_VERSIONS)]:
            for server in servers:
                for transport in ("stdio", "http"):
                    group.start_soon(one, ConnectionRecord(revision, server, transport, options))


async def drive(record: "ConnectionRecord", options: argparse.Namespace, report: Report, connecting: anyio.Lock) -> None:
    """Connects, runs the checks of that server, and leaves."""
    label = f"{record.revision} {record.transport} {record.server}"

    async def check(name: str, work: Callable[[], Awaitable[None]]) -> None:
        await report.check(f"{label} {name}", work)

    make = SdkPeer if options.client == "mcp" else FastPeer
    left_at = 0.0
    stack = AsyncExitStack()
    try:
        async with stack:
            async with connecting:
                if not record.modern:
                    mcp.client.session.LATEST_HANDSHAKE_VERSION = record.revision
                peer = await stack.enter_async_context(make.connected(record))
            spoken = str(peer.session.protocol_version)
            want(spoken == record.revision, f"{spoken}, not {record.revision}")
            checks = workspace_checks if record.server == "toolgate" else everything_checks
            await checks(peer, record, check)
            left_at = time.monotonic()
    except Exception as err:
        report.fail(f"{label} {'close' if left_at else 'connect'}", innermost(err))
        return
    # The SDK gives a process 2 s after closing its stdin before it sends SIGTERM.
    took_s = time.monotonic() - left_at
    if took_s < 1.9:
        report.ok(f"{label} close")
    else:
        report.fail(f"{label} close", f"the server let the client wait {took_s:.1f} s")


class ConnectionRecord:
    """The options of one connection, and the server's messages and questions on it."""

    def __init__(self, revision: str, server: str, transport: str, options: argparse.Namespace) -> None:
        self.revision = revision
        self.server = server
        self.transport = transport
        self.name = f"{options.client}-{revision}-{transport}"
        self.workspace: Path = options.workspace
        self.url: str = getattr(options, f"{server}_url")
        self.command: str = getattr(options, server)
        self.args = ["stdio"]
        if server == "toolgate":
            # Named, and so vouched for.
            config = str(options.workspace / "toolgate.toml")
            self.args += [str(options.workspace), "--config", config]
        self.asked: list[str] = []
        self.answer = types.ElicitResult(action="accept", content={})
        self.logged: list[types.LoggingMessageNotificationParams] = []
        self.heard: list[types.ServerNotification] = []

    @property
    def modern(self) -> bool:
        return self.revision == LATEST_MODERN_VERSION

    async def hears(self, method: str, uri: str | None = None) -> None:
        """Waits until a notification came."""

        def fits(message: types.ServerNotification) -> bool:
            return message.method == method and (uri is None or str(message.params.uri) == uri)

        await until(lambda: any(fits(message) for message in self.heard), f"no {method} among {self.heard}")

    async def on_message(self, message: Any) -> None:
        if isinstance(message, Exception):
            raise message
        self.heard.append(message)

    async def on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logged.append(params)


class SdkPeer:
    """Through the SDK's client. It knows no skills."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.session = client.session

    @staticmethod
    @asynccontextmanager
    async def connected(record: ConnectionRecord) -> AsyncIterator["SdkPeer"]:
        async def elicited(_context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
            record.asked.append(params.message)
            return record.answer

        async def sampled(_context: Any, _params: Any) -> types.CreateMessageResult:
            return types.CreateMessageResult(
                role="assistant", model="none", content=types.TextContent(type="text", text="a reply")
            )

        async def rooted(_context: Any) -> types.ListRootsResult:
            return types.ListRootsResult(roots=[ROOT])

        over_stdio = record.transport == "stdio"
        server = StdioServerParameters(command=record.command, args=record.args)
        transport = stdio_client(server) if over_stdio else streamable_http_client(record.url)
        client = Client(
            transport,
            mode="auto" if record.modern else "legacy",
            client_info=CLIENT,
            elicitation_callback=elicited,
            sampling_callback=sampled,
            list_roots_callback=rooted,
            logging_callback=record.on_log,
            message_handler=record.on_message,
        )
        async with client:
            yield SdkPeer(client)

    async def tools(self) -> list[types.Tool]:
        return await self._all(self.client.list_tools, "tools")

    async def call(self, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> types.CallToolResult:
        return await self.client.call_tool(name, arguments or {}, **more)

    async def resources(self) -> list[types.Resource]:
        return await self._all(self.client.list_resources, "resources")

    async def templates(self) -> list[types.ResourceTemplate]:
        return await self._all(self.client.list_resource_templates, "resource_templates")

    async def read(self, uri: str) -> Any:
        return (await self.client.read_resource(uri)).contents[0]

    async def prompts(self) -> list[types.Prompt]:
        return await self._all(self.client.list_prompts, "prompts")

    async def prompt(self, name: str, arguments: dict[str, str]) -> types.GetPromptResult:
        return await self.client.get_prompt(name, arguments)

    async def complete(self, ref: Any, argument: dict[str, str]) -> list[str]:
        return (await self.client.complete(ref, argument)).completion.values

    async def skill(self, _uri: str) -> str | None:
        return None

    async def _all(self, list_page: Callable[..., Awaitable[Any]], member: str) -> list[Any]:
        found: list[Any] = []
        cursor: str | None = None
        while True:
            page = await list_page(cursor=cursor)
            found.extend(getattr(page, member))
            want(page.next_cursor is None or page.next_cursor != cursor, f"cursor {cursor!r} came twice")
            cursor = page.next_cursor
            if cursor is None:
                return found


class FastPeer:
    """Through FastMCP's client, which fetches all pages of a list itself."""

    def __init__(self, client: FastClient) -> None:
        self.client = client
        self.session = client.session

    @staticmethod
    @asynccontextmanager
    async def connected(record: ConnectionRecord) -> AsyncIterator["FastPeer"]:
        async def elicited(message: str, _type: Any, _params: Any, _context: Any) -> types.ElicitResult:
            record.asked.append(message)
            return record.answer

        async def sampled(_messages: Any, _params: Any, _context: Any) -> str:
            return "a reply"

        over_stdio = record.transport == "stdio"
        transport = (
            StdioTransport(record.command, record.args, keep_alive=False) if over_stdio else StreamableHttpTransport(record.url)
        )
        client = FastClient(
            transport,
            mode="auto" if record.modern else "legacy",
            client_info=CLIENT,
            roots=[ROOT],
            elicitation_handler=elicited,
            sampling_handler=sampled,
            log_handler=record.on_log,
            message_handler=record.on_message,
            extensions=[SkillsClientExtension()],
        )
        async with client:
            yield FastPeer(client)

    async def tools(self) -> list[types.Tool]:
        return await self.client.list_tools()

    async def call(self, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> types.CallToolResult:
        if "progress_callback" in more:
            more["progress_handler"] = more.pop("progress_callback")
        return await self.client.call_tool_mcp(name, arguments or {}, **more)

    async def resources(self) -> list[types.Resource]:
        return await self.client.list_resources()

    async def templates(self) -> list[types.ResourceTemplate]:
        return await self.client.list_resource_templates()

    async def read(self, uri: str) -> Any:
        return (await self.client.read_resource(uri))[0]

    async def prompts(self) -> list[types.Prompt]:
        return await self.client.list_prompts()

    async def prompt(self, name: str, arguments: dict[str, str]) -> types.GetPromptResult:
        return await self.client.get_prompt(name, arguments)

    async def complete(self, ref: Any, argument: dict[str, str]) -> list[str]:
        return (await self.client.complete(ref, argument)).values

    async def skill(self, uri: str) -> str | None:
        want(uri in [skill.uri for skill in await self.client.list_skills()], "it is not listed")
        # The client compares each file with its size and its digest.
        return (await self.client.read_skill(uri)).files["SKILL.md"].decode()


Peer = SdkPeer | FastPeer


@asynccontextmanager
async def subscribed(peer: Peer, record: ConnectionRecord, uri: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Subscribes to `uri`. The yielded function waits for a notification about it.

    FastMCP has no function for this, so both clients use the session of the SDK.
    """
    if record.modern:
        async with listen(peer.session, resource_subscriptions=[uri]) as subscription:
            want(list(subscription.honored.resource_subscriptions or []) == [uri], f"{subscription.honored}")

            async def heard() -> None:
                event = await anext(aiter(subscription))
                want(str(event.uri) == uri, f"notified of {event}")

            yield heard
        return
    await peer.session.subscribe_resource(uri)
    yield lambda: record.hears("notifications/resources/updated", uri)
    await peer.session.unsubscribe_resource(uri)


# The checks


async def workspace_checks(peer: Peer, record: ConnectionRecord, check: Check) -> None:
    root = record.workspace.resolve().as_uri()
    readme = (record.workspace / "README.md").read_text(encoding="utf-8")

    async def pinged() -> None:
        if record.modern:
            await refuses(METHOD_NOT_FOUND, peer.session.send_ping())
        else:
            await peer.session.send_ping()

    async def listed() -> None:
        names = [tool.name for tool in await peer.tools()]
        want("files_read" in names and "exec_run" in names, f"{names}")
        want(len(set(names)) == len(names) and names == sorted(names), f"not sorted or not unique: {names}")

    async def called() -> None:
        result = await peer.call("files_read", {"path": "README.md"})
        want(not result.is_error and readme in text_of(result), text_of(result))
        if record.revision >= STRUCTURE_SINCE:
            want(result.structured_content["content"] == readme, f"{result.structured_content}")

    async def failed() -> None:
        result = await peer.call("files_read", {"path": "none.txt"})
        want(result.is_error and "none.txt" in text_of(result), text_of(result))

    async def unknown() -> None:
        await refuses(INVALID_PARAMS, peer.call("no_such_tool"))

    async def progressed() -> None:
        heard: list[float] = []

        async def on_progress(progress: float, _total: float | None, _message: str | None) -> None:
            heard.append(progress)

        script = {"command": "for n in 1 2 3; do echo $n; sleep 0.15; done", "shell": True}
        result = await peer.call("exec_run", script, progress_callback=on_progress)
        want("3" in text_of(result), text_of(result))
        want(heard and heard == sorted(set(heard)), f"progress does not grow: {heard}")

    async def resources_listed() -> None:
        uris = [str(one.uri) for one in await peer.resources()]
        want({f"{root}/README.md", f"{root}/dot.png"} <= set(uris), f"{uris}")
        templates = [one.uri_template for one in await peer.templates()]
        want(f"{root}/{{+path}}" in templates, f"{templates}")

    async def resources_read() -> None:
        read = await peer.read(f"{root}/README.md")
        want(read.text == readme and read.mime_type == "text/markdown", f"{read}")
        dot = await peer.read(f"{root}/dot.png")
        want(base64.b64decode(dot.blob) == (record.workspace / "dot.png").read_bytes(), f"{dot}")
        want(dot.mime_type == "image/png", f"{dot}")
        # By the template: it is in a folder that no list shows.
        hidden = await peer.read(f"{root}/folder/a%20file.txt")
        want(hidden.text == "in a folder\n", f"{hidden}")

    async def resource_missing() -> None:
        code = INVALID_PARAMS if record.modern else NOT_FOUND
        await refuses(code, peer.read(f"{root}/none.txt"))

    async def subscription() -> None:
        file = record.workspace / f"watched-{record.name}.txt"
        file.write_text("before")
        uri = f"{root}/{file.name}"
        async with subscribed(peer, record, uri) as heard:
            file.write_text("after it")
            await heard()
            want((await peer.read(uri)).text == "after it", "not what was written")

    async def prompted() -> None:
        want("explain" in [prompt.name for prompt in await peer.prompts()], "no `explain`")
        got = await peer.prompt("explain", {"path": "README.md"})
        want("README.md" in got.messages[0].content.text, f"{got}")
        await refuses(INVALID_PARAMS, peer.prompt("explain", {}))

    async def completed() -> None:
        prompt = types.PromptReference(type="ref/prompt", name="explain")
        values = await peer.complete(prompt, {"name": "path", "value": "READ"})
        want(values[:1] == ["README.md"], f"{values}")
        template = types.ResourceTemplateReference(type="ref/resource", uri=f"{root}/{{+path}}")
        values = await peer.complete(template, {"name": "path", "value": "folder/"})
        want(any("a%20file.txt" in value for value in values), f"{values}")

    async def confirmed() -> None:
        async def touch(word: str) -> tuple[types.CallToolResult, bool]:
            name = f"{word}-{record.name}"
            result = await peer.call("exec_run", {"command": "touch", "args": [name]})
            return result, (record.workspace / name).exists()

        if record.revision < FORMS_SINCE:
            # Revisions without forms cannot ask for a confirmation, so the command does not run.
            result, made = await touch("yes")
            want(result.is_error and not made and not record.asked, text_of(result))
            return
        result, made = await touch("yes")
        want(not result.is_error and made, text_of(result))
        want(len(record.asked) == 1 and record.name in record.asked[0], f"asked {record.asked}")
        record.answer = types.ElicitResult(action="decline")
        result, made = await touch("no")
        want(result.is_error and not made, text_of(result))
        want(len(record.asked) == 2, f"asked {record.asked}")

    async def skills() -> None:
        # Skills are an extension, and extensions came with the stateless revision.
        if record.modern:
            read = await peer.skill("skill://tea/SKILL.md")
            want(read is None or "Boil" in read, f"{read}")

    async def cancelled() -> None:
        # A unique duration, by which the process is found.
        seconds = f"30.{os.getpid():07d}{time.monotonic_ns() % 10**6:06d}"
        ended: list[object] = []

        async def sleep(scope: anyio.CancelScope) -> None:
            with scope:
                ended.append(await peer.call("exec_run", {"command": "sleep", "args": [seconds]}))

        async with anyio.create_task_group() as group:
            scope = anyio.CancelScope()
            group.start_soon(sleep, scope)
            await until(lambda: running(seconds) or ended, "`sleep` never ran")
            scope.cancel()
        want(not ended, f"the call ended with {ended}")
        await until(lambda: not running(seconds), "the command still runs")
        await called()

    await check("ping", pinged)
    await check("tools-list", listed)
    await check("call", called)
    await check("call-error", failed)
    await check("call-unknown", unknown)
    await check("progress", progressed)
    await check("resources-list", resources_listed)
    await check("resources-read", resources_read)
    await check("resources-missing", resource_missing)
    await check("subscribe", subscription)
    await check("prompts", prompted)
    await check("complete", completed)
    await check("confirm", confirmed)
    await check("skills", skills)
    await check("cancel", cancelled)


async def everything_checks(peer: Peer, record: ConnectionRecord, check: Check) -> None:
    forms = record.revision >= FORMS_SINCE

    async def content() -> None:
        kinds = [block.type for block in (await peer.call("test_multiple_content_types")).content]
        want(kinds == ["text", "image", "resource"], f"{kinds}")
        kind = (await peer.call("test_audio_content")).content[0].type
        want((kind == "audio") == (record.revision >= SOUND_SINCE), kind)

    async def progressed() -> None:
        heard: list[tuple[float, float | None]] = []

        async def on_progress(progress: float, total: float | None, _message: str | None) -> None:
            heard.append((progress, total))

        await peer.call("test_tool_with_progress", progress_callback=on_progress)
        want(heard == [(0, 100), (50, 100), (100, 100)], f"{heard}")

    async def logged() -> None:
        # The stateless revision has no level but that of each request.
        if record.modern:
            await peer.call("test_tool_with_logging", meta={LOG_LEVEL: "info"})
        else:
            await peer.session.set_logging_level("info")
            await peer.call("test_tool_with_logging")
        await until(lambda: len(record.logged) == 3, f"{record.logged}")
        want(all(one.level == "info" and one.data for one in record.logged), f"{record.logged}")

    async def sampled() -> None:
        said = text_of(await peer.call("test_sampling", {"prompt": "Say something"}))
        want(said == "LLM response: a reply", said)

    async def rooted() -> None:
        said = text_of(await peer.call("test_input_required_result_list_roots"))
        want(str(ROOT.uri) in said, said)

    async def form() -> None:
        record.answer = types.ElicitResult(action="accept", content={"username": "ada", "email": "ada@example.com"})
        result = await peer.call("test_elicitation", {"message": "Who?"})
        if forms:
            want("action=accept" in text_of(result) and "ada@example.com" in text_of(result), text_of(result))
        else:
            want(result.is_error and not record.asked, text_of(result))

    async def rounds() -> None:
        if not forms:
            return
        asked = len(record.asked)
        # One form's answer is no other's: FastMCP checks what it sends.
        record.answer = types.ElicitResult(action="decline")
        result = await peer.call("test_input_required_result_multi_round")
        want(not result.is_error and len(record.asked) == asked + 2, f"{text_of(result)}, asked {record.asked}")
        result = await peer.call("test_input_required_result_multiple_inputs")
        want(text_of(result) == "Answered: client_roots, greeting, user_name", text_of(result))

    async def lists_change() -> None:
        if record.modern:
            async with listen(peer.session, tools_list_changed=True) as subscription:
                await peer.call("test_trigger_tool_change")
                await anext(aiter(subscription))
        else:
            await peer.call("test_trigger_tool_change")
            await record.hears("notifications/tools/list_changed")

    async def reconnected() -> None:
        said = text_of(await peer.call("test_reconnection"))
        want(said == "The client came back for this", said)

    async def prompted() -> None:
        got = await peer.prompt("test_prompt_with_arguments", {"arg1": "a", "arg2": "b"})
        want("arg1='a', arg2='b'" in got.messages[0].content.text, f"{got}")

    async def templated() -> None:
        read = await peer.read("test://template/7/data")
        want(json.loads(read.text)["id"] == "7", f"{read}")

    async def failed() -> None:
        result = await peer.call("test_error_handling")
        want(result.is_error and text_of(result), f"{result}")

    await peer.tools()
    await check("content", content)
    await check("progress", progressed)
    await check("log", logged)
    await check("sampling", sampled)
    await check("roots", rooted)
    await check("form", form)
    await check("rounds", rounds)
    await check("lists-change", lists_change)
    await check("reconnect", reconnected)
    await check("prompt", prompted)
    await check("template", templated)
    await check("error", failed)


# What they share


async def until(holds: Callable[[], object], otherwise: str) -> None:
    for _ in range(1000):
        if holds():
            return
        await anyio.sleep(0.01)
    want(False, otherwise)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", choices=["mcp", "fastmcp"], required=True)
    parser.add_argument("--workspace", type=Path, required=True, help="the directory the server serves")
    parser.add_argument("--toolgate", required=True, metavar="FILE")
    parser.add_argument("--toolgate-url", required=True, metavar="URL")
    parser.add_argument("--everything", metavar="FILE")
    parser.add_argument("--everything-url", metavar="URL")
    parser.add_argument("--revision", action="append", help="only this one")
    return parser.parse_args()


if __name__ == "__main__":
    main()

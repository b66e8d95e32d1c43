#!/usr/bin/env python3
"""The MCP Python SDK's own client and the tasks of a server of ours.

In 2026-07-28 they are an extension, which the SDK's client takes through its
own interface for extensions; in 2025-11-25 they are asked for with a parameter. The
SDK has the messages of 2025-11-25, but takes no task for the answer of
`tools/call`, so there a task is begun by our tool `jobs_start`. The server must allow the programs `printf` and `sleep`. What is printed is what
`python_client.py` prints.

    python_tasks.py --workspace DIR --mode auto --url http://127.0.0.1:8000/mcp
    python_tasks.py --workspace DIR --revision 2025-11-25 --stdio toolgate stdio DIR
"""

import argparse
import os
import time
from typing import Any, ClassVar, Literal

import anyio
import mcp_types as types
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError
from mcp_types.version import LATEST_MODERN_VERSION
from python_client import INVALID_PARAMS, PRINTED, Peer, Refused, Report, refuses, run, running, text_of, want

EXTENSION = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"
UNKNOWN_TASK = "0123456789abcdef0123456789abcdef"
# A call that takes longer than half a second becomes a task, which a busy machine makes of a short one, too.
SHORT_CALLS_MAX = 10


def main() -> None:
    run(run_checks, __doc__, [Tasks()])


async def run_checks(peer: Peer, options: argparse.Namespace, report: Report) -> None:
    if peer.revision == LATEST_MODERN_VERSION:
        await extension_checks(peer, report)
    else:
        await parameter_checks(peer, report)


# 2026-07-28: the server decides what becomes a task, and the SDK's client finishes it


class GetTask(types.Request[types.GetTaskRequestParams, Literal["tasks/get"]]):
    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/get"] = "tasks/get"
    params: types.GetTaskRequestParams


class CancelTask(types.Request[types.CancelTaskRequestParams, Literal["tasks/cancel"]]):
    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: types.CancelTaskRequestParams


class Begun(types.Result):
    """A call that became a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: types.TaskStatus
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    poll_interval_ms: int | None = None


class Seen(types.Result):
    """How a task is."""

    task_id: str
    status: types.TaskStatus
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class Tasks(ClientExtension):
    identifier = EXTENSION

    def __init__(self) -> None:
        TASKS.append(self)
        self.begun: list[Begun] = []

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Begun, resolve=self.resolve)]

    async def resolve(self, begun: Begun, ctx: ClaimContext) -> types.CallToolResult:
        self.begun.append(begun)
        while (seen := await look(ctx.session, begun.task_id)).status == "working":
            await anyio.sleep((begun.poll_interval_ms or 500) / 1000)
        want(seen.status == "completed", f"the task ended as {seen.status}: {seen.error}")
        return types.CallToolResult.model_validate(seen.result)


TASKS: list[Tasks] = []


async def look(session: Any, task_id: str) -> Seen:
    return await session.send_request(GetTask(params=types.GetTaskRequestParams(task_id=task_id)), Seen)


async def extension_checks(peer: Peer, report: Report) -> None:
    [tasks] = TASKS

    async def declared() -> None:
        found = types.DiscoverResult.model_validate(await peer.session.send_discover(LATEST_MODERN_VERSION))
        extensions = found.capabilities.extensions or {}
        want(EXTENSION in extensions, f"the extension is not declared: {extensions}")

    async def short() -> None:
        for _ in range(SHORT_CALLS_MAX):
            tasks.begun.clear()
            result = await peer.call("exec_run", {"command": "printf", "args": [PRINTED]})
            want(PRINTED in text_of(result), f"stdout is not in the text: {text_of(result)!r}")
            if not tasks.begun:
                return
        raise Refused(f"each of {SHORT_CALLS_MAX} short calls became a task")

    async def long() -> None:
        tasks.begun.clear()
        result = await peer.call("exec_run", {"command": f"sleep 1.5; printf {PRINTED}", "shell": True})
        want(PRINTED in text_of(result), f"stdout is not in the text: {text_of(result)!r}")
        want(len(tasks.begun) == 1, f"{len(tasks.begun)} tasks")
        want(tasks.begun[0].status == "working", f"it began as {tasks.begun[0].status}")

    async def cancel() -> None:
        seconds = marked(0)
        arguments = {"command": "sleep", "args": [seconds]}
        begun = await peer.session.call_tool("exec_run", arguments, allow_claimed=True)
        want(isinstance(begun, Begun), f"not a task: {begun!r}")
        about = types.CancelTaskRequestParams(task_id=begun.task_id)
        await peer.session.send_request(CancelTask(params=about), types.EmptyResult)
        await gone(seconds)
        seen = await look(peer.session, begun.task_id)
        want(seen.status == "cancelled", f"it is {seen.status}")

    async def unknown() -> None:
        await refuses(INVALID_PARAMS, look(peer.session, UNKNOWN_TASK))

    await report.check("tasks-declared", declared)
    await report.check("short-is-no-task", short)
    await report.check("long-is-a-task", long)
    await report.check("task-cancel", cancel)
    await report.check("task-unknown", unknown)


# 2025-11-25: the client polls its task


async def parameter_checks(peer: Peer, report: Report) -> None:
    session = peer.session

    async def begin(command: str, args: list[str]) -> str:
        """A task's id."""
        call = {"tool": "exec_run", "arguments": {"command": command, "args": args}}
        started = await peer.call("jobs_start", call)
        want(not started.is_error, f"isError: {text_of(started)}")
        return str((started.structured_content or {})["job_id"])

    async def get(task_id: str) -> types.GetTaskResult:
        request = types.GetTaskRequest(params=types.GetTaskRequestParams(task_id=task_id))
        return await session.send_request(request, types.GetTaskResult)

    async def result(task_id: str) -> types.CallToolResult:
        request = types.GetTaskPayloadRequest(params=types.GetTaskPayloadRequestParams(task_id=task_id))
        return await session.send_request(request, types.CallToolResult)

    async def declared() -> None:
        capabilities = session.server_capabilities
        tasks = capabilities and capabilities.tasks
        want(tasks and tasks.list is not None and tasks.cancel is not None, f"declared is {tasks}")
        want(tasks.requests and tasks.requests.tools and tasks.requests.tools.call is not None, f"declared is {tasks}")
        for tool in (await peer.page(None)).tools:
            support = tool.execution and tool.execution.task_support
            want(support == "optional", f"{tool.name} takes tasks: {support}")

    async def life() -> None:
        task = await begin("printf", [PRINTED])
        ended = await result(task)
        want(PRINTED in text_of(ended), f"stdout is not in the text: {text_of(ended)!r}")
        related = (ended.meta or {}).get(RELATED)
        want(related == {"taskId": task}, f"its result belongs to {related}")
        status = (await get(task)).status
        want(status == "completed", f"it is {status}")

    async def blocks() -> None:
        task = await begin("sleep", ["1"])
        begun = time.monotonic()
        want((await get(task)).status == "working", "it is not working")
        await result(task)
        want(time.monotonic() - begun > 0.5, "its result was there before it ended")

    async def listed() -> None:
        task = await begin("printf", ["a"])
        page = await session.send_request(types.ListTasksRequest(), types.ListTasksResult)
        want(page.tasks and page.tasks[0].task_id == task, f"not first among {page.tasks}")

    async def cancel() -> None:
        seconds = marked(1)
        task = await begin("sleep", [seconds])
        request = types.CancelTaskRequest(params=types.CancelTaskRequestParams(task_id=task))
        cancelled = await session.send_request(request, types.CancelTaskResult)
        want(cancelled.status == "cancelled", f"it is {cancelled.status}")
        await gone(seconds)
        try:
            again = await session.send_request(request, types.CancelTaskResult)
        except MCPError as err:
            want(err.code == INVALID_PARAMS, f"error {err.code}")
        else:
            raise Refused(f"it was cancelled twice: {again}")

    async def unknown() -> None:
        await refuses(INVALID_PARAMS, get(UNKNOWN_TASK))

    await report.check("tasks-declared", declared)
    await report.check("task-life", life)
    await report.check("task-result-blocks", blocks)
    await report.check("task-list", listed)
    await report.check("task-cancel", cancel)
    await report.check("task-unknown", unknown)


def marked(nth: int) -> str:
    """Returns a unique duration, by which the process is found."""
    return f"31.{os.getpid():07d}{nth}"


async def gone(argument: str) -> None:
    deadline = time.monotonic() + 4
    while running(argument):
        want(time.monotonic() < deadline, "the command still runs 4 s later")
        await anyio.sleep(0.05)


if __name__ == "__main__":
    main()

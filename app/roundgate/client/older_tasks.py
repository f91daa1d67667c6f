"""Tasks of revision 2025-11-25, as flows: there the client asks for one, and fetches
its result when it is over.

    tools/call {…, "task": {}}   ──▶  {"task": {"taskId": …, "status": "working", "pollInterval": 1000, "ttl": …}}
    tasks/get {"taskId": …}      ──▶  {"taskId": …, "status": …}
    tasks/result {"taskId": …}   ──▶  what the call would have answered; until then, questions on its stream

The revision calls them experimental (basic/utilities/tasks). Later ones have
other tasks: `flows.follow`.
"""

from __future__ import annotations

from roundgate.client.flows import Finished, Flow, Pause, Send, Show, poll_ms
from roundgate.client.limits import Limits
from roundgate.client.types import Json, ServerInfo, TaskState, Tool, member
from roundgate.errors import RpcError, TaskEnded


def has_older_tasks(server: ServerInfo) -> bool:
    """Whether a server takes calls of tools as such tasks."""
    found: object = server.capabilities
    for name in ("tasks", "requests", "tools", "call"):
        found = found.get(name) if isinstance(found, dict) else None
    return not server.is_modern and isinstance(found, dict)


def wants_older_task(tool: Tool | None, *, detach: bool) -> bool:
    """Whether a tool is called as a task: where it has to be, and where it may be and
    the caller will not wait."""
    execution = tool.raw.get("execution") if tool is not None else None
    support = execution.get("taskSupport") if isinstance(execution, dict) else None
    return support == "required" or (support == "optional" and detach)


def read_older_task(raw: Json, task_id: str | None = None) -> TaskState:
    """From `task` of the created, or from `tasks/get`; times under the names of later revisions.

    Raises:
        BadAnswer: it is no task, or another than `task_id`.
    """
    renamed = {"pollIntervalMs": raw.get("pollInterval"), "ttlMs": raw.get("ttl")}
    kept = {key: value for key, value in raw.items() if key not in ("result", "error")}
    return TaskState.read({**kept, **renamed, "inputRequests": None}, task_id)


def call_as_older_task(params: Json, limits: Limits, *, detach: bool) -> Flow[Finished]:
    """A call as a task, and through it to its end; with `detach` it is
    handed over as it was created.

    Raises:
        TaskEnded, BadAnswer, and what is thrown in.
    """
    created: Json = yield Send("tools/call", {**params, "task": {}}, False)
    task = read_older_task(member(created, "task", dict, "a task that was created"))
    if detach:
        return Finished({}, 1, task)
    done = yield from follow_older(task.task_id, limits, task)
    return Finished(done, 1, task)


def follow_older(task_id: str, limits: Limits, known: TaskState | None = None) -> Flow[Json]:
    """A task to its end. Returns the result of the call that it came from.

    Raises:
        TaskEnded: it failed or was cancelled.
        BadAnswer, and what is thrown in.
    """
    about = {"taskId": task_id}
    task = known or read_older_task((yield Send("tasks/get", about, True)), task_id)
    while True:
        yield Show(task)
        if task.status == "cancelled":
            said = f": {task.message}" if task.message else ""
            raise TaskEnded("cancelled", f"The task was cancelled{said}")
        # What it asks comes on the stream of whoever waits for the result.
        if task.is_over or task.status == "input_required":
            break
        yield Pause(poll_ms(task, limits))
        task = read_older_task((yield Send("tasks/get", about, True)), task_id)
    try:
        result: Json = yield Send("tasks/result", about, True)
    except RpcError as error:
        if task.status != "failed":
            raise
        raise TaskEnded("failed", f"The task failed: {error}", error) from None
    return result

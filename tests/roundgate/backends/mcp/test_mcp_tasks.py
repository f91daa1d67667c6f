"""Tasks of a server through the gateway: sealed ids, no rows, any replica; and calls of its tools
as tasks of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.support import wire
from tests.support.asgi import Client, Exchange, client
from tests.support.scripted import (
    STREAM_HEAD,
    Asked,
    error,
    notice,
    result,
    result_event,
    scripted,
    text,
)
from tests.support.upstreams import Upstream, app_of, entry, fronted, tool, until
from tests.support.wire import forged

TASKS = "io.modelcontextprotocol/tasks"
CALL = {"name": "up__t", "arguments": {"a": 1}}
CAPABLE: dict[str, Any] = {
    "clientCapabilities": {"elicitation": {"form": {}}, "extensions": {TASKS: {}}}
}
FORM = {
    "method": "elicitation/create",
    "params": {
        "message": "Who?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
    },
}


class WithTasks(Upstream):
    """A server that makes a task of each call of a client that can follow it."""

    def __init__(self) -> None:
        super().__init__(self.called)
        self.state: dict[str, Any] = {"status": "working"}
        self.answers: list[Any] = []

    def __call__(self, asked: Asked) -> Any:
        if asked.rpc == "server/discover":
            capable: dict[str, Any] = {"tools": {}, "extensions": {TASKS: {}}}
            return result(asked, {"supportedVersions": ["2026-07-28"], "capabilities": capable})
        return super().__call__(asked)

    def task(self) -> dict[str, Any]:
        at = "2026-11-26T12:00:00Z"
        times = {"createdAt": at, "lastUpdatedAt": at, "ttlMs": None, "pollIntervalMs": 100}
        return {"taskId": "job 17", **times, **self.state}

    def called(self, asked: Asked) -> Any:
        capabilities = asked.params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        if asked.rpc == "tools/call":
            if TASKS not in capabilities.get("extensions", {}):
                return result(asked, text("at once"))
            return result(asked, {"resultType": "task", **self.task()})
        assert TASKS in capabilities["extensions"]
        if asked.params["taskId"] != "job 17":
            return error(asked, -32602, "unknown task")
        if asked.rpc == "tasks/update":
            self.answers.append(asked.params["inputResponses"])
            self.state = {"status": "working"}
        elif asked.rpc == "tasks/cancel":
            self.state = {"status": "cancelled"}
        return result(asked, self.task() if asked.rpc == "tasks/get" else {})


async def ask(mcp: Client, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The body of a request of a client that knows tasks."""
    body: dict[str, Any] = (await mcp.post(method, params, **CAPABLE)).json()
    return body


async def test_a_task_of_a_server_is_followed_answered_and_read_at_any_replica() -> None:
    upstream = WithTasks()
    async with (
        scripted(upstream) as server,
        app_of(entry(server)) as a,
        app_of(entry(server)) as b,
        client(a) as one,
        client(b) as other,
    ):
        created = (await ask(one, "tools/call", CALL))["result"]
        assert (created["resultType"], created["status"]) == ("task", "working")
        task_id = created["taskId"]
        assert "job" not in task_id
        upstream.state = {"status": "input_required", "inputRequests": {"who": FORM}}
        state = (await ask(other, "tasks/get", {"taskId": task_id}))["result"]
        assert state["inputRequests"] == {"who": FORM}
        assert state["taskId"] == task_id
        answer = {"who": {"action": "accept", "content": {"name": "Ada"}}}
        await ask(one, "tasks/update", {"taskId": task_id, "inputResponses": answer})
        assert upstream.answers == [answer]
        done = {**text("done"), "_meta": {"io.modelcontextprotocol/x": 1, "mine": 2}, "new": 1}
        upstream.state = {"status": "completed", "result": done}
        state = (await ask(other, "tasks/get", {"taskId": task_id}))["result"]
        kept = state["result"]
        assert (kept["content"], kept["_meta"], kept["new"]) == (
            done["content"],
            {"mine": 2},
            1,
        )
        refused = (await ask(one, "tasks/get", {"taskId": "job 17"}))["error"]
        foreign = (await ask(one, "tasks/get", {"taskId": forged(task_id)}))["error"]
        assert refused == foreign


async def test_a_task_is_cancelled_at_the_server() -> None:
    upstream = WithTasks()
    async with fronted(upstream) as (_, mcp):
        task_id = (await ask(mcp, "tools/call", CALL))["result"]["taskId"]
        assert "result" in await ask(mcp, "tasks/cancel", {"taskId": task_id})
        assert upstream.state == {"status": "cancelled"}


async def test_a_client_without_tasks_gets_a_result_and_the_server_is_told_so() -> None:
    async with fronted(WithTasks()) as (_, mcp):
        assert await mcp.text("up__t") == "at once"


async def test_a_server_that_is_away_or_talks_nonsense_loses_no_task() -> None:
    upstream = WithTasks()
    async with fronted(upstream) as (_, mcp):
        task_id = (await ask(mcp, "tools/call", CALL))["result"]["taskId"]
        upstream.is_down = True
        response = await mcp.post("tasks/get", {"taskId": task_id}, **CAPABLE)
        assert response.status_code == 503
        upstream.is_down = False
        for nonsense in ({"status": "happy"}, {"taskId": "job 18", "status": "working"}):
            upstream.state = nonsense
            body = (await mcp.post("tasks/get", {"taskId": task_id}, **CAPABLE)).json()
            assert body["error"]["code"] == -32603
        upstream.state = {"status": "working"}
        state = (await ask(mcp, "tasks/get", {"taskId": task_id}))["result"]
        assert state["status"] == "working"


async def test_a_call_whose_result_is_changed_does_not_become_a_task_of_the_server() -> None:
    override = {"a": {"fields": ["a"]}, "b": {"result": "{a: a}"}, "c": {"max_result": 200}}
    whole = {**text("x" * 300), "structuredContent": {"a": 1, "b": 2}}

    class Whole(WithTasks):
        def called(self, asked: Asked) -> Any:
            capabilities = asked.params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
            is_task = TASKS in capabilities.get("extensions", {})
            return super().called(asked) if is_task else result(asked, whole)

    upstream = Whole()
    upstream.tools = [tool(name) for name in override]
    async with fronted(upstream, override=override) as (_, mcp):
        for name in override:
            done = (await ask(mcp, "tools/call", {"name": f"up__{name}", "arguments": {}}))[
                "result"
            ]
            assert done["resultType"] == "complete"
            assert done["content"] != whole["content"]
            assert done.get("structuredContent", {"a": 1}) == {"a": 1}


async def test_the_times_of_a_task_are_within_bounds() -> None:
    upstream = WithTasks()
    async with fronted(upstream) as (_, mcp):
        task_id = (await ask(mcp, "tools/call", CALL))["result"]["taskId"]
        for ttl_ms, shown_ms in ((-7, 0), (2**62, 2**53), (1e300, None), (10**400, None)):
            upstream.state = {"status": "working", "ttlMs": ttl_ms}
            state = (await ask(mcp, "tasks/get", {"taskId": task_id}))["result"]
            assert state["ttlMs"] == shown_ms
        for interval_ms, shown_ms in ((-7, 1_000), (2**62, 3_600_000), (10**400, 1_000)):
            upstream.state = {"status": "working", "pollIntervalMs": interval_ms}
            state = (await ask(mcp, "tasks/get", {"taskId": task_id}))["result"]
            assert state["pollIntervalMs"] == shown_ms


async def test_the_end_of_a_task_reaches_its_listener_whatever_interval_its_server_names() -> None:
    upstream = WithTasks()
    upstream.state = {"status": "working", "pollIntervalMs": 10**400}
    async with scripted(upstream) as server, app_of(entry(server)) as app, client(app) as mcp:
        task_id = (await ask(mcp, "tools/call", CALL))["result"]["taskId"]
        asked = wire.message(
            "subscriptions/listen", {"notifications": {"taskIds": [task_id]}}, **CAPABLE
        )
        async with Exchange(app, asked) as stream, asyncio.timeout(60):
            await until(True, lambda: "tasks/get" in server.methods())
            upstream.state = {"status": "completed", "result": text("done")}
            statuses = set[str | None]()
            while "completed" not in statuses:
                told = await stream.event() or {}
                statuses.add(told.get("params", {}).get("status"))


async def test_the_result_of_a_task_is_read_as_the_result_of_a_call() -> None:
    upstream = WithTasks()
    async with fronted(upstream) as (_, mcp):
        task_id = (await ask(mcp, "tools/call", CALL))["result"]["taskId"]
        nulls = {"type": "text", "text": "x", "annotations": None}
        upstream.state = {"status": "completed", "result": {"content": [nulls], "isError": None}}
        state = (await ask(mcp, "tasks/get", {"taskId": task_id}))["result"]
        assert state["result"] == {"resultType": "complete", **text("x")}
        upstream.state = {"status": "completed", "result": {"structuredContent": {"n": 1}}}
        state = (await ask(mcp, "tasks/get", {"taskId": task_id}))["result"]
        assert state["result"]["structuredContent"] == {"n": 1}
        for malformed in ({"content": [1]}, {"content": [], "isError": "yes"}, {}):
            upstream.state = {"status": "completed", "result": malformed}
            body = await ask(mcp, "tasks/get", {"taskId": task_id})
            assert body["error"]["code"] == -32603


async def status(mcp: Client, task_id: str) -> Any:
    return (await ask(mcp, "tasks/get", {"taskId": task_id}))["result"]["status"]


async def test_a_call_can_be_a_task_of_the_gateway() -> None:
    override = {"t": {"task": "optional"}}
    async with fronted(WithTasks(), override=override) as (server, mcp):
        created = (await ask(mcp, "tools/call", CALL))["result"]
        params = {"taskId": created["taskId"]}

        await until("completed", lambda: status(mcp, created["taskId"]))
        done = (await ask(mcp, "tasks/get", params))["result"]["result"]
        assert done["content"][0]["text"] == "at once"
        assert server.methods().count("tools/call") == 1


async def test_log_messages_of_a_server_are_not_in_the_log_of_a_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")

    async def talking(asked: Asked) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        yield notice("message", level="error", data="of one caller")
        yield result_event(asked, text("done"))

    override = {"t": {"task": "optional"}}
    async with fronted(Upstream(talking), override=override) as (_, mcp):
        created = (await ask(mcp, "tools/call", CALL))["result"]
        await until("completed", lambda: status(mcp, created["taskId"]))
    assert "of one caller" not in str([one.__dict__ for one in caplog.records])

"""Tasks at the wire (SEP-2663): what each answer looks like, which keys a question has,
and what is not taken."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from roundgate import Context, tool
from roundgate.protocol.tasks import EXTENSION
from tests.support import task_client, wire
from tests.support.asgi import NO_FALLBACK, client, gateway
from tests.support.clocks import SkippingClock
from tests.support.functions import SECRET, add
from tests.support.jobs import JOBS, dig, greet
from tests.support.rounds import CAPABILITIES, accept
from tests.support.task_client import (
    DECLARED,
    MISSING,
    TaskClient,
    valid_created,
)

tasked = partial(task_client.tasked, fallback=NO_FALLBACK)
pytestmark = pytest.mark.asyncio(loop_scope="module")

UNKNOWN = "AAAAAAAAAAAAAAAAAAAAAA"
ON_A_TASK = ["tasks/get", "tasks/update", "tasks/cancel"]


def params_of(method: str, task_id: Any) -> dict[str, Any]:
    """The params of a request about a task."""
    return {"taskId": task_id} | ({"inputResponses": {}} if method == "tasks/update" else {})


@tool(task="optional")
async def either(ctx: Context) -> str:
    """Is a task where it may be one."""
    await ctx.continue_as_task()
    return "at once"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ann(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TaskClient]:
    """A client of a gateway that works."""
    async with tasked(tmp_path_factory.mktemp("works"), *JOBS, add) as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def idle(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TaskClient]:
    """A client of a gateway that only takes tasks."""
    async with tasked(tmp_path_factory.mktemp("idle"), *JOBS, add, either, works=False) as one:
        yield one


# ---- shapes


async def test_creation_is_answered_with_a_flat_task_and_nothing_of_how_it_will_end(
    idle: TaskClient,
) -> None:
    created = valid_created((await idle.call("dig")).json())
    assert (created["status"], created["ttlMs"], created["pollIntervalMs"]) == (
        "working",
        86_400_000,
        100,
    )
    assert created["createdAt"] == created["lastUpdatedAt"]


async def test_a_task_that_nobody_works_on_is_working(idle: TaskClient) -> None:
    created = valid_created((await idle.call("dig")).json())
    task = await idle.get(created["taskId"])
    assert {**task, "resultType": "task"} == created


async def test_a_completed_task_has_the_result_that_the_call_would_have_had(
    ann: TaskClient,
) -> None:
    task = await ann.over(await ann.begin("dig", depth=7))
    assert task["status"] == "completed"
    text = {"type": "text", "text": '{"depth":7}'}
    assert task["result"] == {
        "resultType": "complete",
        "content": [text],
        "structuredContent": {"depth": 7},
    }


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ("refuse", "there is no tea left; ask for coffee"),
        ("crash", "The tool failed unexpectedly"),
        ("leave", "The tool failed unexpectedly"),
    ],
)
async def test_what_goes_wrong_with_a_tool_completes_its_task_with_an_error_result(
    ann: TaskClient, job: str, says: str
) -> None:
    task = await ann.over(await ann.begin(job))
    assert (task["status"], task["result"]["isError"]) == ("completed", True)
    assert task["result"]["content"][0]["text"].startswith(says)
    assert SECRET not in json.dumps(task)


async def test_an_answer_that_is_a_refusal_completes_the_task_with_an_error_result(
    ann: TaskClient,
) -> None:
    task_id = await ann.begin("greet")
    await ann.answer(task_id, {key: {"action": "decline"} for key in await ann.asked(task_id)})
    task = await ann.over(task_id)
    assert (task["status"], task["result"]["isError"]) == ("completed", True)


async def test_a_json_rpc_error_fails_the_task_and_says_so(ann: TaskClient) -> None:
    task = await ann.over(await ann.begin("reject"))
    assert (task["status"], task["statusMessage"]) == ("failed", "there is no such mountain")
    assert task["error"] == {"code": -32602, "message": "there is no such mountain"}


async def test_a_question_that_the_client_cannot_be_asked_fails_the_task(
    ann: TaskClient,
) -> None:
    poor = TaskClient(ann.mcp, {"extensions": {EXTENSION: {}}})
    task = await poor.over(await poor.begin("sample"))
    assert (task["status"], task["error"]["code"]) == ("failed", -32021)
    assert task["error"]["data"] == {"requiredCapabilities": {"sampling": {}}}


async def test_a_cancelled_task_has_neither_result_nor_error(idle: TaskClient) -> None:
    task_id = await idle.begin("dig")
    await idle.cancel(task_id)
    task = await idle.get(task_id)
    assert (task["status"], task["statusMessage"]) == ("cancelled", "The client cancelled the task")


async def test_a_task_that_asks_can_be_cancelled_and_asks_no_more(ann: TaskClient) -> None:
    task_id = await ann.begin("greet")
    await ann.asked(task_id)
    await ann.cancel(task_id)
    assert (await ann.get(task_id))["status"] == "cancelled"
    await ann.answer(task_id, {"who": accept(name="Ann")})
    assert (await ann.get(task_id))["status"] == "cancelled"


async def test_a_task_that_is_over_stays_as_it_is_when_it_is_cancelled_or_answered(
    ann: TaskClient,
) -> None:
    task_id = await ann.begin("dig")
    before = await ann.over(task_id)
    await ann.cancel(task_id)
    await ann.cancel(task_id)
    await ann.answer(task_id, {"who": accept(name="x")})
    assert await ann.get(task_id) == before


async def test_the_time_of_the_last_update_moves_with_what_the_client_can_see(
    tmp_path: Path,
) -> None:
    clock = SkippingClock()
    async with tasked(tmp_path, *JOBS, clock=clock) as ann:
        task_id = await ann.begin("both")
        asked = await ann.until(task_id, "input_required")
        clock.skip(5)
        assert (await ann.get(task_id))["lastUpdatedAt"] == asked["lastUpdatedAt"]
        await ann.answer(task_id, {"first": accept(name="a")})
        after = await ann.get(task_id)
    assert after["createdAt"] == asked["createdAt"]
    assert after["lastUpdatedAt"] > asked["lastUpdatedAt"]


# ---- questions


async def test_partial_answers_leave_the_rest_outstanding_at_once(ann: TaskClient) -> None:
    task_id = await ann.begin("both")
    asked = await ann.asked(task_id)
    assert list(asked) == ["first", "second"]
    await ann.answer(task_id, {"first": accept(name="one")})
    task = await ann.get(task_id)
    assert (task["status"], task["inputRequests"]) == (
        "input_required",
        {"second": asked["second"]},
    )
    await ann.answer(task_id, {"second": accept(name="two")})
    assert (await ann.get(task_id))["status"] != "input_required"
    assert await ann.text(task_id) == "one and two"


async def test_a_key_is_never_used_again_once_it_was_answered(ann: TaskClient) -> None:
    task_id = await ann.begin("twice")
    seen: list[str] = []
    for count in (9, 2, 0, 3):  # an answer that does not fit is asked for anew
        (key,) = await ann.asked(task_id)
        seen.append(key)
        await ann.answer(task_id, {key: accept(count=count)})
        await ann.answer(task_id, {key: accept(count=1)})
    assert await ann.text(task_id) == "2+3"
    assert len(set(seen)) == 4


@pytest.mark.parametrize(
    "responses",
    [
        {},
        {"unknown-key": {"ignored": True}},
        {"first": accept(name="late")},
        {"": None, "second#2": 1, "second~2": [], "Second": accept(name="x")},
    ],
    ids=["none", "unknown", "answered", "odd"],
)
async def test_what_is_not_outstanding_is_acknowledged_and_changes_nothing(
    ann: TaskClient, responses: dict[str, Any]
) -> None:
    task_id = await ann.begin("both")
    await ann.asked(task_id)
    await ann.answer(task_id, {"first": accept(name="one")})
    before = await ann.get(task_id)
    await ann.answer(task_id, responses)
    assert await ann.get(task_id) == before
    await ann.answer(task_id, {"second": accept(name="two"), **responses})
    assert await ann.text(task_id) == "one and two"


async def test_an_answer_that_came_before_its_question_is_not_taken_for_it(tmp_path: Path) -> None:
    async with tasked(tmp_path, greet, works=False) as idle:
        task_id = await idle.begin("greet")
        before = await idle.get(task_id)
        await idle.answer(task_id, {"who": accept(name="Early")})
        assert await idle.get(task_id) == before
    async with tasked(tmp_path, greet) as ann:
        await ann.answer(task_id, {key: accept(name="Ann") for key in await ann.asked(task_id)})
        assert await ann.text(task_id) == "Hello, Ann!"


async def test_a_plain_function_can_ask_within_its_task(ann: TaskClient) -> None:
    task_id = await ann.begin("sync_greet")
    await ann.answer(task_id, {key: accept(name="Ann") for key in await ann.asked(task_id)})
    assert await ann.text(task_id) == "Hello, Ann!"


# ---- what is refused, and in which words


@pytest.mark.parametrize("method", ON_A_TASK)
@pytest.mark.parametrize(
    "task_id", [UNKNOWN, "x", "", "a.b", "../..", "ü", "x" * 65, "x" * 5000, "a\nb", " "], ids=ascii
)
async def test_an_id_that_we_never_gave_out_is_unknown(
    idle: TaskClient, method: str, task_id: str
) -> None:
    # an HTTP header cannot tell some of them from nothing
    encoded = {"": "=?base64??=", " ": "=?base64?IA==?="}
    headers: dict[str, str | None] = {}
    if task_id in encoded:
        headers["mcp-name"] = encoded[task_id]
    one = TaskClient(idle.mcp, headers=headers)
    status, error = await one.error(method, params_of(method, task_id))
    assert (status, error["code"]) == (400, -32602)
    assert (
        error["message"]
        == "Unknown task: the id does not exist, has expired, or belongs to another caller"
    )
    assert "data" not in error


@pytest.mark.parametrize("method", ON_A_TASK)
@pytest.mark.parametrize("task_id", [None, 5, [], {}, True])
async def test_an_id_that_is_no_string_is_invalid(
    idle: TaskClient, method: str, task_id: Any
) -> None:
    asked = wire.message(method, params_of(method, task_id), clientCapabilities=DECLARED)
    head = {**wire.headers(wire.message("tools/list")), "mcp-method": method, "mcp-name": "x"}
    response = await idle.mcp.http.post("/mcp", content=json.dumps(asked), headers=head)
    assert (response.status_code, wire.valid_error(response)["code"]) == (400, -32602)


NO_ANSWERS: list[Any] = [None, [], "x", 1]


@pytest.mark.parametrize(
    "responses", [{}, *({"inputResponses": each} for each in NO_ANSWERS)], ids=str
)
async def test_answers_that_are_absent_or_no_object_are_invalid(
    idle: TaskClient, responses: dict[str, Any]
) -> None:
    params = {"taskId": await idle.begin("dig"), **responses}
    status, error = await idle.error("tasks/update", params)
    assert (status, error["code"]) == (400, -32602)
    assert "inputResponses" in error["message"]


NOT_DECLARED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "other things": CAPABILITIES,
    "the capability of an earlier revision": {
        "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    },
    "another extension": {"extensions": {"example.com/tasks": {}}},
    "the extension as null": {"extensions": {EXTENSION: None}},
    "the extension as a flag": {"extensions": {EXTENSION: True}},
    "the extension in another case": {"extensions": {EXTENSION.upper(): {}}},
    "the extension as experimental": {"experimental": {EXTENSION: {}}},
}


@pytest.mark.parametrize("capabilities", NOT_DECLARED.values(), ids=NOT_DECLARED.keys())
async def test_a_client_that_does_not_declare_the_extension_is_refused_and_has_no_tasks(
    idle: TaskClient, capabilities: dict[str, Any]
) -> None:
    task_id = await idle.begin("dig")
    before, poor = await idle.get(task_id), TaskClient(idle.mcp, capabilities)
    refused = [(method, params_of(method, task_id)) for method in ON_A_TASK]
    refused += [(method, params_of(method, UNKNOWN)) for method in ON_A_TASK]
    for method, params in [*refused, ("tools/call", {"name": "dig"})]:
        status, error = await poor.error(method, params)
        assert (status, error["code"], error["data"]) == (400, -32021, MISSING)
    assert await idle.get(task_id) == before
    result = wire.valid_result("tools/call", (await poor.call("either")).json())
    assert result["content"][0]["text"] == "at once"


@pytest.mark.parametrize("settings", [{}, {"future": 1}, {"nested": {"a": [None]}}])
async def test_settings_of_the_extension_that_we_do_not_know_do_not_matter(
    idle: TaskClient, settings: dict[str, Any]
) -> None:
    declared = {"extensions": {EXTENSION: settings, "example.com/other": {"x": 10**30}}}
    await TaskClient(idle.mcp, declared).begin("dig")


async def test_the_extension_is_advertised_and_the_earlier_revisions_capability_is_not(
    idle: TaskClient,
) -> None:
    capabilities = (await idle.mcp.result("server/discover"))["capabilities"]
    assert capabilities["extensions"] == {EXTENSION: {}}
    assert "tasks" not in capabilities


async def test_the_task_parameter_of_the_earlier_revision_is_ignored(ann: TaskClient) -> None:
    response = await ann.call("add", {"a": 1, "b": 2}, task={"ttl": 60_000, "pollInterval": 100})
    assert wire.valid_result("tools/call", response.json())["structuredContent"] == 3
    created = valid_created((await ann.call("dig", task={"ttl": 5})).json())
    assert created["ttlMs"] == 86_400_000


@pytest.mark.parametrize(
    ("method", "successor"),
    [
        ("tasks/list", "tasks/get"),
        ("tasks/result", "tasks/get"),
        ("tasks/input_response", "tasks/update"),
    ],
)
async def test_methods_of_earlier_texts_are_gone_and_name_their_successors(
    idle: TaskClient, method: str, successor: str
) -> None:
    status, error = await idle.error(method, {"taskId": await idle.begin("dig")})
    assert (status, error["code"]) == (404, -32601)
    assert successor in error["message"]


async def test_a_gateway_without_such_tools_has_none_of_the_methods() -> None:
    async with client(gateway(add)) as mcp:
        for method in ON_A_TASK:
            status, error = await TaskClient(mcp).error(method, params_of(method, UNKNOWN))
            assert (status, error["code"]) == (404, -32601)
        assert "extensions" not in (await mcp.result("server/discover"))["capabilities"]


@pytest.mark.parametrize("method", ON_A_TASK)
@pytest.mark.parametrize("header", ["x", "=?base64?eA==?=", "DIG"])
async def test_a_name_header_that_is_not_the_id_is_a_mismatch(
    idle: TaskClient, method: str, header: str
) -> None:
    task_id = await idle.begin("dig")
    before = await idle.get(task_id)
    other = TaskClient(idle.mcp, headers={"mcp-name": header})
    status, error = await other.error(method, params_of(method, task_id))
    assert (status, error["code"]) == (400, -32020)
    assert await idle.get(task_id) == before


async def test_a_method_header_of_another_method_is_a_mismatch(idle: TaskClient) -> None:
    other = TaskClient(idle.mcp, headers={"mcp-method": "tasks/get"})
    status, error = await other.error("tools/call", {"name": "dig"})
    assert (status, error["code"]) == (400, -32020)


# ---- cancellation, telling, time


async def test_a_notification_that_a_request_is_cancelled_does_not_cancel_the_task(
    idle: TaskClient,
) -> None:
    task_id = await idle.begin("dig")
    for params in ({"requestId": 1}, {"requestId": task_id}, {"taskId": task_id}):
        said = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        head = {**wire.headers(wire.message("tools/list")), "mcp-method": "notifications/cancelled"}
        response = await idle.mcp.http.post("/mcp", content=json.dumps(said), headers=head)
        assert (response.status_code, response.content) == (202, b"")
    assert (await idle.get(task_id))["status"] == "working"


async def test_nothing_is_told_on_the_stream_of_the_call_once_it_is_a_task(ann: TaskClient) -> None:
    given = {"progressToken": "p", "logLevel": "debug"}
    response = await ann.send("tools/call", {"name": "tell", "arguments": {}}, **given)
    *told, last = wire.events(response.text)
    created = valid_created(last)
    assert [
        (one["method"], one["params"].get("message") or one["params"]["data"]) for one in told
    ] == [
        ("notifications/progress", "warming up"),
        ("notifications/message", "before"),
    ]
    assert (await ann.until(created["taskId"], "input_required"))[
        "statusMessage"
    ] == "2 of 4: digging"
    for method in ON_A_TASK:
        answer = await ann.send(method, params_of(method, created["taskId"]), **given)
        assert answer.headers["content-type"] == "application/json"


async def test_an_expired_task_is_unknown_though_its_row_is_there(tmp_path: Path) -> None:
    clock = SkippingClock()
    async with tasked(
        tmp_path, greet, dig, clock=clock, tasks={"ttl_s": 60, "sweep_every_s": 3600}
    ) as ann:
        asking, done = await ann.begin("greet"), await ann.begin("dig")
        await ann.asked(asking)
        assert (await ann.over(done))["ttlMs"] == 60_000
        clock.skip(58)
        assert (await ann.get(asking))["status"] == "input_required"
        assert (await ann.get(done))["status"] == "completed"
        clock.skip(3)
        for task_id in (asking, done):
            unknown = [await ann.send(method, params_of(method, UNKNOWN)) for method in ON_A_TASK]
            expired = [await ann.send(method, params_of(method, task_id)) for method in ON_A_TASK]
            assert [one.content for one in expired] == [one.content for one in unknown]
            assert {one.status_code for one in expired} == {400}
        with sqlite3.connect(tmp_path / "gateway.sqlite3") as db:
            assert db.execute("select count(*) from tasks").fetchone() == (2,)
        db.close()


async def test_a_task_can_be_had_everywhere_as_soon_as_it_is_told(tmp_path: Path) -> None:
    async with (
        tasked(tmp_path, dig, works=False) as one,
        tasked(tmp_path, dig, works=False) as other,
    ):
        for _ in range(20):
            task_id = await one.begin("dig")
            assert (await other.get(task_id))["taskId"] == task_id


async def test_ids_are_long_random_and_fit_for_a_header(idle: TaskClient) -> None:
    ids = [await idle.begin("dig") for _ in range(60)]
    assert len(set(ids)) == 60
    assert {len(one) for one in ids} == {22}  # 128 bits, six a character
    assert set("".join(ids)) <= set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    )
    for place in range(21):  # no character is fixed, counted up, or made from the time
        assert len({one[place] for one in ids}) > 20
    assert all(wire.encoded(one) == one for one in ids)


async def test_arguments_of_any_size_and_depth_reach_the_worker(tmp_path: Path) -> None:
    @tool(task="required", input_schema={"type": "object"})
    async def mirror(**arguments: Any) -> dict[str, Any]:
        return arguments

    deep: Any = "bottom"
    for _ in range(90):
        deep = [deep]
    arguments = {"deep": deep, "huge": 10**30, "text": "ü😀\u2028\x00", "float": 1e-300, "": None}
    async with tasked(tmp_path, mirror) as ann:
        task = await ann.over(await ann.begin("mirror", **arguments))
    assert task["result"]["structuredContent"] == arguments


async def test_reading_a_task_often_is_the_same_every_time(ann: TaskClient) -> None:
    task_id = await ann.begin("greet")
    await ann.asked(task_id)
    answers = await asyncio.gather(*(ann.send("tasks/get", {"taskId": task_id}) for _ in range(10)))
    assert len({answer.content for answer in answers}) == 1

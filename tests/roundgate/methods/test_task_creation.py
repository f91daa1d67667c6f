"""When a call becomes a task: by its tool, its client and its handler; and what is promised
when something is down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from roundgate import Context, InvalidParams, SyncContext, ToolError, tool
from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.runtime.startup import Stores, make_stores
from roundgate.storage.ports import Message
from roundgate.storage.tasks import TaskRef
from roundgate.tasks.events import NewTask
from roundgate.tasks.stored import StoredTasks
from tests.support import task_client, wire
from tests.support.asgi import NO_FALLBACK
from tests.support.clocks import SkippingClock
from tests.support.replay import Name
from tests.support.rounds import CAPABILITIES, accept, retry, valid_input_required
from tests.support.task_client import (
    DECLARED,
    MISSING,
    TaskClient,
    task_settings,
    valid_created,
)

tasked = partial(task_client.tasked, fallback=NO_FALLBACK)


def behaviours(mode: Any, ran: list[str]) -> dict[str, Callable[..., Any]]:
    """Every way in which a handler can come to its end, as tools of this mode that note when they are run."""

    @tool(task=mode)
    async def at_once(ctx: Context) -> str:
        ran.append("at_once")
        return "Hello, Ann!"

    @tool(task=mode)
    async def goes_on(ctx: Context) -> str:
        ran.append("goes_on")
        await ctx.continue_as_task()
        return "Hello, Ann!"

    @tool(task=mode)
    async def asks_first(ctx: Context) -> str:
        ran.append("asks_first")
        who = await ctx.elicit("who", "Who?", Name)
        await ctx.continue_as_task()
        return f"Hello, {who.name}!"

    @tool(task=mode)
    async def no_context() -> str:
        ran.append("no_context")
        return "Hello, Ann!"

    @tool(task=mode)
    def in_a_thread() -> str:
        ran.append("in_a_thread")
        return "Hello, Ann!"

    @tool(task=mode)
    def in_a_thread_goes_on(ctx: SyncContext) -> str:
        ran.append("in_a_thread_goes_on")
        ctx.continue_as_task()
        return "Hello, Ann!"

    made = (at_once, goes_on, asks_first, no_context, in_a_thread, in_a_thread_goes_on)
    return {function.__name__: function for function in made}


NAMES = list(behaviours("forbidden", []))
BECOME_TASKS = {"goes_on", "asks_first", "no_context", "in_a_thread", "in_a_thread_goes_on"}
"""Those that do so as soon as they may."""


@pytest.mark.parametrize("declares", [True, False], ids=["declared", "undeclared"])
@pytest.mark.parametrize("mode", ["forbidden", "optional", "required"])
async def test_tool_client_and_handler_decide_together(
    mode: str, declares: bool, tmp_path: Path
) -> None:
    ran: list[str] = []

    @tool(task="optional")
    async def other(ctx: Context) -> str:
        return "so that the gateway has tasks"

    async with tasked(tmp_path, *behaviours(mode, ran).values(), other) as ann:
        ann.capabilities = DECLARED if declares else CAPABILITIES
        for name in NAMES:
            if mode == "required" and not declares:
                status, error = await ann.error("tools/call", {"name": name})
                assert (status, error["code"], error["data"], ran) == (400, -32021, MISSING, [])
                continue
            params: dict[str, Any] = {"name": name, "arguments": {}}
            body = (await ann.send("tools/call", params)).json()
            if name == "asks_first":
                asked = valid_input_required(body)
                assert "taskId" not in asked
                again = retry(params, asked, who=accept(name="Ann"))
                body = (await ann.send("tools/call", again)).json()
            if mode == "required" or (mode == "optional" and declares and name in BECOME_TASKS):
                created = valid_created(body)
                assert created["status"] == ("completed" if name == "at_once" else "working")
                assert await ann.text(created["taskId"]) == "Hello, Ann!"
            else:
                result = wire.valid_result("tools/call", body)
                assert result["content"][0]["text"] == "Hello, Ann!"


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (ToolError("no tea"), "completed"),
        (RuntimeError("?"), "completed"),
        (InvalidParams("no such"), "failed"),
    ],
    ids=["tool error", "crash", "protocol error"],
)
async def test_a_call_that_must_be_a_task_is_one_also_when_it_fails_at_once(
    raised: Exception, status: str, tmp_path: Path
) -> None:
    @tool(task="required")
    async def fails(ctx: Context) -> str:
        raise raised

    async with tasked(tmp_path, fails, works=False) as ann:
        created = valid_created((await ann.call("fails")).json())
        task = await ann.get(created["taskId"])
    assert (created["status"], task["status"]) == (status, status)
    assert task["result"]["isError"] if status == "completed" else task["error"]["code"] == -32602


async def test_a_question_before_the_task_of_a_client_that_cannot_be_asked_is_an_error(
    tmp_path: Path,
) -> None:
    async with tasked(tmp_path, *behaviours("required", []).values()) as ann:
        poor = TaskClient(ann.mcp, {"extensions": DECLARED["extensions"]})
        status, error = await poor.error("tools/call", {"name": "asks_first"})
    assert (status, error["code"]) == (400, -32021)
    assert error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}


async def test_what_was_known_before_the_task_is_known_in_it_and_nothing_of_it_is_shown(
    tmp_path: Path,
) -> None:
    done: list[str] = []

    @tool(task="optional")
    async def deploy(ctx: Context, env: str) -> list[str]:
        plan = await ctx.step("plan", note, f"plan {env}")
        ctx.state["secret"] = "tea-4711"
        who = await ctx.elicit("who", "Who?", Name)
        await ctx.status("applying")
        await ctx.continue_as_task()
        applied = await ctx.step("apply", note, f"apply {plan} for {who.name}")
        told = await ctx.elicit("told", "Whom to tell?", Name)
        return [applied, told.name, ctx.state["secret"]]

    def note(what: str) -> str:
        done.append(what)
        return what

    params = {"name": "deploy", "arguments": {"env": "prod"}}
    async with tasked(tmp_path, deploy) as ann:
        asked = valid_input_required((await ann.send("tools/call", params)).json())
        response = await ann.send("tools/call", retry(params, asked, who=accept(name="Ann")))
        created = valid_created(response.json())
        assert created["statusMessage"] == "applying"
        assert not {"tea-4711", "plan prod", "Ann"} & set(response.text.split('"'))
        assert list(await ann.asked(created["taskId"])) == ["told"]
        await ann.answer(created["taskId"], {"who": accept(name="Eve"), "told": accept(name="Bob")})
        task = await ann.over(created["taskId"])
    assert task["result"]["structuredContent"] == ["apply plan prod for Ann", "Bob", "tea-4711"]
    assert done == ["plan prod", "apply plan prod for Ann"]


async def test_what_can_be_asked_at_once_is_asked_before_the_task_also_by_a_branch_beside(
    tmp_path: Path,
) -> None:
    @tool(task="required")
    async def branches(ctx: Context) -> str:
        who, _ = await asyncio.gather(ctx.elicit("who", "Who?", Name), ctx.continue_as_task())
        return who.name

    params: dict[str, Any] = {"name": "branches", "arguments": {}}
    async with tasked(tmp_path, branches) as ann:
        asked = valid_input_required((await ann.send("tools/call", params)).json())
        created = valid_created(
            (await ann.send("tools/call", retry(params, asked, who=accept(name="Ann")))).json()
        )
        assert await ann.text(created["taskId"]) == "Ann"


def slow(mode: Any, ran: list[str], clock: SkippingClock) -> Any:
    """Three steps of which no call of six seconds has the time for all."""

    async def take(what: str) -> str:
        clock.skip(2.2)
        ran.append(what)
        return what

    @tool(task=mode)
    async def three_steps(ctx: Context) -> str:
        return " ".join([await ctx.step(name, take, name) for name in ("one", "two", "three")])

    return three_steps


async def test_a_call_that_runs_out_of_time_becomes_a_task_between_two_steps(
    tmp_path: Path,
) -> None:
    ran: list[str] = []
    clock = SkippingClock()
    limits = {"call_timeout_s": 6}
    steps = slow("optional", ran, clock)
    async with tasked(tmp_path, steps, limits=limits, clock=clock) as ann:
        task_id = await ann.begin("three_steps")
        assert await ann.text(task_id) == "one two three"
    assert ran == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("mode", "capabilities"), [("optional", CAPABILITIES), ("forbidden", DECLARED)]
)
async def test_where_it_may_not_it_gives_its_turn_back_and_goes_on_in_the_next_round(
    mode: str, capabilities: dict[str, Any], tmp_path: Path
) -> None:
    ran: list[str] = []
    params: dict[str, Any] = {"name": "three_steps", "arguments": {}}
    clock = SkippingClock()
    limits = {"call_timeout_s": 6}
    async with tasked(tmp_path, slow(mode, ran, clock), limits=limits, clock=clock) as ann:
        ann.capabilities = capabilities
        rounds = 1
        body = (await ann.send("tools/call", params)).json()
        while body["result"]["resultType"] == "input_required":
            asked = valid_input_required(body)
            assert "inputRequests" not in asked
            body = (await ann.send("tools/call", retry(params, asked))).json()
            rounds += 1
    assert wire.valid_result("tools/call", body)["content"][0]["text"] == "one two three"
    assert (ran, rounds > 1) == (["one", "two", "three"], True)


async def test_invalid_arguments_are_told_at_once_and_make_no_task(tmp_path: Path) -> None:
    @tool(task="required")
    async def count(ctx: Context, number: int) -> str:
        return "counted"

    async with tasked(tmp_path, count) as ann:
        result = wire.valid_result(
            "tools/call", (await ann.call("count", {"number": "many"})).json()
        )
    assert result["isError"]
    assert "number" in result["content"][0]["text"]


async def test_a_tool_error_before_the_task_is_the_result_of_an_optional_one(
    tmp_path: Path,
) -> None:
    @tool(task="optional")
    async def careful(ctx: Context) -> str:
        raise ToolError("not on a Sunday")

    async with tasked(tmp_path, careful) as ann:
        result = wire.valid_result("tools/call", (await ann.call("careful")).json())
    assert (result["isError"], result["content"][0]["text"]) == (True, "not on a Sunday")


async def test_what_cannot_be_remembered_is_a_tool_error_and_no_task(tmp_path: Path) -> None:
    @tool(task="optional")
    async def forgetful(ctx: Context) -> str:
        ctx.state["when"] = object()
        await ctx.continue_as_task()
        return "?"

    async with tasked(tmp_path, forgetful) as ann:
        result = wire.valid_result("tools/call", (await ann.call("forgetful")).json())
    assert result["isError"]


@pytest.mark.parametrize("approves", [True, False])
async def test_an_approval_is_asked_for_before_there_is_a_task_and_once(
    tmp_path: Path, approves: bool
) -> None:
    ran: list[str] = []
    functions = behaviours("required", ran)
    params: dict[str, Any] = {"name": "no_context", "arguments": {}}
    async with tasked(tmp_path, *functions.values(), backend={"approve": "always"}) as ann:
        asked = valid_input_required((await ann.send("tools/call", params)).json())
        assert (list(asked["inputRequests"]), ran) == (["approve"], [])
        answer = accept(approve=approves)
        created = valid_created(
            (await ann.send("tools/call", retry(params, asked, approve=answer))).json()
        )
        task = await ann.over(created["taskId"])
    assert (task["status"], ran) == ("completed", ["no_context"] if approves else [])
    assert task["result"].get("isError", False) is not approves


@tool(task="required", once=True)
async def book(ctx: Context) -> str:
    """Books once."""
    who = await ctx.elicit("who", "For whom?", Name)
    await ctx.continue_as_task()
    return f"booked for {who.name}"


async def test_the_retry_of_a_round_that_must_run_once_is_told_the_same_task(
    tmp_path: Path,
) -> None:
    params: dict[str, Any] = {"name": "book", "arguments": {}}
    async with tasked(tmp_path, book) as ann, tasked(tmp_path, book, works=False) as elsewhere:
        asked = valid_input_required((await ann.send("tools/call", params)).json())
        again = retry(params, asked, who=accept(name="Ann"))
        first, second = await asyncio.gather(
            ann.send("tools/call", again), elsewhere.send("tools/call", again)
        )
        third = await ann.send("tools/call", again)
        task_id = valid_created(first.json())["taskId"]
        assert {valid_created(one.json())["taskId"] for one in (second, third)} == {task_id}
        assert await ann.text(task_id) == "booked for Ann"
        status, error = await ann.error("tools/call", retry(params, asked, who=accept(name="Eve")))
    assert (status, error["code"]) == (400, -32602)


# ---- when something cannot be reached


@dataclass
class Broken:
    """Another store or queue, of which one method cannot reach what is behind it while `down`."""

    inner: Any
    method: str
    down: bool = True
    calls: int = 0

    def __getattr__(self, name: str) -> Any:
        if name != self.method:
            return getattr(self.inner, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.down:
                raise Unavailable("The store cannot be reached")
            return await getattr(self.inner, name)(*arguments, **options)

        return call


def stores_with(directory: Path, clock: Clock, **broken: str) -> Stores:
    """Real stores of which these have a method that is down."""
    made = make_stores(task_settings(directory), clock)
    parts: dict[str, Any] = {name: getattr(made, name) for name in ("tasks", "queue", "sessions")}
    if "queue" in broken:
        parts["queue"] = Broken(parts["queue"], broken.pop("queue"))
        parts["tasks"] = StoredTasks(made.tasks.store, parts["queue"])
    parts |= {name: Broken(parts[name], method) for name, method in broken.items()}
    return Stores(**parts)


@pytest.mark.parametrize("name", ["goes_on", "at_once"])
async def test_without_the_store_nothing_is_promised(tmp_path: Path, name: str) -> None:
    stores = stores_with(tmp_path, Clock(), tasks="create")
    ran: list[str] = []
    params: dict[str, Any] = {"name": name, "arguments": {}}
    async with tasked(tmp_path, *behaviours("required", ran).values(), stores=stores) as ann:
        response = await ann.call(name)
        asked = valid_input_required(response.json())
        assert "inputRequests" not in asked
        assert "taskId" not in response.text
        stores.tasks.down = False  # type: ignore[attr-defined]
        created = valid_created((await ann.send("tools/call", retry(params, asked))).json())
        assert await ann.text(created["taskId"]) == "Hello, Ann!"


@pytest.mark.parametrize(
    ("method", "down"),
    [("tasks/get", "read"), ("tasks/update", "apply"), ("tasks/cancel", "apply")],
)
async def test_a_task_that_cannot_be_reached_is_not_said_to_be_unknown(
    tmp_path: Path, method: str, down: str
) -> None:
    stores = stores_with(tmp_path, Clock(), tasks=down)
    async with tasked(
        tmp_path, *behaviours("required", []).values(), stores=stores, works=False
    ) as ann:
        response = await ann.send(
            method, {"taskId": await ann.begin("goes_on"), "inputResponses": {}}
        )
    assert response.status_code == 503
    assert wire.valid_error(response)["message"] == "The store cannot be reached"


async def test_without_the_queue_the_task_is_told_and_found_by_the_sweep(tmp_path: Path) -> None:
    clock = SkippingClock()
    stores = stores_with(tmp_path, clock, queue="send")
    swept = {"sweep_every_s": 0.05, "requeue_after_s": 30}
    functions = behaviours("required", []).values()
    async with tasked(tmp_path, *functions, stores=stores, clock=clock, tasks=swept) as ann:
        task_id = await ann.begin("goes_on")
        await asyncio.sleep(0.3)
        assert (await ann.get(task_id))["status"] == "working"
        assert stores.queue.calls == 1  # type: ignore[attr-defined]
        stores.queue.down = False  # type: ignore[attr-defined]
        clock.skip(31)
        assert await ann.text(task_id) == "Hello, Ann!"


async def test_without_the_queue_answers_are_taken_and_found_by_the_sweep(tmp_path: Path) -> None:
    @tool(task="required")
    async def ask_within(ctx: Context) -> str:
        await ctx.continue_as_task()
        return (await ctx.elicit("who", "Who?", Name)).name

    clock = SkippingClock()
    stores = stores_with(tmp_path, clock, queue="send")
    stores.queue.down = False  # type: ignore[attr-defined]
    async with tasked(
        tmp_path, ask_within, stores=stores, clock=clock, tasks={"sweep_every_s": 0.05}
    ) as ann:
        task_id = await ann.begin("ask_within")
        await ann.asked(task_id)
        stores.queue.down = True  # type: ignore[attr-defined]
        await ann.answer(task_id, {"who": accept(name="Ann")})
        assert (await ann.get(task_id))["status"] == "working"
        stores.queue.down = False  # type: ignore[attr-defined]
        clock.skip(31)
        assert await ann.text(task_id) == "Ann"


async def test_a_round_that_must_run_once_comes_to_its_task_though_the_store_was_down(
    tmp_path: Path,
) -> None:
    stores = stores_with(tmp_path, Clock(), tasks="create")
    params: dict[str, Any] = {"name": "book", "arguments": {}}
    async with tasked(tmp_path, book, stores=stores) as ann:
        asked = valid_input_required((await ann.send("tools/call", params)).json())
        again = retry(params, asked, who=accept(name="Ann"))
        first, second = [
            valid_input_required((await ann.send("tools/call", again)).json()) for _ in range(2)
        ]
        assert first == second
        stores.tasks.down = False  # type: ignore[attr-defined]
        created = valid_created((await ann.send("tools/call", retry(params, first))).json())
        assert await ann.text(created["taskId"]) == "booked for Ann"


class Recorder:
    """A store and a queue that tell in which order they were used."""

    def __init__(self, directory: Path) -> None:
        self._made = make_stores(task_settings(directory), Clock())
        self.seen: list[str] = []
        queue = _Told(self._made.queue, self)
        store: Any = _Told(self._made.tasks.store, self)
        tasks = StoredTasks(store, queue)
        self.stores = Stores(tasks, queue, self._made.sessions)


@dataclass
class _Told:
    inner: Any
    recorder: Recorder

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        async def call(*arguments: NewTask | TaskRef | Sequence[Message], **options: Any) -> Any:
            done = await method(*arguments, **options)
            self.recorder.seen.append(name)
            return done

        return call


async def test_a_task_is_durable_before_its_message_is_sent_and_its_client_told(
    tmp_path: Path,
) -> None:
    recorder = Recorder(tmp_path)
    async with tasked(
        tmp_path, *behaviours("required", []).values(), stores=recorder.stores, works=False
    ) as ann:
        await ann.call("goes_on")
        assert recorder.seen == ["count_open", "insert", "send"]
        recorder.seen.clear()
        await ann.call("at_once")
        assert recorder.seen == ["insert"]  # it is over: no worker is needed
        recorder.seen.clear()
        behave = TaskClient(ann.mcp, DECLARED)
        task_id = await behave.begin("goes_on")
        recorder.seen.clear()
        await behave.get(task_id)
        await behave.cancel(task_id)
        assert recorder.seen == ["read", "head", "swap"]


async def test_a_call_that_does_not_become_a_task_writes_nothing(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    async with tasked(
        tmp_path, *behaviours("optional", []).values(), stores=recorder.stores, works=False
    ) as ann:
        wire.valid_result("tools/call", (await ann.call("at_once")).json())
        asked = await ann.call("asks_first")
        valid_input_required(asked.json())
        assert recorder.seen == []

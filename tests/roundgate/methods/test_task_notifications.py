"""`notifications/tasks` on subscriptions/listen: to whom, what each says, and
what stays off the stream."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.runtime.startup import Stores, make_stores
from roundgate.settings.process import Settings
from tests.support import wire
from tests.support.asgi import Client, Exchange, client, gateway
from tests.support.clocks import SkippingClock
from tests.support.functions import change, note
from tests.support.jobs import JOBS, dig
from tests.support.rounds import CAPABILITIES, accept
from tests.support.task_client import (
    DECLARED,
    MISSING,
    TaskClient,
    serving,
    task_settings,
    tasked,
    valid_task,
)
from tests.support.tasks import as_stored

UNKNOWN = "AAAAAAAAAAAAAAAAAAAAAA"
NOTIFICATION = "notifications/tasks"


@asynccontextmanager
async def listening(
    app: FastAPI,
    task_ids: list[str],
    acknowledged: list[str] | None = None,
    request_id: Any = 7,
    **wanted: Any,
) -> AsyncIterator[Exchange]:
    """An open stream for these tasks, of which those are acknowledged: all unless told otherwise."""
    notifications = {"taskIds": task_ids, **wanted}
    given = {"clientCapabilities": DECLARED, "logLevel": "debug", "progressToken": "p"}
    asked = wire.message(
        "subscriptions/listen", {"notifications": notifications}, request_id, **given
    )
    async with Exchange(app, asked) as stream:
        first = await stream.event()
        assert first is not None
        assert first["method"] == "notifications/subscriptions/acknowledged"
        expected = task_ids if acknowledged is None else acknowledged
        assert (
            first["params"]["notifications"] == ({"taskIds": expected} if expected else {}) | wanted
        )
        yield stream


async def said(stream: Exchange) -> dict[str, Any]:
    """The task that the next notification tells, which is a whole `DetailedTask` under the stream's id."""
    one = await stream.event()
    assert one is not None
    assert one.keys() == {"jsonrpc", "method", "params"}
    assert one["method"] == NOTIFICATION
    task: dict[str, Any] = dict(one["params"])
    assert task.pop("_meta") == {wire.SUBSCRIPTION_ID: 7}
    valid_task(task)
    return task


async def until(stream: Exchange, *statuses: str) -> dict[str, Any]:
    """The first told task that has one of these statuses."""
    while (task := await said(stream))["status"] not in statuses:
        pass
    return task


def bare(task: dict[str, Any]) -> dict[str, Any]:
    """What `tasks/get` says of the task itself."""
    return {name: value for name, value in task.items() if name not in ("resultType", "_meta")}


async def silence(stream: Exchange, for_s: float = 0.3) -> None:
    """Three looks at the tasks, and nothing to tell."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stream.event(), for_s)


async def test_the_life_of_a_task_is_told_as_tasks_get_would_tell_it(tmp_path: Path) -> None:
    async with serving(tmp_path, *JOBS) as app, client(app) as mcp:
        ann = TaskClient(mcp)
        task_id = await ann.begin("both")
        await ann.asked(task_id)
        async with listening(app, [task_id]) as stream:
            assert await said(stream) == bare(await ann.get(task_id))
            await ann.answer(task_id, {"first": accept(name="one")})
            assert await said(stream) == bare(await ann.get(task_id))
            await ann.answer(task_id, {"second": accept(name="two")})
            assert await until(stream, "completed") == bare(await ann.get(task_id))
            await silence(stream)


@pytest.mark.parametrize(
    ("job", "status"),
    [("dig", "completed"), ("refuse", "completed"), ("reject", "failed"), ("crash", "completed")],
)
async def test_every_end_is_told(tmp_path: Path, job: str, status: str) -> None:
    async with serving(tmp_path, *JOBS, works=False) as idle, client(idle) as mcp:
        ann = TaskClient(mcp)
        task_id = await ann.begin(job)
        async with listening(idle, [task_id]) as stream:
            assert (await said(stream))["status"] == "working"
            async with serving(tmp_path, *JOBS):  # another one works on it
                assert (await until(stream, "completed", "failed")) == bare(await ann.get(task_id))
            assert (await ann.get(task_id))["status"] == status


async def test_a_cancellation_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path, *JOBS, works=False) as app, client(app) as mcp:
        ann = TaskClient(mcp)
        task_id = await ann.begin("dig")
        async with listening(app, [task_id]) as stream:
            assert (await said(stream))["status"] == "working"
            await ann.cancel(task_id)
            assert (await said(stream))["status"] == "cancelled"


async def test_a_task_that_is_over_is_told_once_and_looked_at_no_more(tmp_path: Path) -> None:
    stores = Counting(make_stores(task_settings(tmp_path), Clock()))
    async with serving(tmp_path, *JOBS, stores=stores.stores) as app, client(app) as mcp:
        ann = TaskClient(mcp)
        task_id = await ann.begin("dig")
        over = bare(await ann.over(task_id))
        async with listening(app, [task_id]) as stream:
            assert await said(stream) == over
            stores.reads.clear()
            await silence(stream)
        assert stores.reads == {}


async def test_what_is_asked_for_twice_is_told_once(tmp_path: Path) -> None:
    async with serving(tmp_path, *JOBS, works=False) as app, client(app) as mcp:
        task_id = await TaskClient(mcp).begin("dig")
        async with listening(
            app, [task_id, UNKNOWN, task_id, "no.such/id"], acknowledged=[task_id]
        ) as stream:
            assert (await said(stream))["taskId"] == task_id
            await silence(stream)


async def test_a_stream_for_tasks_that_there_are_not_is_open_and_silent(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, *JOBS) as app,
        listening(app, [UNKNOWN], acknowledged=[]) as stream,
    ):
        await silence(stream, 0.2)


async def test_other_subscriptions_on_the_same_stream_go_on(tmp_path: Path) -> None:
    async with serving(tmp_path, *JOBS, change, note) as app, client(app) as mcp:
        ann = TaskClient(mcp)
        task_id = await ann.begin("dig")
        await ann.over(task_id)
        async with listening(
            app, [task_id], toolsListChanged=True, resourceSubscriptions=["note://one"]
        ) as stream:
            assert (await said(stream))["status"] == "completed"
            await mcp.text("change")
            methods = [event["method"] for _ in range(2) if (event := await stream.event())]
    assert methods == ["notifications/tools/list_changed", "notifications/resources/updated"]


async def test_progress_and_log_messages_of_a_task_stay_off_the_stream(tmp_path: Path) -> None:
    async with serving(tmp_path, *JOBS) as app, client(app) as mcp:
        ann = TaskClient(mcp)
        task_id = valid_id(
            await ann.send("tools/call", {"name": "tell"}, progressToken="p", logLevel="debug")
        )
        async with listening(app, [task_id]) as stream:
            asked = await until(stream, "input_required")
            assert asked["statusMessage"] == "2 of 4: digging"
            await ann.answer(task_id, {"more": accept(name="x")})
            await until(stream, "completed")  # `said` takes nothing but notifications/tasks


def valid_id(response: Any) -> str:
    """The id in the last message of a stream."""
    task_id: str = wire.events(response.text)[-1]["result"]["taskId"]
    return task_id


@pytest.mark.parametrize(
    "capabilities", [{}, CAPABILITIES, {"tasks": {}}, {"extensions": {}}], ids=str
)
async def test_a_client_that_does_not_declare_the_extension_is_refused(
    tmp_path: Path, capabilities: dict[str, Any]
) -> None:
    async with tasked(tmp_path, *JOBS, works=False) as ann:
        for task_id in (await ann.begin("dig"), UNKNOWN):
            wanted = {"notifications": {"taskIds": [task_id], "toolsListChanged": True}}
            status, error = await TaskClient(ann.mcp, capabilities).error(
                "subscriptions/listen", wanted
            )
            assert (status, error["code"], error["data"]) == (400, -32021, MISSING)


async def test_who_asks_for_no_task_needs_no_extension(tmp_path: Path) -> None:
    async with serving(tmp_path, *JOBS) as app:
        asked = wire.message(
            "subscriptions/listen", {"notifications": {"taskIds": [], "toolsListChanged": True}}
        )
        async with Exchange(app, asked) as stream:
            first = await stream.event()
    assert first is not None
    assert first["params"]["notifications"] == {"toolsListChanged": True}


@pytest.mark.parametrize(
    "task_ids", [None, "x", {}, [1], ["x"] * 101], ids=["null", "text", "map", "number", "101"]
)
async def test_ids_of_the_wrong_shape_or_too_many_are_refused(
    tmp_path: Path, task_ids: Any
) -> None:
    async with tasked(tmp_path, *JOBS, works=False) as ann:
        status, error = await ann.error(
            "subscriptions/listen", {"notifications": {"taskIds": task_ids}}
        )
    assert (status, error["code"]) == (400, -32602)
    assert "taskIds" in error["message"]


async def test_where_nothing_can_stream_tasks_are_polled(tmp_path: Path) -> None:
    using = task_settings(tmp_path, listen="off", worker="off")
    async with client(gateway(*JOBS, using=using)) as mcp:
        ann = TaskClient(mcp)
        task_id = await ann.begin("dig")
        status, error = await ann.error(
            "subscriptions/listen", {"notifications": {"taskIds": [task_id]}}
        )
        assert (status, error["code"]) == (404, -32601)
        assert (await ann.get(task_id))["status"] == "working"


async def test_a_gateway_without_such_tools_acknowledges_no_tasks() -> None:
    async with listening(
        gateway(change, using=Settings()), [UNKNOWN], acknowledged=[], toolsListChanged=True
    ):
        pass


class Counting:
    """Stores that count how often each task is read, and can be down."""

    def __init__(self, made: Stores) -> None:
        self.reads: Counter[str] = Counter()
        self.glances: Counter[str] = Counter()
        self.down = False
        self._inner: Any = made.tasks
        self.stores = Stores(as_stored(self), made.queue, made.sessions)

    async def read(self, ref: Any, now_ms: int) -> Any:
        self.reads[ref.id] += 1
        if self.down:
            raise Unavailable("The store cannot be reached")
        return await self._inner.read(ref, now_ms)

    async def glance(self, refs: Any, now_ms: int) -> Any:
        self.glances.update(ref.id for ref in refs)
        if self.down:
            raise Unavailable("The store cannot be reached")
        return await self._inner.glance(refs, now_ms)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@asynccontextmanager
async def counted(tmp_path: Path) -> AsyncIterator[tuple[Counting, FastAPI, Client]]:
    stores = Counting(make_stores(task_settings(tmp_path), Clock()))
    async with serving(tmp_path, dig, works=False, stores=stores.stores) as app, client(app) as mcp:
        yield stores, app, mcp


async def test_a_task_is_looked_at_once_an_interval_however_many_watch_it(tmp_path: Path) -> None:
    async with counted(tmp_path) as (stores, app, mcp):
        task_id = await TaskClient(mcp).begin("dig")
        async with (
            listening(app, [task_id]) as one,
            listening(app, [task_id]) as two,
            listening(app, [task_id]),
        ):
            await said(one)
            await said(two)
            stores.reads.clear()
            stores.glances.clear()
            await asyncio.sleep(0.55)
            assert 2 <= stores.glances[task_id] <= 6
            assert stores.reads[task_id] <= 1, "the first look"
            await TaskClient(mcp).cancel(task_id)
            assert [(await said(stream))["status"] for stream in (one, two)] == [
                "cancelled",
                "cancelled",
            ]


async def test_nobody_looks_once_nobody_listens(tmp_path: Path) -> None:
    async with counted(tmp_path) as (stores, app, mcp):
        task_id = await TaskClient(mcp).begin("dig")
        for _ in range(2):
            async with listening(app, [task_id]) as stream:
                await said(stream)
        async with asyncio.timeout(60):  # a last look may be under way
            looks = 1
            while looks:
                stores.reads.clear()
                stores.glances.clear()
                await asyncio.sleep(0.3)
                looks = stores.reads[task_id] + stores.glances[task_id]
        async with listening(app, [task_id]) as stream:  # and it can be begun again
            await said(stream)
            await TaskClient(mcp).cancel(task_id)
            assert (await said(stream))["status"] == "cancelled"


async def test_what_changes_while_the_store_is_down_is_told_when_it_is_back(tmp_path: Path) -> None:
    async with counted(tmp_path) as (stores, app, mcp):
        task_id = await TaskClient(mcp).begin("dig")
        async with listening(app, [task_id]) as stream:
            await said(stream)
            stores.down = True
            await TaskClient(mcp).cancel(task_id)
            await silence(stream)
            stores.down = False
            assert (await said(stream))["status"] == "cancelled"


async def test_a_listener_whose_tasks_cannot_be_read_is_asked_to_come_again(tmp_path: Path) -> None:
    async with counted(tmp_path) as (stores, _, mcp):
        stores.down = True
        response = await TaskClient(mcp).send(
            "subscriptions/listen", {"notifications": {"taskIds": [UNKNOWN]}}
        )
    assert response.status_code == 503
    assert wire.valid_error(response)["message"] == "The store cannot be reached"


async def test_of_a_task_that_expires_nothing_more_is_said(tmp_path: Path) -> None:
    clock = SkippingClock()
    async with (
        serving(tmp_path, *JOBS, clock=clock, works=False, tasks={"ttl_s": 60}) as app,
        client(app) as mcp,
    ):
        ann = TaskClient(mcp)
        short, other = await ann.begin("dig"), await ann.begin("dig")
        async with listening(app, [short, other]) as stream:
            assert {(await said(stream))["taskId"] for _ in range(2)} == {short, other}
            clock.skip(61)
            await silence(stream)


async def test_a_reader_who_is_late_is_told_the_last_state_of_each_task(tmp_path: Path) -> None:
    async with serving(tmp_path, *JOBS) as app, client(app) as mcp:
        ann = TaskClient(mcp)
        ids = [await ann.begin("both") for _ in range(3)]
        for task_id in ids:
            await ann.asked(task_id)
        async with listening(app, ids) as stream:
            for _ in ids:
                assert (await said(stream))["status"] == "input_required"
            stream.reading.clear()
            for task_id in ids:
                await ann.answer(task_id, {"first": accept(name="a")})
                await ann.answer(task_id, {"second": accept(name="b")})
                await ann.over(task_id)
            await asyncio.sleep(0.3)
            stream.reading.set()
            told = [await said(stream) for _ in ids]
            if any(
                task["status"] != "completed" for task in told
            ):  # one may have been on its way already
                told = [
                    *[task for task in told if task["status"] == "completed"],
                    await said(stream),
                ]
            assert sorted(task["taskId"] for task in told) == sorted(ids)
            assert {task["status"] for task in told} == {"completed"}
            await silence(stream)

"""Requests of one session that reach several replicas at the same moment:
twins, cancellations, changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from fastapi import FastAPI
from msgspec.structs import replace

from roundgate import Context, resource, tool
from roundgate.http.older import rounds, streams
from roundgate.settings.process import Settings
from tests.roundgate.http.test_listen import listening, said
from tests.support import wire
from tests.support.asgi import gateway
from tests.support.rounds import Name, accept
from tests.support.sessions import Event, Session, calling, cancelling, opened, request, text

began: asyncio.Queue[asyncio.Event] = asyncio.Queue()
"""One of each handler that has begun, which is set when that is cancelled."""
steps: list[str] = []


async def done(what: str) -> None:
    steps.append(what)
    await asyncio.sleep(0.2)


@tool
async def order(ctx: Context) -> str:
    """Asks, does something that takes a moment and is seen, asks again."""
    who = await ctx.elicit("who", "Who are you?", Name)
    await ctx.step("order", done, f"ordered for {who.name}")
    where = await ctx.elicit("where", "Where?", Name)
    await ctx.step("send", done, f"sent to {where.name}")
    return f"{who.name} in {where.name}"


@tool
async def endless(ctx: Context, ask: bool = False) -> str:
    """Never ends, unless it is cancelled."""
    if ask:
        await ctx.elicit("who", "Who?", Name)
    cancelled = asyncio.Event()
    began.put_nowait(cancelled)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.set()
        raise
    return "never"


@tool
async def change(ctx: Context) -> str:
    """Tells that a resource has changed."""
    await ctx.resource_updated("note://one")
    return "told"


@resource("note://one")
async def note() -> str:
    """A note."""
    return "one"


TOOLS = (order, endless, change, note)


@pytest.fixture
def three(using: Settings) -> Iterator[list[FastAPI]]:
    """Gateways with nothing in common but a store and a key."""
    global began
    steps.clear()
    began = asyncio.Queue()
    yield [gateway(*TOOLS, using=using) for _ in range(3)]
    steps.clear()


@pytest.fixture
def finite(using: Settings, three: list[FastAPI]) -> list[FastAPI]:
    """The same where no stream can be held."""
    return [gateway(*TOOLS, using=replace(using, listen="off")) for _ in three]


def token_of(response: dict[str, Any]) -> str:
    word, token = text(response).split("\n")[0].split(" ")
    assert word == "PENDING"
    return token


async def asked_with(session: Session, app: FastAPI, body: Any) -> tuple[Event, dict[str, Any]]:
    """The question and the result that come in one body."""
    async with session.stream(app, body) as stream:
        question = await stream.asked()
        (response,) = await stream.over()
    return question, response


async def test_twins_of_continue_call_have_one_outcome(finite: list[FastAPI]) -> None:
    session = await opened(finite[0], "2025-06-18")
    who, response = await asked_with(session, finite[0], calling("order"))
    await session.answer(finite[1], who, accept(name="Ann"))
    token = token_of(response)
    twins = await asyncio.gather(
        *(
            asked_with(session, app, calling("continue_call", number, token=token))
            for number, app in enumerate(finite)
        )
    )
    assert steps == ["ordered for Ann"]
    # the answer to the question of any of them is that of all
    await session.answer(finite[2], twins[1][0], accept(name="Rome"))
    ends = await asyncio.gather(
        *(
            session.send(app, calling("continue_call", 7, token=token_of(response)))
            for app, (_, response) in zip(finite, twins, strict=True)
        )
    )
    assert {text(one.json()) for one in ends} == {"Ann in Rome"}
    assert steps == ["ordered for Ann", "sent to Rome"]


@pytest.mark.parametrize("holds", [True, False])
async def test_twins_of_get_have_one_outcome(
    three: list[FastAPI], finite: list[FastAPI], holds: bool
) -> None:
    apps = three if holds else finite
    session = await opened(apps[0])
    async with AsyncExitStack() as stack:
        stream = await stack.enter_async_context(session.stream(apps[0], calling("order")))
        who = await stream.asked()
        twins = [
            await stack.enter_async_context(session.resumed(app, who.id))
            for app in (*apps, apps[1])
        ]
        await asyncio.gather(
            *(session.answer(app, who, accept(name=f"Ann {n}")) for n, app in enumerate(apps))
        )
        wheres = [await twin.asked() for twin in twins]
        assert len(steps) == 1
        if not holds:
            twins = [
                await stack.enter_async_context(session.resumed(app, where.id))
                for app, where in zip((*apps, apps[1]), wheres, strict=True)
            ]
        await session.answer(apps[2], wheres[3], accept(name="Rome"))
        ends = [(await twin.message())["result"] for twin in twins]
    assert len({json.dumps(one) for one in ends}) == 1
    assert len(steps) == 2


async def cancel(session: Session, app: FastAPI, request_id: Any) -> None:
    assert (await session.send(app, cancelling(request_id))).status_code == 202


@pytest.mark.parametrize("ask", [False, True])
async def test_a_cancellation_at_another_replica_ends_a_handler_that_runs(
    three: list[FastAPI], monkeypatch: pytest.MonkeyPatch, ask: bool
) -> None:
    monkeypatch.setattr(rounds, "FIRST_LOOK_S", 0.05)
    session = await opened(three[0])
    async with session.stream(three[0], calling("endless", 9, ask=ask)) as stream:
        if ask:
            await session.answer(three[1], await stream.asked(), accept(name="Ann"))
        async with asyncio.timeout(60):
            cancelled = await began.get()
        await cancel(session, three[2], 8)  # another call's
        await cancel(session, three[1], 9)
        assert await stream.over() == []
    assert cancelled.is_set()


async def test_a_cancellation_ends_one_call_of_a_batch_at_any_replica(
    three: list[FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "FIRST_LOOK_S", 0.05)
    session = await opened(three[0], "2025-03-26")
    batch = asyncio.create_task(
        session.send(three[0], [calling("endless", 1), calling("change", 2)])
    )
    async with asyncio.timeout(60):
        cancelled = await began.get()
    await cancel(session, three[1], 1)
    assert [one["id"] for one in wire.events((await batch).text)] == [2]
    assert cancelled.is_set()


async def test_a_call_that_is_over_soon_reads_nothing_about_its_cancellation(
    three: list[FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "FIRST_LOOK_S", 600)  # "soon" on a slow machine, too
    session, stores = await opened(three[0]), three[0].state.core.stores
    await session.result(three[0], "ping")
    read: list[Any] = []

    def reading(real: Any) -> Any:
        def noted(key: Any) -> Any:
            read.append(key)
            return real(key)

        return noted

    monkeypatch.setattr(stores.sessions, "read", reading(stores.sessions.read))
    monkeypatch.setattr(stores.tasks, "head", reading(stores.tasks.head))
    result = await session.result(three[0], "tools/call", {"name": "change", "arguments": {}})
    assert result["content"][0]["text"] == "told"
    assert read == ["changes"]


async def test_a_stream_tells_of_what_its_session_subscribes_to_elsewhere_from_that_moment(
    three: list[FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "LOOK_S", 0.5)
    session = await opened(three[0])
    async with session.resumed(three[0]) as stream:
        assert await stream.event() is None  # it is open, and knows of no subscription
        await session.result(three[1], "resources/subscribe", {"uri": "note://one"})
        await session.send(three[2], request("tools/call", {"name": "change"}))
        assert (await stream.message())["params"] == {"uri": "note://one"}


async def test_a_stream_on_which_something_happens_all_the_time_ends_with_its_session(
    three: list[FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "LOOK_S", 0.2)
    session, busy = await opened(three[0]), await opened(three[0])
    await session.result(three[1], "resources/subscribe", {"uri": "note://one"})
    async with session.resumed(three[0]) as stream:
        assert await stream.event() is None
        await session.end(three[1])
        async with asyncio.timeout(60):
            while not stream.running.done():
                await busy.send(three[0], request("tools/call", {"name": "change"}))


async def test_a_resource_that_changes_at_one_replica_is_told_to_every_era_at_all(
    three: list[FastAPI],
) -> None:
    session = await opened(three[0])
    await session.result(three[1], "resources/subscribe", {"uri": "note://one"})
    wanted = {"resourceSubscriptions": ["note://one"]}
    async with (
        session.resumed(three[0]) as older,
        listening(three[1], wanted) as modern,
    ):
        assert await older.event() is None  # it is open
        response = await session.send(three[2], request("tools/call", {"name": "change"}))
        assert text(response.json()) == "told"
        assert (await older.message())["params"] == {"uri": "note://one"}
        assert (await said(modern))["params"]["uri"] == "note://one"

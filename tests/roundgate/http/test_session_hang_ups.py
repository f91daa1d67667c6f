"""Clients of the revisions with sessions that hang up: what runs for them goes on, and they
find it if they come back.

"Disconnection SHOULD NOT be interpreted as the client cancelling its request" (basic/transports).
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI
from msgspec.structs import replace

from roundgate import Context, ToolError, tool
from roundgate.http.older import calls, rounds
from roundgate.settings.process import Settings
from roundgate.tasks import hidden
from roundgate.tasks.events import NewTask
from tests.support.asgi import built, config_file, gateway
from tests.support.clocks import FixedClock
from tests.support.rounds import Name, accept
from tests.support.sessions import (
    Event,
    Session,
    Stream,
    calling,
    cancelling,
    opened,
    telling,
    text,
)


class Work:
    """What a handler does, as a test sees and steers it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.ended = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, what: str) -> str:
        self.done.append(what)
        self.begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        self.ended.set()
        return what


work = Work()


@tool
async def pack(ctx: Context, tells: bool = True) -> str:
    """Tells that it has begun, and does something that takes a while."""
    if tells:
        await ctx.progress(1)
    await ctx.step("pack", work, "packed")
    return "it is packed"


@tool
async def send(ctx: Context) -> str:
    """The same, and asks where to."""
    await ctx.progress(1)
    await ctx.step("pack", work, "packed")
    return f"sent to {(await ctx.elicit('where', 'Where to?', Name)).name}"


@tool
async def order(ctx: Context) -> str:
    """Asks, and does something that takes a while."""
    who = await ctx.elicit("who", "Who is it for?", Name)
    await ctx.step("order", work, f"ordered for {who.name}")
    return f"{who.name} gets it"


@tool
async def refuse(ctx: Context) -> str:
    """Fails after a while."""
    await ctx.progress(1)
    await ctx.step("try", work, "tried")
    raise ToolError("it broke")


TOOLS = (pack, send, order, refuse)


@pytest.fixture
def two(using: Settings) -> tuple[FastAPI, FastAPI]:
    """Gateways with nothing in common but a store and a key."""
    global work
    work = Work()
    return gateway(*TOOLS, using=using), gateway(*TOOLS, using=using)


async def last(stream: Stream) -> str:
    """The text of the result with which an answer ends, of either kind; empty if it ends without one."""
    await asyncio.wait_for(asyncio.shield(stream.running), 60)
    body = (await stream.body()).decode()
    found = [line for line in body.splitlines() if '"result"' in line]
    return text(json.loads(found[-1].removeprefix("data: "))) if found else ""


async def cut(stream: Stream) -> str | None:
    """Hang up once the handler works: the id of the first event."""
    first = await stream.next()
    await asyncio.wait_for(work.begun.wait(), 60)
    await stream.gone()
    return first.id


async def result(session: Session, app: FastAPI, event_id: str | None) -> str:
    """What a client is told that comes back."""
    assert event_id is not None
    async with session.resumed(app, event_id) as stream:
        return await last(stream)


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26"])
async def test_a_handler_whose_client_hangs_up_goes_on_to_its_end(
    two: tuple[FastAPI, FastAPI], version: str, tells: bool
) -> None:
    session = await opened(two[0], version)
    async with session.stream(two[0], telling("pack", tells=tells)) as stream:
        await asyncio.wait_for(work.begun.wait(), 60)
        await stream.gone()
        work.may_end.set()
        await asyncio.wait_for(work.ended.wait(), 60)
    assert not work.cancelled.is_set()


@pytest.mark.parametrize("comes_back", ["while it runs", "after its end"])
async def test_a_client_that_hung_up_in_the_first_round_gets_the_result_elsewhere(
    two: tuple[FastAPI, FastAPI], comes_back: str
) -> None:
    session = await opened(two[0])
    async with session.stream(two[0], telling("pack")) as stream:
        event_id = await cut(stream)
        if comes_back == "while it runs":
            found = asyncio.create_task(result(session, two[1], event_id))
            await asyncio.sleep(0.3)
            work.may_end.set()
        else:
            work.may_end.set()
            await asyncio.wait_for(asyncio.shield(stream.running), 60)
            found = asyncio.create_task(result(session, two[1], event_id))
        assert await found == "it is packed"
    assert work.done == ["packed"]


async def renewal(app: FastAPI, clock: FixedClock) -> None:
    """Let a part of the lease pass, and wait until the gateway has renewed it."""

    async def lease_until_ms() -> int:
        (task,) = [one for one in (await tasks.open_tasks(10))[0] if one.ref.is_hidden]
        found = await tasks.head(task.ref)
        assert found is not None
        return int(found.lease_until_ms)

    tasks = app.state.core.stores.tasks
    before_ms = await lease_until_ms()
    clock.skip(2)
    async with asyncio.timeout(60):
        while await lease_until_ms() == before_ms:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_connection_that_is_dead_and_nobody_knows_it_is_come_back_to(
    two: tuple[FastAPI, FastAPI], using: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway that runs the call renews its lease."""
    monkeypatch.setattr(rounds, "FIRST_LOOK_S", 0.05)
    monkeypatch.setattr(hidden, "BEAT_S", 0.05)
    clock = FixedClock()
    one, other = (built(config_file(*TOOLS), using, clock=clock) for _ in two)
    session = await opened(one)
    async with session.stream(one, telling("pack")) as stream:
        event_id = (await stream.next()).id
        found = asyncio.create_task(result(session, other, event_id))
        for _ in range(8):  # longer than a gateway that says nothing would be believed
            await renewal(one, clock)
        assert not found.done()
        work.may_end.set()
        assert await found == "it is packed"
        assert await last(stream) == "it is packed"
    assert work.done == ["packed"]


async def test_an_error_is_found_by_whoever_comes_back(two: tuple[FastAPI, FastAPI]) -> None:
    session = await opened(two[0])
    async with session.stream(two[0], telling("refuse")) as stream:
        event_id = await cut(stream)
        work.may_end.set()
    assert "it broke" in await result(session, two[1], event_id)
    assert work.done == ["tried"]


async def test_a_question_of_which_nobody_heard_is_asked_of_whoever_comes_back(
    two: tuple[FastAPI, FastAPI],
) -> None:
    session = await opened(two[0])
    async with session.stream(two[0], telling("send")) as stream:
        event_id = await cut(stream)
        work.may_end.set()
        await asyncio.wait_for(asyncio.shield(stream.running), 60)  # nobody waits for an answer
    async with session.resumed(two[1], event_id) as again:
        await session.answer(two[0], await again.asked(), accept(name="Rome"))
        assert await last(again) == "sent to Rome"
    assert work.done == ["packed"]


async def test_a_step_in_which_a_client_hangs_up_is_not_doubled(
    two: tuple[FastAPI, FastAPI],
) -> None:
    session = await opened(two[0])
    async with session.stream(two[0], calling("order")) as stream:
        question = await stream.asked()
        await session.answer(two[1], question, accept(name="Ann"))
        await asyncio.wait_for(work.begun.wait(), 60)
        await stream.gone()
        found = asyncio.create_task(result(session, two[1], question.id))
        await asyncio.sleep(0.3)
        work.may_end.set()
        assert await found == "Ann gets it"
    assert work.done == ["ordered for Ann"]
    assert await result(session, two[0], question.id) == "Ann gets it"


async def test_a_first_round_whose_gateway_has_died_is_not_run_again(
    two: tuple[FastAPI, FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hidden, "LEASE_MS", 300)
    monkeypatch.setattr(rounds, "RELEASE_S", 0)
    session = await opened(two[0])
    stream = session.stream(two[0], telling("pack"))
    await stream.__aenter__()
    event_id = (await stream.next()).id
    await asyncio.wait_for(work.begun.wait(), 60)
    await killed(stream)
    assert "its progress is unknown" in await result(session, two[1], event_id)
    assert work.done == ["packed"]


async def killed(stream: Stream) -> None:
    """End a request as the death of its process does."""
    stream.running.cancel()
    await asyncio.wait([stream.running])


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_a_round_whose_gateway_died_continues_where_waits_are_short(
    two: tuple[FastAPI, FastAPI],
    using: Settings,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
) -> None:
    """No request may wait until the lease has run out before its eyes."""
    monkeypatch.setattr(hidden, "LEASE_MS", 1_000)
    monkeypatch.setattr(hidden, "SKEW_MS", 0)
    monkeypatch.setattr(hidden, "UNRENEWED_MS", 200)
    monkeypatch.setattr(calls, "SHORT_WAIT_S", 0.5)
    one, other = (gateway(*TOOLS, using=replace(using, listen="off")) for _ in two)
    session = await opened(one, version)
    async with session.stream(one, calling("order")) as stream:
        question = await stream.asked()
        pending = await last(stream)
    await session.answer(other, question, accept(name="Ann"))
    token = pending.split()[1] if pending else None
    monkeypatch.setattr(rounds, "RELEASE_S", 0)
    dying = going_on(session, one, question, token)
    await dying.__aenter__()
    await asyncio.wait_for(work.begun.wait(), 60)
    await killed(dying)
    work.may_end.set()
    said = ""
    async with asyncio.timeout(60):
        while "gets it" not in said:
            async with going_on(session, other, question, token) as stream:
                said = await last(stream)
    assert said == "Ann gets it"
    assert work.done == ["ordered for Ann"] * 2  # a step in which a process dies is begun again


def going_on(session: Session, app: FastAPI, question: Event, token: str | None) -> Stream:
    """As a client goes on with its call where nothing streams; always with the same token, as some models do."""
    if token is None:
        return session.resumed(app, question.id)
    return session.stream(app, calling("continue_call", 9, token=token))


@pytest.mark.parametrize("at", [0, 1])
async def test_a_call_whose_client_has_hung_up_can_be_cancelled(
    two: tuple[FastAPI, FastAPI], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    monkeypatch.setattr(rounds, "FIRST_LOOK_S", 0.05)
    monkeypatch.setattr(rounds, "LAST_LOOK_S", 0.05)
    session = await opened(two[0])
    async with session.stream(two[0], telling("pack", 7)) as stream:
        await cut(stream)
        assert not work.cancelled.is_set()
        assert (await session.send(two[at], cancelling(7))).status_code == 202
        await asyncio.wait_for(work.cancelled.wait(), 60)


@pytest.mark.parametrize("tells", [True, False])
async def test_a_call_that_was_cancelled_before_it_asks_asks_nothing(
    two: tuple[FastAPI, FastAPI], tells: bool
) -> None:
    """By a request to another replica, and before its own looked for that."""
    session = await opened(two[0])
    asked = telling("send", 7) if tells else calling("send", 7)
    async with session.stream(two[0], asked) as stream:
        await asyncio.wait_for(work.begun.wait(), 60)
        await session.send(two[1], cancelling(7))
        work.may_end.set()
        messages = await stream.over()
    assert not [one for one in messages if "id" in one]
    tasks = two[1].state.core.stores.tasks
    assert not [one for one in (await tasks.open_tasks(10))[0] if one.ref.is_hidden]


async def test_no_more_go_on_for_nobody_than_may_have_streams(
    two: tuple[FastAPI, FastAPI], using: Settings
) -> None:
    app = gateway(*TOOLS, using=using, http={"max_streams_per_caller": 2})
    session = await opened(app)
    streams = [session.stream(app, telling("pack", number)) for number in range(3)]
    for number, stream in enumerate(streams):
        await stream.__aenter__()
        async with asyncio.timeout(60):
            while len(work.done) <= number:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not work.cancelled.is_set()
        await stream.gone()
    await asyncio.wait_for(work.cancelled.wait(), 60)
    await asyncio.wait([streams[2].running], timeout=60)
    assert [stream.running.done() for stream in streams] == [False, False, True]
    work.may_end.set()
    await asyncio.wait([stream.running for stream in streams], timeout=60)
    work.begun.clear()
    async with session.stream(app, telling("pack", 4)) as stream:  # and the places are given back
        await cut(stream)
        await asyncio.wait_for(asyncio.shield(stream.running), 60)


async def test_of_a_batch_what_runs_goes_on_and_what_only_waits_ends(
    two: tuple[FastAPI, FastAPI],
) -> None:
    session = await opened(two[0], "2025-03-26", {"sampling": {}, "elicitation": {}})
    batch: Any = [telling("pack", 1), calling("order", 2)]
    async with session.stream(two[0], batch) as stream:
        await asyncio.wait_for(work.begun.wait(), 60)
        await asyncio.sleep(0.3)
        await stream.gone()
        assert not work.cancelled.is_set()
        work.may_end.set()
        await asyncio.wait_for(asyncio.shield(stream.running), 60)
    assert work.ended.is_set()
    assert work.done == ["packed"]


async def test_only_a_call_that_its_client_may_come_back_to_is_kept(
    two: tuple[FastAPI, FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    work.may_end.set()
    older, newer = await opened(two[0], "2025-06-18"), await opened(two[0])
    tasks, kept = two[0].state.core.stores.tasks, []
    real = tasks.create

    async def create(task: NewTask) -> bool:
        kept.append(task.ref.is_hidden)
        return bool(await real(task))

    monkeypatch.setattr(tasks, "create", create)
    for session, asked in ((older, telling("pack")), (newer, calling("pack"))):
        async with session.stream(two[0], asked) as stream:
            assert await last(stream) == "it is packed"
        assert kept == []
    async with newer.stream(two[0], telling("pack")) as stream:
        assert await last(stream) == "it is packed"
    assert kept == [True]


async def test_a_cancellation_that_comes_while_the_response_is_written_takes_nothing_of_it(
    two: tuple[FastAPI, FastAPI],
) -> None:
    session = await opened(two[0])
    work.may_end.set()
    async with session.stream(two[0], calling("pack", 7, tells=False)) as stream:
        stream.reading.clear()
        await asyncio.wait_for(stream.sends.wait(), 60)  # and its client reads slowly
        await session.send(two[0], cancelling(7))
        stream.reading.set()
        assert json.loads(await stream.body())["result"]["content"][0]["text"] == "it is packed"

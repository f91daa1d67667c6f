"""Calls of sessions while their store is away: what a user has answered, or a handler has done, is
not lost because the store has a new leader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate import Context, tool
from roundgate.errors import Unavailable
from roundgate.settings.process import Settings
from roundgate.storage import TaskRecord, TaskRef, patience
from roundgate.storage.sqlite.sessions import SqliteSessions
from roundgate.storage.sqlite.tasks import SqliteTasks
from tests.support.asgi import gateway
from tests.support.rounds import Name, accept
from tests.support.sessions import Event, Session, Stream, calling, opened, telling, text

steps: list[str] = []
LONG = "x" * 5_000
"""An argument with which a call does not fit into the id of an event."""


@tool
async def order(ctx: Context, note: str = "") -> str:
    """Asks, does something that is seen, asks again."""
    who = await ctx.elicit("who", "Who is it for?", Name)
    await ctx.step("order", steps.append, f"ordered for {who.name}")
    where = await ctx.elicit("where", "Where to?", Name)
    return f"{who.name} in {where.name}"


@tool
async def pack(ctx: Context, note: str = "") -> str:
    """Tells how far it is."""
    await ctx.progress(1)
    await ctx.step("pack", steps.append, "packed")
    await ctx.progress(2)
    return "it is packed"


class Store:
    """What the gateways share, and whether it can be reached."""

    def __init__(self) -> None:
        self.is_away = False
        self.only = ""
        """The only operation that is not possible while it is away; empty for all."""
        self.refused = asyncio.Event()

    def may_be_away(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapped(rows: Any, *arguments: Any) -> Any:
            if self.is_away and self.only in ("", operation.__name__):
                self.refused.set()
                raise Unavailable("The store cannot be reached")
            return await operation(rows, *arguments)

        return wrapped

    async def goes(self) -> None:
        """Be away, and wait until somebody has noticed."""
        self.refused.clear()
        self.is_away = True
        async with asyncio.timeout(60):
            await self.refused.wait()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    steps.clear()
    one = Store()
    for kind, names in (
        (SqliteSessions, ("read", "put_new", "replace")),
        (SqliteTasks, ("insert", "read", "head", "read_work", "swap", "count_open")),
    ):
        for name in names:
            monkeypatch.setattr(kind, name, _method(one, getattr(kind, name)))
    yield one
    steps.clear()


def _method(store: Store, operation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda rows, *arguments: store.may_be_away(operation)(rows, *arguments)


@pytest.fixture
def two(using: Settings, store: Store) -> tuple[FastAPI, FastAPI]:
    return gateway(order, pack, using=using), gateway(order, pack, using=using)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it had been away for as long as a request waits."""
    monkeypatch.setattr(patience, "PATIENCE_S", 0)


async def ended(stream: Stream) -> tuple[str | None, list[dict[str, Any]]]:
    """The last id and the messages of an answer that ends."""
    lines = [line.partition(": ") for line in (await stream.body()).decode().split("\r\n")]
    ids = [value for name, _, value in lines if name == "id"]
    found = [value for name, _, value in lines if name == "data" and value]
    return (ids[-1] if ids else None), [json.loads(one) for one in found]


async def asked(session: Session, app: FastAPI, event_id: str | None) -> Event:
    """The question of an open call."""
    async with session.resumed(app, event_id) as stream:
        return await stream.asked()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("note", ["", LONG])
async def test_who_comes_back_while_it_is_away_is_told_to_come_again(
    two: tuple[FastAPI, FastAPI], store: Store, note: str
) -> None:
    session = await opened(two[0])
    async with session.stream(two[0], calling("order", note=note)) as stream:
        who = await stream.asked()
    store.is_away = True
    async with session.resumed(two[1], who.id) as stream:
        body = await stream.body()
    assert stream.status == 200
    assert f"id: {who.id}\r\nretry: 2000\r\n".encode() in body
    assert b"jsonrpc" not in body
    store.is_away = False
    await session.answer(two[1], who, accept(name="Ann"))
    where = await asked(session, two[1], who.id)
    await session.answer(two[0], where, accept(name="Rome"))
    async with session.resumed(two[0], where.id) as stream:
        _, (response,) = await ended(stream)
    assert text(response) == "Ann in Rome"
    assert steps == ["ordered for Ann"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("note", ["", LONG])
async def test_what_a_user_has_answered_is_not_lost_when_it_goes_then(
    two: tuple[FastAPI, FastAPI], store: Store, note: str
) -> None:
    """The holder has the answer, and cannot claim the round."""
    session = await opened(two[0])
    async with session.stream(two[0], calling("order", note=note)) as stream:
        who = await stream.asked()
        store.is_away, store.only = True, "read_work"
        await session.answer(two[1], who, accept(name="Ann"))
        event_id, messages = await ended(stream)
    assert (event_id, messages) == (who.id, [])
    store.is_away = False
    where = await asked(session, two[1], event_id)
    assert "Where" in where.asked["params"]["message"]
    assert steps == ["ordered for Ann"]


async def test_when_it_is_back_in_a_moment_nobody_notices(
    two: tuple[FastAPI, FastAPI], store: Store
) -> None:
    session = await opened(two[0])
    async with session.stream(two[0], calling("order")) as stream:
        who = await stream.asked()
        await store.goes()
        answering = asyncio.create_task(session.answer(two[1], who, accept(name="Ann")))
        await asyncio.sleep(0.3)
        store.is_away = False
        assert (await answering).status_code == 202
        where = await stream.asked()
        await session.answer(two[1], where, accept(name="Rome"))
        (response,) = await stream.over()
    assert text(response) == "Ann in Rome"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("operation", ["count_open", "insert"])
async def test_a_call_whose_question_cannot_be_stored_says_that_it_may_have_taken_effect(
    two: tuple[FastAPI, FastAPI], store: Store, operation: str
) -> None:
    """A client repeats a request that is answered with 503, and its first round has run."""
    session = await opened(two[0])
    store.is_away, store.only = True, operation
    response = await session.send(two[0], calling("order"))
    assert response.status_code == 200
    assert response.json()["result"]["isError"]
    assert "cannot be reached" in text(response.json())
    assert "may have taken effect" in text(response.json())


@pytest.mark.usefixtures("impatient")
async def test_a_call_whose_question_was_stored_but_not_sent_is_resumed(
    two: tuple[FastAPI, FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, real, heads = await opened(two[0]), SqliteTasks.head, []

    async def head(tasks: SqliteTasks, ref: TaskRef) -> TaskRecord | None:
        heads.append(ref)
        if len(heads) > 1:  # the first one belongs to the creation
            raise Unavailable("The store cannot be reached")
        return await real(tasks, ref)

    with monkeypatch.context() as patched:
        patched.setattr(SqliteTasks, "head", head)
        async with session.stream(two[0], calling("order")) as stream:
            event_id, messages = await ended(stream)
    assert (stream.status, messages) == (200, [])
    who = await asked(session, two[1], event_id)
    assert "Who" in who.asked["params"]["message"]


@pytest.mark.usefixtures("impatient")
async def test_a_report_of_progress_costs_no_call(
    two: tuple[FastAPI, FastAPI], store: Store
) -> None:
    """The id with which a client could come back to this one would have to be kept."""
    session = await opened(two[0])
    await session.result(two[0], "ping")  # that it has not been ended is known then for a while
    store.is_away = True
    async with session.stream(two[0], telling("pack", note=LONG)) as stream:
        event_id, messages = await ended(stream)
    assert event_id is None
    assert [one.get("method") for one in messages] == ["notifications/progress"] * 2 + [None]
    assert text(messages[-1]) == "it is packed"


@pytest.mark.usefixtures("impatient")
async def test_nobody_comes_again_for_ever(using: Settings, store: Store) -> None:
    one, another = (gateway(order, using=using, sessions={"answer_timeout_s": 1}) for _ in range(2))
    session = await opened(one)
    async with session.stream(one, calling("order")) as stream:
        who = await stream.asked()
    store.is_away = True
    await asyncio.sleep(1.1)
    async with session.resumed(another, who.id) as stream:
        await stream.body()
    assert (stream.status, stream.headers[b"retry-after"]) == (503, b"5")


@pytest.mark.usefixtures("impatient")
async def test_a_client_that_does_not_come_back_has_an_error_under_the_id_of_its_call(
    two: tuple[FastAPI, FastAPI], store: Store
) -> None:
    session = await opened(two[0], "2025-06-18")
    async with session.stream(two[0], calling("order", 7)) as stream:
        who = await stream.asked()
        store.is_away, store.only = True, "read_work"
        await session.answer(two[1], who, accept(name="Ann"))
        _, messages = await ended(stream)
    assert messages[-1]["id"] == 7
    assert "cannot be reached" in messages[-1]["error"]["message"]

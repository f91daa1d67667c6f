"""What calls of older clients store counts for their caller, and ends with a clear error."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate import Context, tool
from roundgate.auth import LOCAL, task_owner
from roundgate.settings.process import Settings
from tests.support.asgi import gateway
from tests.support.rounds import Name, accept
from tests.support.sessions import calling, cancelling, opened, telling

MOST = 1_000_000


@tool
async def export(ctx: Context, size: int) -> str:
    """Reports and returns a text of so many characters."""
    await ctx.progress(1, 2, "half")
    return "x" * size


@tool
async def greet(ctx: Context) -> str:
    """Asks for a name."""
    return f"Hello {(await ctx.elicit('who', 'Who are you?', Name)).name}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shared.sqlite3"


@pytest.fixture
def app(file: Path) -> FastAPI:
    using = Settings(store=f"sqlite:///{file}")
    return gateway(export, greet, using=using, limits={"max_stored_bytes": MOST})


def stored(file: Path) -> int:
    """Bytes of all values."""
    with sqlite3.connect(file) as db:
        sizes = [
            db.execute(f"select coalesce(sum(length(value)), 0) from {table}").fetchone()[0]
            for table in ("sessions", "payloads")
        ]
    db.close()
    return sum(sizes)


async def test_small_calls_with_large_results_cannot_fill_the_store(
    app: FastAPI, file: Path
) -> None:
    session = await opened(app)
    for number in range(25):
        asked = telling("export", number, size=200_000)
        assert len(json.dumps(asked)) < 641
        async with session.stream(app, asked) as stream:
            *_, answer = await stream.over()
        assert len(answer["result"]["content"][0]["text"]) == 200_000, "the client gets them all"
    assert 600_000 < stored(file) <= MOST


async def test_cancellations_of_calls_that_do_not_exist_are_bounded(
    app: FastAPI, file: Path
) -> None:
    session = await opened(app)
    statuses: list[int] = []
    while 429 not in statuses:
        note = cancelling(f"none {len(statuses)}")
        response = await session.send(app, note)
        statuses.append(response.status_code)
    assert "limits.max_stored_bytes" in response.json()["error"]["message"]
    assert set(statuses[:-1]) == {202}
    assert len(statuses) <= MOST // 1_024
    assert (await session.send(app, note)).headers["retry-after"] == "60"


async def test_a_call_that_waits_is_cancelled_by_any_replica_though_nothing_has_room(
    app: FastAPI, file: Path
) -> None:
    using = Settings(store=f"sqlite:///{file}")
    other = gateway(export, greet, using=using, limits={"max_stored_bytes": MOST})
    session = await opened(app)

    async def cancel(request_id: Any) -> int:
        return (await session.send(other, cancelling(request_id))).status_code

    async with session.stream(app, calling("greet")) as stream:
        await stream.asked()
        for number in count():
            if await cancel(f"none {number}") == 429:
                break
        assert await cancel(1) == 202, "its task takes the cancellation"
        async with asyncio.timeout(60):
            assert await stream.over() == []


async def test_an_answer_that_has_no_room_is_refused_and_a_shorter_one_taken(
    app: FastAPI, file: Path
) -> None:
    session = await opened(app)
    async with session.stream(app, calling("greet")) as stream:
        question = await stream.asked()
        refused = await session.answer(app, question, accept(name="x" * MOST))
        assert refused.status_code == 429
        assert (await session.answer(app, question, accept(name="Ann"))).status_code == 202
        *_, answer = await stream.over()
    assert answer["result"]["content"][0]["text"] == "Hello Ann"


async def test_an_answer_that_is_sent_again_counts_once(app: FastAPI) -> None:
    session = await opened(app)
    async with session.stream(app, calling("greet")) as stream:
        question = await stream.asked()
        for _ in range(30):
            answered = await session.answer(app, question, accept(name="x" * 100_000))
            assert answered.status_code in (202, 400)
        await stream.over()
    assert await app.state.core.accounts.usage(task_owner(LOCAL)) < MOST


async def test_a_call_whose_result_has_no_room_is_not_run_again(file: Path) -> None:
    ran: list[str] = []

    @tool
    async def order(ctx: Context) -> str:
        """Asks for a name and returns a long text."""
        name = (await ctx.elicit("who", "Who are you?", Name)).name
        ran.append(name)
        return "x" * MOST

    using = Settings(store=f"sqlite:///{file}")
    app = gateway(order, using=using, limits={"max_stored_bytes": MOST})
    session = await opened(app)
    async with session.stream(app, calling("order")) as stream:
        question = await stream.asked()
        await session.answer(app, question, accept(name="Ann"))
        *_, answer = await stream.over()
    assert len(answer["result"]["content"][0]["text"]) == MOST
    async with asyncio.timeout(60), session.resumed(app, question.id) as stream:
        *_, again = await stream.over()
    assert "limits.max_stored_bytes" in again["result"]["content"][0]["text"]
    assert ran == ["Ann"]

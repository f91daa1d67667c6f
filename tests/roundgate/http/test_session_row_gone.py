"""Calls of sessions whose row disappears, as when an operator purges it, or DynamoDB's clock is ahead."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from fastapi import FastAPI

from roundgate import Context, tool
from roundgate.settings.process import Settings
from tests.support.asgi import gateway
from tests.support.rounds import Name, accept
from tests.support.sessions import calling, opened


class Work:
    """The step of a call."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def __call__(self) -> str:
        self.begun.set()
        await self.may_end.wait()
        return "packed"


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def app(using: Settings, work: Work) -> FastAPI:
    @tool
    async def order(ctx: Context) -> str:
        await ctx.elicit("who", "Who is it for?", Name)
        return str(await ctx.step("pack", work))

    return gateway(order, using=using)


def remove_rows(folder: Path) -> None:
    """Remove the row of the one call."""
    with closing(sqlite3.connect(folder / "shared.sqlite3", isolation_level=None)) as db:
        db.execute("pragma foreign_keys = on")
        assert db.execute("delete from tasks").rowcount == 1


@pytest.mark.parametrize("ends", [True, False])
async def test_a_call_whose_row_goes_in_a_step_says_that_it_may_have_taken_effect(
    app: FastAPI, work: Work, tmp_path: Path, ends: bool
) -> None:
    session = await opened(app)
    async with session.stream(app, calling("order")) as stream:
        await session.answer(app, await stream.asked(), accept(name="Ann"))
        await work.begun.wait()
        remove_rows(tmp_path)
        if ends:
            work.may_end.set()
        (response,) = await stream.over()  # else the renewal of the lease notices
    assert response["result"]["isError"]
    assert "may have taken effect" in response["result"]["content"][0]["text"]


async def test_a_call_whose_row_goes_while_it_asks_is_refused_to_who_comes_back(
    app: FastAPI, work: Work, tmp_path: Path
) -> None:
    session = await opened(app)
    async with session.stream(app, calling("order")) as stream:
        who = await stream.asked()
        remove_rows(tmp_path)
        assert (await session.answer(app, who, accept(name="Ann"))).status_code == 202
        assert await stream.over() == []
    async with session.resumed(app, who.id) as stream:
        assert b"too old; call again" in await stream.body()
    assert not work.begun.is_set()

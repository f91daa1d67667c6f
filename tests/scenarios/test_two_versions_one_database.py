"""Replicas of two versions of the package share one database while an upgrade rolls out and is undone."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.scenarios.conftest import Agency, clients
from tests.support import wire
from tests.support.pgbouncer import pooler, why_not
from tests.support.postgresql import postgresql as postgresql
from tests.support.postgresql import postgresql_server as postgresql_server
from tests.support.rounds import accept, retry, tool, valid_input_required
from tests.support.server import Server
from tests.support.task_client import TaskClient

APP = Path(__file__).parents[2] / "app"
END_OF_SCRIPTS = '""",\n)\n"""The scripts that each bring'
"""The end of `MIGRATIONS` in the modules of both stores."""
ONE_MORE = END_OF_SCRIPTS.replace(
    ",\n", ",\n    \"alter table tasks add column note text not null default 'empty'\",\n", 1
)


def next_version(folder: Path) -> Path:
    """Copy the package and give its tables one more column. Return the folder to import it from."""
    copy = shutil.copytree(APP, folder / "app", ignore=shutil.ignore_patterns("__pycache__"))
    for module in ("sqlite/database.py", "postgres/schema.py"):
        file = copy / "roundgate" / "storage" / module
        source = file.read_text("utf-8")
        assert source.count(END_OF_SCRIPTS) == 1, f"{module} has another end of MIGRATIONS"
        file.write_text(source.replace(END_OF_SCRIPTS, ONE_MORE), "utf-8")
    return copy


async def version_of_tables(url: str) -> int:
    """Return the version that the tables of a database record."""
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite://"))) as db:
            return int(db.execute("pragma user_version").fetchone()[0])
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("select version from roundgate.store"))
    finally:
        await connection.close()


async def ask_to_book(at: TaskClient, city: str) -> dict[str, Any]:
    """Call a tool and return the question that it asks."""
    return valid_input_required((await at.send(*tool("book", city=city))).json())


async def book(at: TaskClient, city: str, asked: dict[str, Any]) -> None:
    """Answer the question of a call and check its result."""
    method, params = tool("book", city=city)
    response = await at.send(method, retry(params, asked, who=accept(name="Ada")))
    result = wire.valid_result(method, response.json())
    assert result["content"][0]["text"] == f"hold {city}, book {city} for Ada"


async def tour(at: TaskClient, task_id: str, days: int) -> None:
    """Answer the question of a task and check its result."""
    await at.asked(task_id)
    await at.answer(task_id, {"who": accept(name="Ada")})
    assert await at.text(task_id) == f"{days} days with Ada"


def replicas(agency: Agency, app: Path) -> tuple[Server, Server]:
    """Start a gateway and a worker of the package in a folder."""
    agency.environment["PYTHONPATH"] = str(app)
    return agency.gateway(), agency.worker()


@pytest.fixture(
    params=[
        "sqlite",
        *(
            pytest.param(store, marks=pytest.mark.long)
            for store in ("postgresql", "session", "transaction")
        ),
    ]
)
def database(request: pytest.FixtureRequest, agency: Agency) -> Iterator[str]:
    """The URL of the agency's store: SQLite, PostgreSQL, or PostgreSQL behind a mode of PgBouncer."""
    store = request.param
    with ExitStack() as stack:
        if store != "sqlite":
            if store != "postgresql" and (reason := why_not(store)):
                pytest.skip(reason)
            server = request.getfixturevalue("postgresql")
            drop = "drop schema if exists roundgate cascade"
            server.execute(drop)
            stack.callback(server.execute, drop)
            if store != "postgresql":
                server = stack.enter_context(pooler(server, store))
            agency.environment["GATEWAY_STORE"] = server.url
        stack.callback(agency.close)
        yield agency.shared["GATEWAY_STORE"]


async def test_an_upgrade_that_adds_a_column_can_be_rolled_out_and_undone(
    database: str, agency: Agency, tmp_path: Path
) -> None:
    newer = next_version(tmp_path)
    old, old_worker = replicas(agency, APP)

    async with clients(old) as (at_old,):
        oslo = await ask_to_book(at_old, "Oslo")
        asked_by_old = await at_old.begin("tour", days=0)
        await at_old.asked(asked_by_old)
        begun_on_old = await at_old.begin("tour", days=4)
        await agency.has_done("day 2")
        before = await version_of_tables(database)

        new, new_worker = replicas(agency, newer)
        assert old_worker.stop() == 0
        async with clients(new) as (at_new,):
            await book(at_new, "Oslo", oslo)
            await tour(at_new, asked_by_old, 0)
            await tour(at_old, begun_on_old, 4)
            assert await version_of_tables(database) == before + 1
            bergen = await ask_to_book(at_new, "Bergen")
            asked_by_new = await at_new.begin("tour", days=0)
            await at_new.asked(asked_by_new)
            begun_on_new = await at_new.begin("tour", days=8)
            await agency.has_done("day 6")

            late, late_worker = replicas(agency, APP)
            assert new_worker.stop() == 0
        assert new.stop() == 0

    async with clients(late) as (after,):
        await book(after, "Bergen", bergen)
        await tour(after, asked_by_new, 0)
        await tour(after, begun_on_new, 8)
        await tour(after, await after.begin("tour", days=1), 1)
    assert await version_of_tables(database) == before + 1

    days = [line for line in agency.diary if line.startswith("day")]
    assert days == [f"day {day}" for count in (4, 8, 1) for day in range(1, count + 1)]
    workers = [old_worker, new_worker, late_worker]
    ran = [
        pid
        for pid, line in zip(agency.processes, agency.diary, strict=True)
        if line.startswith("day")
    ]
    assert list(dict.fromkeys(ran)) == [worker.process.pid for worker in workers]

"""Random handlers of branches with the same names, each lived through many processes: in memory,
then as tasks of real workers on SQLite, DynamoDB Local and PostgreSQL, whose calls of the store and the
queue are cut at random, and which first wait for days. Handlers with limits around any wait, with long
yields, and with paths by chance live in memory."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench import postgresql
from roundgate.auth.principal import LOCAL
from roundgate.settings import TasksConfig
from roundgate.tasks.stored import StoredTasks
from tests.roundgate.replay.test_any_branches import check, check_paths, doubled, expected_of
from tests.roundgate.replay.test_any_limits import check_limits
from tests.support import dynamodb
from tests.support.clocks import SkippingClock
from tests.support.crashes import Crash, How, Plan, bury
from tests.support.programs import World, answer, perform, program
from tests.support.tasks import Fast, Files, Shared, Workshop, catalog_of

CRASHES = 4
ROUNDS = 400
DAY_S = 86_400
LONGEST_SKIP_S = 4_000
"""How far time passes at most while nothing happens: a sweep looks before a task expires."""


async def wait_for_days(ctx: Any, chances: random.Random) -> None:
    """Waits that are together longer than a task is kept, in every second handler."""
    for number in range(chances.choice((0, 0, 1, 3))):
        seconds = chances.randint(DAY_S // 2, 4 * DAY_S)
        if chances.random() < 0.5:
            await ctx.sleep(seconds, f"days{number}")
            continue
        event = await ctx.event(f"days{number}", timeout_s=seconds)
        with suppress(TimeoutError):
            await event.wait()


async def as_task(seed: int, store: Any, queue: Any, clock: SkippingClock) -> None:
    """A handler as a task whose workers die at some of their calls."""
    body, world, chances = program(seed, wide=True), World(), random.Random(seed)
    expected, plain = await expected_of(body)
    hows: tuple[How, ...] = ("before", "after")
    points = {chances.randint(0, 60): chances.choice(hows) for _ in range(CRASHES)}
    plan = Plan(points, max_deaths=TasksConfig().max_deaths)

    async def tool(ctx: Any) -> Any:
        await wait_for_days(ctx, random.Random(seed))
        return {"value": await perform(ctx, body, world)}

    survivor = Workshop(catalog_of(tool=tool), *Plan().life().shares(store, queue), clock)
    ref, idle_s = await survivor.begin("tool"), 31
    for _ in range(ROUNDS):
        life = plan.life()
        world.is_alive = lambda life=life: not life.dead  # type: ignore[misc]
        shop = Workshop(catalog_of(tool=tool), *life.shares(store, queue), clock, TasksConfig())
        try:
            shown = await shop.shown(ref)
            if shown["status"] in ("completed", "failed"):
                break
            requests = shown.get("inputRequests", {})
            responses = {key: answer(request) for key, request in requests.items()}
            await shop.tasks.update(LOCAL, ref.id, responses)
            if await shop.turns():
                idle_s = 31
            else:
                clock.skip(idle_s)
                idle_s = min(2 * idle_s, LONGEST_SKIP_S)
                # one that has just begun does not trust its clock, but holds the shards
                await (survivor if idle_s > 124 else shop).sweep.sweep()
        except Crash:
            await bury()
    result = shown.get("result", {})
    value = "failed" if result.get("isError") else result.get("structuredContent", {}).get("value")
    assert value == expected, f"seed {seed}: {shown} instead of {expected}: {json.dumps(body)}"
    wrong = doubled(world, plain, len(points))
    assert not wrong, f"seed {seed}: {wrong}: {json.dumps(body)}"


async def on_sqlite(seed: int, files: Files) -> None:
    clock = SkippingClock()
    shared = Shared(files.new(), clock, TasksConfig(), database=Fast)
    try:
        await as_task(seed, *shared.stores(), clock)
    finally:
        await shared.aclose()


async def on_dynamodb(seed: int, files: Files, emulator: Any) -> None:
    from roundgate.storage.dynamodb.tasks import DynamoDbTasks

    clock = SkippingClock()
    shared = Shared(files.new(), clock, TasksConfig(), database=Fast)
    client = emulator.client()
    try:
        _, queue = shared.stores()
        # in a shared table, a sweep would compare its clock with that of the previous handler
        with emulator.table() as table:
            store = StoredTasks(DynamoDbTasks(emulator.open(table, lambda: client)), queue)
            await as_task(seed, store, queue, clock)
    finally:
        client.close()
        await shared.aclose()


async def on_postgresql(seed: int, server: postgresql.Server) -> None:
    from roundgate.storage.postgres import PostgresDatabase, PostgresQueue, PostgresTasks

    await asyncio.to_thread(server.empty)
    clock, database = SkippingClock(), PostgresDatabase(server.url)
    queue = PostgresQueue(database, clock)
    try:
        await as_task(seed, StoredTasks(PostgresTasks(database)), queue, clock)
    finally:
        await queue.aclose()


def run(name: str, seeds: range, one: Any) -> bool:
    """Every handler; prints what was wrong."""
    begun, wrong = time.monotonic(), 0
    for seed in seeds:
        try:
            asyncio.run(one(seed))
        except (AssertionError, TimeoutError) as error:
            wrong += 1
            print(f"  seed {seed}: {error!r}"[:2000])
    print(f"{name:<10} {len(seeds):>6} handlers  {wrong} wrong  {time.monotonic() - begun:.0f} s")
    return wrong == 0


def main(arguments: argparse.Namespace) -> bool:
    logging.disable(logging.CRITICAL)
    first, count = arguments.seed, arguments.count
    good = run("memory", range(first, first + count), lambda seed: check(seed, wide=True))
    good &= run("paths", range(first, first + count // 5), check_paths)
    good &= run("limits", range(first, first + count // 5), check_limits)
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        files = Files(directory)
        if arguments.store in ("sqlite", "all"):
            good &= run(
                "SQLite", range(first, first + count // 10), lambda seed: on_sqlite(seed, files)
            )
        if arguments.store in ("dynamodb", "all"):
            good &= _on_dynamodb(range(first, first + count // 25), directory, files)
        if arguments.store in ("postgres", "all"):
            good &= _on_postgresql(range(first, first + count // 25))
    logging.disable(logging.NOTSET)
    return good


def _on_dynamodb(seeds: range, directory: Path, files: Files) -> bool:
    if (reason := dynamodb.why_not()) is not None:
        print(f"DynamoDB   skipped: {reason}")
        return True
    with dynamodb.emulator(directory) as emulator:
        return run("DynamoDB", seeds, lambda seed: on_dynamodb(seed, files, emulator))


def _on_postgresql(seeds: range) -> bool:
    if (reason := postgresql.why_not()) is not None:
        print(f"PostgreSQL skipped: {reason}")
        return True
    with postgresql.server() as server:
        return run("PostgreSQL", seeds, lambda seed: on_postgresql(seed, server))

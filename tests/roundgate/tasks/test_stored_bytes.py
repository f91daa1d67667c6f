"""What tasks count in their owner's account, and what comes of a task that has no room."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from roundgate.auth import LOCAL, Principal, task_owner
from roundgate.errors import QuotaExceeded
from roundgate.replay.context import Context
from roundgate.storage.accounts import BLOCK, Accounts
from roundgate.storage.sqlite import SqliteQueue, SqliteSessions, SqliteTasks
from roundgate.storage.tasks import FORGET_AFTER_MS, Ending
from roundgate.tasks.hidden import HiddenTasks, NewCall
from roundgate.tasks.stored import KEEP_MS, StoredTasks
from roundgate.tasks.turn import TurnResult
from tests.support.clocks import FixedClock
from tests.support.replay import Name
from tests.support.rounds import accept
from tests.support.tasks import Fast, Workshop, catalog_of

T = TypeVar("T")
MOST = 1_000_000
ANN = Principal("issuer", "ann", "client")


async def plain(ctx: Context, size: int = 0) -> str:
    return "x" * size


async def steps(ctx: Context, size: int, count: int) -> str:
    for number in range(count):
        await ctx.step(f"step_{number}", lambda: "x" * size)
    return "all done"


async def state(ctx: Context, count: int) -> str:
    for number in range(count):
        ctx.state["text"] = f"{number:08}" * 1_000
        await ctx.step(f"step_{number}", lambda: None)
    return "all done"


async def asks(ctx: Context, size: int) -> str:
    return (await ctx.elicit("who", "x" * size, Name)).name


@pytest.fixture
async def accounts(path: Path, clock: FixedClock) -> Accounts:
    return Accounts(SqliteSessions(Fast(path), clock), clock, MOST)


@pytest.fixture
async def shop(path: Path, clock: FixedClock, accounts: Accounts) -> AsyncIterator[Workshop]:
    database = Fast(path)
    queue = SqliteQueue(database, clock)
    store = StoredTasks(SqliteTasks(database), queue, accounts=accounts)
    tools = catalog_of(plain=plain, steps=steps, state=state, asks=asks)
    yield Workshop(tools, store, queue, clock)
    await database.aclose()


async def test_ended_tasks_count_until_they_are_forgotten(
    shop: Workshop, clock: FixedClock
) -> None:
    began = 0
    with pytest.raises(QuotaExceeded, match=r"limits.max_stored_bytes"):  # noqa: PT012
        while True:
            await shop.begin("plain")
            began += 1
            assert await shop.all_turns() == [TurnResult.FINISHED]
    assert began == pytest.approx(MOST / 2_400, rel=0.1)
    assert await shop.messages() == [], "nothing of the refused one is left"
    await shop.begin("plain", principal=ANN)
    clock.skip((shop.config.ttl_s * 1000 + FORGET_AFTER_MS) * 1.3 / 1000)
    await shop.begin("plain")


async def test_a_task_that_waits_for_days_counts_until_it_is_forgotten(
    shop: Workshop, accounts: Accounts, clock: FixedClock
) -> None:
    async def stretch(ctx: Context, days: int) -> None:
        await ctx.step("fill", lambda: "x" * 100_000)
        await ctx.sleep(days * 86_400)
        await ctx.sleep(86_400)

    shop.catalog = catalog_of(stretch=stretch)
    shop = Workshop(shop.catalog, shop.store, shop.queue, clock)
    ref = await shop.begin("stretch", days=8)
    await shop.all_turns()
    clock.skip(8 * 86_400 + 1)
    assert await accounts.usage(task_owner(LOCAL)) > 100_000
    await shop.sweep.sweep()
    await shop.all_turns()
    assert (await shop.record(ref)).is_open
    clock.skip(86_400 - 10)
    assert 100_000 < await accounts.usage(task_owner(LOCAL)) < 400_000
    for number in range(4):
        await shop.begin("stretch", days=number + 20)
        await shop.all_turns()
    refused = await shop.begin("stretch", days=24)
    assert await shop.all_turns()
    assert "limits.max_stored_bytes" in await shop.error(refused)


async def test_a_call_that_was_sent_before_counts_once(shop: Workshop, accounts: Accounts) -> None:
    from roundgate.replay.journal import Journal
    from roundgate.tasks.call import TaskCall

    call = TaskCall("plain", {"pad": "x" * 100_000}, LOCAL, {})
    for _ in range(50):
        created = await shop.tasks.create(call, Journal(), task_id="same")
        assert created["taskId"] == "same"
    assert await accounts.usage(task_owner(LOCAL)) < 100_000 + 2 * BLOCK


async def test_the_end_of_a_hidden_task_counts_as_long_as_it_is_kept(
    shop: Workshop, accounts: Accounts, clock: FixedClock
) -> None:
    async def at_once(ask: Callable[[], Awaitable[T]]) -> T:
        return await ask()

    hidden = HiddenTasks(
        shop.store, clock, shop.config, at_once, wait_ms=1_000, repeatable_ms=0, view=""
    )
    call = NewCall("session", 1, ANN, "plain", b"x" * 100_000, None)
    held = await hidden.report(call)
    await held.finish(b"x" * 100_000, Ending.OK)
    clock.skip(KEEP_MS / 1000 - 1)
    kept = await hidden.outcome(held.ref)
    assert kept is not None
    assert await accounts.usage(held.ref.owner) >= len(call.call) + len(kept)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("plain", {"size": MOST}),
        ("steps", {"size": 100_000, "count": 20}),
        ("asks", {"size": MOST}),
    ],
)
async def test_a_task_that_needs_more_ends_with_an_error_and_others_go_on(
    shop: Workshop, tool: str, arguments: Any
) -> None:
    ref = await shop.begin(tool, **arguments)
    other = await shop.begin("steps", principal=ANN, size=100_000, count=5)
    assert set(await shop.all_turns()) == {TurnResult.FINISHED}
    assert "limits.max_stored_bytes" in await shop.error(ref)
    record = await shop.tasks.record(ANN, other.id)
    assert record is not None
    assert record.outcome is not None
    assert b"all done" in record.outcome


async def test_an_answer_that_has_no_room_is_refused_and_the_question_waits(
    shop: Workshop, accounts: Accounts, clock: FixedClock
) -> None:
    ref = await shop.begin("asks", size=10)
    assert await shop.all_turns() == [TurnResult.ASKED]
    with pytest.raises(QuotaExceeded):
        await shop.answer(ref, who=accept(name="x" * MOST))
    assert (await shop.shown(ref))["status"] == "input_required"
    await shop.answer(ref, nobody_asked=accept(name="x" * MOST))
    await shop.answer(ref, who=accept(name="Ann"))
    assert await shop.all_turns() == [TurnResult.FINISHED]
    assert await shop.value(ref) == "Ann"


async def test_state_that_is_replaced_counts_once(shop: Workshop, accounts: Accounts) -> None:
    ref = await shop.begin("state", count=200)
    assert await shop.all_turns() == [TurnResult.FINISHED]
    assert await shop.value(ref) == "all done"
    assert await accounts.usage(task_owner(LOCAL)) < 150_000

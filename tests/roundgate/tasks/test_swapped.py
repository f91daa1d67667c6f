"""What is served is swapped under a worker: a turn ends on what it began with, the next
one has the new version."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from roundgate.backends.serving import Serving, Snapshot
from roundgate.replay.context import Context
from roundgate.tasks.turn import Means, TurnResult
from roundgate.tasks.worker import Worker
from tests.support.catalogs import built
from tests.support.clocks import FixedClock
from tests.support.replay import Name
from tests.support.rounds import accept
from tests.support.tasks import Functions, Handler, Shared, nobody_listens


@dataclass(frozen=True)
class Closing(Functions):
    """Handlers, and whether they have been closed."""

    is_closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def aclose(self) -> None:
        self.is_closed.set()


async def snapshot(handler: Handler, is_closed: asyncio.Event) -> Snapshot:
    backends = [Closing({"tool": handler}, is_closed=is_closed)]
    return Snapshot(await built(backends), backends)


async def test_a_turn_ends_on_what_it_began_with_and_the_next_has_the_new_version(
    shared: Shared,
) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def old(ctx: Context) -> str:
        begun.set()
        await gate.wait()
        await ctx.elicit("who", "Who?", Name)
        return "old"

    async def new(ctx: Context) -> str:
        who = await ctx.elicit("who", "Who?", Name)
        return f"new for {who.name}"

    closed, not_closed = asyncio.Event(), asyncio.Event()
    serving = Serving(await snapshot(old, closed))
    shop = shared.workshop(tool=old)
    shop.worker = Worker(Means(serving, shop.store, shop.clock, shop.config, nobody_listens))
    ref = await shop.begin("tool")
    turns = asyncio.create_task(shop.turns())
    await begun.wait()
    serving.swap(await snapshot(new, not_closed))
    await asyncio.sleep(0.01)
    assert not closed.is_set()
    gate.set()
    assert await turns == [TurnResult.ASKED]  # what only the old version does before it asks
    await asyncio.wait_for(closed.wait(), 60)
    await shop.answer(ref, who=accept(name="me"))
    assert await shop.turns() == [TurnResult.FINISHED]
    assert await shop.value(ref) == "new for me"
    assert not not_closed.is_set()
    await serving.aclose()


async def test_a_tool_that_was_taken_away_is_declined_and_one_that_came_back_goes_on(
    shared: Shared, clock: FixedClock
) -> None:
    async def tool(ctx: Context) -> str:
        return "done"

    serving = Serving(await snapshot(tool, asyncio.Event()))
    shop = shared.workshop(tool=tool)
    shop.worker = Worker(Means(serving, shop.store, shop.clock, shop.config, nobody_listens))
    ref = await shop.begin("tool")
    serving.swap(Snapshot(await built([]), []))
    assert await shop.turns() == [TurnResult.DECLINED]
    serving.swap(await snapshot(tool, asyncio.Event()))
    clock.skip(60)
    assert await shop.turns() == [TurnResult.FINISHED]
    assert await shop.value(ref) == "done"
    await serving.aclose()

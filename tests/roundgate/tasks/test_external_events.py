"""External events in tasks: a service delivers them whenever it likes, and the task's record decides
what becomes of that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from roundgate import json
from roundgate.replay.context import Context
from roundgate.replay.sync_context import SyncContext
from roundgate.settings import TasksConfig
from roundgate.storage.tasks import TaskRef
from roundgate.tasks import events
from roundgate.tasks.events import Delivered
from roundgate.tasks.stored import StoredTasks
from roundgate.tasks.turn import TurnResult
from roundgate.tokens import EventTokens
from tests.support.clocks import FixedClock
from tests.support.replay import Name
from tests.support.rounds import accept
from tests.support.tasks import PUBLIC_URL, RING, Handler, Shared, Workshop

PAID = "event:paid"
URLS: list[str] = []


async def order(url: str) -> str:
    URLS.append(url)
    return "ordered"


async def buy(ctx: Context, timeout_s: float | None = 60) -> dict[str, Any]:
    paid = await ctx.event("paid", timeout_s=timeout_s)
    await ctx.step("order", order, paid.url)
    try:
        return {"paid": await paid.wait()}
    except TimeoutError as error:
        return {"failed": str(error)}


@pytest.fixture(autouse=True)
def _no_urls() -> None:
    URLS.clear()


@pytest.fixture
def shop(shared: Shared) -> Workshop:
    return shared.workshop(buy=buy)


async def waiting(shop: Workshop, tool: str = "buy", **arguments: Any) -> TaskRef:
    """A task that waits for its event."""
    ref = await shop.begin(tool, **arguments)
    assert await shop.all_turns() == [TurnResult.RELEASED]
    record = await shop.record(ref)
    assert [mark.is_awaited for mark in record.events] == [True]
    assert (record.lease_until_ms, await shop.messages()) == (0, [])
    return ref


async def at_rest(
    shared: Shared, handler: Handler, turns: list[TurnResult] | None = None
) -> tuple[Workshop, TaskRef]:
    """A task that has run until it waits, perhaps by these turns."""
    shop = shared.workshop(tool=handler)
    ref = await shop.begin("tool")
    done = await shop.all_turns()
    assert turns is None or done == turns
    return shop, ref


async def test_a_task_waits_without_a_worker_and_goes_on_when_a_service_delivers(
    shop: Workshop,
) -> None:
    ref = await waiting(shop)
    (url,) = URLS
    assert url.startswith(f"{PUBLIC_URL}/events/v1.")
    assert await shop.deliver(ref, PAID, {"amount": 7}) is Delivered.WAKES
    assert await shop.all_turns() == [TurnResult.FINISHED]
    assert await shop.value(ref) == {"paid": {"amount": 7}}
    assert [url] == URLS


async def test_a_url_is_the_same_in_every_run_and_leads_to_its_event(shared: Shared) -> None:
    async def twice(ctx: Context) -> list[str]:
        paid = await ctx.event("paid")
        await ctx.step("order", order, paid.url)
        await ctx.sleep(3_600)
        await paid.wait()
        await ctx.step("again", order, paid.url)
        return [paid.url, paid.token]

    shop, ref = await at_rest(shared, twice)
    place = EventTokens(RING).open(URLS[0].rpartition("/")[2])
    assert place is not None
    assert (place.owner, place.task_id, place.name) == (ref.owner, ref.id, PAID)
    await shop.deliver(ref, place.name, None)
    shared.clock.skip(3_601)
    await shop.sweep.sweep()
    await shop.all_turns()
    assert await shop.value(ref) == [URLS[0], URLS[0].rpartition("/")[2]]
    assert [URLS[0]] * 2 == URLS


async def test_what_arrives_before_it_is_waited_for_is_there(shared: Shared) -> None:
    async def early(ctx: Context) -> Any:
        paid = await ctx.event("paid")
        await ctx.elicit("who", "Who?", Name)
        return {"paid": await paid.wait()}

    shop, ref = await at_rest(shared, early, [TurnResult.ASKED])
    assert await shop.deliver(ref, PAID, [1]) is Delivered.KEPT
    assert await shop.all_turns() == [], "it waits for its client"
    await shop.answer(ref, who=accept(name="me"))
    assert await shop.all_turns() == [TurnResult.FINISHED]
    assert await shop.value(ref) == {"paid": [1]}


async def test_what_arrives_while_a_worker_runs_the_task_is_found_by_its_next_turn(
    shared: Shared,
) -> None:
    async def at_once(ctx: Context) -> Any:
        paid = await ctx.event("paid")
        await ctx.step("order", meanwhile)
        return {"paid": await paid.wait()}

    async def meanwhile() -> None:
        assert await shop.deliver(ref, PAID, "now") is Delivered.KEPT

    shop = shared.workshop(at_once=at_once)
    ref = await shop.begin("at_once")
    assert await shop.turns() == [TurnResult.RELEASED]
    record = await shop.record(ref)
    assert (record.wake_ms, len(await shop.messages())) == (0, 1)
    shared.clock.skip(31)  # that message was read above
    await shop.sweep.sweep()
    assert await shop.all_turns() == [TurnResult.FINISHED]
    assert await shop.value(ref) == {"paid": "now"}


async def test_a_task_that_asks_and_waits_goes_on_and_asks_again(shared: Shared) -> None:
    async def both(ctx: Context) -> Any:
        paid = await ctx.event("paid")
        answer, payload = await asyncio.gather(ctx.elicit("who", "Who?", Name), paid.wait())
        return [answer.name, payload]

    shop, ref = await at_rest(shared, both, [TurnResult.ASKED])
    assert await shop.deliver(ref, PAID, 7) is Delivered.WAKES
    assert (await shop.shown(ref))["status"] == "working"
    assert await shop.all_turns() == [TurnResult.ASKED]
    assert list((await shop.shown(ref))["inputRequests"]) == ["who"]
    await shop.answer(ref, who=accept(name="me"))
    assert await shop.all_turns() == [TurnResult.FINISHED]
    assert await shop.value(ref) == ["me", 7]


async def test_its_time_is_over_for_both_sides_or_for_none(
    shop: Workshop, clock: FixedClock
) -> None:
    ref = await waiting(shop)
    clock.skip(60)
    assert await shop.deliver(ref, PAID, 7) is Delivered.CLOSED
    await shop.sweep.sweep()
    assert await shop.all_turns() == [TurnResult.FINISHED]
    assert await shop.value(ref) == {"failed": "event 'paid' was not delivered in time"}
    assert await shop.deliver(ref, PAID, 7) is Delivered.CLOSED


async def test_a_payload_that_came_in_time_counts_however_late_the_task_goes_on(
    shop: Workshop, clock: FixedClock
) -> None:
    ref = await waiting(shop)
    clock.skip(59)
    assert await shop.deliver(ref, PAID, 7) is Delivered.WAKES
    clock.skip(3_600)
    await shop.sweep.sweep()
    assert await shop.all_turns() == [TurnResult.FINISHED]
    assert await shop.value(ref) == {"paid": 7}


async def test_a_replica_whose_clock_is_behind_accepts_nothing_that_its_handler_missed(
    shop: Workshop, clock: FixedClock
) -> None:
    ref = await waiting(shop)
    clock.skip(61)
    await shop.sweep.sweep()
    (message,) = await shop.messages()
    await shop.worker.claim(message.ref)
    clock.set(-30)
    assert await shop.deliver(ref, PAID, 7) is Delivered.CLOSED


async def test_without_a_time_limit_it_waits_as_long_as_a_task_is_kept(
    shop: Workshop, clock: FixedClock
) -> None:
    ref = await waiting(shop, timeout_s=None)
    record, until_ms = await shop.record(ref), clock.now_ms() + 86_400_000
    assert [mark.until_ms for mark in record.events] == [until_ms]
    clock.skip(86_399)
    assert await shop.deliver(ref, PAID, 7) is Delivered.WAKES
    await shop.all_turns()
    assert await shop.value(ref) == {"paid": 7}


@pytest.mark.parametrize("again", [{"a": 1, "b": [1.0]}, {"b": [1], "a": 1}])
async def test_a_repeated_payload_is_known_again_also_after_the_end(
    shop: Workshop, again: Any
) -> None:
    ref = await waiting(shop)
    payload = {"a": 1, "b": [1.0]}
    assert await shop.deliver(ref, PAID, payload) is Delivered.WAKES
    assert await shop.deliver(ref, PAID, again) is Delivered.AGAIN
    assert await shop.deliver(ref, PAID, {"a": 2}) is Delivered.OTHER
    await shop.all_turns()
    assert await shop.deliver(ref, PAID, again) is Delivered.AGAIN
    assert await shop.deliver(ref, PAID, {"a": 2}) is Delivered.OTHER
    assert await shop.value(ref) == {"paid": payload}


async def test_the_message_of_a_delivery_that_was_lost_is_sent_by_its_repetition(
    shop: Workshop,
) -> None:
    ref = await waiting(shop)
    now_ms = shop.clock.now_ms()
    data = json.encode(7)
    # the replica died between its write and its message
    dying = StoredTasks(shop.store.store)
    taken = (
        await dying.apply(ref, events.Deliver(PAID, data, json.digest(7), now_ms + 30_000), now_ms)
    ).result
    assert (taken, await shop.messages()) == (Delivered.WAKES, [])
    assert await shop.deliver(ref, PAID, 7) is Delivered.AGAIN
    assert await shop.all_turns() == [TurnResult.FINISHED]


async def test_a_repeated_payload_does_not_take_the_message_of_a_task_that_sleeps(
    shared: Shared,
) -> None:
    async def later(ctx: Context) -> Any:
        paid = await ctx.event("paid")
        await paid.wait()
        await ctx.sleep(20)
        return {"slept": True}

    shop = shared.workshop(later=later)
    ref = await waiting(shop, "later")
    await shop.deliver(ref, PAID, 7)
    assert await shop.all_turns() == [TurnResult.RELEASED]
    assert await shop.deliver(ref, PAID, 7) is Delivered.AGAIN
    assert await shop.all_turns() == []
    shared.clock.skip(20)
    assert await shop.all_turns() == [TurnResult.FINISHED]


async def test_nothing_is_accepted_after_a_cancel_or_for_another_event(shop: Workshop) -> None:
    ref = await waiting(shop)
    assert await shop.deliver(ref, "event:other", 7) is Delivered.CLOSED
    unknown = TaskRef(ref.owner, "unknown")
    assert await shop.deliver(unknown, PAID, 7) is Delivered.UNKNOWN_TASK
    await shop.cancel(ref)
    assert await shop.deliver(ref, PAID, 7) is Delivered.CLOSED


async def test_after_a_restart_the_old_url_leads_nowhere(shared: Shared) -> None:
    async def rounds(ctx: Context, left: int = 1) -> Any:
        paid = await ctx.event("paid")
        await ctx.step("order", order, paid.url)
        if left:
            await ctx.restart(left=0)
        return {"paid": await paid.wait()}

    shop, ref = await at_rest(shared, rounds, [TurnResult.RESTARTED, TurnResult.RELEASED])
    old, new = (EventTokens(RING).open(url.rpartition("/")[2]) for url in URLS)
    assert old is not None
    assert new is not None
    assert (old.name, new.name) == (PAID, f"{PAID}@2")
    assert await shop.deliver(ref, old.name, "old") is Delivered.CLOSED
    assert await shop.deliver(ref, new.name, "new") is Delivered.WAKES
    await shop.all_turns()
    assert await shop.value(ref) == {"paid": "new"}


async def test_each_branch_has_its_own_event(shared: Shared) -> None:
    async def many(ctx: Context) -> Any:
        async def one(number: int) -> Any:
            paid = await ctx.event("paid")
            await ctx.step("order", order, paid.url)
            return await paid.wait()

        return {"values": await ctx.map(one, [7, 9])}

    shop, ref = await at_rest(shared, many)
    names = [mark.name for mark in (await shop.record(ref)).events]
    assert names == ["map/7/event:paid", "map/9/event:paid"]
    assert await shop.deliver(ref, names[1], "nine") is Delivered.WAKES
    assert await shop.all_turns() == [TurnResult.RELEASED]
    assert await shop.deliver(ref, names[0], "seven") is Delivered.WAKES
    await shop.all_turns()
    assert await shop.value(ref) == {"values": ["seven", "nine"]}


async def test_a_branch_may_have_a_space_in_its_name(shared: Shared) -> None:
    async def named(ctx: Context) -> Any:
        async def pay() -> Any:
            paid = await ctx.event("paid")
            return await paid.wait()

        pay.__qualname__ = "pay one"
        return {"paid": list(await asyncio.gather(pay(), pay()))}

    shop, ref = await at_rest(shared, named, [TurnResult.RELEASED])
    for number in range(2):
        await shop.deliver(ref, f"pay one@{number}/event:paid", number)
    await shop.all_turns()
    assert await shop.value(ref) == {"paid": [0, 1]}


async def test_the_first_of_two_events_wins_in_every_run(shared: Shared) -> None:
    async def race(ctx: Context) -> Any:
        one, two = await ctx.event("one"), await ctx.event("two")
        tasks = [asyncio.create_task(event.wait()) for event in (one, two)]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = [task.result() for task in done]
        await ctx.sleep(3_600)
        for task in rest:
            task.cancel()
        return first

    shop, ref = await at_rest(shared, race)
    await shop.deliver(ref, "event:two", "two")
    await shop.all_turns()
    await shop.deliver(ref, "event:one", "one")
    for _ in range(3):
        shared.clock.skip(3_600)
        await shop.sweep.sweep()
        await shop.all_turns()
    assert await shop.value(ref) == ["two"]


async def test_a_time_limit_around_a_wait_ends_it_and_a_later_wait_gets_the_payload(
    shared: Shared,
) -> None:
    async def patient(ctx: Context) -> Any:
        paid = await ctx.event("paid")
        try:
            async with ctx.timeout(10):
                return {"early": await paid.wait()}
        except TimeoutError:
            await ctx.step("remind", order, "remind")
        return {"late": await paid.wait()}

    shop, ref = await at_rest(shared, patient)
    shared.clock.skip(11)
    await shop.sweep.sweep()
    assert await shop.all_turns() == [TurnResult.RELEASED]
    assert URLS == ["remind"]
    await shop.deliver(ref, PAID, 7)
    await shop.all_turns()
    assert await shop.value(ref) == {"late": 7}


async def test_it_can_be_waited_for_twice(shared: Shared) -> None:
    async def twice(ctx: Context) -> Any:
        paid = await ctx.event("paid")
        first = await paid.wait()
        first["amount"] = 0
        return [first, await paid.wait()]

    shop, ref = await at_rest(shared, twice)
    await shop.deliver(ref, PAID, {"amount": 7})
    await shop.all_turns()
    assert await shop.value(ref) == [{"amount": 0}, {"amount": 7}]


async def test_a_plain_function_waits_too(shared: Shared) -> None:
    def plain(ctx: SyncContext) -> Any:
        paid = ctx.event("paid", timeout_s=60)
        ctx.step("order", order, paid.url)
        return [paid.name, paid.wait(), paid.token in paid.url]

    shop, ref = await at_rest(shared, plain, [TurnResult.RELEASED])
    await shop.deliver(ref, PAID, 7)
    await shop.all_turns()
    assert await shop.value(ref) == ["paid", 7, True]


async def test_a_message_that_was_logged_before_a_wait_is_not_logged_again(
    shared: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    async def says(ctx: Context) -> Any:
        paid = await ctx.event("paid")
        await ctx.log("info", "waiting")
        await paid.wait()
        await ctx.log("info", "paid")
        return {}

    caplog.set_level("INFO", "roundgate.handler")
    shop, ref = await at_rest(shared, says)
    await shop.deliver(ref, PAID, 7)
    await shop.all_turns()
    said = [line.fields["data"] for line in caplog.records if hasattr(line, "fields")]
    assert said == ["waiting", "paid"]


async def test_a_task_has_so_many_open_events_and_no_more(shared: Shared) -> None:
    async def greedy(ctx: Context) -> Any:
        return {"events": [(await ctx.event(f"e{n}")).name for n in range(4)]}

    shared.config = TasksConfig(max_open_events=3)
    shop, ref = await at_rest(shared, greedy)
    text = await shop.error(ref)
    assert "already has 3 open events" in text
    assert "tasks.max_open_events" in text


async def test_payloads_count_towards_what_a_task_may_remember(shared: Shared) -> None:
    async def collects(ctx: Context) -> Any:
        for number in range(5):
            event = await ctx.event(f"e{number}")
            await event.wait()
        return {}

    shared.config = TasksConfig(max_journal_bytes=20_000)
    shop, ref = await at_rest(shared, collects)
    for number in range(5):
        if (await shop.shown(ref))["status"] != "working":
            break
        await shop.deliver(ref, f"event:e{number}", "x" * 8_000)
        await shop.all_turns()
    assert number == 3
    assert "more than 20000 bytes" in await shop.error(ref)


async def test_without_a_public_url_a_handler_is_told_what_to_set(shared: Shared) -> None:
    async def token_only(ctx: Context) -> Any:
        return {"token": (await ctx.event("paid")).token}

    shop = shared.workshop(buy=buy, token_only=token_only)
    shop.public_url = None
    shop.__post_init__()
    ref, other = await shop.begin("buy"), await shop.begin("token_only")
    await shop.all_turns()
    assert "GATEWAY_PUBLIC_URL is not set" in await shop.error(ref)
    assert EventTokens(RING).open((await shop.value(other))["token"]) is not None


@pytest.mark.parametrize("timeout_s", [0, -1])
async def test_a_time_limit_is_positive(shop: Workshop, timeout_s: float) -> None:
    ref = await shop.begin("buy", timeout_s=timeout_s)
    await shop.all_turns()
    assert await shop.error(ref)

"""Waits that are longer than a task is kept: each extends the life of the task's row, up to
`tasks.max_ttl_s`; a wait beyond that is refused at the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from roundgate import json
from roundgate.clock import iso
from roundgate.errors import ToolError
from roundgate.replay.context import Context
from roundgate.storage import TaskRecord
from roundgate.storage.tasks import TaskRef
from roundgate.tasks.turn import TurnResult
from tests.support.clocks import FixedClock
from tests.support.replay import Name
from tests.support.rounds import accept
from tests.support.tasks import Shared, Workshop

HOUR, DAY = 3_600, 86_400
DAY_MS = 1000 * DAY


async def order(url: str) -> str:
    return f"order at {url}"


async def buy(ctx: Context) -> str:
    """The first example of `docs/events.md`."""
    paid = await ctx.event("paid", timeout_s=3 * DAY)
    order_id = await ctx.step("order", order, paid.token)
    try:
        payment = await paid.wait()
    except TimeoutError:
        return "not paid in time"
    return f"{bool(order_id)}: paid {payment}"


async def nap(ctx: Context, days: list[float]) -> str:
    for each in days:
        await ctx.sleep(each * DAY)
    return "awake"


async def again(ctx: Context, left: int) -> str:
    await ctx.sleep(20 * HOUR)
    if left:
        await ctx.restart(left=left - 1)
    return "over"


async def wonder(ctx: Context, timeout_s: float | None) -> str:
    answer = await ctx.elicit("who", "Who?", Name, timeout_s=timeout_s, default=Name(name="nobody"))
    await ctx.sleep(2 * HOUR)
    return str(answer.name)


HANDLERS: dict[str, Any] = {"buy": buy, "nap": nap, "again": again, "wonder": wonder}


@pytest.fixture
def shop(shared: Shared) -> Workshop:
    return shared.workshop(**HANDLERS)


async def pass_time(shop: Workshop, seconds: float, each_s: float = HOUR) -> list[TurnResult]:
    """The turns of workers while time passes."""
    turns: list[TurnResult] = []
    while seconds > 0:
        shop.clock.skip(min(each_s, seconds))
        seconds -= each_s
        await shop.sweep.sweep()
        turns += await shop.all_turns()
    return turns


async def begun(shop: Workshop, tool: str, **arguments: Any) -> TaskRef:
    ref = await shop.begin(tool, **arguments)
    await shop.all_turns()
    return ref


def ttl_ms(record: TaskRecord) -> int:
    return record.expires_ms - record.created_ms


async def test_an_event_can_be_delivered_for_longer_than_a_task_is_kept(shop: Workshop) -> None:
    ref = await begun(shop, "buy")
    await pass_time(shop, 2.5 * DAY)
    await shop.deliver(ref, "event:paid", "R-7")
    await shop.all_turns()
    assert await shop.value(ref) == "True: paid R-7"


async def test_an_event_that_is_missed_after_days_is_a_timeout(shop: Workshop) -> None:
    ref = await begun(shop, "buy")
    await pass_time(shop, 3 * DAY + HOUR)
    assert await shop.value(ref) == "not paid in time"


async def test_an_event_without_a_limit_ends_before_the_task_is_forgotten(shared: Shared) -> None:
    async def forever(ctx: Context) -> str:
        paid = await ctx.event("paid")
        await ctx.sleep(2 * DAY)
        try:
            return str(await paid.wait())
        except TimeoutError:
            return "missed"

    shop = shared.workshop(forever=forever)
    ref = await begun(shop, "forever")
    await pass_time(shop, 2 * DAY + HOUR)
    assert await shop.value(ref) == "missed"


@pytest.mark.parametrize("days", [[3.0], [0.75] * 5, [1 / 24] * 40], ids=str)
async def test_sleeps_may_be_longer_than_a_task_is_kept(shop: Workshop, days: list[float]) -> None:
    ref = await begun(shop, "nap", days=days)
    await pass_time(shop, sum(days) * DAY + HOUR)
    assert await shop.value(ref) == "awake"
    await pass_time(shop, 20 * HOUR, 10 * HOUR)
    assert await shop.value(ref) == "awake", "its client has a day to read the result"


async def test_the_ttl_that_a_client_sees_is_true(shop: Workshop, clock: FixedClock) -> None:
    ref = await shop.begin("nap", days=[3.0])
    shown = [(await shop.shown(ref))["ttlMs"]]
    await shop.all_turns()
    shown.append((await shop.shown(ref))["ttlMs"])
    assert shown == [DAY_MS, 4 * DAY_MS]
    await pass_time(shop, 3 * DAY + HOUR, DAY)
    left_ms = (await shop.record(ref)).created_ms + shown[-1] - clock.now_ms()
    clock.skip((left_ms - 1) / 1000)
    assert await shop.value(ref) == "awake"
    clock.skip(0.002)
    assert await shop.store.read(ref, clock.now_ms()) is None


async def test_the_status_message_says_until_when_a_task_waits(
    shared: Shared, clock: FixedClock
) -> None:
    async def doze(ctx: Context, says: str | None) -> str:
        if says is not None:
            await ctx.status(says)
        await ctx.sleep(2 * DAY)
        await ctx.step("work", lambda: None)
        await ctx.elicit("who", "Who?", Name, timeout_s=HOUR, default=Name(name="me"))
        return "up"

    shop = shared.workshop(doze=doze)
    refs = [await begun(shop, "doze", says=says) for says in (None, "resting")]
    until = iso(clock.now_ms() + 2 * DAY_MS)
    texts = [(await shop.shown(ref))["statusMessage"] for ref in refs]
    assert texts == [f"Waiting until {until}", f"resting (waiting until {until})"]
    await pass_time(shop, 2 * DAY + 60, DAY)
    until = iso(clock.now_ms() + 1000 * HOUR - 60_000)
    texts = [(await shop.shown(ref))["statusMessage"] for ref in refs]
    assert texts == [f"Waiting until {until}"] * 2, "it rests no more: a step has ended since"
    await pass_time(shop, HOUR + 60)
    shown = [(await shop.shown(ref)).get("statusMessage") for ref in refs]
    assert shown == [None, None], "a task that ended waits for nothing"


async def test_a_chain_of_restarts_may_be_longer_than_a_task_is_kept(shop: Workshop) -> None:
    ref = await begun(shop, "again", left=4)
    await pass_time(shop, 5 * 20 * HOUR + HOUR)
    assert await shop.value(ref) == "over"


async def test_a_question_with_a_limit_of_days_gets_its_default(shop: Workshop) -> None:
    ref = await begun(shop, "wonder", timeout_s=3 * DAY)
    await pass_time(shop, 3 * DAY - HOUR)
    assert (await shop.shown(ref))["status"] == "input_required"
    await pass_time(shop, 4 * HOUR)
    assert await shop.value(ref) == "nobody"


async def test_an_answer_gives_the_task_time_for_the_rest_of_its_work(shop: Workshop) -> None:
    ref = await begun(shop, "wonder", timeout_s=None)
    await pass_time(shop, 23.5 * HOUR)
    await shop.answer(ref, who=accept(name="ann"))
    await shop.all_turns()
    await pass_time(shop, 3 * HOUR)
    assert await shop.value(ref) == "ann"


async def test_a_question_that_is_asked_late_has_a_day_for_its_answer(shared: Shared) -> None:
    async def late(ctx: Context) -> str:
        await ctx.step("work", lambda: None)
        await ctx.poll("ready", lambda: clock.now_ms() > late_ms or None, every_s=HOUR)
        return str((await ctx.elicit("who", "Who?", Name)).name)

    clock, shop = shared.clock, shared.workshop(late=late)
    late_ms = clock.now_ms() + 20 * HOUR * 1000
    ref = await begun(shop, "late")
    await pass_time(shop, 43 * HOUR)
    await shop.answer(ref, who=accept(name="ann"))
    await shop.all_turns()
    assert await shop.value(ref) == "ann"


# What cannot end within the life of a task


async def sleep_long(ctx: Context) -> None:
    await ctx.sleep(40 * DAY)


async def sleep_until(ctx: Context) -> None:
    await ctx.sleep_until((ctx.now()).replace(year=ctx.now().year + 1))


async def open_long(ctx: Context) -> None:
    await (await ctx.event("paid", timeout_s=40 * DAY)).wait()


async def ask_long(ctx: Context) -> None:
    await ctx.elicit("who", "Who?", Name, timeout_s=40 * DAY, default=None)


BEYOND = [sleep_long, sleep_until, open_long, ask_long]


@pytest.mark.parametrize("wait", BEYOND, ids=lambda wait: str(wait.__name__))
async def test_a_wait_that_no_task_can_survive_is_refused_before_anything_is_written(
    shared: Shared, wait: Callable[[Context], Any]
) -> None:
    caught: list[str] = []

    async def careful(ctx: Context) -> str:
        await ctx.step("work", lambda: None)
        try:
            await wait(ctx)
        except ToolError as error:
            caught.append(str(error))
        return "done"

    shop = shared.workshop(careful=careful)
    ref = await begun(shop, "careful")
    assert await shop.value(ref) == "done"
    (text,) = caught
    assert "tasks.max_ttl_s" in text
    assert iso(shop.clock.now_ms() + 299 * DAY_MS // 10) in text, "the last moment"
    assert ttl_ms(await shop.record(ref)) == DAY_MS
    work = (await shop.store.store.read_work(ref))[1]
    assert work is None or [json.decode(entry)[0] for entry in work.journal] == ["s"]


@pytest.mark.parametrize("wait", BEYOND, ids=lambda wait: str(wait.__name__))
async def test_a_wait_that_no_task_can_survive_is_an_answer_to_the_caller(
    shared: Shared, wait: Callable[[Context], Any]
) -> None:
    shop = shared.workshop(wait=wait)
    ref = await begun(shop, "wait")
    assert "tasks.max_ttl_s" in await shop.error(ref)


async def test_the_bound_is_a_setting(share: Callable[..., Shared]) -> None:
    shop = share(max_ttl_s=60 * DAY).workshop(**HANDLERS)
    ref = await begun(shop, "nap", days=[40.0])
    await pass_time(shop, 40 * DAY + HOUR, DAY / 2)
    assert await shop.value(ref) == "awake"
    shop = share(max_ttl_s=2 * DAY).workshop(**HANDLERS)
    ref = await begun(shop, "nap", days=[2.0])
    assert await shop.error(ref)


async def test_a_long_ttl_is_a_bound_of_its_own(share: Callable[..., Shared]) -> None:
    shop = share(ttl_s=20 * DAY, max_ttl_s=DAY).workshop(**HANDLERS)
    ref = await begun(shop, "nap", days=[5.0])
    await pass_time(shop, 5 * DAY + HOUR)
    assert await shop.value(ref) == "awake"


async def test_sleeps_without_end_end_at_the_bound_with_a_reason(shared: Shared) -> None:
    async def nightly(ctx: Context) -> None:
        while True:
            await ctx.sleep(DAY / 2)

    shop = shared.workshop(nightly=nightly)
    ref = await begun(shop, "nightly")
    await pass_time(shop, 29.8 * DAY, DAY / 8)
    assert "tasks.max_ttl_s" in await shop.error(ref)


async def test_restarts_without_end_end_at_the_bound_with_a_reason(shared: Shared) -> None:
    async def round_and_round(ctx: Context) -> None:
        await ctx.poll("ready", lambda: clock.now_ms() % DAY_MS > DAY_MS / 2 or None, every_s=HOUR)
        await ctx.restart()

    clock, shop = shared.clock, shared.workshop(round_and_round=round_and_round)
    ref = await shop.begin("round_and_round")
    for _ in range(31 * 16):
        if not (await shop.record(ref)).is_open:
            break
        clock.skip(DAY / 16)
        await shop.sweep.sweep()
        await shop.turns()
    assert "tasks.max_ttl_s" in await shop.error(ref)


@pytest.mark.parametrize(
    ("config", "hours"),
    [({}, 24), ({"task_timeout_s": 6 * HOUR}, 7), ({"task_timeout_s": 60 * HOUR}, 61)],
    ids=str,
)
async def test_a_poll_without_end_ends_with_a_reason_that_its_client_sees(
    share: Callable[..., Shared], config: dict[str, Any], hours: int
) -> None:
    async def follow(ctx: Context) -> None:
        await ctx.poll("ready", lambda: None, every_s=HOUR)

    shop = share(**config).workshop(follow=follow)
    ref = await begun(shop, "follow")
    await pass_time(shop, (hours - 2.5) * HOUR)
    assert (await shop.shown(ref))["status"] == "working"
    await pass_time(shop, 2.4 * HOUR, HOUR / 10)
    assert "tasks.task_timeout_s" in await shop.error(ref)

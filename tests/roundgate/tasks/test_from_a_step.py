"""A parked or failed task that its operator takes up again from a step of their choice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from roundgate.cli import main
from roundgate.errors import NotRetryable
from roundgate.operators.continuing import repeated, retry, rewind
from roundgate.replay.context import Context
from roundgate.storage.tasks import TaskRef
from roundgate.tasks.events import Delivered
from roundgate.tasks.turn import TurnResult
from roundgate.tokens import EventTokens
from tests.support.replay import Name
from tests.support.rounds import accept
from tests.support.tasks import RING, Shared, Workshop

CALLS: Counter[str] = Counter()
BROKEN: set[str] = set()
KEYS: list[str] = []
URLS: list[str] = []


def service(name: str, *given: Any) -> str:
    CALLS[name] += 1
    if name in BROKEN:
        raise ConnectionError(f"{name} is away")
    return f"{name} {CALLS[name]}"


def other(name: str, *given: Any) -> str:
    return service(name, *given)


async def order(ctx: Context) -> list[Any]:
    """A question, an event and steps, of which the last may fail."""
    reserved = await ctx.step("reserve", service, "reserve")
    who = await ctx.elicit("who", "Who?", Name)
    quoted = await ctx.step("quote", service, "quote")
    paid = await ctx.event("paid")
    URLS.append(paid.url)
    await ctx.step("bill", service, "bill", paid.url)
    payment = await paid.wait()
    KEYS.append(await ctx.idempotency_key("ship"))
    once = await ctx.step("once", service, "once", at_most_once=True)
    shipped = await ctx.step("ship", service, "ship")
    return [reserved, who.name, quoted, payment, once, shipped]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    for one in (CALLS, BROKEN, KEYS, URLS):
        one.clear()
    yield
    BROKEN.clear()


async def at_the_end(shop: Workshop) -> TaskRef:
    """An order whose last step fails."""
    BROKEN.add("ship")
    ref = await shop.begin("order")
    assert await shop.all_turns() == [TurnResult.ASKED]
    await shop.answer(ref, who=accept(name="me"))
    assert await shop.all_turns() == [TurnResult.RELEASED]
    await shop.deliver(ref, "event:paid", 7)
    assert await shop.all_turns() == [TurnResult.STEP_FAILED]
    BROKEN.clear()
    return ref


async def taken_up(shop: Workshop, ref: TaskRef, step: str) -> TaskRef:
    return await retry(shop.store, ref, shop.clock.now_ms(), step)


async def test_everything_before_the_step_is_remembered_and_all_after_it_happens_again(
    shared: Shared,
) -> None:
    shop = shared.workshop(order=order)
    ref = await at_the_end(shop)
    going_on = await taken_up(shop, ref, "quote")
    assert await shop.all_turns() == [TurnResult.RELEASED]
    assert CALLS == {"reserve": 1, "quote": 2, "bill": 2, "once": 1, "ship": 1}
    old, new = (EventTokens(RING).open(url.rpartition("/")[2]) for url in (URLS[0], URLS[-1]))
    assert old is not None
    assert new is not None
    assert (old.name, new.name, new.task_id) == ("event:paid", "event:paid@2", going_on.id)
    assert await shop.deliver(ref, old.name, 8) is Delivered.OTHER, "as ever"
    assert await shop.deliver(going_on, old.name, 8) is Delivered.CLOSED
    assert await shop.deliver(going_on, new.name, 8) is Delivered.WAKES
    await shop.all_turns()
    assert await shop.value(going_on) == ["reserve 1", "me", "quote 2", 8, "once 2", "ship 2"]
    assert len(set(KEYS)) == 1, "a service that knows the key does nothing twice"


async def test_an_event_that_was_opened_before_the_step_keeps_its_url_and_its_payload(
    shared: Shared,
) -> None:
    shop = shared.workshop(order=order)
    ref = await at_the_end(shop)
    going_on = await taken_up(shop, ref, "once")
    assert await shop.all_turns() == [TurnResult.FINISHED]
    assert await shop.value(going_on) == ["reserve 1", "me", "quote 1", 7, "once 2", "ship 2"]
    assert len(set(URLS)) == 1
    assert await shop.deliver(ref, "event:paid", 7) is Delivered.AGAIN


async def test_a_question_is_asked_again_and_the_answer_of_before_is_not_taken(
    shared: Shared,
) -> None:
    shop = shared.workshop(order=order)
    ref = await at_the_end(shop)
    going_on = await taken_up(shop, ref, "who")
    assert await shop.all_turns() == [TurnResult.ASKED]
    assert list((await shop.shown(going_on))["inputRequests"]) == ["who@2"]
    await shop.answer(going_on, who=accept(name="the answer of before"))
    assert await shop.all_turns() == []
    await shop.answer(going_on, **{"who@2": accept(name="another")})
    assert await shop.all_turns() == [TurnResult.RELEASED]
    assert CALLS["reserve"] == 1


async def test_what_was_done_after_the_failure_is_forgotten_with_it(shared: Shared) -> None:
    async def refunds(ctx: Context) -> Any:
        await ctx.step("reserve", service, "reserve")
        try:
            return [await ctx.step("charge", service, "charge")]
        except Exception as error:
            await ctx.step("refund", service, "refund")
            raise RuntimeError("not paid") from error

    BROKEN.add("charge")
    shop = shared.workshop(refunds=refunds)
    ref = await shop.begin("refunds")
    assert await shop.all_turns() == [TurnResult.STEP_FAILED]
    BROKEN.clear()
    with pytest.raises(NotRetryable, match="refund happened"):
        await retry(shop.store, ref, shop.clock.now_ms())
    going_on = await taken_up(shop, ref, "charge")
    await shop.all_turns()
    assert await shop.value(going_on) == ["charge 2"]
    assert CALLS == {"reserve": 1, "charge": 2, "refund": 1}


async def test_a_parked_task_goes_on_under_its_own_id(shared: Shared) -> None:
    async def right(ctx: Context) -> Any:
        planned = await ctx.step("plan", service, "plan")
        quoted = await ctx.step("quote", service, "quote")
        who = await ctx.elicit("who", "Who?", Name)
        return [planned, quoted, who.name]

    async def wrong(ctx: Context) -> Any:
        planned = await ctx.step("plan", service, "plan")
        quoted = await ctx.step("quote", other, "quote")
        who = await ctx.elicit("who", "Who?", Name)
        return [planned, quoted, who.name]

    before, after = shared.workshop(tool=right), shared.workshop(tool=wrong)
    ref = await before.begin("tool")
    assert await before.all_turns() == [TurnResult.ASKED]
    await before.answer(ref, who=accept(name="me"))
    assert await after.all_turns() == [TurnResult.PARKED]
    with pytest.raises(NotRetryable, match="has no step 'x'; it has plan, quote, who"):
        await rewind(after.store, ref, after.clock.now_ms(), "x")
    await rewind(after.store, ref, after.clock.now_ms(), "quote")
    assert await after.all_turns() == [TurnResult.ASKED]
    assert CALLS == {"plan": 1, "quote": 2}
    assert list((await after.shown(ref))["inputRequests"]) == ["who@2"]
    await after.answer(ref, **{"who@2": accept(name="again")})
    assert await after.all_turns() == [TurnResult.FINISHED]
    assert await after.value(ref) == ["plan 1", "quote 2", "again"]


async def test_a_payload_that_comes_while_a_parked_task_is_wound_back_is_kept(
    shared: Shared,
) -> None:
    def version(function: Any) -> Any:
        async def tool(ctx: Context) -> Any:
            paid = await ctx.event("paid")
            await ctx.step("quote", function, "quote")
            await ctx.sleep(5)
            return [await paid.wait()]

        return tool

    before, after = shared.workshop(tool=version(service)), shared.workshop(tool=version(other))
    ref = await before.begin("tool")
    assert await before.all_turns() == [TurnResult.RELEASED]
    shared.clock.skip(6)
    await after.sweep.sweep()
    assert await after.all_turns() == [TurnResult.PARKED]
    assert await after.deliver(ref, "event:paid", 7) is Delivered.KEPT, "it stays parked"
    assert await after.all_turns() == []
    real, raced = after.store.store.read_work, list[Delivered]()

    async def read_work(ref: TaskRef) -> Any:
        found = await real(ref)
        if not raced:
            raced.append(await after.deliver(ref, "event:other", 7))
        return found

    after.store.store.read_work = read_work  # type: ignore[method-assign]
    await rewind(after.store, ref, after.clock.now_ms(), "quote")
    assert [mark.name for mark in (await after.record(ref)).events] == ["event:paid"]
    assert await after.all_turns() == [TurnResult.RELEASED]
    shared.clock.skip(6)
    await after.sweep.sweep()
    await after.all_turns()
    assert await after.value(ref) == [7]


@pytest.mark.parametrize("step", ["one@0/a", "one@1/a", "one@0/b", "one@1/b", "one@2/b"])
async def test_beside_each_other_what_was_recorded_before_is_kept_in_whatever_branch(
    shared: Shared, step: str
) -> None:
    async def sides(ctx: Context) -> Any:
        async def one(number: int) -> str:
            await asyncio.sleep(0)
            await ctx.step("a", service, f"a{number}")
            return str(await ctx.step("b", service, f"b{number}"))

        values = await ctx.gather(*(one(number) for number in range(3)))
        return [*values, await ctx.step("end", service, "end")]

    BROKEN.add("end")
    shop = shared.workshop(sides=sides)
    ref = await shop.begin("sides")
    assert await shop.all_turns() == [TurnResult.STEP_FAILED]
    BROKEN.clear()
    _, work = await shop.store.read_work(ref)
    assert work is not None
    again = repeated(work, step).steps
    assert again[0] == step
    going_on = await taken_up(shop, ref, step)
    await shop.all_turns()
    names = {f"{name}{number}" for name in "ab" for number in range(3)}
    twice = {f"{place[-1]}{place[4]}" for place in again if place != "end"}
    assert {name for name in names if CALLS[name] == 2} == twice
    assert len(await shop.value(going_on)) == 4


# the command


async def operate(
    shared: Shared, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    capsys.readouterr()
    status = await asyncio.to_thread(main, ["tasks", "retry", *arguments])
    return status, *capsys.readouterr()


@pytest.fixture
def _store(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_STORE", f"sqlite:///{shared.path}")


@pytest.mark.usefixtures("_store")
async def test_the_command_says_what_happens_again_and_wants_a_yes(
    shared: Shared, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = shared.workshop(order=order)
    shared.clock.set(0)
    ref = await at_the_end(shop)
    wanted = (str(ref), "--from", "who")
    status, out, err = await operate(shared, capsys, *wanted)
    assert (status, out) == (1, "")
    assert err.splitlines() == [
        "runs again: quote, bill, once, ship",
        "may take effect twice, although it is at_most_once: once",
        "is asked again: who",
        "is awaited again, with a new URL: event:paid",
        "retry 1 task: confirm with --yes",
    ]
    status, _, err = await operate(shared, capsys, *wanted, "--dry-run")
    assert (status, err.splitlines()[0]) == (0, "runs again: quote, bill, once, ship")
    assert (await shop.store.read(ref, 0)).retried_as is None  # type: ignore[union-attr]
    status, out, _ = await operate(shared, capsys, *wanted, "--yes")
    assert status == 0
    assert out.startswith(f"{ref} continues as ")
    assert out.endswith(", from who\n")
    status, _, err = await operate(shared, capsys, *wanted, "--yes")
    assert (status, "was already retried as" in err) == (1, True)


@pytest.mark.usefixtures("_store")
async def test_the_command_names_the_steps_that_there_are(
    shared: Shared, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = shared.workshop(order=order)
    ref = await at_the_end(shop)
    for step in ("pay", "key:ship", "wait:paid", ""):
        status, out, err = await operate(shared, capsys, str(ref), "--from", step, "--yes")
        known = "reserve, who, quote, event:paid, bill, once, ship"
        assert (status, out) == (1, "")
        assert err == f"{ref} has no step {step!r}; it has {known}\n"
    unknown = TaskRef(ref.owner, "unknown")
    status, _, err = await operate(shared, capsys, str(unknown), "--from", "quote")
    assert (status, err) == (
        1,
        f"{unknown} does not exist, or is no longer stored completely\n",
    )
    for more in ((str(unknown),), ("--tool", "order")):
        status, _, err = await operate(shared, capsys, str(ref), *more, "--from", "quote")
        assert (status, err) == (2, "--from needs exactly one task: name it, without filters\n")
    going_on = await shop.begin("order")
    await shop.all_turns()
    status, _, err = await operate(shared, capsys, str(going_on), "--from", "reserve", "--yes")
    assert (status, err) == (
        1,
        f"{going_on} is not parked, and neither failed at a step nor was given up\n",
    )

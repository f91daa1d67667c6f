"""`fake_context`: handlers called as the functions they are."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel

from roundgate import Context, Principal, StepFailed
from roundgate.client import Question
from roundgate.errors import AnswerInvalid, Unanswered
from roundgate.replay import run_of
from roundgate_testing import VirtualClock, fake_context


class Confirm(BaseModel):
    go: bool


async def refund(ctx: Context, order: int) -> str:
    amount = await ctx.step("look", lambda: order * 2)
    answer = await ctx.elicit("confirm", f"Refund {amount}?", Confirm)
    return f"refunded {amount} for {ctx.principal.subject}" if answer.go else "kept"


async def test_questions_are_answered_where_they_are_asked() -> None:
    ann = Principal("https://issuer.test", "ann")
    with fake_context({"confirm": {"go": True}}, principal=ann) as ctx:
        assert await refund(ctx, 7) == "refunded 14 for ann"
    with fake_context({"go": False}) as ctx:
        assert await refund(ctx, 7) == "kept"


async def test_what_nobody_answers_is_raised_where_it_is_asked() -> None:
    with fake_context() as ctx, pytest.raises(Unanswered, match=r"Refund 14\?"):
        await refund(ctx, 7)
    with fake_context({"confirm": {"go": "perhaps"}}) as ctx, pytest.raises(AnswerInvalid):
        await refund(ctx, 7)


async def test_parts_that_run_side_by_side_ask_together_and_sleep_in_order() -> None:
    woken: list[int] = []
    asked: list[int] = []

    def answer(question: Question) -> object:
        asked.append(len(asked))
        return {"go": True}

    async def part(ctx: Context, number: int) -> bool:
        await ctx.sleep(100 - number)
        woken.append(number)
        return (await ctx.elicit("confirm", f"Go {number}?", Confirm)).go

    clock = VirtualClock(0)
    with fake_context(answer, clock=clock) as ctx:
        assert await asyncio.gather(*(part(ctx, number) for number in range(3))) == [True] * 3
    assert (woken, len(asked), clock.now_ms()) == ([2, 1, 0], 3, 100_000)


async def test_limits_and_steps_are_the_real_ones() -> None:
    def fails() -> None:
        raise ValueError("no")

    with fake_context() as ctx:
        with pytest.raises(TimeoutError):
            async with ctx.timeout(10):
                await ctx.sleep(3_600)
        with pytest.raises(StepFailed, match="ValueError: no"):
            await ctx.step("fails", fails)


async def test_events_are_delivered_or_not_in_time() -> None:
    async def buy(ctx: Context) -> list[str]:
        told = []
        for name in ("paid", "sent"):
            event = await ctx.event(name, timeout_s=3_600)
            try:
                told.append(f"{await event.wait()} {event.url.rpartition('/')[2]}")
            except TimeoutError:
                told.append("late")
        return told

    with fake_context(events={"paid": 7}) as ctx:
        before_ms = run_of(ctx).clock.now_ms()
        assert await buy(ctx) == ["7 token-of-event:paid", "late"]
        assert run_of(ctx).clock.now_ms() == before_ms + 3_600_000


async def test_two_branches_get_their_own_events() -> None:
    async def both(ctx: Context) -> list[int]:
        async def one(number: int) -> int:
            event = await ctx.event("paid")
            return int(await event.wait())

        return await ctx.map(one, [1, 2])

    with fake_context(events={"map/1/paid": 10, "paid": 20}) as ctx:
        assert await both(ctx) == [10, 20]

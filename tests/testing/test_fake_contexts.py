"""`fake_context`: handlers called as the functions they are."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel

from roundgate import Context, Principal, StepFailed
from roundgate.client import Question
from roundgate.errors import AnswerInvalid, Unanswered
from roundgate.testing import VirtualClock, fake_context


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

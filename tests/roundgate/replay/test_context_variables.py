"""Context variables that a step or a handler sets end with it: a replay does not set them."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from roundgate.replay import Context, Suspended, SyncContext
from tests.support.replay import play, value_of
from tests.support.task_runs import SharedJournal

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


async def sets() -> str:
    await asyncio.sleep(0)
    tenant.set("acme")
    await asyncio.sleep(0)
    return tenant.get()


def sets_at_once() -> Any:
    tenant.set("acme")
    return sets()


@pytest.mark.parametrize("step", [sets, sets_at_once, lambda: sets()])
async def test_a_variable_that_a_step_sets_is_not_seen_by_its_handler(step: Any) -> None:
    async def handler(ctx: Context) -> list[str]:
        tenant.set("handler's")
        return [await ctx.step("sets", step), tenant.get()]

    assert value_of(await play(handler)) == ["acme", "handler's"]


async def test_nor_by_one_that_is_a_plain_function() -> None:
    def handler(ctx: SyncContext) -> list[str]:
        return [ctx.step("sets", sets), tenant.get()]

    assert value_of(await play(handler)) == ["acme", "nobody"]


async def test_a_step_sees_what_its_handler_has_set() -> None:
    async def sees() -> str:
        return tenant.get()

    async def handler(ctx: Context) -> str:
        tenant.set("acme")
        seen: str = await ctx.step("sees", sees)
        return seen

    assert value_of(await play(handler)) == "acme"


@pytest.mark.parametrize("task_id", [None, "task"])
async def test_a_variable_that_a_handler_sets_is_not_seen_by_its_next_run(
    task_id: str | None,
) -> None:
    async def handler(ctx: Context) -> str:
        before = tenant.get()
        tenant.set("acme")
        await ctx.shed()
        return before

    home = SharedJournal(task_id=task_id)
    assert isinstance(await home.run(handler), Suspended)
    assert value_of(await home.run(handler)) == "nobody"


async def test_a_step_in_a_context_of_its_own_is_cancelled_and_timed_out_as_before() -> None:
    ended: list[str] = []

    async def waits() -> None:
        tenant.set("acme")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(tenant.get())
            raise

    async def handler(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.01):
                await ctx.step("waits", waits)
        except TimeoutError:
            return tenant.get()
        return "not cancelled"

    assert value_of(await play(handler)) == "nobody"
    assert ended == ["acme"]

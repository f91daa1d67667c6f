"""Handlers that keep to the rule. A process that replays them imports no other module of the tests."""

from __future__ import annotations

from pydantic import BaseModel

from roundgate import Context, tool

outbox: list[str] = []


class Confirm(BaseModel):
    go: bool


def send(what: str) -> str:
    outbox.append(what)
    return what


@tool
async def order(ctx: Context, number: int) -> str:
    await ctx.step("charge", send, f"charge {number}")
    answer = await ctx.elicit("confirm", "Ship it?", Confirm)
    return str(await ctx.step("ship", send, f"ship {number} {answer.go}"))


@tool(task="required")
async def order_as_task(ctx: Context, number: int) -> str:
    await ctx.step("charge", send, f"charge {number}")
    answer = await ctx.elicit("confirm", "Ship it?", Confirm)
    await ctx.sleep(600)
    return str(await ctx.step("ship", send, f"ship {number} {answer.go}"))

"""Tools of the recorded conversations: each asks, waits or answers in one of
the ways that there are."""

from __future__ import annotations

from pydantic import BaseModel

from roundgate import Context, Form, tool
from roundgate.errors import ToolError


class Confirm(BaseModel):
    """What is asked before money moves."""

    go: bool


class Name(BaseModel):
    """Who somebody is."""

    name: str


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def fail() -> str:
    """Always fails."""
    raise ToolError("The printer is on fire")


@tool
async def refund(ctx: Context, order: int) -> str:
    """Asks before it refunds."""
    answer = await ctx.elicit("confirm", f"Refund order {order}?", Confirm)
    return f"Refunded order {order}" if answer.go else "Nothing was refunded"


@tool
async def introduce(ctx: Context) -> str:
    """Asks three things in one round."""
    answers = await ctx.ask(
        {
            "first": Form("Your first name?", Name),
            "last": Form("Your last name?", Name),
            "sure": Form("Are you sure?", Confirm),
        }
    )
    if not answers["sure"].get().go:
        return "Somebody"
    return f"{answers['first'].get().name} {answers['last'].get().name}"


@tool
async def pay(ctx: Context) -> str:
    """Sends the user to a page."""
    await ctx.elicit_url("pay", "Pay on this page", "https://example.com/pay")
    return "Paid"


@tool
async def poem(ctx: Context) -> str:
    """Has a model write."""
    return (await ctx.sample("line", "Write a line", max_tokens=50)).text


@tool(task="optional")
async def deploy(ctx: Context, env: str) -> str:
    """A task that asks."""
    await ctx.continue_as_task()
    answer = await ctx.elicit("apply", f"Apply to {env}?", Confirm)
    return f"Deployed to {env}" if answer.go else "Nothing was deployed"


@tool
async def grow(ctx: Context) -> str:
    """Tells its listeners that there are other tools."""
    await ctx.tools_changed()
    return "Grown"


@tool
async def count(ctx: Context) -> str:
    """Reports its progress."""
    await ctx.progress(1, 2)
    await ctx.progress(2, 2)
    return "Counted"

"""Fixtures of the `tasks-*` scenarios: tools whose calls become tasks, end in every
way, and ask on the way."""

import asyncio

from pydantic import BaseModel

from roundgate import Context, Form, InvalidParams, ToolError, tool


class Confirmed(BaseModel):
    confirm: bool


class Name(BaseModel):
    name: str


@tool(task="optional")
async def slow_compute(ctx: Context, seconds: float = 0, label: str = "work") -> str:
    """Computes for some seconds.

    Args:
        seconds: How long.
        label: What it is called.
    """
    if seconds > 0:
        await ctx.continue_as_task()
    await asyncio.sleep(seconds)
    return f"{label} took {seconds:g} s"


@tool(task="required")
async def failing_job() -> str:
    """A job that goes wrong, as tools do."""
    raise ToolError("This job intentionally fails")


@tool(task="required")
async def protocol_error_job() -> str:
    """A job that ends with a JSON-RPC error."""
    raise InvalidParams("This job intentionally ends with a protocol error")


@tool(task="required", destructive=True)
async def confirm_delete(ctx: Context, filename: str = "file.txt") -> str:
    """Deletes nothing, once that is confirmed.

    Args:
        filename: What not to delete.
    """
    await ctx.continue_as_task()
    answer = await ctx.elicit("confirm", f"Delete {filename}?", Confirmed)
    return f"{filename} deleted" if answer.confirm else f"{filename} kept"


@tool(task="required")
async def multi_input(ctx: Context) -> str:
    """Asks two things at once."""
    await ctx.continue_as_task()
    asked = {"first": Form("The first name?", Name), "second": Form("The second name?", Name)}
    answers = await ctx.ask(asked)
    return " and ".join(str(answer.value) for answer in answers.values())


@tool(task="required")
async def test_tool_with_task(ctx: Context) -> str:
    """Asks before there is a task, and answers from within it."""
    who = await ctx.elicit("user_name", "What is your name?", Name)
    await ctx.continue_as_task()
    return f"Hello, {who.name}!"

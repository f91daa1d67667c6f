"""Tools whose calls become tasks: they end in every way, and ask on the way."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel, Field

from roundgate import Context, Form, InvalidParams, SyncContext, ToolError, tool
from tests.support.functions import SECRET


class Name(BaseModel):
    name: str


class Few(BaseModel):
    count: int = Field(ge=1, le=3)


@tool(task="required")
async def dig(ctx: Context, depth: int = 1) -> dict[str, int]:
    """Ends well."""
    await ctx.continue_as_task()
    return {"depth": depth}


@tool(task="required")
async def refuse(ctx: Context) -> str:
    """Fails as a tool should."""
    await ctx.continue_as_task()
    raise ToolError("there is no tea left; ask for coffee")


@tool(task="required")
async def crash(ctx: Context) -> str:
    """Fails as no tool should."""
    await ctx.continue_as_task()
    raise RuntimeError(f"the password is {SECRET}")


@tool(task="required")
async def leave(ctx: Context) -> str:
    """Would end the process."""
    await ctx.continue_as_task()
    raise SystemExit(3)


@tool(task="required")
async def reject(ctx: Context) -> str:
    """Ends with a JSON-RPC error."""
    await ctx.continue_as_task()
    raise InvalidParams("there is no such mountain")


@tool(task="required")
async def sample(ctx: Context) -> str:
    """Asks for what the client may not have."""
    await ctx.continue_as_task()
    return (await ctx.sample("motto", "A motto, please", max_tokens=9)).text


@tool(task="required")
async def greet(ctx: Context) -> str:
    """Asks who it is."""
    await ctx.continue_as_task()
    who = await ctx.elicit("who", "Who is there?", Name)
    return f"Hello, {who.name}!"


@tool(task="required")
async def both(ctx: Context) -> str:
    """Asks two things at once."""
    await ctx.continue_as_task()
    answers = await ctx.ask(
        {"first": Form("The first?", Name), "second": Form("The second?", Name)}
    )
    return " and ".join(answer.get().name for answer in answers.values())


@tool(task="required")
async def twice(ctx: Context) -> str:
    """Asks under the same name twice, and what not every answer is good for."""
    await ctx.continue_as_task()
    counts = [await ctx.elicit("count", "How many?", Few) for _ in range(2)]
    return "+".join(str(answer.count) for answer in counts)


@tool(task="required")
async def tell(ctx: Context) -> str:
    """Tells how far it is, before and after it has become a task, and waits."""
    await ctx.progress(1, total=4, message="warming up")
    await ctx.log("info", "before")
    await ctx.continue_as_task()
    await ctx.progress(2, total=4, message="digging")
    await ctx.log("error", "within")
    await ctx.elicit("more", "Go on?", Name)
    await ctx.progress(3, total=4, message="deeper")
    await asyncio.sleep(0)
    return "told"


@tool(task="required")
def sync_greet(ctx: SyncContext) -> str:
    """Asks from a thread."""
    ctx.continue_as_task()
    return f"Hello, {ctx.elicit('who', 'Who is there?', Name).name}!"


JOBS: tuple[Any, ...] = (
    dig,
    refuse,
    crash,
    leave,
    reject,
    sample,
    greet,
    both,
    twice,
    tell,
    sync_greet,
)

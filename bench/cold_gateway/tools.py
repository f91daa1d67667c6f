"""The tools module of `gateway.yaml`, written as users write theirs."""

from roundgate import Context, tool


@tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool(task="required")
async def add_later(ctx: Context, a: int, b: int) -> int:
    """Add two integers, as a task."""
    await ctx.continue_as_task()
    return a + b

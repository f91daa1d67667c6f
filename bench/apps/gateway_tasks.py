"""The tools module of `bench/gateway-tasks.yaml`, written as users write theirs."""

from roundgate import Context, tool


@tool(task="optional")
async def add(ctx: Context, a: int, b: int) -> int:
    """Add two integers, in a task if the client supports tasks."""
    await ctx.continue_as_task()
    return a + b

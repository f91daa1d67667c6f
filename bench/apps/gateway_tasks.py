"""The tools module of `bench/gateway-tasks.yaml`, written like any user's."""

from roundgate import Context, tool


@tool(task="optional")
async def add(ctx: Context, a: int, b: int) -> int:
    """Add two integers, in a task if the client knows tasks."""
    await ctx.continue_as_task()
    return a + b

"""Tools to try the deployment with: a call, and a task that a worker runs in steps."""

from __future__ import annotations

from roundgate import Context, tool


@tool(read_only=True)
async def greet(name: str) -> str:
    """Greet someone."""
    return f"Hello {name}"


@tool(task="optional")
async def report(ctx: Context, months: int) -> str:
    """Write a report, one month a step."""
    await ctx.continue_as_task()
    total = 0
    for month in range(months):
        total += await ctx.step("month", _sum_up, month)
    return f"total {total}"


async def _sum_up(month: int) -> int:
    return month * 10

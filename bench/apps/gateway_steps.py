"""The tools module of `bench/gateway-steps.yaml`: a task of three steps."""

from roundgate import Context, tool


def _plus_one(value: int) -> int:
    return value + 1


@tool(task="required")
async def count(ctx: Context, start: int) -> int:
    """Add one three times, in three steps."""
    value = start
    for number in (1, 2, 3):
        value = await ctx.step(f"add-{number}", _plus_one, value)
    return value

"""A tool that asks before it refunds."""

from pydantic import BaseModel

from roundgate import Context, tool


class Confirm(BaseModel):
    """What is asked."""

    go: bool


@tool
async def refund(ctx: Context, order: int) -> str:
    """Refund an order, once somebody has agreed."""
    answer = await ctx.elicit("confirm", f"Refund order {order}?", Confirm)
    return f"Refunded order {order}" if answer.go else "Nothing was refunded"

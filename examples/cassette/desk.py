"""A tool that asks for confirmation before it refunds."""

from pydantic import BaseModel

from roundgate import Context, tool


class Confirm(BaseModel):
    """The answer to the question whether to refund."""

    go: bool


@tool
async def refund(ctx: Context, order: int) -> str:
    """Refund an order after the user has agreed."""
    answer = await ctx.elicit("confirm", f"Refund order {order}?", Confirm)
    return f"Refunded order {order}" if answer.go else "Nothing was refunded"

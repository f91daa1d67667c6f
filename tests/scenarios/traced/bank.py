"""The tools of the MCP server behind the gateway."""

from roundgate import tool


@tool(destructive=True)
async def refund(order: str) -> str:
    """Pays an order back."""
    return f"{order} is paid back"

"""The gateway's tool module in `bench/gateway.yaml`; the server around it is the gateway's own command."""

from app import tool


@tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b

"""The tools module of `bench/gateway.yaml`, written as users write theirs."""

from pydantic import BaseModel

from roundgate import Context, tool


class Consent(BaseModel):
    ok: bool


@tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool
async def add_with_context(ctx: Context, a: int, b: int) -> int:
    """Add two integers; `bench.edge` measures the engine with it."""
    return a + b


@tool
async def ask(ctx: Context, n: int) -> str:
    """Ask once before answering; `bench.inside` measures its rounds."""
    return f"{n}: {(await ctx.elicit('go', 'Go on?', Consent)).ok}"

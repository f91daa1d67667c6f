"""What the functions serve in these tests."""

import asyncio
import random
from pathlib import Path

from pydantic import BaseModel

from roundgate import Context, tool


class Name(BaseModel):
    name: str


@tool
async def greet(name: str) -> str:
    """Greets somebody."""
    return f"Hello, {name}!"


@tool
async def drawn() -> list[int]:
    """What a tool draws, and what OpenTelemetry would name a trace and a span."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    traces = RandomIdGenerator()
    return [random.getrandbits(64), traces.generate_trace_id(), traces.generate_span_id()]


@tool
async def ask(ctx: Context) -> str:
    """Asks in a round."""
    return f"Hello, {(await ctx.elicit('who', 'Who?', Name)).name}!"


@tool(task="required")
async def later(ctx: Context) -> str:
    """Asks as a task."""
    await ctx.continue_as_task()
    return f"Hello, {(await ctx.elicit('who', 'Who?', Name)).name}!"


@tool(task="required")
async def much(ctx: Context, count: int) -> str:
    """Answers what JSON has to escape, as a task."""
    await ctx.continue_as_task()
    return '"' * count


@tool
async def large(megabytes: int) -> str:
    """Answers a lot."""
    return "x" * megabytes * 1_000_000


@tool
async def quotes(count: int) -> str:
    """Answers what JSON has to escape, twice by the time that it is JSON in JSON."""
    return '"' * count


@tool
async def lines(count: int) -> str:
    """Answers separators that the runtime writes as six bytes each."""
    return "\u2028" * count


@tool
async def left(ctx: Context) -> float:
    """How many seconds the call may take."""
    return (ctx.deadline.remaining_ms() or 0) / 1000


@tool
async def slow() -> str:
    """Takes its time."""
    await asyncio.sleep(5)
    return "done"


def broken() -> str:
    """A service that is away."""
    raise ConnectionError("away")


@tool(task="required")
async def fail(ctx: Context) -> str:
    """Ends with a step that failed."""
    await ctx.continue_as_task()
    return str(await ctx.step("charge", broken))


@tool
async def counted(ctx: Context, gates: str) -> str:
    """Reports three steps, each when a file allows it."""
    for step in range(1, 4):
        while not (Path(gates) / str(step)).exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await ctx.progress(step, total=3)
    return "counted"

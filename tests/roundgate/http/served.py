"""Tools of a server in a process of its own, which tests talk to over sockets."""

import asyncio
import logging
import time
from pathlib import Path

from roundgate import Context, SyncContext, tool

log = logging.getLogger("served")
gates: dict[str, asyncio.Event] = {}


def gate(name: str) -> asyncio.Event:
    return gates.setdefault(name, asyncio.Event())


@tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@tool
async def echo(text: str) -> str:
    """Gives a text back."""
    return text


@tool
async def wait(ctx: Context, name: str) -> str:
    """Reports that it has begun, and waits until `open` is called."""
    await ctx.progress(1)
    log.info("waiting", extra={"fields": {"gate": name}})
    try:
        await gate(name).wait()
    except asyncio.CancelledError:
        log.info("cancelled", extra={"fields": {"gate": name}})
        raise
    return "waited"


@tool(name="open")
async def open_(name: str) -> str:
    """Lets a `wait` go on."""
    gate(name).set()
    return "opened"


@tool
async def flood(ctx: Context, count: int, size: int) -> str:
    """Sends so many log messages of so many characters."""
    for number in range(count):
        await ctx.log("info", [number, "x" * size])
    log.info("flooded")
    return "flooded"


@tool
def block(ctx: SyncContext, seconds: float) -> str:
    """Keeps a thread busy."""
    time.sleep(seconds)
    ctx.progress(1)
    return "blocked"


@tool
def hold(file: str) -> str:
    """Keeps a thread busy until there is a file."""
    log.info("holding")
    wait_for(file)
    return "held"


def wait_for(file: str) -> None:
    while not Path(file).exists():
        time.sleep(0.02)


@tool
def flood_thread(ctx: SyncContext, count: int, size: int) -> str:
    """Sends so many log messages of so many characters, from a thread."""
    for number in range(count):
        ctx.log("info", [number, "x" * size])
    return "flooded"


@tool
async def stand_still(file: str) -> str:
    """Blocks the event loop until there is a file."""
    while not Path(file).exists():  # noqa: ASYNC240
        time.sleep(0.02)  # noqa: ASYNC251  what it is for
    return "stood still"


@tool
async def freeze(file: str) -> str:
    """Keeps the event loop busy until there is a file."""
    log.info("freezing", extra={"fields": {"file": file}})
    wait_for(file)
    return "frozen"

"""Tools whose effects a test can count."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from pydantic import BaseModel

from roundgate import Context, tool

FOLDER = Path(os.environ["EFFECTS"])


class Go(BaseModel):
    go: bool


def note(what: str) -> str:
    with (FOLDER / "effects").open("a") as file:
        file.write(f"{what}\n")
    return what


async def pass_gate(what: str) -> str:
    """Be in the middle of a step until the gate is open."""
    note(f"{what} begins")
    while not (FOLDER / "open").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return note(what)


@tool(task="required")
async def ask(ctx: Context, name: str) -> str:
    """Two steps with a question between."""
    await ctx.step("first", note, f"{name} first")
    await ctx.elicit("go", "Go on?", Go)
    await ctx.step("second", note, f"{name} second")
    return f"{name} done"


@tool(task="required")
async def wait(ctx: Context, name: str) -> str:
    """A step that takes long."""
    await ctx.continue_as_task()
    await ctx.step("first", note, f"{name} first")
    await ctx.step("gate", pass_gate, f"{name} gate")
    return f"{name} done"


@tool(once=True)
async def pay(ctx: Context, name: str) -> str:
    """A call of two rounds with an effect that happens once."""
    await ctx.elicit("go", "Pay?", Go)
    return note(f"{name} paid")


@tool
async def ping() -> str:
    """Answers."""
    return "pong"

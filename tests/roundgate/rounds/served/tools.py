"""What the gateways of these tests serve, each from a copy of its own. EFFECTS names the
file that effects go to."""

from __future__ import annotations

import asyncio
import os
import uuid

from pydantic import BaseModel

from roundgate import Context, tool


class Traveller(BaseModel):
    name: str


class Consent(BaseModel):
    ok: bool


def effect(what: str) -> str:
    """Happens, and says in which process."""
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(f"{os.getpid()} {what}\n")
    return f"[{what}]"


@tool
async def book(ctx: Context, city: str) -> str:
    """Four rounds, a step in each, three kinds of questions."""
    offer = await ctx.step("offer", effect, f"offer {city}")
    who = await ctx.elicit("who", f"{offer}: for whom?", Traveller)
    held = await ctx.step("hold", effect, f"hold for {who.name}")
    blurb = await ctx.sample("blurb", f"Praise {city} in one word.", max_tokens=10)
    printed = await ctx.step("print", effect, f"print {blurb.text}")
    folders = await ctx.roots("folders")
    saved = await ctx.step("save", effect, f"save in {folders[0].uri}")
    return " ".join([offer, held, printed, saved])


@tool
async def crawl(ctx: Context, steps: int, step_s: float) -> int:
    """Short steps that take long together."""
    done = 0
    for number in range(steps):
        done += await ctx.step("crawl", _crawl, number, step_s)
    return done


async def _crawl(number: int, step_s: float) -> int:
    await asyncio.sleep(step_s)
    effect(f"step {number}")
    return 1


@tool(once=True)
async def pay(ctx: Context, amount: int, takes_s: float = 0) -> str:
    """Pays after asking; no two receipts are alike."""
    await ctx.elicit("sure", f"Pay {amount}?", Consent)
    effect(f"pay {amount}")
    await ctx.progress(1, 2)
    await asyncio.sleep(takes_s)
    await ctx.progress(2, 2)
    return f"receipt {uuid.uuid4()}"

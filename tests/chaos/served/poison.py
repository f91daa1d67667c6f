"""Innocent tools whose every effect leaves a line in a file, and poison of each kind.

Lines of CHAOS_EFFECTS, each with the moment on a clock that all processes share:

    pid moment begin order step receipt     a step begins
    pid moment done order step receipt      it has had its effect
    pid moment bye                          a process ends by itself; others died, perhaps inside a step
"""

import asyncio
import atexit
import ctypes
import os
import re
import resource
import secrets
import sys
import time
from contextlib import suppress

from pydantic import BaseModel

from roundgate import Context, OutcomeUnknown, tool
from roundgate.clock import Clock


class Name(BaseModel):
    name: str


_SKEW_MS = int(float(os.environ.get("CHAOS_SKEW_S", "0")) * 1000)
_REAL_NOW_MS = Clock.now_ms
if _SKEW_MS:
    setattr(Clock, "now_ms", lambda self: _REAL_NOW_MS(self) + _SKEW_MS)  # noqa: B010 - a machine whose clock is ahead
if os.environ.get("CHAOS_LIMIT_MB"):
    _BYTES = int(os.environ["CHAOS_LIMIT_MB"]) * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))


def tell(line: str) -> None:
    """One write of a short line: processes do not tear each other's."""
    file = os.open(os.environ["CHAOS_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{os.getpid()} {time.monotonic():.3f} {line}\n".encode())
    finally:
        os.close(file)


atexit.register(tell, "bye")


async def effect(order: int, step: int, seconds: float) -> str:
    """Has its effect halfway through."""
    receipt = secrets.token_hex(4)
    tell(f"begin {order} {step} {receipt}")
    await asyncio.sleep(seconds / 2)
    tell(f"done {order} {step} {receipt}")
    await asyncio.sleep(seconds / 2)
    return receipt


@tool(task="required")
async def innocent(ctx: Context, order: int, steps: int = 4, seconds: float = 0.05) -> str:
    """A few steps, one after another."""
    return " ".join(
        [
            await ctx.step(f"step-{number}", effect, order, number, seconds)
            for number in range(steps)
        ]
    )


@tool(task="required")
async def careful(ctx: Context, order: int, steps: int = 4, seconds: float = 0.05) -> str:
    """The same, each step at most once: it says so of one whose end nobody knows."""
    said = []
    for number in range(steps):
        try:
            said.append(
                await ctx.step(f"step-{number}", effect, order, number, seconds, at_most_once=True)
            )
        except OutcomeUnknown:
            said.append("unknown")
    return " ".join(said)


async def _exits() -> None:
    os._exit(13)


async def _dies() -> None:
    ctypes.string_at(0)  # SIGSEGV


async def _blocks() -> None:
    time.sleep(3_600)  # noqa: ASYNC251


async def _burns() -> None:
    """Blocks the loop and holds the interpreter's lock: no other thread runs."""
    re.match(r"(a+)+$", "a" * 64 + "b")


async def _hoards() -> None:
    """Takes all the memory that the process may have, a bit at a time."""
    hoard = []
    while True:
        hoard.append(bytearray(1024 * 1024))
        await asyncio.sleep(0)


async def _hangs() -> None:
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3_600)


POISONS = {
    "exit": _exits,
    "segv": _dies,
    "block": _blocks,
    "burn": _burns,
    "hoard": _hoards,
    "hang": _hangs,
}


@tool(task="required")
async def poison(ctx: Context, kind: str) -> str:
    """Harms its process in one of many ways."""
    if kind == "quit":  # beside another branch, where it ends the event loop
        await asyncio.gather(asyncio.sleep(0.05), asyncio.create_task(_quits()))
    elif kind == "swallow":
        while True:
            with suppress(BaseException):
                await ctx.elicit("who", "Who?", Name)
    else:
        await ctx.step(kind, POISONS[kind])
    return "unharmed"


async def _quits() -> None:
    sys.exit(0)

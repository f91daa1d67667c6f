"""Random handlers whose branches race, yield for long, and set limits around waits of any kind; the same
from a seed. What they do depends on time in the first run alone.

Every decision (who was first, whether a limit passed) is the argument of a step, so a later run that
decides otherwise shows in the effects.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from roundgate.replay.context import Context
from tests.support.replay import Name

Limited: TypeAlias = list[Any]

YIELDS = (0, 1, 20, 25, 100, 1000)
TIMES_S = (0.0, 0.001, 0.004, 0.012)
LIMITS_S = (0.002, 0.006, 0.02, 5.0)
WAITS = ("event", "queue", "lock", "shield", "wait", "gather", "step", "ask", "nested")
SHAPES = ("first", "completed", "group", "map", "gather")


def limited_program(seed: int) -> Limited:
    """The program of a number: shapes of branches, each `[yields, step seconds, yields, limit or None]`."""
    choices = random.Random(seed)

    def part(room: int) -> list[Any]:
        limit = [choices.choice(WAITS), choices.choice(LIMITS_S), choices.choice(TIMES_S)]
        inner = shape(room - 1) if room and choices.random() < 0.3 else None
        return [
            choices.choice(YIELDS),
            choices.choice(TIMES_S),
            choices.choice(YIELDS),
            limit if choices.random() < 0.6 else None,
            inner,
        ]

    def shape(room: int) -> list[Any]:
        return [choices.choice(SHAPES), [part(room) for _ in range(choices.randint(1, 3))]]

    return [shape(1) for _ in range(choices.randint(1, 2))]


class LimitedWorld:
    """Performs a program, and keeps the decisions that steps were given."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.is_alive: Callable[[], bool] = lambda: True

    async def decided(self, what: str) -> str:
        if not self.is_alive():
            raise AssertionError("a dead process does nothing")
        self.effects.append(what)
        return what

    async def perform(self, ctx: Context, program: Limited, place: str = "at") -> list[str]:
        """Run a program; returns the decisions of all its branches, as steps remember them."""
        said: list[str] = []
        for index, (how, parts) in enumerate(program):
            said += await self._shape(ctx, how, parts, f"{place}.{index}")
        return said

    async def _shape(self, ctx: Context, how: str, parts: list[Any], place: str) -> list[str]:
        said: list[str] = []
        ended: list[int] = []

        async def branch(number: int) -> None:
            said.extend(await self._part(ctx, parts[number], f"{place}:{number}"))
            ended.append(number)

        numbers = range(len(parts))
        match how:
            case "first":
                tasks = [asyncio.create_task(branch(number)) for number in numbers]
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                first = [number for number in numbers if tasks[number] in done]
                said.append(await ctx.step(_name(place, "first"), self.decided, f"{place} {first}"))
                await asyncio.gather(*tasks)
            case "completed":
                for one in asyncio.as_completed([branch(number) for number in numbers]):
                    await one
            case "group":
                async with asyncio.TaskGroup() as group:
                    for number in numbers:
                        group.create_task(branch(number))
            case "map":
                await ctx.map(branch, numbers, name=f"map{place}".replace(":", "_"))
            case _:
                await asyncio.gather(*map(branch, numbers))
        said.append(await ctx.step(_name(place, "order"), self.decided, f"{place} {ended}"))
        return said

    async def _part(self, ctx: Context, part: list[Any], place: str) -> list[str]:
        before, takes_s, after, limit, inner = part
        await _yield(before)
        await ctx.step("work", asyncio.sleep, takes_s)
        await _yield(after)
        said = [] if inner is None else await self.perform(ctx, [inner], place)
        if limit is not None:
            wait, limit_s, sets_s = limit
            said.append(await self._limited(ctx, wait, limit_s, sets_s, place))
        return said

    async def _limited(
        self, ctx: Context, wait: str, limit_s: float, sets_s: float, place: str
    ) -> str:
        event, queue, lock = asyncio.Event(), asyncio.Queue[int](), asyncio.Lock()
        await lock.acquire()

        async def sets() -> None:
            await ctx.step("sets", asyncio.sleep, sets_s)
            event.set()
            queue.put_nowait(1)
            lock.release()

        task = asyncio.create_task(sets())

        async def nested() -> None:
            async with ctx.timeout(limit_s / 2, "inner"):
                await event.wait()

        waits: dict[str, Callable[[], Awaitable[Any]]] = {
            "event": event.wait,
            "queue": queue.get,
            "lock": lock.acquire,
            "shield": lambda: asyncio.shield(task),
            "wait": lambda: asyncio.wait([task]),
            "gather": lambda: asyncio.shield(asyncio.gather(task)),
            "step": lambda: ctx.step("slow", asyncio.sleep, sets_s),
            "ask": lambda: ctx.elicit("who", "Who?", Name),
            "nested": nested,
        }
        try:
            async with ctx.timeout(limit_s):
                await waits[wait]()
        except TimeoutError:
            said = "passed"
        else:
            said = "in time"
        decided: str = await ctx.step("act", self.decided, f"{place} {said}")
        await task
        return decided


def _name(place: str, what: str) -> str:
    return f"{place}.{what}".replace(":", "_")


async def _yield(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)

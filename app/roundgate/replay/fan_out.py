"""`ctx.map`: one function for many items, side by side, each a branch that is named after its item.

So what is remembered of an item stays with it, whatever is done for the others, when the list
grows, and in another process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from roundgate.replay.branch_tasks import spawn
from roundgate.replay.branches import Branch
from roundgate.replay.identity import digest_of_value
from roundgate.replay.run import NAME

I = TypeVar("I")  # noqa: E741  # an item
T = TypeVar("T")


def branches(
    parent: Branch, name: str, items: Iterable[I], key: Callable[[I], Any] | None
) -> list[tuple[I, Branch]]:
    """Each item with its branch: `name.7` for an item 7, `name.Xy3…` for one that is no name;
    twice the same is numbered."""
    own = parent.named(name)
    return [(item, own.named(_segment(item if key is None else key(item)))) for item in items]


def _segment(item: Any) -> str:
    text = str(item) if isinstance(item, (str, int)) and not isinstance(item, bool) else ""
    return text if NAME.fullmatch(text) else digest_of_value(item)


async def side_by_side(
    function: Callable[[I], Awaitable[T]], placed: list[tuple[I, Branch]], at_most: int | None
) -> list[T]:
    """What the function returned for each, in the order of the items.

    If it raises for one, the others are cancelled, and that is raised.
    """
    slots = None if at_most is None else asyncio.Semaphore(at_most)

    async def one(item: I) -> T:
        async with AsyncExitStack() as stack:
            if slots is not None:
                await stack.enter_async_context(slots)
            return await function(item)

    tasks = [spawn(branch, one(item)) for item, branch in placed]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                task.result()
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""Work that outlives the request that starts it.

asyncio gives a new task or timer the context of the code that starts it. Without `detached`, the log
lines of shared work would have the call id of the first caller, and its AWS calls that caller's
deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def detached(start: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Return `start(*args, **options)`, called in an empty context, which the task or timer that it
    starts gets: `detached(asyncio.create_task, work())`."""
    return Context().run(start, *args, **options)


async def cancelled(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks and wait for their end. Ignore their errors, and `None`."""
    started = [task for task in tasks if task is not None]
    for task in started:
        task.cancel()
    await asyncio.gather(*started, return_exceptions=True)

"""Work that outlives the request that starts it.

asyncio gives a new task or timer the context of the code that starts it. Without `detached`, the log
lines of shared work would have the call id of the first caller, and its AWS calls that caller's
deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def detached(start: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Return `start(*args, **options)`, called in an empty context, which the task or timer that it
    starts gets: `detached(asyncio.create_task, work())`."""
    return Context().run(start, *args, **options)

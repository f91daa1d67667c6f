"""Calls that cannot suspend: they ask nothing, record no step and become no task. They need no
journal and no engine, only their deadline.

    run_direct(call) → Completed(value) | Failed(error)
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeAlias, TypeVar

from roundgate.aio import ticker
from roundgate.auth import Principal
from roundgate.clock import Deadline
from roundgate.protocol import Meta
from roundgate.replay.context import Context, log_to_client, run_of
from roundgate.replay.driving import InOwnContext
from roundgate.replay.engine import Completed, Failed, call_timeout, failure_of
from roundgate.replay.run import Authorize, Call, Notify

T = TypeVar("T")

SOON_S: Final = 0.1
"""Time limits in seconds below this need a timer of their own; others wait for a tick first."""


class DirectContext:
    """The part of a `Context` that a call without the engine has."""

    __slots__ = ("authorize", "deadline", "meta", "notify", "principal")

    task_id = None
    cleanup = None

    def __init__(
        self,
        principal: Principal,
        deadline: Deadline,
        meta: Meta,
        notify: Notify | None,
        authorize: Authorize | None,
    ) -> None:
        self.principal = principal
        self.deadline = deadline
        self.meta = meta
        self.notify = notify
        self.authorize = authorize
        """As `Call.authorize`."""

    async def log(self, level: str, data: Any, logger: str | None = None) -> None:
        """As `Context.log`."""
        await log_to_client(self, level, data, logger)

    async def idempotency_key(self, name: str) -> str:
        """Return a new key: the call runs once."""
        return self.deadline.clock.new_id()

    async def continue_as_task(self) -> None:
        """Do nothing: the call cannot become a task."""


AnyContext: TypeAlias = Context | DirectContext


def call_of(context: AnyContext) -> Call | DirectContext:
    """Return the facts of the call of a context."""
    return context if isinstance(context, DirectContext) else run_of(context).call


class _Limit:
    """A time limit that is set once a call has taken longer than most."""

    __slots__ = ("_limit", "_when")

    def __init__(self, limit: asyncio.Timeout, when: float) -> None:
        self._limit, self._when = limit, when

    def start(self) -> None:
        self._limit.reschedule(self._when)


async def run_direct(call: Coroutine[Any, Any, T], deadline: Deadline) -> Completed[T] | Failed:
    """Run a call to its end or to its deadline, in a context of its own: pipelined requests share
    one.

    Raises:
        CancelledError: the call was cancelled.
    """
    remaining_ms = deadline.remaining_ms()
    limit_s = None if remaining_ms is None else remaining_ms / 1000
    is_soon = limit_s is None or limit_s < SOON_S
    limit = asyncio.timeout(limit_s if is_soon else None)
    later = None
    if limit_s is not None and not is_soon:
        later = _Limit(limit, asyncio.get_running_loop().time() + limit_s)
        ticker().add(later)
    try:
        async with limit:
            return Completed(await InOwnContext(call))
    except BaseException as error:
        if limit_s is not None and limit.expired() and isinstance(error, TimeoutError):
            return Failed(call_timeout(limit_s))
        return Failed(failure_of(error))
    finally:
        if later is not None:
            ticker().discard(later)

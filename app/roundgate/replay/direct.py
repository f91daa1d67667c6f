"""Calls that cannot suspend: they ask nothing, record no step and become no task. They need no
journal and no engine, only their deadline.

    run_direct(call, context) → Completed(value) | Failed(error)
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeAlias, TypeVar

from msgspec import Struct

from roundgate.aio import InOwnContext, TaskWatch
from roundgate.auth import Principal
from roundgate.clock import Deadline
from roundgate.protocol import Meta
from roundgate.replay.context import Context, log_to_client, run_of
from roundgate.replay.engine import Completed, Failed, failure_of, late_error
from roundgate.replay.run import Authorize, Call, Notify

T = TypeVar("T")


class DirectContext(Struct, kw_only=True, eq=False):
    """The part of a `Context` that a call without the engine has."""

    principal: Principal
    meta: Meta
    deadline: Deadline
    watch: TaskWatch
    """The watch over the request, which cancels the call at its deadline."""
    notify: Notify | None = None
    """Sends notifications on the stream of the request; `None` if the client wants none or accepts
    no stream."""
    authorize: Authorize | None = None
    """As `Call.authorize`."""
    task_id: ClassVar[None] = None
    cleanup: ClassVar[None] = None

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


async def run_direct(call: Coroutine[Any, Any, T], context: DirectContext) -> Completed[T] | Failed:
    """Run a call to its end or to its deadline, in a context of its own: pipelined requests share
    one.

    Raises:
        CancelledError: the call was cancelled.
    """
    watch, deadline = context.watch, context.deadline
    limit_s = watch.limit(deadline)
    try:
        value = await InOwnContext(call)
    except BaseException as error:
        # some libraries convert the cancellation
        if watch.end_limit() and isinstance(error, CancelledError | TimeoutError):
            return Failed(late_error(deadline, limit_s))
        return Failed(failure_of(error))
    watch.end_limit()
    return Completed(value)

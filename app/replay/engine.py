"""The engine: one function through which every handler runs, whatever back end it belongs to.

`run` turns what a handler does into a value: it returned (`Completed`) or it ended in an exception (`Failed`).
Cancellation of the call is neither: it passes through, because nobody is waiting for the outcome any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from app.errors import CallTimeout
from app.replay.context import Context

T = TypeVar("T")
Handler: TypeAlias = Callable[[Context], Awaitable[T]]


@dataclass(frozen=True, slots=True)
class Completed(Generic[T]):
    """The handler returned."""

    value: T


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised; a deadline that passed is a `CallTimeout`."""

    error: Exception


async def run(handler: Handler[T], context: Context) -> Completed[T] | Failed:
    """Run a handler to its end or to its deadline."""
    remaining_ms = context.deadline.remaining_ms()
    try:
        if remaining_ms is None:
            return Completed(await handler(context))
        async with asyncio.timeout(remaining_ms / 1000) as limit:
            return Completed(await handler(context))
    except TimeoutError as error:
        if remaining_ms is not None and limit.expired():
            return Failed(CallTimeout(f"The call did not finish within {round(remaining_ms / 1000, 2):g} s"))
        return Failed(error)
    except asyncio.CancelledError as error:
        if _is_being_cancelled():
            raise
        return Failed(_caused_by(error, "what the handler waited for was cancelled, the call itself was not"))
    except SystemExit as error:  # as argparse raises it; it would end the server
        return Failed(_caused_by(error, f"the handler called sys.exit({error.code!r})"))
    except Exception as error:
        return Failed(error)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _caused_by(error: BaseException, message: str) -> RuntimeError:
    failure = RuntimeError(message)
    failure.__cause__ = error
    return failure

"""Code in a context of its own: the context variables that it sets are discarded at its end.

A replay does not run a step again. So a handler must not see a variable that a step has set, nor
the next run one that the handler has set.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class InOwnContext(Generic[T]):
    """An awaitable that runs a coroutine in a copy of the current context, in the current task."""

    __slots__ = ("_context", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._context = copy_context()

    def __await__(self) -> Generator[Any, Any, T]:
        run, coroutine = self._context.run, self._coroutine
        resume = partial(coroutine.send, None)
        while True:
            try:
                awaited = run(resume)
            except StopIteration as ended:
                value: T = ended.value
                return value
            try:
                resume = partial(coroutine.send, (yield awaited))
            except BaseException as error:
                resume = partial(coroutine.throw, error)


async def awaiting(awaitable: Awaitable[T]) -> T:
    """Await an awaitable from a coroutine."""
    return await awaitable

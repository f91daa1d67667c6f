"""Stores and queues that a test opens again and again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar


class _Closed(Protocol):
    async def aclose(self) -> None: ...


T = TypeVar("T", bound=_Closed)


@asynccontextmanager
async def reopening(make: Callable[[], T]) -> AsyncIterator[Callable[[], T]]:
    """Yield a function that makes another one; all of them are closed at the end."""
    made: list[T] = []

    def open_one() -> T:
        made.append(make())
        return made[-1]

    yield open_one
    for one in made:
        await one.aclose()

"""The requests of this process that follow calls. Their number is limited, and they read their task
immediately when an answer or a cancellation arrives in this process."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from roundgate.auth import Principal
from roundgate.errors import Unavailable
from roundgate.storage import TaskRef


class Followers:
    """The requests that wait for a change of a hidden task, or run without their client.

    Args:
        max_open: the limit on such requests at once.
        max_per_caller: the limit on such requests of one caller.
    """

    def __init__(self, *, max_open: int, max_per_caller: int) -> None:
        self._max_open = max_open
        self._max_per_caller = max_per_caller
        self._news: defaultdict[TaskRef, set[asyncio.Event]] = defaultdict(set)
        self._of_caller: Counter[tuple[str, str, str]] = Counter()
        self.is_closing = False
        """Whether the server is shutting down."""

    @property
    def open(self) -> int:
        """The number of waiting requests."""
        return self._of_caller.total()

    def close(self) -> None:
        """Make every request stop waiting, now and later."""
        self.is_closing = True
        self.wake(*self._news)

    def wake(self, *refs: TaskRef) -> None:
        """Make the requests that follow these tasks read them immediately."""
        for ref in refs:
            for news in self._news.get(ref, ()):
                news.set()

    def check_room(self, owner: Principal) -> None:
        """Raise Unavailable unless another request of the caller may wait."""
        if self.open >= self._max_open or self._of_caller[owner.identity] >= self._max_per_caller:
            raise Unavailable(
                "Too many calls wait for answers (http.max_streams, http.max_streams_per_caller);"
                " answer their questions, or cancel them, first"
            )

    @contextmanager
    def room(self, owner: Principal) -> Iterator[None]:
        """Count a request within the block; raise Unavailable as `check_room` does."""
        self.check_room(owner)
        self._of_caller[owner.identity] += 1
        try:
            yield
        finally:
            self._of_caller[owner.identity] -= 1
            if not self._of_caller[owner.identity]:
                del self._of_caller[owner.identity]

    @contextmanager
    def following(self, ref: TaskRef, owner: Principal) -> Iterator[asyncio.Event]:
        """Count a request within the block, and yield an event that is set when the task may have
        changed. Raise Unavailable as `room` does."""
        news = asyncio.Event()
        with self.room(owner):
            self._news[ref].add(news)
            try:
                yield news
            finally:
                self._news[ref].discard(news)
                if not self._news[ref]:
                    del self._news[ref]

"""Room for the answers of a process that wait for their readers, as handlers and methods see it.

`roundgate serve` sets `ROOM` for each request (`http.unread`); other servers do not bound such
answers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, Protocol, TypeVar

from roundgate.aio.threads import Threads
from roundgate.auth import Principal
from roundgate.errors import Inside

T = TypeVar("T")


class Room(Protocol):
    """The room for the answers to the caller of a request."""

    @property
    def is_idle(self) -> bool:
        """Return whether no answer waits."""

    @property
    def has_room(self) -> bool:
        """Return whether the caller may cause further answers. Safe in any thread."""

    async def wait(self) -> None:
        """Wait until the caller may cause further answers; raise AnswersUnread after a while."""

    async def keep(self, size: int) -> None:
        """Count a finished result of about `size` bytes, and wait until it may be encoded.

        Raises:
            AnswersUnread: there is no room for the result.
        """

    def hold(self, size: int) -> None:
        """Count an encoded result until it is written."""


ROOM: Final[ContextVar[Room | None]] = ContextVar("roundgate.room", default=None)


def crowded_room() -> Room | None:
    """Return the room of the current request while answers wait, otherwise `None`."""
    room = ROOM.get()
    return None if room is None or room.is_idle else room


class _NoRoom(Inside):
    """The caller may not cause further answers now."""


async def run_with_room(threads: Threads, function: Callable[[], T], caller: Principal) -> T:
    """Run a function in a thread as `Threads.run` does, but not before the caller has room for its
    answer. A function that waits for room holds no thread."""
    room = ROOM.get()
    if room is None:
        return await threads.run(function, caller)

    def run() -> T:
        if not room.has_room:
            raise _NoRoom
        return function()

    while True:
        try:
            return await threads.run(run, caller)
        except _NoRoom:
            await room.wait()

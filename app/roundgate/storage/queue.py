"""The port of the task queue: hints that a task wants a worker.

A message carries the reference of a task and nothing else. It is delivered at least once, in any
order, perhaps late; one that is lost costs time and nothing more, because the sweep sends another
(`TaskStore.due`). Whoever gets a message asks the task's row what is to be done.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from roundgate.storage.tasks import TaskRef


@dataclass(frozen=True, slots=True)
class Message:
    """A delivery. `receipt` stands for this one alone, not for a later one of the same message."""

    ref: TaskRef
    receipt: str


class TaskQueue(Protocol):
    """Every method raises `Unavailable` when the queue cannot be reached.

    Owners take turns: one with ten thousand messages delays the single
    message of another by little.
    """

    async def send(self, ref: TaskRef, delay_ms: int = 0) -> None:
        """Have a message delivered, not before the delay is over; queues round it up to
        what they can, and cap it.

        A queue may keep one message for a task: a later send then brings it
        forward, and never puts it off.
        """

    async def send_many(self, refs: Sequence[TaskRef]) -> None:
        """The same for several at once, without delay, in as few calls as the queue can."""

    async def receive(
        self, limit: int, wait_ms: int, *, skip: Collection[str] = ()
    ) -> Sequence[Message]:
        """Up to `limit` messages, waiting for the first until `wait_ms` are over.

        They stay hidden from others for a while and are delivered again unless they are deleted by
        then. `skip` names owners that have enough running here; a queue that can leaves their
        messages to others (see `put_back`).
        """

    async def delete(self, messages: Sequence[Message]) -> None:
        """Never deliver these again. One that was delivered again meanwhile is
        unharmed by an old receipt."""

    async def put_back(self, messages: Sequence[Message], delay_ms: int = 0) -> None:
        """Have these delivered again once the delay is over, to whoever asks: we
        cannot work on them now."""

    async def depth(self) -> int | None:
        """About how many messages wait to be delivered; `None` where nobody knows."""

    async def waiting(self, refs: Sequence[TaskRef]) -> Collection[TaskRef] | None:
        """Those of these tasks that have a message in the queue, and need no other;
        `None` where nobody knows."""

    async def aclose(self) -> None:
        """Let go of connections; a waiting `receive` ends."""

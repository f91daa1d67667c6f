"""The port of the task queue: hints that a task needs a worker.

A message carries only the reference of a task; the worker reads the task's record to learn its
state. Messages are delivered at least once, in any order, perhaps late. A lost message only costs
time, because the sweep sends another (`TaskStore.scan`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

from roundgate.storage.tasks import TaskRef


class Message(Struct, frozen=True):
    """A delivery of a message. Each delivery has its own `receipt`."""

    ref: TaskRef
    receipt: str


class TaskQueue(Protocol):
    """A queue of task references. Every method raises `Unavailable` if the queue cannot be
    reached.

    Owners take turns, so one owner's ten thousand messages hardly delay another owner's single
    message.
    """

    async def send(self, ref: TaskRef, delay_ms: int = 0) -> None:
        """Send a message that is delivered after `delay_ms` or later. Queues may round the delay
        up and cap it.

        A queue may keep one message per task. Then a later send can bring the message forward, but
        never postpones it.
        """

    async def send_many(self, refs: Sequence[TaskRef]) -> None:
        """Send several messages without delay, in as few calls as possible."""

    async def receive(
        self, limit: int, wait_ms: int, *, skip: Collection[str] = ()
    ) -> Sequence[Message]:
        """Return up to `limit` messages; wait up to `wait_ms` for the first.

        The queue hides received messages for a while, then delivers them again unless they are
        deleted. `skip` names owners that already have enough running tasks in this process; a queue
        that can do so leaves their messages to other workers (see `put_back`).
        """

    async def delete(self, messages: Sequence[Message]) -> None:
        """Delete messages. An old receipt does not affect a message that was delivered again."""

    async def put_back(self, messages: Sequence[Message], delay_ms: int = 0) -> None:
        """Return messages that this worker cannot handle now; any worker may receive them after
        `delay_ms`."""

    async def depth(self) -> int | None:
        """Return the approximate number of messages waiting for delivery, or `None` if unknown."""

    async def waiting(self, refs: Sequence[TaskRef]) -> Collection[TaskRef] | None:
        """Return the tasks among `refs` that have a message in the queue, or `None` if unknown."""

    async def aclose(self) -> None:
        """Close the connections and end a waiting `receive`."""

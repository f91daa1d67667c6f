"""The port of the task queue: hints that a task wants a worker.

A message carries the reference of a task and nothing else. It is delivered at least once, in any order, perhaps late;
one that is lost costs time and nothing more, because the sweep sends another (`TaskStore.due`). Whoever gets a message
asks the task's row what is to be done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from app.storage.tasks import TaskRef


@dataclass(frozen=True, slots=True)
class Message:
    """A delivery. `receipt` stands for this one alone, not for a later one of the same message."""

    ref: TaskRef
    receipt: str


class TaskQueue(Protocol):
    """Every method raises `Unavailable` when the queue cannot be reached."""

    async def send(self, ref: TaskRef, delay_ms: int = 0) -> None:
        """Have a message delivered, not before the delay is over; queues round it up to what they can, and cap it."""

    async def receive(self, limit: int, wait_ms: int) -> Sequence[Message]:
        """Up to `limit` messages, waiting for the first until `wait_ms` are over.

        They stay hidden from others for a while and are delivered again unless they are deleted by then.
        """

    async def delete(self, messages: Sequence[Message]) -> None:
        """Never deliver these again. One that was delivered again meanwhile is unharmed by an old receipt."""

    async def aclose(self) -> None:
        """Let go of connections; a waiting `receive` ends."""

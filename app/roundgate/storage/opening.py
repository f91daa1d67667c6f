"""What a kind of store gets to open its parts, and what it returns (`settings.process.STORES`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from roundgate.clock import Clock
from roundgate.storage.queue import TaskQueue
from roundgate.storage.sessions import SessionStore
from roundgate.storage.tasks import TaskStore


class Opening(Struct, frozen=True):
    """The settings of a process that a store may need."""

    text: str
    """The text of GATEWAY_STORE."""
    file: Path
    """A SQLite file on this machine, for the store itself or for a queue beside it."""
    clock: Clock
    connections: int
    shards: int
    queue: TaskQueue | None
    """The queue that GATEWAY_QUEUE names; `None` for the store's own."""


class StoreFacts(Struct, frozen=True):
    """What a process knows of its store."""

    prepares: Sequence[Callable[[], None]] = ()
    """Functions that make AWS clients before the first call needs them."""
    clock_skew_s: float = 5.0
    """The assumed maximum difference of clocks in seconds, unless the configuration sets one."""
    trouble: Callable[[], str | None] = lambda: None
    """Returns why the store cannot be used, or `None`, without a call of the store."""
    id: Callable[[], str | None] = lambda: None
    """Returns the id of the SQLite file or PostgreSQL database, which its processes share; `None`
    before it is opened, and for DynamoDB."""


class Ports(NamedTuple):
    """The parts of a store. Nothing is connected before its first use."""

    tasks: TaskStore
    queue: TaskQueue
    sessions: SessionStore
    facts: StoreFacts

"""The choice of a connection to close when another one arrives at the limit of a process.

Attackers hold connections open and send nothing, or slowly; honest clients send a request at once
and read its answer. So the process closes connections in this order. Within a stage, it begins with
the address that holds the most connections, the oldest first:

    ENDING → NEW, beyond an eighth of all places → RECEIVING → IDLE → ANSWERING, of an
    address over its share → NEW

The eighth keeps new connections in a flood from closing each other before any could send its
request. From RECEIVING on, connections younger than a second are spared, except for connections of
an address that sends many requests in parts, and an idle connection whose own address needs the
place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import IntEnum
from itertools import chain
from operator import attrgetter
from typing import Final, Protocol, TypeVar

SETTLED_S: Final = 1.0
"""Seconds for which a connection in RECEIVING or a later stage is spared."""


class Stage(IntEnum):
    """The stage of a connection."""

    ENDING = 0
    """The connection was refused, or is being closed."""
    NEW = 1
    """No complete head has arrived on the connection yet."""
    RECEIVING = 2
    """A part of a request has arrived."""
    IDLE = 3
    """The last request was answered."""
    ANSWERING = 4
    """A request is being served, or its response read."""


class ServedConnection(Protocol):
    """The facts of a connection that the choice depends on."""

    @property
    def stage(self) -> Stage:
        """The stage of the connection."""

    @property
    def since(self) -> float:
        """The time at which the stage began, in seconds on the event loop's clock."""

    @property
    def address(self) -> str:
        """The client's address (`client_address`)."""


C = TypeVar("C", bound=ServedConnection)


def connection_to_close(
    held: Iterable[C], newcomer: str, *, places: int, share: int, now: float
) -> C | None:
    """Return the connection to close for a newcomer, or `None` to refuse the newcomer.

    Args:
        held: the open connections, without the newcomer.
        newcomer: the address of the new connection.
        places: the limit on connections.
        share: the number of connections that an address keeps while it uses them.
        now: the time on the clock of `ServedConnection.since`, in seconds.
    """
    stages: list[list[C]] = [[] for _ in Stage]
    for connection in held:
        stages[connection.stage].append(connection)
    new = stages[Stage.NEW]
    return (
        _of_the_largest(stages[Stage.ENDING])
        or _of_the_largest(new if len(new) >= max(1, places // 8) else [])
        or _of_the_largest(_slow(stages[Stage.RECEIVING], newcomer, now))
        or _of_the_largest(_unused(stages[Stage.IDLE], newcomer, now))
        or _over_share(stages, newcomer, share, now)
        or _of_the_largest(new)
    )


def _slow(receiving: list[C], newcomer: str, now: float) -> list[C]:
    """Return the connections whose request arrives slowly, or whose address has more such
    connections than the newcomer's address."""
    counts = _counts(receiving)
    few = max(1, counts[newcomer])
    return [
        connection
        for connection in receiving
        if now - connection.since >= SETTLED_S or counts[connection.address] > few
    ]


def _unused(idle: list[C], newcomer: str, now: float) -> list[C]:
    return [
        connection
        for connection in idle
        if now - connection.since >= SETTLED_S or connection.address == newcomer
    ]


def _over_share(stages: list[list[C]], newcomer: str, share: int, now: float) -> C | None:
    """Return the oldest call of the address furthest over its share, or `None` if there is none or
    the newcomer's address is not below its own share."""
    counts = _counts(chain.from_iterable(stages))
    if counts[newcomer] >= share:
        return None
    running = (
        connection
        for connection in stages[Stage.ANSWERING]
        if now - connection.since >= SETTLED_S and counts[connection.address] > share
    )
    return max(
        running,
        key=lambda connection: (counts[connection.address], -connection.since),
        default=None,
    )


def _of_the_largest(group: list[C]) -> C | None:
    """Return the oldest connection of the address, or addresses, with the most connections; `None`
    if the group is empty."""
    counts = _counts(group)
    most = max(counts.values(), default=0)
    largest = (connection for connection in group if counts[connection.address] == most)
    return min(largest, key=attrgetter("since"), default=None)


def _counts(connections: Iterable[ServedConnection]) -> Counter[str]:
    return Counter(map(attrgetter("address"), connections))

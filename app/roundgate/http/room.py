"""Which connection makes room when a process has as many as it may have, and one more arrives.

Who attacks holds connections open and gives nothing, or much too slowly; who is served sends
a request at once and reads its answer. So connections are given up in the order of what they
are worth, and in the same stage first those of the address that holds the most of them, the
oldest before the others:

    ENDING → NEW, beyond an eighth of all places → RECEIVING → IDLE → ANSWERING, of an
    address over its share → NEW

The eighth keeps a flood of new connections from ending each other before any of them could send its
request. From RECEIVING on nothing is given up that is younger than a second, so that under honest
load nobody is cut off in the middle of a request for somebody who will be as well; but addresses
that send many requests in parts are not spared, and a newcomer takes the place of an idle
connection of its own address at any time. Pure: knows no sockets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol, TypeVar

SETTLED_S: Final = 1.0
"""For how long a request has to have been coming, a connection to have been idle or a call to have
run, before it may be given up for another."""


class Stage(Enum):
    """What a connection is doing."""

    ENDING = auto()
    """It was refused, or is being closed."""
    NEW = auto()
    """No whole head of a request has ever come on it."""
    RECEIVING = auto()
    """It has sent a part of a request, and the rest has not come yet."""
    IDLE = auto()
    """Its last request was answered."""
    ANSWERING = auto()
    """A request is being served, or its answer read."""


class Connection(Protocol):
    """What has to be known of one."""

    @property
    def stage(self) -> Stage:
        """What it is doing."""

    @property
    def since(self) -> float:
        """From when on, in seconds of the same clock for all."""

    @property
    def address(self) -> str:
        """Where it comes from (`address_of`)."""


C = TypeVar("C", bound=Connection)


def address_of(host: str) -> str:
    """What counts as one address: an IPv4 address, or a /64 of IPv6, which is what a
    single customer is given."""
    try:
        found = ip_address(host)
    except ValueError:  # a Unix socket has none
        return host
    if not isinstance(found, IPv6Address):
        return host
    return str(found.ipv4_mapped) if found.ipv4_mapped else str(IPv6Address(int(found) >> 64 << 64))


def makes_room(held: Iterable[C], newcomer: C, *, places: int, share: int, now: float) -> C | None:
    """The connection to be given up for the newcomer; `None` if there is none:
    then the newcomer is refused.

    Args:
        held: the connections that there are.
        newcomer: the one that has just been opened.
        places: how many there may be in all.
        share: how many of them nobody takes from an address that uses them.
        now: in seconds, of the clock by which connections are aged.
    """
    stages: dict[Stage, list[C]] = {stage: [] for stage in Stage}
    for one in held:
        if one is not newcomer:
            stages[one.stage].append(one)
    new = stages[Stage.NEW]
    return (
        _of_the_largest(stages[Stage.ENDING])
        or _of_the_largest(new if len(new) >= max(1, places // 8) else [])
        or _of_the_largest(_slow(stages[Stage.RECEIVING], newcomer, now))
        or _of_the_largest(_unused(stages[Stage.IDLE], newcomer, now))
        or _over_share(stages, newcomer, share, now)
        or _of_the_largest(new)
    )


def _slow(receiving: Sequence[C], newcomer: C, now: float) -> list[C]:
    """What has been coming for too long, or is one of many of an address that
    is not the newcomer's."""
    counts = Counter(one.address for one in receiving)
    few = max(1, counts[newcomer.address])
    return [one for one in receiving if now - one.since >= SETTLED_S or counts[one.address] > few]


def _unused(idle: Sequence[C], newcomer: C, now: float) -> list[C]:
    """What has been idle for a while, or comes from where the newcomer does."""
    return [one for one in idle if now - one.since >= SETTLED_S or one.address == newcomer.address]


def _over_share(
    stages: Mapping[Stage, Sequence[C]], newcomer: C, share: int, now: float
) -> C | None:
    """Of an address with more than its share, the call that has run for the longest; only
    for an address below it."""
    counts = Counter(one.address for group in stages.values() for one in group)
    if counts[newcomer.address] >= share:
        return None
    running = (
        one
        for one in stages[Stage.ANSWERING]
        if now - one.since >= SETTLED_S and counts[one.address] > share
    )
    return max(running, key=lambda one: (counts[one.address], -one.since), default=None)


def _of_the_largest(group: Sequence[C]) -> C | None:
    """The oldest of the address with the most, if there is any."""
    counts = Counter(one.address for one in group)
    return max(group, key=lambda one: (counts[one.address], -one.since), default=None)

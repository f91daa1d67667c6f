"""One timer for all calls of an event loop, for work that only long calls need.

A call registers the work at its start and discards it at its end. Most calls end before the timer
ticks, so they pay for neither a timer nor the work.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol
from weakref import WeakKeyDictionary

TICK_S: Final = 0.02
"""Seconds between two ticks. Work starts after one to two ticks."""


class Later(Protocol):
    """Work that starts unless it is discarded before."""

    def start(self) -> None:
        """Start the work."""


class Ticker:
    """The timer of one event loop. It is idle while nothing is registered."""

    def __init__(self) -> None:
        self._new: dict[Later, None] = {}
        self._old: dict[Later, None] = {}
        self._due: dict[Later, None] = {}
        self._is_ticking = False

    def add(self, later: Later) -> None:
        """Start some work after one to two ticks, unless it is discarded before."""
        self._new[later] = None
        if not self._is_ticking:
            self._is_ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def discard(self, later: Later) -> None:
        """Forget some work. It may have started."""
        if later in self._new:
            del self._new[later]
        else:
            self._old.pop(later, None)
            self._due.pop(later, None)

    def _tick(self) -> None:
        self._due, self._old, self._new = self._old, self._new, {}
        self._is_ticking = bool(self._old)
        if self._is_ticking:
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
        while self._due:
            self._due.popitem()[0].start()


_tickers: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Ticker]] = WeakKeyDictionary()


def ticker() -> Ticker:
    """Return the ticker of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _tickers.get(loop)
    if found is None:
        found = _tickers[loop] = Ticker()
    return found

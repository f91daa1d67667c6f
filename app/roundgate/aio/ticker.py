"""One timer for all calls of an event loop, for work that only long calls need.

A call registers the work at its start and discards it at its end. Most calls end before the timer
ticks, so they pay for neither a timer nor the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

TICK_S: Final = 0.02
"""Seconds between two ticks. Work starts after one to two ticks."""


class Later:
    """Work that starts unless it is discarded before."""

    __slots__ = ("_ticker", "start")

    def __init__(self, start: Callable[[], object], ticker: Ticker) -> None:
        self.start = start
        self._ticker = ticker

    def discard(self) -> None:
        """Forget the work. It may have started."""
        self._ticker.discard(self)


class Ticker:
    """The timer of one event loop. It is idle while nothing is registered."""

    def __init__(self) -> None:
        self._new: dict[Later, None] = {}
        self._old: dict[Later, None] = {}
        self._is_ticking = False

    def later(self, start: Callable[[], object]) -> Later:
        """Call `start` after one to two ticks, unless the result is discarded before."""
        later = Later(start, self)
        self._new[later] = None
        if not self._is_ticking:
            self._is_ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
        return later

    def discard(self, later: Later) -> None:
        """Forget some work."""
        self._new.pop(later, None)
        self._old.pop(later, None)
        later.start = _do_nothing  # other work of the same tick may discard it

    def _tick(self) -> None:
        due, self._old, self._new = self._old, self._new, {}
        self._is_ticking = bool(self._old)
        if self._is_ticking:
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
        for later in due:
            later.start()


def _do_nothing() -> None:
    """Start nothing."""


_tickers: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Ticker]] = WeakKeyDictionary()


def ticker() -> Ticker:
    """Return the ticker of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _tickers.get(loop)
    if found is None:
        found = _tickers[loop] = Ticker()
    return found

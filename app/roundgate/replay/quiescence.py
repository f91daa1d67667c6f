"""Coming to rest: when all branches of a handler wait for something outside of it.

Branches *park* at what cannot be had now. The run is suspended once all have come to rest, so that
questions asked side by side go out together, and so that a step that is being run is not cut.

    branch 1   ask a ──────── parked ───────────────┐
    branch 2   step s ─── runs to its end ─ ask b ──┤ nothing moves any more: a and b go out
    branch 3   sleep ── parked until its time ──────┘ (its time comes first: it goes on)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from roundgate.clock import Clock
from roundgate.replay.branches import Branch

QUIET_TURNS: Final = 10
"""Turns of the event loop without any engine call after which the handler's
branches count as at rest."""


@dataclass(slots=True, eq=False)
class Parked:
    """A branch that waits. `until_ms` is when its wait is over whatever happens, in
    milliseconds since the epoch."""

    branch: Branch
    until_ms: int | None
    future: asyncio.Future[None]


class Quiescence:
    """What is busy in one run, and what waits."""

    __slots__ = (
        "_activity",
        "_clock",
        "_hold_s",
        "_in_flight",
        "_on_rest",
        "_sleeping",
        "_watching",
        "parked",
    )

    def __init__(
        self, on_rest: Callable[[], None], hold_s: Callable[[], float], clock: Clock
    ) -> None:
        """A watch over one run.

        Args:
            on_rest: called once all branches wait.
            hold_s: says for how many more seconds it is worth waiting before that, because
                something will go on soon.
            clock: whose time passes meanwhile.
        """
        self._on_rest = on_rest
        self._hold_s = hold_s
        self._clock = clock
        self.parked: dict[Parked, None] = {}
        self._in_flight = 0
        self._sleeping = 0
        self._activity = 0
        self._watching = False

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Count as busy while the block runs, though it does not call the engine."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        """Something is busy from now on."""
        self._in_flight += 1

    def end(self) -> None:
        """It is busy no more."""
        self._in_flight -= 1
        self.stir()

    async def sleep(self, seconds: float) -> None:
        """Wait in this process. It counts as busy: the run does not come to rest before."""
        self._in_flight += 1
        self._sleeping += 1
        self.stir()
        try:
            await self._clock.sleep(seconds)
        finally:
            self._sleeping -= 1
            self.end()

    async def park(
        self, branch: Branch, until_ms: int | None = None, for_ms: float | None = None
    ) -> None:
        """Wait until the run is suspended, or for a time.

        Raises:
            Suspend: the run came to rest first.
        """
        loop = asyncio.get_running_loop()
        one = Parked(branch, until_ms, loop.create_future())
        self.parked[one] = None
        timer = (
            None
            if for_ms is None
            else self._clock.call_later(max(0.0, for_ms) / 1000, partial(wake, one.future))
        )
        self.stir()
        try:
            await one.future
        finally:
            del self.parked[one]
            if timer is not None:
                timer.cancel()
            self.stir()

    def unpark(self, error: Callable[[], BaseException]) -> None:
        """End every wait."""
        for one in self.parked:
            if not one.future.done():
                one.future.set_exception(error())

    def close(self) -> None:
        """Call nobody any more, and cancel every wait."""
        self._on_rest, self._hold_s = _nothing, _no_time
        for one in self.parked:
            one.future.cancel()

    def stir(self) -> None:
        """Something happened: count quiet turns of the event loop from the
        start, if any branch waits."""
        self._activity += 1
        if (self.parked or self._sleeping) and not self._watching:
            self._watching = True
            asyncio.get_running_loop().call_soon(self._watch, self._activity, QUIET_TURNS)

    def _watch(self, seen: int, turns: int) -> None:
        loop = asyncio.get_running_loop()
        if self._in_flight > self._sleeping or not (self.parked or self._sleeping):
            self._watching = False  # the end of what moves stirs again
        elif seen != self._activity or turns:
            left = turns - 1 if seen == self._activity else QUIET_TURNS
            loop.call_soon(self._watch, self._activity, left)
        elif self._sleeping:
            self._watching = self._clock.pass_time()
            if self._watching:
                loop.call_soon(self._watch, self._activity, QUIET_TURNS)
        elif (hold_s := self._hold_s()) > 0:
            after_s = 0 if self._clock.pass_time() else hold_s
            loop.call_later(after_s, self._watch, self._activity, QUIET_TURNS)
        else:
            self._watching = False
            self._on_rest()


def _nothing() -> None:
    """Do nothing."""


def _no_time() -> float:
    return 0.0


def wake(future: asyncio.Future[None]) -> None:
    """Have whoever waits for it go on, if that was not done already."""
    if not future.done():
        future.set_result(None)

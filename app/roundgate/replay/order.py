"""Branches learn what is remembered in the order in which it became known.

    run 1   quote b finished ── "b was first": use b ── quote a finished
    run 2   a and b are both known: b is told first, then whatever follows from it happens, then a is told

So `asyncio.as_completed`, `asyncio.wait(…, FIRST_COMPLETED)`, and what a branch does when a failed sibling cancels it,
go the same way in every run. Nothing new begins before all that is remembered has been told.

What nobody asks for holds the others up for `GRACE_S` once: a new version of the handler may have dropped it, and
branches that wait for something outside of the engine come when they come.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Iterable
from typing import Final

from roundgate.replay.journal import Entry, Finished, Raised

TURNS: Final = 4
"""Turns of the event loop in which the end of a branch reaches who waits for it, for each level of branches."""
GRACE_S: Final = 0.02


class Order:
    """Whose turn it is to learn what is remembered. Without branches it is always the caller's."""

    __slots__ = ("_depth", "_generation", "_next", "_ranks", "_waiting")

    def __init__(self, entries: Iterable[Entry]) -> None:
        outcomes = (one.key for one in entries if isinstance(one, (Finished, Raised)) and one.what is not None)
        self._ranks: dict[str, int] = {key: rank for rank, key in enumerate(outcomes)}
        self._next = 0
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._generation = 0
        self._depth = 1

    @property
    def is_over(self) -> bool:
        """Whether all that was remembered when the run began has been told."""
        return self._next >= len(self._ranks)

    def pass_by(self, key: str) -> None:
        """The only line of the handler learns something: there is nobody to wait for."""
        self._next = max(self._next, self._ranks.get(key, -1) + 1)

    async def turn(self, key: str, depth: int) -> None:
        """Return when a branch that deep may learn what is under a key, or may begin something new there."""
        rank = self._ranks.get(key, math.inf)
        if self.is_over or rank < self._next:
            return
        self._depth = max(self._depth, depth)
        self._generation += 1
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, self._generation, future))
        self._settle()
        await future

    def _settle(self) -> None:
        turns = TURNS * (self._depth + 1)
        asyncio.get_running_loop().call_soon(self._look, self._generation, turns)

    def _look(self, generation: int, turns: int) -> None:
        while self._waiting and self._waiting[0][2].done():  # its branch was cancelled
            heapq.heappop(self._waiting)
        if generation != self._generation or not self._waiting:
            return
        loop = asyncio.get_running_loop()
        if turns > 0:
            loop.call_soon(self._look, generation, turns - 1)
        elif self._waiting[0][0] > self._next and turns == 0:
            loop.call_later(GRACE_S, self._look, generation, -1)
        else:
            self._tell()

    def _tell(self) -> None:
        rank, _, future = heapq.heappop(self._waiting)
        future.set_result(None)
        self._next = len(self._ranks) if rank == math.inf else int(rank) + 1
        self._generation += 1
        if self.is_over:
            for _, _, other in self._waiting:
                if not other.done():
                    other.set_result(None)
            self._waiting.clear()
        elif self._waiting:
            self._settle()

"""Branches learn things one by one, and in every run in the order in which they learned them first.

    run 1   quote b finished ── "b was first": use b ── the answer came ── quote a finished
    run 2   all three are known: b is told first, then whatever follows from it happens, then the answer, then a

So `asyncio.as_completed`, `asyncio.wait(…, FIRST_COMPLETED)`, and what a branch does when a failed
sibling cancels it, go the same way in every run. What is learned is the outcome of a step, the end
of a sleep, answers, and that something was given up. Each has a *rank*: the place of its entry in
the journal, and while a run goes on one behind all others.

Nothing new is learned before all that is remembered has been told. A new version of the handler may
have dropped something. What a branch passes by holds nobody up: its places come in order. What no
branch asks for holds the others up for `GRACE_S`, once in a run: branches that wait for something
outside of the engine come when they come.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from roundgate.replay.journal import Cut, Entry, Finished, Raised, Told
from roundgate.replay.quiescence import wake

TURNS: Final = 5
"""Turns of the event loop in which the end of a branch reaches who waits for it, for
each level of branches."""
LEVELS: Final = 3
"""Levels that are added: those of branches that ask the engine for nothing."""
GRACE_S: Final = 0.5


def _has_rank(entry: Entry) -> bool:
    return isinstance(entry, (Cut, Told)) or (
        isinstance(entry, (Finished, Raised)) and entry.what is not None
    )


def _path_of(key: str) -> str:
    """The path of the branch that a key belongs to."""
    place = key.removeprefix(Told.PREFIX)
    return place[: place.rfind("/") + 1]


class Order:
    """Whose turn it is to learn something. Without branches it is always the caller's."""

    __slots__ = (
        "_arrivals",
        "_depth",
        "_expected",
        "_generation",
        "_gone",
        "_has_waited",
        "_is_open",
        "_is_settling",
        "_issued",
        "_known",
        "_loop",
        "_next",
        "_of_branch",
        "_ranks",
        "_waiting",
    )

    def __init__(self, entries: Iterable[Entry]) -> None:
        """`entries` are those of the journal as the run begins."""
        self._ranks = {entry.key: rank for rank, entry in enumerate(filter(_has_rank, entries))}
        self._of_branch: defaultdict[str, deque[int]] = defaultdict(deque)
        for key, rank in self._ranks.items():
            self._of_branch[_path_of(key)].append(rank)
        self._known = self._issued = len(self._ranks)
        self._next = 0
        self._gone: set[int] = set()
        self._expected: set[int] = set()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._loop = asyncio.get_running_loop()
        self._arrivals = 0
        self._generation = 0
        self._depth = 1
        self._is_settling = False
        self._has_waited = False
        self._is_open = False

    @property
    def is_over(self) -> bool:
        """Whether all that was remembered when the run began has been told."""
        return self._next >= self._known

    def rank(self, key: str) -> float:
        """Of what was remembered under a key when the run began; else infinite: it comes
        when that has been told."""
        return self._ranks.get(key, math.inf)

    def is_new(self, key: str) -> bool:
        """Whether nothing was remembered under a key when the run began."""
        return key not in self._ranks

    def pass_by(self, key: str) -> None:
        """The only line of the handler learns something: there is nobody to wait for."""
        self._next = max(self._next, self._ranks.get(key, -1) + 1)

    def leave_behind(self, path: str, rank: float) -> None:
        """Drop everything of a branch that has a lower rank: it has passed that by, because its
        places come in order."""
        ranks = self._of_branch[path]
        while ranks and ranks[0] < rank:
            self.drop(ranks.popleft())

    def new_rank(self) -> int:
        """The rank of something that has just become known. It has to be given
        to `turn` or to `drop`."""
        self._issued += 1
        return self._issued - 1

    def drop(self, rank: float) -> None:
        """Nobody will be told what has this rank."""
        if rank < self._next or rank == math.inf:
            return
        self._gone.add(int(rank))
        self._advance()
        self._settle()

    @contextmanager
    def expected(self, rank: float) -> Iterator[None]:
        """Somebody is there to be told, who waits for something else inside the block:
        nobody is told before."""
        if rank == math.inf:
            yield
            return
        self._expected.add(int(rank))
        try:
            yield
        finally:
            self._expected.discard(int(rank))
            self._settle()

    async def turn(self, rank: float, depth: int) -> None:
        """Return when a branch that deep may learn what has a rank; or something
        new, if that is infinite.

        Whatever the handler can do without that happens before, now as in every later run.
        """
        if self._is_open or rank < self._next or (rank == math.inf and self.is_over):
            self._has_waited = False  # it was only late, and others may be
            return
        self._depth = max(self._depth, depth)
        future = self._loop.create_future()
        self._arrivals += 1
        heapq.heappush(self._waiting, (rank, self._arrivals, future))
        # of what has just become known the ranks say all
        if not (self.is_over and self._is_settling):
            self._settle()
        await future

    def open(self) -> None:
        """The run has ended: nobody waits any more."""
        self._is_open = True
        for _, _, future in self._waiting:
            wake(future)
        self._waiting.clear()

    def _settle(self) -> None:
        """Look who is next when whatever follows from the last thing told has happened,
        and nobody new has come."""
        self._is_settling = True
        self._generation += 1
        # as when Python closes what is left of a handler
        if not self._is_open and not self._loop.is_closed():
            self._loop.call_soon(self._look, self._generation, TURNS * (self._depth + LEVELS))

    def _look(self, generation: int, turns: int) -> None:
        if generation != self._generation or self._is_open:
            return
        if turns > 0:
            self._loop.call_soon(self._look, generation, turns - 1)
            return
        self._has_waited = self._has_waited or turns < 0
        while self._waiting and self._waiting[0][2].done():  # its branch was cancelled
            heapq.heappop(self._waiting)
        if self._waiting and (self._waiting[0][0] <= self._next or turns < 0):
            rank, _, future = heapq.heappop(self._waiting)
            wake(future)
            self._tell_next(rank)
        elif not self._waiting or self._next in self._expected or self.is_over:
            self._is_settling = False  # who is next comes, or is dropped
        else:
            grace_s = 0 if self._has_waited else GRACE_S
            self._loop.call_later(grace_s, self._look, generation, -1)

    def _tell_next(self, rank: float) -> None:
        self._next = max(self._next, self._known if rank == math.inf else int(rank) + 1)
        self._advance()
        self._settle()

    def _advance(self) -> None:
        while self._next in self._gone:
            self._gone.remove(self._next)
            self._next += 1
        if self.is_over:
            for rank, _, future in self._waiting:
                if rank == math.inf:
                    wake(future)

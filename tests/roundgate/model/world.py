"""Virtual time, and who moves next: event loops of several processes and the network, in
an order drawn from a seed.

Each process has an event loop of its own, first come first served as asyncio promises. Which of
them runs its next callback, and when the network brings what, is drawn. So every interleaving is
one that real processes could show.

    process 1   callback ─────────── callback            between any two: others, answers, a stop, a death
    process 2             callback             callback
    network          request performed       answer
"""

from __future__ import annotations

import asyncio
import heapq
import random
from asyncio import events
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any


class Wrong(AssertionError):
    """The product broke a promise."""


class ProcessLoop(asyncio.BaseEventLoop):
    """The event loop of one process. Its time is the world's; somebody else says when it runs a callback."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def time(self) -> float:
        return self._world.now_s

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """What nobody awaits any more is told of when it is collected: that is no event of the model."""

    @property
    def next_s(self) -> float | None:
        """When its next timer is due."""
        queue: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while queue and queue[0].cancelled():
            heapq.heappop(queue)._scheduled = False
        return queue[0].when() if queue else None

    def is_ready(self) -> bool:
        """Whether it has a callback to run just now."""
        ready: deque[Any] = self._ready  # type: ignore[attr-defined]
        while (next_s := self.next_s) is not None and next_s <= self._world.now_s:
            timer = heapq.heappop(self._scheduled)  # type: ignore[attr-defined]
            timer._scheduled = False
            ready.append(timer)
        while ready and ready[0].cancelled():
            ready.popleft()
        return bool(ready)

    def step(self) -> None:
        """Run one callback."""
        handle = self._ready.popleft()  # type: ignore[attr-defined]
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(None)


class World:
    """Everything that moves."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.now_s = 0.0
        self.steps = 0
        self.loops: list[ProcessLoop] = []
        """Those that run: of processes that are neither dead nor stopped."""
        self.wrongs: list[str] = []
        self.told: deque[str] = deque(maxlen=250)
        self.before_step: Callable[[ProcessLoop], bool] = lambda loop: True
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def tell(self, what: str) -> None:
        """Keep a line for whoever has to understand a failure."""
        self.told.append(f"{self.now_s:9.3f}  {what}")

    def wrong(self, what: str) -> None:
        """A promise is broken."""
        self.tell(f"WRONG: {what}")
        self.wrongs.append(what)

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Something outside of all processes, in so many seconds."""
        heapq.heappush(self._later, (self.now_s + seconds, next(self._number), callback))

    def run(self, is_over: Callable[[], bool], *, until_s: float, max_steps: int) -> bool:
        """Let things move; whether it was over before there was no more time."""
        while not is_over() and not self.wrongs:
            if self.steps >= max_steps or not self._move(until_s):
                return False
        return not self.wrongs

    def _move(self, until_s: float) -> bool:
        ready = [loop for loop in self.loops if loop.is_ready()]
        is_due = bool(self._later) and self._later[0][0] <= self.now_s
        if not ready and not is_due:
            return self._pass_time(until_s)
        self.steps += 1
        chosen = self.chance.randrange(len(ready) + is_due)
        if chosen == len(ready):
            heapq.heappop(self._later)[2]()
        elif self.before_step(ready[chosen]):
            ready[chosen].step()
        return True

    def _pass_time(self, until_s: float) -> bool:
        times = [next_s for loop in self.loops if (next_s := loop.next_s) is not None]
        times += [self._later[0][0]] if self._later else []
        if not times or min(times) > until_s:
            return False
        self.now_s = max(self.now_s, min(times))
        return True


def drain(loop: ProcessLoop, world: World) -> None:
    """End what a process has left, so that nothing of it is collected while it waits."""
    for _ in range(200):
        tasks = [task for task in asyncio.all_tasks(loop) if not task.done()]
        if not tasks:
            break
        for task in tasks:
            task.cancel()
        while loop.is_ready():
            loop.step()
        if (next_s := loop.next_s) is not None:
            world.now_s = max(world.now_s, next_s)
    loop.close()

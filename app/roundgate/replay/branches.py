"""Branches: stable places in a handler under which results are recorded, even if its parts
interleave.

Each asyncio task that a handler creates is a branch, known by the name of its coroutine function
and by the order in which its parent created it, which is the same in every run:

    await gather(order(ctx, 7), order(ctx, 9))      order@0/charge   order@0/ship
                                                    order@1/charge   order@1/ship
    async with ctx.branch("refund"):                refund/charge

The key of a step or question is the path of its branch and its name. From the second use of the
name in the branch, the number of the use follows. Tasks that a library creates in the handler have
other names, so they do not change the numbers; tasks created in a step have no branch.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct

from roundgate.replay.asyncio_internals import WaitTimer, function_name, state

_PREFIXES: Final = MappingProxyType(
    {
        kind: f"{kind}:"
        for kind in (
            *("sleep", "shed", "task", "timeout", "key", "cut"),
            *("event", "wait", "now", "random", "uuid"),
        )
    }
)


JUST_FIRED_S: Final = 1.0
"""The time in seconds after its deadline during which a fired timer may still end a wait."""


class _Set(NamedTuple):
    """A timer, the path of the branch that set it, and the task whose wait it ends. Two tasks share
    a branch in `asyncio.wait_for` of Python 3.11."""

    timer: WaitTimer
    path: str
    task: weakref.ref[asyncio.Task[Any]]
    seconds: float
    """The length of the timer."""

    @property
    def state(self) -> str:
        return state(self.timer)


class Timeouts:
    """The timers of one run. Ended timers are dropped from time to time."""

    def __init__(self) -> None:
        self._timers: list[_Set] = []
        self._watermark = 16

    def add(self, timer: WaitTimer, path: str, task: asyncio.Task[Any]) -> None:
        when = timer.when()
        # rounded, because a sum of floats less one of them is not exactly the other
        seconds = math.inf if when is None else round(when - asyncio.get_running_loop().time(), 3)
        self._timers.append(_Set(timer, path, weakref.ref(task), seconds))
        if len(self._timers) > self._watermark:
            self._timers = [
                timer_set for timer_set in self._timers if timer_set.state in ("active", "expiring")
            ]
            self._watermark = 16 + 2 * len(self._timers)

    def around(self, path: str) -> Iterator[float]:
        """Yield the lengths in seconds of the active timers around the branch at `path`."""
        for timer_set in self._timers:
            if path.startswith(timer_set.path) and timer_set.state == "active":
                yield timer_set.seconds

    def whens(self, now_s: float) -> list[float]:
        """Return the deadlines of timers that may still end a wait, in seconds on the loop's
        clock."""
        whens = [(timer_set.state, timer_set.timer.when()) for timer_set in self._timers]
        return [
            when
            for state, when in whens
            if when is not None
            and (state == "active" or (state == "expiring" and when > now_s - JUST_FIRED_S))
        ]

    def has_fired(self, now_s: float) -> bool:
        """Return whether a timer has just fired and its block is still open."""
        return any(
            timer_set.state == "expiring" and (timer_set.timer.when() or 0.0) > now_s - JUST_FIRED_S
            for timer_set in self._timers
        )

    def has_ended_wait(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether a timer of the task has fired and its block is still open."""
        return task is not None and any(
            timer_set.task() is task and timer_set.state == "expiring" for timer_set in self._timers
        )

    def is_ending(self, path: str) -> bool:
        """Return whether a timer around the branch at `path` has fired and its block is still
        open."""
        return any(
            path.startswith(timer_set.path) and timer_set.state == "expiring"
            for timer_set in self._timers
        )


class Owner:
    """The part of a run that its branches refer to."""

    def __init__(self) -> None:
        self.resumed = 0
        """The number of times that a branch began, or resumed from a wait outside of ctx."""
        self.run: Any = None
        """The `run.Run` while its handler runs, then `None`: a reference cycle would wait for the
        garbage collector."""
        self.begun_ms = 0.0
        """When the run began, in milliseconds on its clock's monotonic scale."""
        self.paths = {""}
        """The paths of the branches that the handler has created."""
        self.asks_in_root = False
        """Whether a question was asked in the request's own task, whose timers are unknown."""

    @cached_property
    def timeouts(self) -> Timeouts:
        """The timers of `asyncio.timeout` that the run has entered."""
        return Timeouts()

    def elapsed_ms(self) -> int:
        """Return the age of the run in milliseconds."""
        return 0 if self.run is None else round(self.run.clock.monotonic_ms() - self.begun_ms)


class Scope:
    """A durable time limit around a part of a handler.

    This class serves threads, which cannot be cancelled: the engine checks the limit at each call.
    The subclass `waiting.TimeLimit` ends its block.
    """

    def __init__(self, until_ms: int = 0) -> None:
        self.until_ms = until_ms
        """When the limit passes, in milliseconds since the epoch."""
        self.is_left = False
        """Whether the block has ended."""
        self.has_fired = False
        """Whether the limit has ended the block, or is about to."""

    @property
    def is_pending(self) -> bool:
        """Return whether the limit may still end the block."""
        return False

    def fire(self) -> None:
        """End the block."""

    async def wait_until_settled(self) -> None:
        """Return once the limit has fired, its block has been left, or its run has ended."""


class Branch:
    """A concurrent part of a handler. `path` is empty, or segments that each end in a slash."""

    def __init__(self, owner: Owner, path: str = "") -> None:
        self.owner = owner
        self.path = path
        self.scopes: tuple[Scope, ...] = ()
        """The durable time limits around its current code, outermost first."""
        self.within: Branch | None = None
        """The branch that does nothing else while this branch runs, if known (`ctx.branch`,
        `ctx.gather`, `ctx.map`)."""
        self.is_thread = False
        """Whether its code runs in a thread, which is busy between two calls of the engine."""
        self.uses: dict[tuple[str, str], int] = {}
        self.children: dict[str, int] = {}
        self.has_branched = False
        """Whether the branch has children."""
        self.awaited: dict[int, Branch] = {}
        """The branches of coroutines of `as_completed` without a task yet, by id."""

    @property
    def limits(self) -> list[Scope]:
        """Return the limits whose blocks are open. A branch may outlive the block in which it
        began."""
        return [scope for scope in self.scopes if not scope.is_left]

    def key(self, kind: str, name: str) -> str:
        """Return the place of the next use of a name: `order@1/charge`, then `order@1/charge#2`.

        Kinds other than step and question precede the name: `order@1/sleep:sleep`.
        """
        count = self.uses[kind, name] = self.uses.get((kind, name), 0) + 1
        place = f"{self.path}{_PREFIXES.get(kind, '')}{name}"
        return place if count == 1 else f"{place}#{count}"

    def named(self, name: str) -> Branch:
        """Return a new child branch with a name from the handler."""
        return self._child(self.key("branch", name).removeprefix(self.path))

    def created(self, coroutine: object) -> Branch:
        """Return a new child branch for a task, named after its function and numbered."""
        function = function_name(coroutine)
        number = self.children[function] = self.children.get(function, -1) + 1
        return self._child(f"{function}@{number}")

    def _child(self, segment: str) -> Branch:
        self.has_branched = True
        child = Branch(self.owner, f"{self.path}{segment}/")
        self.owner.paths.add(child.path)
        child.scopes, child.is_thread = self.scopes, self.is_thread
        return child


class InStep(Struct, frozen=True):
    """The place of a step's function, which must not call the engine."""

    owner: object
    key: str


Here: TypeAlias = Branch | InStep | None

here: Final[ContextVar[Here]] = ContextVar("here", default=None)
"""The branch or step in which code runs; `None` outside of every run."""


@contextmanager
def inside(place: Here) -> Iterator[None]:
    """Run a block at a place; `None` is code outside of every handler."""
    token = here.set(place)
    try:
        yield
    finally:
        here.reset(token)


class _End:
    """An awaitable that is never resumed, for a handler that continues after its run's end."""

    def __await__(self) -> Generator[Any, None, None]:
        while True:
            yield self


END: Final = _End()

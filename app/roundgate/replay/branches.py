"""Branches: the places in a handler under which results are recorded, however its parts are
interleaved.

A handler may run parts of itself side by side. Each asyncio task that it creates is a branch,
known by the name of its coroutine function and by the order in which its parent created it, which
is the same in every run:

    await gather(order(ctx, 7), order(ctx, 9))      order@0/charge   order@0/ship
                                                    order@1/charge   order@1/ship
    async with ctx.branch("refund"):                refund/charge

The key of a step or question is the path of its branch, its name, and the number of that name's use
in the branch unless it is the first. So the order in which branches progress does not matter. Tasks
that a library creates in the handler have other names, so they do not change the numbers; tasks
created in a step have no branch.

Tasks get their branches where they are created (`branch_tasks`).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Generator
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from roundgate.replay.asyncio_internals import Timer, name_of, state

_PREFIXES: Final = MappingProxyType(
    {kind: f"{kind}:" for kind in ("sleep", "shed", "task", "timeout", "key", "cut")}
)


class Owner:
    """The object that stands for a run in its branches and counts how often they resumed by
    themselves."""

    __slots__ = ("begun_ms", "resumed", "run")

    def __init__(self) -> None:
        self.resumed = 0
        """The number of times that a branch began, or resumed from a wait outside of ctx."""
        self.run: Any = None
        """The `run.Run` while its handler runs, then `None`: a reference cycle would wait for the
        garbage collector."""
        self.begun_ms = 0.0
        """When the run began, in milliseconds on its clock's monotonic scale."""

    def elapsed_ms(self) -> int:
        """Return the age of the run in milliseconds."""
        return 0 if self.run is None else round(self.run.clock.monotonic_ms() - self.begun_ms)


class Scope(Protocol):
    """A durable time limit around a part of a handler; over at `until_ms`, in
    milliseconds since the epoch."""

    @property
    def until_ms(self) -> int:
        """Return when the limit passes, in milliseconds since the epoch."""

    @property
    def is_left(self) -> bool:
        """Return whether the block has ended."""

    @property
    def is_pending(self) -> bool:
        """Return whether the limit may still end the block."""

    @property
    def has_fired(self) -> bool:
        """Return whether the limit has ended the block, or is about to."""

    def fire(self) -> None:
        """End that part."""

    async def wait_until_settled(self) -> None:
        """Return once the limit has fired, its block has been left, or its run has ended."""


class Branch:
    """A concurrent part of a handler.

    `owner` identifies its run. `path` is empty, or segments that each end in a slash.
    """

    __slots__ = (
        "awaited",
        "children",
        "has_branched",
        "is_thread",
        "owner",
        "path",
        "scopes",
        "timeouts",
        "uses",
    )

    def __init__(self, owner: Owner, path: str = "") -> None:
        self.owner = owner
        self.path = path
        self.scopes: tuple[Scope, ...] = ()
        """The durable time limits around whatever it does now, outermost first."""
        self.is_thread = False
        """Whether its code runs in a thread: between two calls of the engine it is
        busy, and nobody sees that."""
        self.uses: dict[tuple[str, str], int] = {}
        self.children: dict[str, int] = {}
        self.has_branched = False
        """Whether another branch was ever made of this one."""
        self.timeouts: Timeouts | None = None
        """Those of `asyncio.timeout` that its run has entered, in case one has to be waited for."""
        self.awaited: dict[int, Branch] = {}
        """The branches of coroutines of `as_completed` whose tasks are not created yet, by id."""

    @property
    def limits(self) -> list[Scope]:
        """Return the durable time limits around the branch. It may have outlived a block in which
        it was created."""
        return [scope for scope in self.scopes if not scope.is_left]

    def key(self, kind: str, name: str) -> str:
        """The place of a use of a name: `order@1/charge`, the second time `order@1/charge#2`.

        What is neither a step nor a question has its kind before its name: `order@1/sleep:sleep`.
        """
        count = self.uses[kind, name] = self.uses.get((kind, name), 0) + 1
        place = f"{self.path}{_PREFIXES.get(kind, '')}{name}"
        return place if count == 1 else f"{place}#{count}"

    def named(self, name: str) -> Branch:
        """The branch that its author has given a name: it keeps its place whatever
        else there is beside it."""
        return self._child(self.key("branch", name).removeprefix(self.path))

    def created(self, coroutine: object) -> Branch:
        """The branch of a task that is being created."""
        function = name_of(coroutine)
        number = self.children[function] = self.children.get(function, -1) + 1
        return self._child(f"{function}@{number}")

    def notice(self, timer: Timer, task: asyncio.Task[Any]) -> None:
        """Keep a timer that its code has set, and the task whose wait it ends."""
        if self.timeouts is None:
            self.timeouts = Timeouts()
        self.timeouts.add(timer, self.path, task)

    def _child(self, segment: str) -> Branch:
        self.has_branched = True
        if self.timeouts is None:
            self.timeouts = Timeouts()
        child = Branch(self.owner, f"{self.path}{segment}/")
        child.scopes, child.is_thread, child.timeouts = self.scopes, self.is_thread, self.timeouts
        return child


JUST_FIRED_S: Final = 1.0
"""For how long after its moment a timer that has fired may be about to end a wait. Its
block may take longer."""


class _Set(NamedTuple):
    """A timer that a handler has set: the path of its branch, and the task whose wait it ends.
    Two tasks share a branch in `asyncio.wait_for` of Python 3.11."""

    timer: Timer
    path: str
    task: weakref.ref[asyncio.Task[Any]]

    @property
    def state(self) -> str:
        return state(self.timer)


class Timeouts:
    """The timers that one run has set. They are gone through when it comes to rest; those
    that are over are dropped."""

    __slots__ = ("_timers", "_watermark")

    def __init__(self) -> None:
        self._timers: list[_Set] = []
        self._watermark = 16

    def add(self, timer: Timer, path: str, task: asyncio.Task[Any]) -> None:
        """Add a timer, the path of the branch that set it, and the task whose wait it ends."""
        self._timers.append(_Set(timer, path, weakref.ref(task)))
        if len(self._timers) > self._watermark:
            self._timers = [one for one in self._timers if one.state in ("active", "expiring")]
            self._watermark = 16 + 2 * len(self._timers)

    def whens(self, now_s: float) -> list[float]:
        """When they end what they are around, on the loop's clock: those that have
        not fired, or only just."""
        whens = [(one.state, one.timer.when()) for one in self._timers]
        return [
            when
            for state, when in whens
            if when is not None
            and (state == "active" or (state == "expiring" and when > now_s - JUST_FIRED_S))
        ]

    def has_ended_a_wait_of(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether a timer that ends waits of the task has fired and its block has not been
        left."""
        return task is not None and any(
            one.task() is task and one.state == "expiring" for one in self._timers
        )

    def is_ending(self, path: str) -> bool:
        """Whether one of them has fired, and what it ends contains this branch."""
        return any(path.startswith(one.path) and one.state == "expiring" for one in self._timers)


@dataclass(frozen=True, slots=True)
class InStep:
    """The place of a step's function, which must not call the engine."""

    owner: object
    key: str


Here: TypeAlias = Branch | InStep | None

here: Final[ContextVar[Here]] = ContextVar("here", default=None)
"""The branch, or the step, in which code runs; `None` outside of every run."""


class inside:  # noqa: N801  # reads as what it does: `with inside(branch): …`
    """Run a block as that place; with `None`, as code that belongs to no handler."""

    __slots__ = ("_place", "_token")

    def __init__(self, place: Here) -> None:
        self._place = place

    def __enter__(self) -> None:
        self._token = here.set(self._place)

    def __exit__(self, *error: object) -> None:
        here.reset(self._token)


class _End:
    """Awaited by an engine call of a handler that goes on although its run has ended:
    whoever drives it stops."""

    def __await__(self) -> Generator[Any, None, None]:
        while True:
            yield self


END: Final = _End()

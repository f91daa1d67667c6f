"""Processes that die at a store or queue call, at any one of them: before it
happened, or when it has.

Or the call fails as one that timed out does: nobody knows whether it happened.

    plan = Plan({17: "before"})            the 18th call of the whole story never happens
    life = plan.life()                     a process; `life.wraps(store)` is how it reaches anything
    … Crash …                              from here on its every call raises Crash
    life = plan.life()                     the next process knows nothing of it

A task fails after `tasks.max_deaths` deaths of processes that ran it alone, without progress in
between. With `max_deaths` a plan spares the process whose death would be the last of these:

    claim ✗   claim alone ✗ (1)   claim alone ✗ (2)   claim alone, spared ── checkpoint (0) ✗ (1)
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from roundgate import json
from roundgate.errors import Unavailable
from roundgate.tasks.events import (
    Checkpoint,
    Claim,
    Finish,
    Release,
    Restart,
    SuspendTask,
    UnderLease,
)
from roundgate.tasks.stored import Claimed, StoredTasks

When: TypeAlias = Literal["before", "after"]
How: TypeAlias = Literal["before", "after", "times out before", "times out after"]


class Crash(BaseException):
    """The process died. Nothing of ours catches it."""


@dataclass
class Plan:
    """At which calls of a story processes die, counted over all of them; and what happened in it."""

    points: Mapping[int, How] = field(default_factory=dict)
    meanwhile: Mapping[tuple[int, When], Callable[[], Awaitable[None]]] = field(
        default_factory=dict
    )
    """What others do at a call, before or after it and before a crash there."""
    calls: list[str] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    """("runs", step), ("kept", step) and ("ended", task), in order; written by whoever knows."""
    max_deaths: int | None = None
    """`tasks.max_deaths` of a story of one task; `None` spares no process."""
    deaths_alone: int = 0
    """The number of processes that died while they ran the task alone, since its last progress.
    Counted from their calls, because the count in the row may be wrong."""

    def life(self) -> Life:
        """Another process."""
        return Life(self)


@dataclass
class Life:
    """A process, until it dies."""

    plan: Plan
    dead: bool = False
    is_alone: bool = False
    """Whether the process runs a task that it claimed alone."""

    def wraps(self, port: Any) -> Any:
        """A store or a queue as this process reaches it."""
        return _Wrapped(self, port)

    def shares(self, store: StoredTasks, queue: Any) -> tuple[Any, Any]:
        """Tasks and their queue as this process reaches them: it may die between the two."""
        queue = self.wraps(queue)
        return self.wraps(StoredTasks(store.store, queue)), queue

    def look_alive(self) -> None:
        """Ends whoever goes on in a process that is dead."""
        if self.dead:
            raise Crash

    async def call(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        self.look_alive()
        number = len(self.plan.calls)
        self.plan.calls.append(name)
        await self._at(number, "before")
        value = await work()
        await self._at(number, "after")
        return value

    async def _at(self, number: int, when: When) -> None:
        if (number, when) in self.plan.meanwhile:
            await self.plan.meanwhile[number, when]()
        how = self.plan.points.get(number)
        if how == f"times out {when}":
            raise Unavailable(f"call {number} timed out")
        if how == when and not self.dead and not self._is_spared:
            self.dead = True
            self.plan.deaths_alone += self.is_alone
        self.look_alive()  # another call of the same process may have killed it meanwhile

    @property
    def _is_spared(self) -> bool:
        most = self.plan.max_deaths
        return most is not None and self.is_alone and self.plan.deaths_alone + 1 >= most

    def note(self, args: Sequence[Any], value: Any) -> None:
        """Note the effect of a call of `StoredTasks`."""
        match args:
            case [_, Claim(alone=alone), *_]:
                self.is_alone = alone and isinstance(value, Claimed)
            case [lease, Checkpoint(added=added), *_]:
                self.plan.seen += [("kept", key) for key in _steps(lease.ref, added.entries)]
            case [lease, UnderLease() as event, *_]:
                self.is_alone = False
                if isinstance(event, Finish):
                    self.plan.seen.append(("ended", lease.ref.id))
        if len(args) > 1 and _is_progress(args[1]):
            self.plan.deaths_alone = 0


class _Wrapped:
    """A port whose every call can be the last one of its process."""

    def __init__(self, life: Life, port: Any) -> None:
        self._life = life
        self._port = port

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if not callable(method):
            return method  # what it is, which costs no call

        async def work(*args: Any, **kwargs: Any) -> Any:
            value = await method(*args, **kwargs)
            self._life.note(args, value)
            return value

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._life.call(called(name, args), lambda: work(*args, **kwargs))

        return call


def called(name: str, args: Sequence[Any]) -> str:
    """What a call of `StoredTasks` does: its event in the words of a method, such as `let_go`."""
    if name not in ("apply", "claim", "write"):
        return name
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(args[1]).__name__).lower()


def _is_progress(event: Any) -> bool:
    """Return whether the event resets the deaths of a task to 0."""
    match event:
        case Checkpoint(added=added):
            return bool(added.entries)
        case Release(keeps_blame=keeps_blame):
            return not keeps_blame
    return isinstance(event, SuspendTask | Restart)


def _steps(ref: Any, entries: Any) -> list[str]:
    rows = [json.decode(entry) for entry in entries]
    return [f"{ref.id} {key}" for tag, key, *_ in rows if tag in ("s", "e")]


async def bury() -> None:
    """End what a dead process has left in this event loop."""
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)

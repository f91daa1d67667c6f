"""Handlers that live through many processes: each starts from the bytes that the one
before left, and may die.

life 1   ── step ── checkpoint ── step ── ✗ dies before this checkpoint is durable
life 2   ── (replays) ── step ── asks: lets go
life 3   ── (replays) ── … ── returns
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from anyio import to_thread

from roundgate import json
from roundgate.auth.principal import LOCAL
from roundgate.errors import Suspend
from roundgate.protocol.jsonrpc import ClientCapabilities, Meta
from roundgate.replay import engine
from roundgate.replay.context import Context
from roundgate.replay.engine import Completed, Failed, Outcome, Suspended
from roundgate.replay.journal import Entry, Journal, from_row, row
from roundgate.replay.run import Call, Run, Stop
from roundgate.replay.sync_context import SyncContext
from tests.support.clocks import SkippingClock
from tests.support.crashes import bury
from tests.support.rounds import CAPABILITIES

Handler: TypeAlias = Callable[[Any], Any]
Client: TypeAlias = Callable[[Mapping[str, Any]], Any]

MAX_LIVES = 400


class Fate(Protocol):
    """Decides what happens to a process at a moment."""

    def __call__(self, moment: str) -> str | None:
        """`dies` | `lets go` | `None`, before and after each write and before each step."""


def nothing_happens(moment: str) -> str | None:
    """Nobody dies."""
    return None


@dataclass
class AtRandom:
    """A process dies, or has to let go, at random moments."""

    choices: random.Random
    deaths: float = 0.1
    pauses: float = 0.1

    def __call__(self, moment: str) -> str | None:
        at = self.choices.random()
        if at < self.deaths:
            return "dies"
        return "lets go" if at < self.deaths + self.pauses and moment == "admit" else None


@dataclass
class DiesAt:
    """The process dies at one moment, counted over its whole story."""

    number: int
    seen: int = 0

    def __call__(self, moment: str) -> str | None:
        self.seen += 1
        return "dies" if self.seen - 1 == self.number else None


async def every_death(
    lived: Callable[[DiesAt], Awaitable[object]],
    some: Callable[[Sequence[int]], Sequence[int]] = lambda moments: moments,
) -> None:
    """Live a story in which nobody dies, then once for each of its moments (or some) at which a process may die."""
    counting = DiesAt(-1)
    await lived(counting)
    for number in some(range(counting.seen)):
        await lived(DiesAt(number))


@dataclass
class Story:
    """All that becomes of one task. `stored` is what is durable of it, as bytes."""

    handler: Handler
    client: Client
    fate: Fate = nothing_happens
    clock: SkippingClock = field(default_factory=SkippingClock)
    choices: random.Random = field(default_factory=random.Random)
    stored: bytes = field(default_factory=lambda: json.encode(Journal().to_json()))
    lives: int = 0
    deaths: int = 0
    is_alive: bool = False
    task_id: str | None = "task"

    async def told(self) -> Outcome[Any]:
        """Its end, over however many lives."""
        while self.lives < MAX_LIVES:
            async with asyncio.timeout(60):
                outcome = await self.life()
            if isinstance(outcome, (Completed, Failed)):
                return outcome
        raise AssertionError("it never ended")

    async def life(self) -> Outcome[Any] | None:
        """One process, to its end; `None` if it died, or the task waits."""
        self.lives += 1
        self.is_alive = True
        life = _Life(self)
        run = Run(_call(self), Journal.from_json(json.decode(self.stored)), life)
        run.declare("the same")
        life.run = run
        work = asyncio.ensure_future(engine.run_handler(_bound(self.handler, Context(run)), run))
        dies = asyncio.ensure_future(life.died.wait())
        await asyncio.wait([work, dies], return_when=asyncio.FIRST_COMPLETED)
        if life.died.is_set():
            self.is_alive = False
            self.deaths += 1
            run.stop(Stop.LOST)
            await bury()
            return None
        dies.cancel()
        outcome = work.result()
        match outcome:
            case Suspended():
                self._let_go(outcome)
                await bury()
                return None
        await bury()
        return outcome

    def _let_go(self, outcome: Suspended) -> None:
        if self.fate("suspend") == "dies":
            self.deaths += 1
            return
        self.keep(outcome.journal)
        if self.fate("suspended") == "dies":
            self.deaths += 1
        responses = {key: self.client(request) for key, request in outcome.requests.items()}
        if len(responses) > 1 and self.choices.random() < 0.5:
            responses.pop(self.choices.choice(sorted(responses)))
        journal = Journal.from_json(json.decode(self.stored))
        journal.receive(responses)
        self.keep(journal)
        if not outcome.requests and outcome.wake_ms is not None:
            left_ms = outcome.wake_ms - self.clock.now_ms()
            self.clock.skip(max(0, left_ms + 1) / 1000)

    def keep(self, journal: Journal) -> None:
        self.stored = json.encode(journal.to_json())


class _Life:
    """A process: the checkpointer of its run."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self.died = asyncio.Event()
        self.run: Any = None

    async def admit(self) -> None:
        await self._moment("admit")

    async def checkpoint(self, *entries: Entry) -> None:
        await self._moment("write")
        await asyncio.sleep(0)
        if self.died.is_set():
            raise Suspend
        journal = Journal.from_json(json.decode(self._story.stored))
        for entry in entries:
            journal.add(from_row(json.decode(json.encode(row(entry)))))
        self._story.keep(journal)
        await self._moment("written")

    async def _moment(self, moment: str) -> None:
        happens = None if self.died.is_set() else self._story.fate(moment)
        if happens == "dies":
            self._story.is_alive = False
            self.died.set()
        if self.died.is_set():
            raise Suspend
        if happens == "lets go":
            self.run.request_stop()


def _call(story: Story) -> Call:
    meta = Meta(ClientCapabilities(CAPABILITIES), None, None, None)
    return Call(
        principal=LOCAL, meta=meta, deadline=story.clock.deadline(None), task_id=story.task_id
    )


def _bound(handler: Handler, context: Context) -> Callable[[], Any]:
    if inspect.iscoroutinefunction(handler):
        return lambda: handler(context)
    return lambda: to_thread.run_sync(handler, SyncContext(context), abandon_on_cancel=True)

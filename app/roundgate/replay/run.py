"""One carrier for a call, from the edge to the handler: who calls, what the
client can do, until when.

It does not change while the call runs. What a run finds out is in `run.Run`, what is
remembered in `journal.Journal`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NoReturn, Protocol, TypeAlias

from roundgate.aio import Threads, of_this_loop
from roundgate.auth import Principal
from roundgate.clock import Deadline
from roundgate.errors import Suspend
from roundgate.protocol import ClientCapabilities, Meta, ResourceContents
from roundgate.replay.branches import END, Branch, Owner, Scope, here
from roundgate.replay.journal import (
    Answered,
    Began,
    Cut,
    Entry,
    Finished,
    Journal,
    Passed,
    Raised,
    Told,
    Tried,
    Unanswered,
    WireNames,
)
from roundgate.replay.scheduling import Order, Parked, Quiescence


class Cleanup(StrEnum):
    """A call that only ends what an earlier run of it has begun elsewhere:
    its task has ended early."""

    OF_WHAT_IS_KNOWN = "of what is known"
    """Nobody can have begun anything that the journal does not know."""
    IN_DOUBT = "in doubt"
    """A worker had the task: it may have begun something and died before it was remembered."""


Notify: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Sends one notification (method, params) on the stream of this request."""

PageDone: TypeAlias = Callable[[str], Awaitable[None]]
"""Tells the client that its user has finished with a page. Takes the wire key of the question that
sent the user there."""

Publish: TypeAlias = Callable[[str, str | None], Awaitable[None]]
"""Tells every open `subscriptions/listen` stream that wants it of a change (method, uri)."""


Read: TypeAlias = Callable[[Any, str], Awaitable[Sequence[ResourceContents]]]
"""Reads a resource, by its URI, in a handler's context, as the caller of the handler
could; raises ResourceNotFound."""


async def publish_nowhere(method: str, uri: str | None) -> None:
    """Where nobody can listen."""


class Idempotency(Protocol):
    """A round of a call, as far as it stays the same however often it is sent."""

    @property
    def task_id(self) -> str:
        """The id of the task that the call becomes in this round, if it does. It is made when it is
        asked for: that costs a microsecond, and few calls need it."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of a long text."""

    text: str
    start: int
    total: int
    """Characters of the whole."""
    next_cursor: str | None
    """Where the rest is; `None` at the end, and where the rest could not be kept."""


class Texts(Protocol):
    """Keeps long texts for their owners, for a time, where any process can read them."""

    async def keep(
        self,
        text: str,
        size: int,
        scopes: frozenset[str],
        owner: Principal,
        *,
        of_task: bool = False,
    ) -> str:
        """Keep a text that is read in parts of `size` characters: the cursor of the second part.
        One `of_task` is kept for as long as the result of a task can be had.

        Raises:
            Unavailable: the store cannot be reached.
        """

    async def part(self, cursor: str, owner: Principal) -> TextPart | None:
        """The part that a cursor stands for; `None` if the owner has none
        under it, or lacks a scope.

        Raises:
            ToolError: it was there, and newer texts of the owner took its place.
            Unavailable: as `keep`.
        """


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """The facts of one call, gathered by the dispatcher or by a task's worker.

    Nobody changes one. That is not enforced: a frozen one takes five times as long to
    make, a tenth of a whole call.
    """

    principal: Principal
    meta: Meta
    """The request's `_meta`; in a task, that of the request which became the task."""
    deadline: Deadline
    """When this round, or this turn of a worker, has to be over."""
    notify: Notify | None = None
    """`None` where the client cannot be told things."""
    page_done: PageDone | None = None
    """`None` if the client cannot be told that its user has finished with a page."""
    publish: Publish = publish_nowhere
    task_id: str | None = None
    """The task that this call has become, if it has."""
    may_become_task: bool = False
    """Whether what is still an ordinary call may go on as a task: its tool and its
    client both want that."""
    needs_row: bool = False
    """Whether it has to be a task before its first step: the tool says `task="required"`."""
    takes_unasked: bool = False
    """Whether its handler takes answers that come without a question having been asked."""
    round: Idempotency | None = None
    """The round that this is, in an ordinary call."""
    texts: Texts | None = None
    """Keeps what is too long for a result."""
    read: Read | None = None
    """Reads what is served beside the handler; `None`: nothing is."""
    cleanup: Cleanup | None = None
    """Set where nothing more is begun, and what was begun is ended."""
    step_threads: Threads | None = field(default=None, compare=False)
    """Bounds the threads of steps that are plain functions; `None`: the event
    loop's own bound of 40."""

    @property
    def capabilities(self) -> ClientCapabilities:
        """What the client declared on this request: what may be asked of it."""
        return self.meta.capabilities

    @property
    def idempotency(self) -> str | None:
        """What stays the same however often this round is sent, if there is such a
        thing: for keys of services."""
        if self.task_id is None and self.round is not None:
            return self.round.task_id
        return self.task_id


log = logging.getLogger("roundgate.replay")

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
HOLD_MS: Final = 1_000
"""A task that has to wait no longer than this keeps its worker; letting go and being taken
up again costs as much."""
HOLD_FOR_TIMEOUTS_S: Final = 60.0
"""For how long a task keeps its worker because an `asyncio.timeout` of its handler is about
to end a durable wait."""
MAX_REFUSALS: Final = 100
"""How often a handler may go on asking after its run has ended. Then it is not resumed any more."""
LATE_REFUSALS: Final = 10
"""How often, when its run ended more than `STOP_GRACE_S` ago."""
STOP_GRACE_S: Final = 5.0
"""After this a handler that goes on although its run has ended is cancelled."""
_TICK_MS: Final = 10
"""A limit that is over ends its block within this: the timers of an event
loop are late by a moment."""


_LEARNED: Final = (Finished, Raised, Answered, Unanswered, Passed)


class Stop(StrEnum):
    """Why a run ended other than by its handler's end."""

    SUSPENDED = "suspended"
    """It has come to rest, or has to let go."""
    LOST = "lost"
    """The task is somebody else's, or nobody's: its outcome is of no use."""
    FAULT = "fault"
    """It could not be remembered what it did, or it went another way than before."""
    OVER = "over"
    """The handler has ended; branches that it left behind begin nothing more."""


class Checkpointer(Protocol):
    """Keeps a journal that does not travel with the client."""

    async def admit(self) -> None:
        """Return once it is certain that a step may begin.

        Raises:
            Suspend: it may not.
        """

    async def checkpoint(self, *entries: Entry) -> None:
        """Return once these entries are durable, all of them or none.

        Raises:
            Suspend: it will not be.
        """


class Run:
    """One run. Outside of `replay` it is read, and told to stop; nobody assigns to it."""

    message: str | None = None
    """What the handler last said it is doing: the `statusMessage` of a task."""
    wants_task = False
    """It is to go on as a task: it said so, time is nearly up, or it has to wait
    longer than a request may."""
    restart_arguments: dict[str, Any] | None = None
    """What the handler is to begin anew with, if it asked for that."""
    error: Exception | None = None
    """What ended the run, if that is no matter of its handler's."""
    stopped: Stop | None = None
    wake_ms: int | None = None
    """When a suspended run is to go on, in milliseconds since the epoch;
    `None`: as soon as can be."""
    root_task: asyncio.Task[Any] | None = None
    """The task in which the handler runs, while it does."""
    is_enforced = False
    """Whether the handler was cancelled because it went on after its run had ended."""
    stop_requested = False
    """Whether it is to let go at its next step, because the process is about to stop."""
    decides_by_state = False
    """Whether the handler chooses its own point to continue from."""
    steps_run = 0
    """Steps that have come to their end in this run."""
    longest_ms = 0.0
    """How long the longest of them took."""
    is_beginning = False
    """Whether the run is starting work elsewhere that only the answer identifies: if the handler
    were cancelled now, the work could never be ended."""
    _driver: asyncio.Task[Any] | None = None
    """Where the handler has a task of its own: the task that waits for it, and how often
    that was cancelled before."""
    _driver_cancelling = 0
    _made_quiescence: Quiescence | None = None
    _made_wire_names: WireNames | None = None
    _refusals = 0
    _stopped_at_ms = 0.0

    def __init__(
        self,
        call: Call,
        journal: Journal,
        checkpointer: Checkpointer | None = None,
        message: str | None = None,
    ) -> None:
        """A run of a call's handler that has not begun.

        Args:
            call: the facts of the call.
            journal: what is known already; what the run finds out is added to it.
            checkpointer: makes entries durable; without one the journal travels, and what is
                remembered is durable once the round is answered.
            message: what the handler said in an earlier run.
        """
        self.call = call
        self.journal = journal
        self.checkpointer = checkpointer
        self.clock = call.deadline.clock
        self.requests: dict[str, Any] = {}
        """The questions that it leaves open, by wire key."""
        self.owner = Owner()
        """Stands for the run in its branches."""
        self.root = Branch(self.owner)
        self.order = Order(journal.steps.values(), self.owner) if journal.steps else None
        """In which order branches get what is known; `None` while nothing is."""
        self.unwritten: list[Entry] = []
        """What is written with the next step."""
        self.running_steps: set[str] = set()
        """The places of running steps: begun, and not yet recorded."""
        self.new_steps: list[str] = []
        """The places of steps whose functions this run has called."""
        self._is_beyond = False
        self._ahead = {
            entry.key for entry in journal.entries() if not isinstance(entry, (Cut, Told))
        }
        """The places that earlier runs reached and this one has not."""
        self._to_learn = {entry.key for entry in journal.entries() if isinstance(entry, _LEARNED)}
        """The places of recorded results that the handler has not received yet. All of them come
        before anything new."""
        self.limits: set[Scope] = set()
        """The durable time limits whose blocks the handler has entered and not left."""
        if message is not None:
            self.message = message

    @property
    def is_cancelled(self) -> bool:
        """Whether the task was cancelled, or is another worker's."""
        return self.stopped is Stop.LOST

    # what its modules ask of it

    def begin(self, root: asyncio.Task[Any] | None = None) -> None:
        """The handler is about to run: in the current task, or in `root`, which the
        current one waits for."""
        self.owner.run, self.owner.begun_ms = self, self.clock.monotonic_ms()
        if root is None:
            self.root_task = asyncio.current_task()
            return
        self.root_task, self._driver = root, asyncio.current_task()
        self._driver_cancelling = 0 if self._driver is None else self._driver.cancelling()

    def begin_thread(self) -> None:
        """The handler is a plain function. Its thread counts as busy between
        two calls of the engine."""
        self.root.is_thread = True
        self.quiescence.begin()

    def come_to(self, branch: Branch, kind: str, name: str) -> str:
        """Return the place of the next use of a name in a branch, and record that the handler has
        reached it."""
        key = branch.key(kind, name)
        self._ahead.discard(key)
        return key

    def has_learned(self, key: str) -> None:
        """Note that the handler has received the result recorded at a place."""
        self._to_learn.discard(key)

    def go_beyond(self) -> None:
        """Note that this run has gone further than every earlier run."""
        self._is_beyond = True

    def decide_by_state(self) -> None:
        """Note that the handler chooses its own point to continue from (`ctx.state`,
        `ctx.input_response`), so the progress of earlier runs is unknown."""
        self.decides_by_state = self._is_beyond = True

    def is_repeating(self, branch: Branch) -> bool:
        """Return whether an earlier run went further than this branch has."""
        if self._is_beyond or not (self._ahead or self._to_learn):
            return False
        return bool(self._to_learn) or any(key.startswith(branch.path) for key in self._ahead)

    def unasked(self) -> list[str]:
        """Return the places of steps that an earlier run began and this one has not reached."""
        steps = self.journal.steps
        return [
            key
            for key in self._ahead
            if isinstance(step := steps.get(key), (Finished, Raised, Began, Tried))
            and step.what is not None
        ]

    async def enter(self, kind: str, *names: str) -> Branch:
        """The branch that calls the engine, checked.

        Args:
            kind: what it is about to do, for error messages.
            names: under which names.

        Raises:
            Suspend: the run has ended.
            ValueError: a name cannot be a key.
            RuntimeError: the caller is no branch of this run, or is inside a step.
        """
        place = here.get()
        if getattr(place, "owner", None) is not self.owner:
            ended = ", and that has ended" if self.stopped is not None else ""
            raise RuntimeError(
                "ctx can be used by its handler and by tasks that it creates, not from outside of "
                f"it{ended}"
            )
        if self.stopped is not None:
            await self.refuse()
        for name in names:
            if not NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} is no name for a {kind}: use 1 to 64 of A-Z a-z 0-9 _ . -"
                )
        if not isinstance(place, Branch):
            # a later run remembers the step as a whole: what it contains would be skipped there, or
            # never answered
            raise RuntimeError(
                f"step {getattr(place, 'key', None)!r} contains the {kind} "
                f"{', '.join(map(repr, names))}; a step is one piece: use ctx beside it"
            )
        return place

    async def refuse(self) -> NoReturn:
        """Answer a handler that goes on although its run has ended: with `Suspend`; in the
        end it is not resumed."""
        self._refusals += 1
        since_ms = self.clock.monotonic_ms() - self._stopped_at_ms
        is_late = since_ms > STOP_GRACE_S * 1000 and self._refusals > LATE_REFUSALS
        is_hopeless = self._refusals > MAX_REFUSALS or is_late
        place = here.get()
        is_in_thread = isinstance(place, Branch) and place.is_thread
        # also when nobody drives it any more and Python closes it
        if is_hopeless and not is_in_thread:
            await END
        raise Suspend

    async def park(self, branch: Branch) -> NoReturn:
        """Wait until every branch has come to rest, then suspend."""
        if self.stopped is not None:
            await self.refuse()
        await self.quiescence.park(branch)
        raise AssertionError("what waits for nothing is only ever woken by Suspend")

    @property
    def quiescence(self) -> Quiescence:
        """What is busy and what waits; made with the first call of the engine, because
        most handlers make none."""
        if self._made_quiescence is None:
            self._made_quiescence = Quiescence(self._come_to_rest, self._hold_s, self.clock)
        return self._made_quiescence

    @property
    def order_here(self) -> Order:
        """The order in which branches get what is known; made if a handler has
        branches from the start."""
        if self.order is None:
            self.order = Order((), self.owner)
        return self.order

    @property
    def wire_names(self) -> WireNames:
        """What clients know its questions by; made for the first question."""
        if self._made_wire_names is None:
            taken = (entry.wire or entry.key for entry in self.journal.questions.values())
            self._made_wire_names = WireNames(taken)
        return self._made_wire_names

    @property
    def has_own_task(self) -> bool:
        """Return whether the handler runs in a task of its own rather than in its request's."""
        return self._driver is not None

    # what is noted of it

    def say(self, message: str) -> None:
        """Set what the handler is doing, in words."""
        self.message = message

    def note_step(self, took_ms: float, *, has_ended: bool) -> None:
        """Note a step that took so many milliseconds until it ended
        (`has_ended`) or was cancelled."""
        self.longest_ms = max(self.longest_ms, took_ms)
        self.steps_run += has_ended

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Defer cancelling the handler at the end of the run while the block is open."""
        self.is_beginning = True
        try:
            yield
        finally:
            self.is_beginning = False

    def want_task(self) -> None:
        """Note that it has to go on as a task, or in another turn of its task."""
        self.wants_task = True

    def begin_anew(self, arguments: dict[str, Any]) -> None:
        """Once it has come to rest, have its handler begin again with these
        arguments and an empty journal."""
        self.restart_arguments = arguments

    # ending

    @property
    def is_being_ended(self) -> bool:
        """Whether it is not the handler that cancels, but an event loop that ends, which
        cancels all its tasks."""
        return self._driver is not None and self._driver.cancelling() > self._driver_cancelling

    @property
    def is_hopeless(self) -> bool:
        """Whether the handler has gone on asking for too long after its run has ended."""
        return self._refusals > MAX_REFUSALS

    def request_stop(self) -> None:
        """Have it suspend at its next step, because the process is about to stop."""
        self.stop_requested = True

    def stop(self, why: Stop) -> None:
        """End the run: what waits ends now, everything else with its next call of the engine.

        Args:
            why: the reason. Of several the first counts.
        """
        if self.stopped is None:
            self.stopped = why
            self._stopped_at_ms = self.clock.monotonic_ms()
            waits = [one.until_ms for one in self._parked if one.until_ms is not None]
            limits = [limit.until_ms for limit in self.limits]
            soon = [] if self.requests else self._timeouts_s()
            timeouts = [self.clock.now_ms() + max(0, round(left_s * 1000)) for left_s in soon]
            self.wake_ms = (
                None if self._must_go_on() else min([*waits, *limits, *timeouts], default=None)
            )
            of_this_loop().set(self, STOP_GRACE_S, self._enforce)
        self.quiescence.unpark(Suspend)
        if self.order is not None:
            self.order.open()

    def is_same(self, before: str, now: str | None) -> bool:
        """Return whether the `identity` of the action at a place is the recorded one."""
        return before == now

    def fail(self, error: Exception) -> None:
        """End the run with an error that its handler cannot catch."""
        self.error = self.error or error
        self.stop(Stop.FAULT)

    def close(self) -> None:
        """Note that the handler has ended. Branches that it left running can begin nothing more."""
        if self.stopped is None:
            self.stopped, self._stopped_at_ms = Stop.OVER, self.clock.monotonic_ms()
        else:
            of_this_loop().cancel(self)
        self.root_task = self.owner.run = None
        if self._made_quiescence is not None:
            self._made_quiescence.close()

    # at rest

    @property
    def _parked(self) -> Collection[Parked]:
        return () if self._made_quiescence is None else self._made_quiescence.parked

    def _must_go_on(self) -> bool:
        """Whether a branch waits only for its next turn."""
        return any(one.until_ms is None for one in self._parked) and not self.requests

    def _come_to_rest(self) -> None:
        self.stop(Stop.SUSPENDED)

    def _hold_s(self) -> float:
        """For how many seconds to keep the worker of a task at rest: until a time limit ends
        one of its waits, if soon.

        A task that has something to do in its next turn is not kept.
        """
        if self.call.task_id is None or self.requests or self.stop_requested or self._must_go_on():
            return 0.0
        limits = [limit for limit in self.limits if limit.is_pending]
        left = (limit.until_ms - self.clock.now_ms() for limit in limits)
        soon = [max(left_ms, _TICK_MS) / 1000 for left_ms in left if left_ms <= HOLD_MS]
        return max(0.0, min([*soon, *self._timeouts_s()], default=0.0))

    def _timeouts_s(self) -> list[float]:
        """In how many seconds each `asyncio.timeout` ends a wait. No other process knows of
        it, so this one waits."""
        now_s = asyncio.get_running_loop().time()
        longest_s = max((self._wait_s(one) for one in self._parked), default=0.0)
        whens = [] if self.root.timeouts is None else self.root.timeouts.whens(now_s)
        left = [
            max(when - now_s, 0.0) + _TICK_MS / 1000 for when in whens if when - now_s < longest_s
        ]
        if any(left_s > HOLD_FOR_TIMEOUTS_S for left_s in left):
            log.warning(
                "asyncio.timeout does not reach over a wait that lets go of its worker; use "
                "ctx.timeout"
            )
        return [left_s for left_s in left if left_s <= HOLD_FOR_TIMEOUTS_S]

    def _wait_s(self, one: Parked) -> float:
        ends_ms = [scope.until_ms for scope in one.branch.limits]
        if one.until_ms is not None:
            ends_ms.append(one.until_ms)
        return (min(ends_ms) - self.clock.now_ms()) / 1000 if ends_ms else math.inf

    def _enforce(self) -> None:
        if self.is_beginning:
            of_this_loop().set(self, STOP_GRACE_S, self._enforce)
        elif self.root_task is not None:
            self.is_enforced = True
            self.root_task.cancel()

"""Branches: stable places in a handler under which results are recorded, even if its parts
interleave; the detection of a run at rest (`Quiescence`); and the order in which branches receive
results (`Order`).

Each asyncio task that a handler creates is a branch, known by the name of its coroutine function
and by the order in which its parent created it, which is the same in every run:

    await gather(order(ctx, 7), order(ctx, 9))      order@0/charge   order@0/ship
                                                    order@1/charge   order@1/ship
    async with ctx.branch("refund"):                refund/charge

The key of a step or question is the path of its branch and its name. From the second use of the
name in the branch, the number of the use follows. Tasks that a library creates in the handler have
other names, so they do not change the numbers; tasks created in a step have no branch.

A branch *parks* when it waits for an answer, a time or an event. The run is suspended once all
branches are parked, so that questions asked side by side are sent together and running steps are
completed:

    branch 1   ask a ──────── parked ───────────────┐
    branch 2   step s ─── runs to its end ─ ask b ──┤ all branches are parked: a and b are sent
    branch 3   sleep ── parked until its time ──────┘ (its time comes first: it continues)

Branches receive results one by one, in the same order in every run:

    run 1   quote b finished ── "b was first": use b ── the answer came ── quote a finished
    run 2   all three are known: b first, then all its consequences, then the answer, then a

So `asyncio.as_completed`, `asyncio.wait(…, FIRST_COMPLETED)` and cancellations by a failed sibling
have the same effect in every run. A result is the outcome of a step, the end of a sleep, answers,
the passing of a time limit, or a cancellation. The *rank* of a result is the position of its entry
in the journal; a new result ranks behind all others.

The consequences of a result are complete once no branch has resumed by itself for `TURNS` turns of
the event loop (`Owner.resumed`). A branch that resumes endlessly ends the run with an error.

All recorded results are delivered before new ones. A new version of the handler may no longer use
some of them. A result whose place the branch has already passed is skipped, because the places of a
branch come in order. An unrequested result delays the others by `GRACE_S`, once in a run, because
branches may be waiting outside of the engine. Branches that request their results later still get
them in order. A recorded cancellation of a wait outside of the engine (`recording.begin_cut_wait`) must
happen again.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct

from roundgate.clock import Clock
from roundgate.errors import NondeterminismError
from roundgate.replay.asyncio_internals import WaitTimer, function_name, state
from roundgate.replay.journal import Cut, Entry, Finished, Raised, Told

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


TURNS: Final = 15
"""The number of turns of the event loop within which an action of one branch reaches the next, with
a margin."""
MAX_TURNS: Final = 100_000
"""The maximum number of turns in which branches may resume by themselves while another branch waits
for a result."""
TICKS: Final = 8
"""The number of turns of the event loop into which a wait for missing results is divided, so that a
process that did not run meanwhile has not waited."""
GRACE_S: Final = 0.5
LIMIT_GRACE_S: Final = 5.0
"""The time in seconds for which a passed time limit waits for missing results while its block
continues."""
CUT_GRACE_S: Final = 1.0
"""The time in seconds by which a wait outside of ctx may be cancelled later than in the recorded
run."""
CUT_IS_MISSING: Final = (
    "in an earlier run, a time limit of asyncio or anyio ended a wait outside of ctx; in this run it did "
    "not: use `async with ctx.timeout(seconds)`, "
    "whose end is the same in every run, and move slow work into ctx.step"
)
QUIET_TURNS: Final = 10
"""The number of turns of the event loop without an engine call after which branches count as at
rest."""


class Parked(Struct, eq=False):
    """A branch that waits, at most until `until_ms` (milliseconds since the epoch)."""

    branch: Branch
    until_ms: int | None
    future: asyncio.Future[None]


class Quiescence:
    """The busy and the waiting branches of one run."""

    def __init__(self, owner: Owner, clock: Clock) -> None:
        self._owner = owner
        self._clock = clock
        self.parked: dict[Parked, None] = {}
        self._in_flight = 0
        self._sleeping = 0
        self._activity = 0
        self._watching = False

    @property
    def is_waiting(self) -> bool:
        """Return whether a branch waits in a call of the engine, other than for a step."""
        return bool(self._sleeping or self.parked)

    @property
    def is_at_rest(self) -> bool:
        """Return whether all branches wait in the engine for answers or for the next turn."""
        return bool(self.parked) and not self._in_flight

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Count as busy while the block runs outside of the engine."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        self._in_flight += 1

    def end(self) -> None:
        self._in_flight -= 1
        self.restart_quiet()

    async def sleep(self, seconds: float) -> None:
        """Wait in this process. The wait counts as busy, so the run comes to rest only after its
        end."""
        self._in_flight += 1
        self._sleeping += 1
        self.restart_quiet()
        try:
            await self._clock.sleep(seconds)
        finally:
            self._sleeping -= 1
            self.end()

    async def park(
        self, branch: Branch, until_ms: int | None = None, for_ms: float | None = None
    ) -> None:
        """Wait until the run is suspended, or for `for_ms` milliseconds.

        Raises:
            Suspend: the run came to rest first.
        """
        loop = asyncio.get_running_loop()
        parked = Parked(branch, until_ms, loop.create_future())
        self.parked[parked] = None
        timer = (
            None
            if for_ms is None
            else self._clock.call_later(max(0.0, for_ms) / 1000, partial(wake, parked.future))
        )
        self.restart_quiet()
        try:
            await parked.future
        finally:
            del self.parked[parked]
            if timer is not None:
                timer.cancel()
            self.restart_quiet()

    def unpark(self, error: Callable[[], BaseException]) -> None:
        """End every wait with an error."""
        for parked in self.parked:
            if not parked.future.done():
                parked.future.set_exception(error())

    def close(self) -> None:
        """Cancel every wait."""
        for parked in self.parked:
            parked.future.cancel()

    def restart_quiet(self) -> None:
        """Restart the count of quiet turns of the event loop, if any branch waits."""
        self._activity += 1
        if (self.parked or self._sleeping) and not self._watching:
            self._watching = True
            asyncio.get_running_loop().call_soon(self._watch, self._activity, QUIET_TURNS)

    def _watch(self, activity: int, turns: int) -> None:
        loop, run = asyncio.get_running_loop(), self._owner.run
        if self._in_flight > self._sleeping or not (self.parked or self._sleeping):
            self._watching = False  # `end` starts the next watch
        elif activity != self._activity or turns:
            turns_left = turns - 1 if activity == self._activity else QUIET_TURNS
            loop.call_soon(self._watch, self._activity, turns_left)
        elif self._sleeping:
            self._watching = self._clock.pass_time()
            if self._watching:
                loop.call_soon(self._watch, self._activity, QUIET_TURNS)
        elif run is not None and (hold_s := run.hold_s()) > 0:
            after_s = 0 if self._clock.pass_time() else hold_s
            loop.call_later(after_s, self._watch, self._activity, QUIET_TURNS)
        else:
            self._watching = False
            if run is not None:
                run.come_to_rest()


def wake(future: asyncio.Future[None]) -> None:
    """Complete a future unless it is done."""
    if not future.done():
        future.set_result(None)


def is_cut_wait(entry: Entry | None) -> bool:
    """Return whether an entry records the cancellation of a wait outside of ctx."""
    return isinstance(entry, Cut) and entry.key.rpartition("/")[2].startswith("cut:")


def _has_rank(entry: Entry) -> bool:
    return isinstance(entry, (Cut, Told)) or (
        isinstance(entry, (Finished, Raised)) and entry.what is not None
    )


def _is_impatient(waiting: tuple[float, bool, int, asyncio.Future[None]]) -> bool:
    rank, is_patient, *_ = waiting
    return not is_patient or rank == math.inf


def path_from_key(key: str) -> str:
    """Return the path of the branch to which a key belongs."""
    place = key.removeprefix(Told.PREFIX).partition("+")[0]
    return place[: place.rfind("/") + 1]


class Order:
    """The order in which the branches of one run receive results."""

    def __init__(self, entries: Iterable[Entry], owner: Owner) -> None:
        """Make the order of the results in `entries`, the journal as the run begins."""
        ranked = [entry for entry in entries if _has_rank(entry)]
        self._ranks = {entry.key: rank for rank, entry in enumerate(ranked)}
        self._cut_waits = {
            rank: entry
            for rank, entry in enumerate(ranked)
            if isinstance(entry, Cut) and is_cut_wait(entry)
        }
        self._of_branch: defaultdict[str, deque[int]] = defaultdict(deque)
        for key, rank in self._ranks.items():
            if rank not in self._cut_waits:
                self._of_branch[path_from_key(key)].append(rank)
        self._owner = owner
        self._known = self._issued = len(self._ranks)
        self._next = 0
        self._skipped_to = -1.0
        """The highest rank that was delivered although lower ones were unrequested."""
        self._gone: set[int] = set()
        self._expected: set[int] = set()
        self._waiting: list[tuple[float, bool, int, asyncio.Future[None]]] = []
        """A heap of waiters: the rank, whether to wait only for lower ranks, the order of
        arrival."""
        self._loop = asyncio.get_running_loop()
        self._arrivals = 0
        self._generation = 0
        self._seen = owner.resumed
        self._turns_unquiet = 0
        self._is_settling = False
        self._has_waited = False
        self._is_open = False

    @property
    def is_over(self) -> bool:
        """Return whether all results that were recorded when the run began have been delivered."""
        return self._next >= self._known

    @property
    def is_idle(self) -> bool:
        """Return whether all results so far have been delivered, with all their consequences."""
        return self.is_over and not self._is_settling and not self._waiting

    def rank(self, key: str) -> float:
        """Return the rank of a recorded result; infinite for a new one."""
        return self._ranks.get(key, math.inf)

    def is_new(self, key: str) -> bool:
        """Return whether the journal had no entry under a key when the run began."""
        return key not in self._ranks

    def pass_by(self, key: str) -> None:
        """Deliver a result to the only branch, without waiting."""
        self._next = max(self._next, self._ranks.get(key, -1) + 1)
        if self._waiting:
            self._settle()

    def drop_passed(self, path: str, rank: float) -> None:
        """Skip all results of a branch with a lower rank: the branch has passed these places."""
        ranks = self._of_branch[path]
        while ranks and ranks[0] < rank:
            self.drop(ranks.popleft())

    def new_rank(self) -> int:
        """Return the rank of a new result. Pass it to `turn` or `drop`."""
        self._issued += 1
        return self._issued - 1

    def drop(self, rank: float) -> None:
        """Skip a rank: no branch receives its result."""
        if rank < self._next or rank == math.inf:
            return
        self._gone.add(int(rank))
        self._advance()
        self._settle()

    @contextmanager
    def expected(self, rank: float) -> Iterator[None]:
        """Hold back all later results while the block is open, because the branch of this rank
        waits for another event first."""
        if rank == math.inf:
            yield
            return
        self._expected.add(int(rank))
        try:
            yield
        finally:
            self._expected.discard(int(rank))
            self._settle()

    async def turn(self, rank: float) -> None:
        """Return when a branch may receive the result of a rank; an infinite rank means a new
        result.

        Everything that the handler can do without the result happens first, in every run.
        """
        if self._is_open or (rank == math.inf and self.is_over):
            return
        if rank < max(self._next, self._skipped_to):
            # this result was late; other late results are delivered in their order
            self._has_waited = False
        await self._wait(rank)

    async def reach(self, rank: float) -> None:
        """Return when all results of a lower rank have been delivered, or `LIMIT_GRACE_S` have
        passed. With an infinite rank, also wait until no branch waits for its turn."""
        if not self._is_open:
            await self._wait(rank, is_patient=True)

    def upcoming(self, path: str) -> tuple[float, str] | None:
        """Return the rank and key of the next recorded result of the branch at `path`, or
        `None`."""
        undelivered = (
            (rank, key)
            for key, rank in self._ranks.items()
            if rank >= self._next and rank not in self._gone and path_from_key(key) == path
        )
        return min(undelivered, default=None)

    def is_cut_before(self, rank: float) -> bool:
        """Return whether a wait outside of ctx is still to be cancelled before a rank."""
        return any(self._next <= cut < rank and cut not in self._gone for cut in self._cut_waits)

    def open(self) -> None:
        """End every wait, because the run has ended."""
        self._is_open = True
        for *_, future in self._waiting:
            wake(future)
        self._waiting.clear()

    async def _wait(self, rank: float, *, is_patient: bool = False) -> None:
        future = self._loop.create_future()
        self._arrivals += 1
        heapq.heappush(self._waiting, (rank, is_patient, self._arrivals, future))
        # new results are ordered by their ranks alone
        if not (self.is_over and self._is_settling):
            self._settle()
        await future

    def _settle(self) -> None:
        """Look for the next waiter once the consequences of the last result are complete."""
        self._is_settling = True
        self._generation += 1
        # the loop is closed when Python closes an abandoned handler
        if not self._is_open and not self._loop.is_closed():
            self._loop.call_soon(self._look, self._generation, TURNS)

    def _look(self, generation: int, turns: int) -> None:
        if generation != self._generation or self._is_open:
            return
        while self._waiting and self._waiting[0][-1].done():  # its branch was cancelled
            heapq.heappop(self._waiting)
        if turns >= 0 and self._is_active():
            turns = TURNS
        if turns > 0:
            self._loop.call_soon(self._look, generation, turns - 1)
        elif self._waiting and (self._waiting[0][0] <= self._next or self._is_last()):
            rank, *_, future = heapq.heappop(self._waiting)
            wake(future)
            self._deliver_next(rank)
        elif not self._waiting or self._next in self._expected or self.is_over:
            self._is_settling = False  # the next waiter settles again when it arrives or is dropped
        elif turns < 0:
            self._skip()
        else:
            self._be_patient(generation, self._patience_s() / TICKS, TICKS)

    def _be_patient(self, generation: int, tick_s: float, ticks: int) -> None:
        """Look again after a number of ticks, unless a result is delivered meanwhile."""
        if generation != self._generation:
            return
        if ticks == 0 or tick_s == 0:
            self._look(generation, -1)
        else:
            self._loop.call_later(tick_s, self._be_patient, generation, tick_s, ticks - 1)

    def _is_last(self) -> bool:
        """Return whether all recorded results are delivered and every waiter has an infinite
        rank."""
        return self.is_over and self._waiting[0][0] == math.inf

    def _is_active(self) -> bool:
        """Return whether a branch has resumed by itself since the last look while another one
        waits."""
        resumed_before, self._seen = self._seen, self._owner.resumed
        if resumed_before == self._seen or not self._waiting:
            return False
        self._turns_unquiet += 1
        if self._turns_unquiet > MAX_TURNS:
            self._fail(
                f"a branch of the handler ran for {MAX_TURNS:,} turns of the event loop without "
                "waiting, while another branch was due to receive a result: await the task "
                "or an asyncio.Event instead of polling with asyncio.sleep(0)"
            )
        return True

    def _patience_s(self) -> float:
        """Return the seconds for which unrequested results delay the waiters."""
        cut = self._cut_waits.get(self._next)
        if cut is None:
            if not any(map(_is_impatient, self._waiting)):
                return LIMIT_GRACE_S
            return 0.0 if self._has_waited else GRACE_S
        again_s = (cut.after_ms - self._owner.elapsed_ms()) / 1000
        return max(GRACE_S, again_s + CUT_GRACE_S)

    def _skip(self) -> None:
        """Wake the first waiter although earlier results are unrequested. These keep their order:
        they may be requested because of the result. Cancellations, and results that a branch is
        about to receive, are never skipped."""
        self._has_waited = True
        waiting = [one for one in self._waiting if not one[-1].done()]
        rank, *_, future = first = min(filter(_is_impatient, waiting), default=min(waiting))
        protected = [one for one in (*self._cut_waits, *self._expected) if self._next <= one < rank]
        until = min((one for one in protected if one not in self._gone), default=None)
        if until is None:
            self._waiting.remove(first)
            heapq.heapify(self._waiting)
            wake(future)
            if rank == math.inf:
                self._deliver_next(rank)
            else:
                self._skipped_to = max(self._skipped_to, rank)
                self.drop(rank)
        elif until > self._next:
            self._next = until
            self._settle()
        else:
            self._fail(CUT_IS_MISSING, self._cut_waits[until].key)

    def _fail(self, reason: str, key: str = "") -> None:
        if self._owner.run is not None:
            self._owner.run.fail(NondeterminismError(key, reason=reason))

    def _deliver_next(self, rank: float) -> None:
        self._turns_unquiet = 0
        self._next = max(self._next, self._known if rank == math.inf else int(rank) + 1)
        self._advance()
        self._settle()

    def _advance(self) -> None:
        while self._next in self._gone:
            self._gone.remove(self._next)
            self._next += 1
        if self.is_over:
            for rank, is_patient, _, future in self._waiting:
                if rank == math.inf and not is_patient:
                    wake(future)

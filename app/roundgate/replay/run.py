"""One call, and one run of its handler, from the beginning to the end.

Every recorded entry has a place (`branches`). The run returns recorded results. It performs and
records any other action, and returns the result in the form in which later runs get it. A run that
cannot continue is suspended once all branches wait (`branches`). If the action at a place differs
from the recorded one, the run ends with `NondeterminismError`.

Other modules have the actions of a handler, as functions with the run as their first argument:

    asking        questions and their answers
    steps         steps, polls, idempotency keys
    waiting       sleeps; time limits; ending a round or a turn, to continue later
    recording     entries made durable, and given to the branches in order
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeAlias

from msgspec import Struct

from roundgate.aio import TaskWatch, Threads
from roundgate.auth import Principal
from roundgate.clock import Deadline
from roundgate.errors import Suspend
from roundgate.protocol import (
    LOG_LEVELS,
    ClientCapabilities,
    Meta,
    PartlyKnown,
    ResourceContents,
    notifications,
    without_none,
)
from roundgate.replay.branches import (
    END,
    Branch,
    Order,
    Owner,
    Parked,
    Quiescence,
    Scope,
    here,
    path_from_key,
    wake,
)
from roundgate.replay.journal import (
    HANDLER,
    Answered,
    Began,
    Cut,
    Entry,
    Finished,
    Journal,
    Passed,
    Raised,
    Remembered,
    TimedOutQuestion,
    Told,
    Tried,
    WireNames,
)
from roundgate.storage import TaskRef

if TYPE_CHECKING:  # loaded only if there is an audit log
    from roundgate.audit import Trail

log = logging.getLogger("roundgate.replay")
handler_log = logging.getLogger("roundgate.handler")

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
HOLD_MS: Final = 1_000
"""The longest wait in milliseconds during which a task keeps its worker. Resuming the task
on another worker would take as long."""
HOLD_FOR_TIMEOUTS_S: Final = 60.0
"""The longest time in seconds for which a task keeps its worker until an `asyncio.timeout` of the
handler ends a durable wait."""
MAX_REFUSALS: Final = 100
"""The maximum number of calls of the engine that a handler may make after its run has ended."""
LATE_REFUSALS: Final = 10
"""The maximum number of calls of the engine if the run ended more than `STOP_GRACE_S` ago."""
STOP_GRACE_S: Final = 5.0
"""The time in seconds for which a handler may continue after its run has ended; then the run
cancels it."""
_TICK_MS: Final = 10
"""The tolerance in milliseconds for time limits, because event-loop timers fire slightly late."""
_RESULTS: Final = (Finished, Raised, Answered, TimedOutQuestion, Passed)
_WITHOUT_PLACE: Final = (Cut, Told, Remembered)
"""Entries that do not show how far an earlier run progressed."""


class Cleanup(StrEnum):
    """The reason why a call only ends the external work of its task, which ended early."""

    OF_WHAT_IS_KNOWN = "of what is known"
    """The journal has all work that the task began."""
    IN_DOUBT = "in doubt"
    """A worker of the task may have begun work that is not in the journal."""


Notify: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Sends a notification (method, params) on the stream of this request."""
PageDone: TypeAlias = Callable[[str], Awaitable[None]]
"""Notifies the client that its user has finished with the page of a question, by its wire key."""
Publish: TypeAlias = Callable[[str, str | None], Awaitable[None]]
"""Notifies every subscribed `subscriptions/listen` stream of a change (method, uri)."""
Authorize: TypeAlias = Callable[[Callable[[], PartlyKnown]], None]
"""Checks a call. Takes a function that returns the arguments, and raises ArgumentsRefused."""
Read: TypeAlias = Callable[[Any, str], Awaitable[Sequence[ResourceContents]]]
"""Reads a resource by its URI, as the caller of the handler that has the given context.

Raises ResourceNotFound.
"""


async def publish_nowhere(method: str, uri: str | None) -> None:
    """Do nothing, for calls whose changes no client can follow."""


class TextPart(Struct, frozen=True):
    """A part of a long text."""

    text: str
    start: int
    total: int
    """The length of the whole text in characters."""
    next_cursor: str | None
    """The cursor of the next part; `None` at the end, or if the rest could not be stored."""


class LongTexts(Protocol):
    """A store that keeps long texts for their owners for a limited time. Any process can read
    them."""

    async def keep(
        self,
        text: str,
        size: int,
        scopes: frozenset[str],
        owner: Principal,
        *,
        of_task: bool = False,
    ) -> str:
        """Store a text that clients read in parts of `size` characters; return the cursor of the
        second part. A text `of_task` is kept as long as a task's result.

        Raises:
            Unavailable: the store cannot be reached.
        """

    async def part(self, cursor: str, owner: Principal) -> TextPart | None:
        """Return the part at a cursor; `None` if the owner has no such text, or lacks a scope.

        Raises:
            ToolError: newer texts of the owner have replaced the text.
            Unavailable: the store cannot be reached.
        """


class HiddenRound(Protocol):
    """A round of answers that this process has claimed (`tasks.hidden.Holding`)."""

    @property
    def answers(self) -> bytes:
        """Return the answers."""

    def renewed(self) -> AbstractAsyncContextManager[object]:
        """Return a context manager that renews the lease until its block ends."""

    async def finish(self, outcome: bytes) -> None:
        """End the round."""

    async def let_go(self) -> None:
        """Leave the round to another process, without errors."""


class NotSent(StrEnum):
    """The reason why answers have no outcome."""

    OTHER = "the round has other answers"
    LOST = "the process that had to run the round has died"
    ENDED = "an operator ended the round"


class HiddenRounds(Protocol):
    """The rounds of answers to older servers, in rows that every process sees
    (`tasks.hidden.HiddenTasks`)."""

    def ref(self, owner: Principal, *names: str | int) -> TaskRef:
        """Return the reference of a round, whether or not it exists."""

    async def send(
        self, ref: TaskRef, tool: str, answers: bytes, *, secret: str, continues: bool
    ) -> bytes | HiddenRound | NotSent:
        """Store the answers of a round, unless it has some; return its outcome, or the round, claimed,
        if this process `continues` the call. The `secret` keeps operators from guessing the
        answers."""

    async def receive(self, ref: TaskRef) -> HiddenRound | None:
        """Wait until a request sends the answers of a round, and claim the round; return `None` if
        the round has ended instead."""

    async def close(self, ref: TaskRef, tool: str, outcome: bytes) -> bool:
        """End a round without answers; return `False` if it has answers."""


class ExternalEvents(Protocol):
    """The external events of one task."""

    @property
    def base(self) -> str | None:
        """Return the base URL for tokens; `None` if no public URL is configured."""

    @property
    def max_open(self) -> int:
        """Return the maximum number of open events per task (`tasks.max_open_events`)."""

    def token(self, name: str) -> str:
        """Return the token that allows a service to deliver the event of a name once."""

    @property
    def default_s(self) -> float:
        """Return the seconds for which an event without a time limit can be delivered."""


class RunRound(Protocol):
    """A round of a call."""

    @property
    def task_id(self) -> str:
        """Return the id of the task that the call becomes if it becomes one in this round. The id
        stays the same if the client repeats the round. It is made on demand, because few calls need
        it."""


class Call(Struct, kw_only=True, eq=False):
    """The facts of one call. A request is its own call (`methods.rounds.RequestContext`); a task's
    worker makes one. It is also the context of a `DirectCall`, which runs without the engine."""

    principal: Principal
    meta: Meta
    """The request's `_meta`; in a task, the `_meta` of the request that became the task."""
    deadline: Deadline
    """The end of this round, or of this turn of a worker."""
    watch: TaskWatch | None = None
    """The watch over the request, which cancels the call at its deadline; a run in another task has
    a watch of its own."""
    notify: Notify | None = None
    page_done: PageDone | None = None
    publish: Publish = publish_nowhere
    task_id: str | None = None
    """The id of the task that this call has become, or `None`."""
    may_become_task: bool = False
    """Whether this ordinary call may become a task: its tool and its client both support that."""
    last_ms: int | None = None
    """The latest end of a wait, in milliseconds since the epoch, of a task or of a call that may
    become one; `None` for no limit."""
    needs_row: bool = False
    """Whether the call has to become a task before its first step: the tool has
    `task="required"`."""
    takes_unasked: bool = False
    """Whether the handler accepts answers to questions that were not asked."""
    round: RunRound | None = None
    """This round of an ordinary call."""
    trail: Trail | None = None
    """The audit log, which records approvals of an ordinary call."""
    texts: LongTexts | None = None
    """The store for the remainder of results that are too long."""
    hidden: Callable[[], HiddenRounds] | None = None
    """Returns the rounds through which a back end reaches the process that has its call."""
    read: Read | None = None
    """Reads resources that the gateway serves beside the handler."""
    external: ExternalEvents | None = None
    """Opens external events, in a task."""
    authorize: Authorize | None = None
    """Checks the call by the rules of `policy`; `None` if there are none."""
    shapes_result: bool = False
    """Whether settings change the result. A task of a service would deliver it unchanged."""
    begun: Any = None
    """The outcome of the first request of a call that began without the engine (`NeedsEngine`); the
    call's first step takes it."""
    last_progress: float | None = None
    """The last progress that the client was sent."""
    cleanup: Cleanup | None = None
    """Set if the call may only end external work and begin no other."""
    step_threads: Threads | None = None
    """The bounded thread pool for steps that are plain functions; by default 40 threads for each
    event loop."""

    @property
    def capabilities(self) -> ClientCapabilities:
        """Return the capabilities that the client declared on this request."""
        return self.meta.capabilities

    @property
    def idempotency(self) -> str | None:
        """Return an id that stays the same if the client repeats this round, or `None`."""
        if self.task_id is None and self.round is not None:
            return self.round.task_id
        return self.task_id

    # the part of `Context` that a call without the engine has

    async def idempotency_key(self, name: str) -> str:
        """Return a new key: the call runs once."""
        return self.deadline.clock.new_id()

    async def continue_as_task(self) -> None:
        """Do nothing: the call cannot become a task."""

    async def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """As `Context.progress`."""
        token = self.meta.progress_token
        if token is None or self.notify is None:
            return
        if self.last_progress is not None and progress <= self.last_progress:
            return
        self.last_progress = progress
        params = without_none(progressToken=token, progress=progress, total=total, message=message)
        await self.notify(notifications.PROGRESS, params)

    async def log(self, level: str, data: Any, logger: str | None = None) -> None:
        """As `Context.log`."""
        if level not in LOG_LEVELS:
            raise ValueError(f"{level!r} is not a log level; use one of {', '.join(LOG_LEVELS)}")
        if self.task_id is not None:
            fields = {"level": level, "logger": logger, "data": data}
            handler_log.info("log message of a task", extra={"fields": fields})
            return
        least_level = self.meta.log_level
        if (
            least_level is None
            or self.notify is None
            or LOG_LEVELS.index(level) < LOG_LEVELS.index(least_level)
        ):
            return
        params = {"level": level, "data": data} | without_none(logger=logger)
        await self.notify(notifications.MESSAGE, params)


class Stop(StrEnum):
    """The reason why a run ended before its handler."""

    SUSPENDED = "suspended"
    """All branches of the run wait, or it has to release its worker."""
    LOST = "lost"
    """The task was cancelled or belongs to another worker; the gateway ignores the outcome."""
    FAULT = "fault"
    """The run could not record an entry, or the handler took another path than before."""
    OVER = "over"
    """The handler has ended; branches that it left behind can begin nothing."""


class Checkpointer(Protocol):
    """The storage of a journal that does not travel with the client."""

    async def admit(self) -> None:
        """Return once a step may begin.

        Raises:
            Suspend: the step may not begin.
        """

    async def checkpoint(self, *entries: Entry) -> None:
        """Return once these entries are durable. Either all of them are stored or none.

        Raises:
            Suspend: the entries will not become durable.
        """


class Run:
    """One run of a handler. Only modules of `replay` assign to it."""

    message: str | None = None
    """The handler's last status: the `statusMessage` of a task."""
    is_message_over = False
    """Whether a step has ended since the last status, which a question then replaces."""
    wants_task = False
    """Whether the run has to continue as a task, or in another turn of its task: at the handler's
    request, because time is nearly up, or for a wait longer than a request may take."""
    restart_arguments: dict[str, Any] | None = None
    """The arguments with which the handler restarts once the run is at rest."""
    error: Exception | None = None
    """The error that ended the run, if the handler did not raise it."""
    stopped: Stop | None = None
    wake_ms: int | None = None
    """When a suspended run continues, in milliseconds since the epoch; `None` for at once."""
    root_task: asyncio.Task[Any] | None = None
    """The task in which the handler runs; `None` before and afterwards."""
    root_coroutine: Any = None
    """The handler's coroutine, if it runs in the task of its request."""
    is_enforced = False
    """Whether the run cancelled the handler because it continued after the end."""
    _enforcing: asyncio.TimerHandle | None = None
    """The timer that cancels the handler if it continues after the end."""
    stop_requested = False
    """Whether to suspend at the next step, because the process is about to stop."""
    decides_by_state = False
    """Whether the handler chooses its own point to continue from (`ctx.state`,
    `ctx.input_response`), so that the progress of earlier runs is unknown."""
    steps_run = 0
    """The number of steps that ended in this run."""
    longest_ms = 0.0
    """The duration of the longest step in milliseconds."""
    is_beginning = False
    """Whether the run is starting external work whose id only the response contains. A handler
    cancelled at this moment could never end that work."""
    is_declared = False
    """Whether the version of the handler is known; a resource that it reads has another."""
    _undeclared: str | None = None
    """The version that is recorded with the first place that the handler reaches."""
    is_same_version = False
    """Whether the journal was written by the same version of the handler alone."""
    is_beyond = False
    """Whether this run has gone further than every earlier run."""
    values_made = 0
    """The number of values that the engine has made for the handler in this run."""
    values_durable = 0
    """The number of values of the engine that are certainly durable."""
    _driver: asyncio.Task[Any] | None = None
    """The task that waits for the handler's own task, if it has one."""
    _driver_cancelling = 0
    """The number of cancellations of the driver before the run began."""
    _ended: asyncio.Future[None] | None = None
    _quiescence: Quiescence | None = None
    _wire_names: WireNames | None = None
    _refusals = 0
    _stopped_at_ms = 0.0

    def __init__(
        self,
        call: Call,
        journal: Journal,
        checkpointer: Checkpointer | None = None,
        message: str | None = None,
    ) -> None:
        """Make a run that has not begun.

        Args:
            call: the facts of the call.
            journal: the entries of earlier runs, to which this run adds.
            checkpointer: makes entries durable. Without a checkpointer the journal travels, and
                entries are durable once the round is answered.
            message: the handler's status in an earlier run.
        """
        self.call = call
        self.journal = journal
        self.checkpointer = checkpointer
        self.message = message
        self.clock = call.deadline.clock
        self.requests: dict[str, Any] = {}
        """The questions that the run leaves open, by wire key."""
        self.awaits: list[tuple[str, Branch]] = []
        """The external events that branches wait for: their names in the task's record, and the
        branches."""
        self.owner = Owner()
        self.root = Branch(self.owner)
        self.order = Order(journal.steps.values(), self.owner) if journal.steps else None
        """The order in which branches get recorded results; `None` without any."""
        self.unwritten: list[Entry] = []
        """The entries to write with the next step."""
        self.running_steps: set[str] = set()
        """The places of running steps."""
        self.new_steps: list[str] = []
        """The places of steps whose functions this run has called."""
        self.limits: set[Scope] = set()
        """The durable time limits whose blocks are open."""
        self._ahead: set[str] = set()
        """The places that earlier runs reached and this run has not reached yet."""
        self._to_receive: set[str] = set()
        """The places of recorded results that the handler has not received yet. They precede every
        new action."""
        if journal.steps or journal.questions:
            for entry in journal.entries():
                if not isinstance(entry, _WITHOUT_PLACE):
                    self._ahead.add(entry.key)
                if isinstance(entry, _RESULTS):
                    self._to_receive.add(entry.key)

    # progress

    def begin(self, root: asyncio.Task[Any] | None = None) -> None:
        """Begin the run in the current task, or in `root` if the current task waits for `root`."""
        self.owner.run, self.owner.begun_ms = self, self.clock.monotonic_ms()
        if root is None:
            self.root_task = asyncio.current_task()
            return
        self.root_task, self._driver = root, asyncio.current_task()
        self._driver_cancelling = 0 if self._driver is None else self._driver.cancelling()

    def come_to(self, branch: Branch, kind: str, name: str) -> str:
        """Return the place of the next use of a name in a branch, and record that the handler has
        reached it."""
        if self._undeclared is not None:
            self._record_version(Remembered(HANDLER, [self._undeclared]))
            self._undeclared = None
        key = branch.key(kind, name)
        self._ahead.discard(key)
        return key

    def mark_received(self, key: str) -> None:
        """Record that the handler has received the result of a place."""
        self._to_receive.discard(key)

    def decide_by_state(self) -> None:
        """Record that the handler chooses its own point to continue from."""
        self.decides_by_state = self.is_beyond = True

    def is_repeating(self, branch: Branch) -> bool:
        """Return whether an earlier run went further than this branch has."""
        if self.is_beyond or not (self._ahead or self._to_receive):
            return False
        return bool(self._to_receive) or any(key.startswith(branch.path) for key in self._ahead)

    @property
    def may_have_passed(self) -> bool:
        """Return whether an earlier run may have gone beyond the current place of the handler.

        A new step begins only after every recorded result was delivered. Places that the handler
        has not reached by then no longer exist in its code. Threads are an exception.
        """
        return bool(self._ahead) and (self.root.is_thread or not self.new_steps)

    def unasked(self) -> list[str]:
        """Return the places of steps that an earlier run began and this run has not reached yet."""
        if not self._ahead:
            return []
        steps = self.journal.steps
        return [
            key
            for key in self._ahead
            if isinstance(step := steps.get(key), (Finished, Raised, Began, Tried))
            and step.what is not None
        ]

    def is_same(self, before: str, now: str | None) -> bool:
        """Return whether two identities of an action at the same place are equal."""
        return before == now

    def declare(self, version: str) -> None:
        """Record the version of the handler that is about to begin.

        If the journal is the work of this version alone, the handler has to take the same path
        again (`other_path`). Entries of code in front of the handler, such as an approval, are no
        part of its path.
        """
        if self.is_declared:
            return
        self.is_declared = True
        if self.checkpointer is None and not (self.journal.steps or self.journal.questions):
            self._undeclared = version  # most handlers record nothing
            return
        entry = self.journal.steps.get(HANDLER)
        if isinstance(entry, Remembered) and entry.value[0] == version:
            self.is_same_version = True
            self._ahead.difference_update(entry.value[1:])
            return
        new = Remembered(HANDLER, [""])
        if entry is None and not self._ahead:
            before = (e.key for e in self.journal.entries() if not isinstance(e, _WITHOUT_PLACE))
            new = Remembered(HANDLER, [version, *before])
        if new != entry:
            self._record_version(new)

    def _record_version(self, entry: Remembered) -> None:
        self.journal.add(entry)
        self.unwritten.append(entry)

    def skipped(self, branch: Branch) -> str | None:
        """Return a place that an earlier run of the same version reached before any new step of a
        branch, and this run has not reached; `None` if there is none."""
        if not self.is_same_version or self.decides_by_state:
            return None
        mine: set[str] = set()
        part: Branch | None = branch
        while part is not None:
            mine.add(part.path)
            part = part.within
        return min((key for key in self._ahead if self._created(key) in mine), default=None)

    def uncreated(self, branch: Branch) -> str | None:
        """Return the place of a step that an earlier run of the same version began in a branch that
        the ancestors of `branch` have not created in this run; `None` if there is none."""
        if not self.is_same_version or self.decides_by_state:
            return None
        for key in sorted(self.unasked()):
            creator = self._created(key)
            if creator != path_from_key(key) and branch.path.startswith(creator):
                return key
        return None

    def _created(self, key: str) -> str:
        """Return the path of the innermost branch around a place that this run has created."""
        path = path_from_key(key)
        while path not in self.owner.paths:
            path = path[: path.rstrip("/").rfind("/") + 1]
        return path

    async def enter(self, kind: str, *names: str) -> Branch:
        """Return the branch that calls the engine.

        Args:
            kind: the handler's action, for error messages.
            names: the names that the action uses.

        Raises:
            Suspend: the run has ended.
            ValueError: a name cannot be a key.
            RuntimeError: the caller does not belong to this run, or is inside a step.
        """
        self._check_owner()
        if self.stopped is not None:
            await self.refuse()
        return self._branch_here(kind, names)

    def enter_at_once(self, kind: str, *names: str) -> Branch:
        """Return the branch that calls the engine, as `enter` does, for a call that never waits.

        Raises:
            Suspend, ValueError, RuntimeError: as for `enter`.
        """
        self._check_owner()
        if self.stopped is not None:
            self._refusals += 1
            raise Suspend
        branch = self._branch_here(kind, names)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                f"the context of an async handler was used in another thread for {kind}: use it in "
                "the handler, and pass the value to the thread"
            ) from None
        return branch

    def _check_owner(self) -> None:
        if getattr(here.get(), "owner", None) is not self.owner:
            ended = "; the handler has ended" if self.stopped is not None else ""
            raise RuntimeError(f"only the handler and the tasks that it creates can use ctx{ended}")

    def _branch_here(self, kind: str, names: Collection[str]) -> Branch:
        place = here.get()
        for name in names:
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} is not a valid name for a {kind}: use 1 to 64 of A-Z a-z 0-9 _ . -"
                )
        if not isinstance(place, Branch):
            # later runs know only the outcome of the step: they would skip inner steps, and
            # never get answers to inner questions
            raise RuntimeError(
                f"step {getattr(place, 'key', None)!r} contains the {kind} "
                f"{', '.join(map(repr, names))}; call ctx outside of steps"
            )
        return place

    @property
    def quiescence(self) -> Quiescence:
        """Return the busy and the waiting branches. The object is made on demand, because most
        handlers never call the engine."""
        if self._quiescence is None:
            self._quiescence = Quiescence(self.owner, self.clock)
        return self._quiescence

    @property
    def ended(self) -> asyncio.Future[None]:
        """Return a future that is done once the run is stopped. The future is made on demand."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
        return self._ended

    @property
    def order_here(self) -> Order:
        """Return the order of results, made on demand."""
        if self.order is None:
            self.order = Order((), self.owner)
        return self.order

    @property
    def wire_names(self) -> WireNames:
        """Return the names of questions for clients, made on demand."""
        if self._wire_names is None:
            taken = (entry.wire or entry.key for entry in self.journal.questions.values())
            self._wire_names = WireNames(taken)
        return self._wire_names

    @property
    def awaited(self) -> frozenset[str]:
        """Return the external events that the run waits for, by their names in the task's record."""
        return frozenset(name for name, _ in self.awaits)

    # ending

    @property
    def is_cancelled(self) -> bool:
        """Return whether the task was cancelled, or belongs to another worker."""
        return self.stopped is Stop.LOST

    @property
    def has_own_task(self) -> bool:
        """Return whether the handler runs in a task of its own rather than in its request's
        task."""
        return self._driver is not None

    @property
    def is_being_ended(self) -> bool:
        """Return whether tasks are cancelled by the end of the event loop rather than by the
        handler."""
        return self._driver is not None and self._driver.cancelling() > self._driver_cancelling

    @property
    def is_hopeless(self) -> bool:
        """Return whether the handler has called the engine too often after its run has ended."""
        return self._refusals > MAX_REFUSALS

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Keep the handler from being cancelled at the end of the run while the block is open."""
        self.is_beginning = True
        try:
            yield
        finally:
            self.is_beginning = False

    async def park(self, branch: Branch) -> NoReturn:
        """Wait until every branch waits, then suspend."""
        if self.stopped is not None:
            await self.refuse()
        await self.quiescence.park(branch)
        raise AssertionError("only Suspend ends a wait without an end")

    async def refuse(self) -> NoReturn:
        """Raise `Suspend` in a handler that continues after its run has ended. After too many such
        calls, never resume the handler."""
        self._refusals += 1
        since_ms = self.clock.monotonic_ms() - self._stopped_at_ms
        is_late = since_ms > STOP_GRACE_S * 1000 and self._refusals > LATE_REFUSALS
        place = here.get()
        is_in_thread = isinstance(place, Branch) and place.is_thread
        # END also stops a handler without a task of its own that resists `close`
        if (self.is_hopeless or is_late) and not is_in_thread:
            await END
        raise Suspend

    def request_stop(self) -> None:
        """Suspend the run at its next step, because the process is about to stop."""
        self.stop_requested = True

    def stop(self, why: Stop) -> None:
        """End the run. Waits end now; other actions end at the handler's next call of the engine.
        The first reason counts."""
        if self.stopped is None:
            self.stopped = why
            self._stopped_at_ms = self.clock.monotonic_ms()
            ends = [parked.until_ms for parked in self._parked if parked.until_ms is not None]
            ends += [limit.until_ms for limit in self.limits]
            if not self.requests:
                now_ms = self.clock.now_ms()
                ends += [now_ms + max(0, round(left_s * 1000)) for left_s in self._timeouts_s()]
            self.wake_ms = None if self._must_go_on() else min(ends, default=None)
            self._enforce_later()
            wake(self.ended)
        self.quiescence.unpark(Suspend)
        if self.order is not None:
            self.order.open()

    def fail(self, error: Exception) -> None:
        """End the run with an error that its handler cannot catch."""
        self.error = self.error or error
        self.stop(Stop.FAULT)

    def close(self) -> None:
        """Record that the handler has ended. Branches that it left running can begin nothing."""
        if self.stopped is None:
            self.stopped, self._stopped_at_ms = Stop.OVER, self.clock.monotonic_ms()
        if self._enforcing is not None:
            self._enforcing.cancel()
        self.root_task = self.root_coroutine = self.owner.run = None
        if self._quiescence is not None:
            self._quiescence.close()

    # at rest

    @property
    def _parked(self) -> Collection[Parked]:
        return () if self._quiescence is None else self._quiescence.parked

    def _must_go_on(self) -> bool:
        """Return whether a branch waits only for its next turn."""
        return any(parked.until_ms is None for parked in self._parked) and not self.requests

    def come_to_rest(self) -> None:
        """Suspend the run because all its branches wait."""
        self.stop(Stop.SUSPENDED)

    def hold_s(self) -> float:
        """Return the seconds for which a task at rest keeps its worker. The result is positive if a
        time limit ends a wait soon and the next turn has nothing else to do."""
        if self.call.task_id is None or self.requests or self.stop_requested or self._must_go_on():
            return 0.0
        remaining_ms = (
            limit.until_ms - self.clock.now_ms() for limit in self.limits if limit.is_pending
        )
        soon = [max(left_ms, _TICK_MS) / 1000 for left_ms in remaining_ms if left_ms <= HOLD_MS]
        return max(0.0, min([*soon, *self._timeouts_s()], default=0.0))

    def _timeouts_s(self) -> list[float]:
        """Return the seconds until each `asyncio.timeout` ends a wait. Only this process knows
        these limits, so the task keeps its worker until they pass."""
        now_s = asyncio.get_running_loop().time()
        longest_s = max((self._wait_s(parked) for parked in self._parked), default=0.0)
        remaining_s = [
            max(when - now_s, 0.0) + _TICK_MS / 1000
            for when in self.owner.timeouts.whens(now_s)
            if when - now_s < longest_s
        ]
        if any(left_s > HOLD_FOR_TIMEOUTS_S for left_s in remaining_s):
            log.warning(
                "asyncio.timeout has no effect across a wait that releases the worker; use "
                "ctx.timeout"
            )
        return [left_s for left_s in remaining_s if left_s <= HOLD_FOR_TIMEOUTS_S]

    def _wait_s(self, parked: Parked) -> float:
        ends_ms = [scope.until_ms for scope in parked.branch.limits]
        if parked.until_ms is not None:
            ends_ms.append(parked.until_ms)
        return (min(ends_ms) - self.clock.now_ms()) / 1000 if ends_ms else math.inf

    def _enforce_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._enforcing = loop.call_later(STOP_GRACE_S, self._enforce)

    def _enforce(self) -> None:
        if self.is_beginning:
            self._enforce_later()
        elif self.root_task is not None:
            self.is_enforced = True
            self.root_task.cancel()

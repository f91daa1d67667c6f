"""One run of a handler: what its context asks of the engine, against the journal of what is known already.

Everything that is remembered has a place (`branches`). What is known there is served; what is not is done, remembered,
and then served as every later run will have it. A run that cannot go on is suspended once its handler has come to rest
(`quiescence`); one that finds something else at a place than was there before ends with `NondeterminismError`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final, NoReturn, Protocol

from roundgate.aio.timers import of_this_loop
from roundgate.errors import NondeterminismError
from roundgate.json import digest
from roundgate.protocol.capabilities import merged
from roundgate.replay.branches import END, Branch, InStep, Suspend, here, inside
from roundgate.replay.call import Call
from roundgate.replay.identity import identity
from roundgate.replay.journal import (
    Answered,
    Asked,
    Began,
    Cut,
    Entry,
    Finished,
    Journal,
    Passed,
    Raised,
    Slept,
    Told,
    Tried,
    Unanswered,
    plain,
    wire_key,
)
from roundgate.replay.order import Order
from roundgate.replay.questions import Answer, BadAnswer, Question, digest_of
from roundgate.replay.quiescence import Parked, Quiescence
from roundgate.replay.steps import ONCE, Options, StepFailed, Task, attempt, check_return, outcome_of

log = logging.getLogger("roundgate.replay")

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MAX_CHANGES: Final = 3
SHED_MARGIN_MS: Final = 250
"""What has to be left of the time, beyond what a step is expected to take, for another to be begun."""
SLOWER: Final = 1.25
"""What a step is expected to take: the longest so far times this. Steps of seconds differ by more than a margin."""
HOLD_MS: Final = 1_000
"""A task that has to wait no longer than this keeps its worker; letting go and being taken up again costs as much."""
HOLD_FOR_TIMEOUTS_S: Final = 60.0
"""For how long a task keeps its worker because an `asyncio.timeout` of its handler is about to end a durable wait."""
MAX_REFUSALS: Final = 100
LATE_REFUSALS: Final = 10
STOP_GRACE_S: Final = 5.0
"""How often a handler may go on asking after its run has ended, and how often when that is a while ago. Then it is not
resumed any more."""
_TICK_MS: Final = 10
"""A limit that is over ends its block within this: the timers of an event loop are late by a moment."""
CUT_GRACE_S: Final = 5.0
"""For how much longer than the first time a step that was cut waits to be cut again."""
CUT_HOLD_S: Final = 0.5
"""For how much of that it holds up a run that is at rest otherwise."""


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
    """Where a journal is kept that does not travel with the client."""

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


class Wires:
    """What clients know questions by. None is used twice."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._numbers: dict[str, int] = {}

    def take(self, wire: str) -> None:
        """It belongs to a question."""
        self._taken.add(wire)

    def new(self, base: str) -> str:
        """A free one: `confirm`, or `confirm#2`."""
        number = self._numbers.get(base, 0) + 1
        while (wire := base if number == 1 else f"{base}#{number}") in self._taken:
            number += 1
        self._numbers[base] = number - 1
        return wire


class Scope(Protocol):
    """A durable time limit around a part of a handler; over at `until_ms`, in milliseconds since the epoch."""

    until_ms: int
    is_left: bool
    is_pending: bool
    has_fired: bool

    def fire(self) -> None:
        """End that part."""

    async def wait_until_left(self) -> None:
        """Return once that part has ended."""


def _around(branch: Branch) -> list[Scope]:
    """The limits around a branch. A task may outlive the block in which it was created."""
    return [scope for scope in branch.scopes if not scope.is_left]


class Run:
    """One run. `requests` are the questions that it leaves open, by wire key."""

    message: str | None = None
    """What the handler last said it is doing: the `statusMessage` of a task."""
    wants_task = False
    """It is to go on as a task: it said so, time is nearly up, or it has to wait longer than a request may."""
    restart_with: dict[str, Any] | None = None
    error: Exception | None = None
    """What ended the run, if that is no matter of its handler's."""
    stopped: Stop | None = None
    wake_ms: int | None = None
    """When a suspended run is to go on, in milliseconds since the epoch; `None`: as soon as can be."""
    root_task: asyncio.Task[Any] | None = None
    driver: asyncio.Task[Any] | None = None
    """Where the handler has a task of its own: the task that waits for it, and how often that was cancelled before."""
    driver_cancelling = 0
    is_enforced = False
    """Whether the handler was cancelled because it went on after its run had ended."""
    _made_quiescence: Quiescence | None = None
    _wires: Wires | None = None
    _is_stopping = False
    _steps_run = 0
    _longest_ms = 0.0
    _refusals = 0
    _stopped_at_ms = 0.0

    def __init__(self, call: Call, journal: Journal, checkpointer: Checkpointer | None = None) -> None:
        """Without a checkpointer the journal travels: what is remembered is durable once the round is answered."""
        self.call = call
        self.journal = journal
        self.requests: dict[str, Any] = {}
        self._owner = object()
        self.root = Branch(self._owner)
        self._clock = call.deadline.clock
        self._checkpointer = checkpointer
        self._order = Order(journal.steps.values()) if journal.steps and journal.version > 1 else None
        self._unwritten: list[Entry] = []
        """What is written with the next step."""

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody wants the outcome any more."""
        return self.stopped is Stop.LOST

    # asking

    async def ask(
        self, asked: Mapping[str, Question], timeout_s: float | None = None, default: Any = None
    ) -> dict[str, Answer]:
        """The answers, if all are known; otherwise what is open is asked and the run suspends.

        After `timeout_s` seconds from the first asking, the default stands for an answer that has not come.

        Raises:
            MissingCapability: the client did not declare what a question needs; nothing is asked.
        """
        branch = await self._enter("question", *asked)
        keys = {name: self._place(branch).key("question", name) for name in asked}
        given_up = f"{branch.path}question:{'+'.join(keys.values()).removeprefix(branch.path)}"
        await self._be_cut_if_before(branch, given_up)
        while True:
            answers: dict[str, Answer] = {}
            opened: list[tuple[str, Asked, Question]] = []
            for name, question in asked.items():
                known = self._known(keys[name], name, question)
                if isinstance(known, Answer):
                    answers[name] = replace(known, value=default) if known.action == "timeout" else known
                else:
                    opened.append((name, known, question))
            if not opened:
                async with self._noting_cut(given_up):
                    await self._learn(branch, given_up)
                return answers
            async with self._noting_cut(given_up):
                await self._within_scopes(branch)
                until_ms = self._open(opened, timeout_s)
                try:
                    await self.quiescence.park(branch, until_ms, self._left_ms(until_ms))
                except asyncio.CancelledError:
                    self._withdraw(opened)
                    raise

    def _withdraw(self, opened: Sequence[tuple[str, Asked, Question]]) -> None:
        """Ask the client no more: nobody waits for the answers."""
        for _, entry, _ in opened:
            kept = self.journal.questions[entry.key]
            self.requests.pop(wire_key(getattr(kept, "wire", None) or entry.key, entry.attempt), None)

    async def ask_anew(self, asked: Mapping[str, Question]) -> NoReturn:
        """Ask, whether or not there was an answer before: the low-level form, which looks answers up itself."""
        branch = await self._enter("question", *asked)
        opened: list[tuple[str, Asked, Question]] = []
        for name, question in asked.items():
            entry, shown = self.journal.questions.get(name), digest_of(name, question)
            if not isinstance(entry, Asked) or entry.digest != shown:
                entry = Asked(name, shown, 1 if entry is None else entry.attempt + 1)
            opened.append((name, entry, question))
        self._open(opened, None)
        await self._park(branch)

    def _known(self, key: str, name: str, question: Question) -> Answer | Asked:
        """The usable answer to a question, or the question as it has to be asked now."""
        entry, shown = self._received(key, name), digest_of(name, question)
        match entry:
            case None:
                return Asked(key, shown)
            case Unanswered(digest=before) if before == shown:
                return Answer(name, "timeout")
            case Asked(digest=before) if before == shown:
                return self._in_time(entry) or Answer(name, "timeout")
            case Answered(digest=before) if before is None or before == shown:
                try:
                    answer = question.read(name, entry.response)
                except BadAnswer as error:
                    return Asked(key, shown, entry.attempt + 1, 0, str(error)[:500], entry.wire)
                if before is None or entry.changed:
                    # one that came unasked belongs from here on to the question that took it
                    self.journal.add(replace(entry, digest=shown, changed=0))
                return answer
        changed = getattr(entry, "changed", 0) + 1
        if changed >= MAX_CHANGES:
            raise RuntimeError(
                f"question {name!r} reads differently in every round; build it from arguments, answers and steps alone "
                "(a time or a random value belongs into ctx.step, which remembers it)"
            )
        return Asked(key, shown, entry.attempt + 1, changed, None, entry.wire)

    def _received(self, key: str, name: str) -> Asked | Answered | Unanswered | None:
        """What is known of a question; where the handler takes them, an answer to what was never asked too."""
        entry = self.journal.questions.get(key)
        if entry is None and self.call.takes_unasked and name in self.journal.unasked:
            return Answered(key, None, 1, 0, self.journal.unasked[name], self._wire(key, name))
        return entry

    def _in_time(self, entry: Asked) -> Asked | None:
        """The question if it may still be answered; else its default stands from here on."""
        if entry.until_ms is None or self._clock.now_ms() < entry.until_ms:
            return entry
        self.journal.add(Unanswered(entry.key, entry.digest, entry.attempt, entry.wire))
        self.requests.pop(wire_key(entry.wire or entry.key, entry.attempt), None)
        return None

    def _open(self, opened: Sequence[tuple[str, Asked, Question]], timeout_s: float | None) -> int | None:
        """Put questions to the client: all of them, or none if it lacks a capability for any.

        Returns when the first of them loses its time, if they have any.
        """
        names = ", ".join(entry.key for _, entry, _ in opened)
        required = merged(question.requires for _, _, question in opened)
        self.call.capabilities.require(required, f"asking {names}")
        untils: list[int] = []
        for name, entry, question in opened:
            if entry.key not in self.journal.questions:
                entry = replace(entry, wire=self._wire(entry.key, name))
            if timeout_s is not None:
                until_ms = entry.until_ms or self._clock.now_ms() + round(timeout_s * 1000)
                entry = replace(entry, until_ms=until_ms)
                untils.append(until_ms)
            self.journal.add(entry)
            self._wire_names.take(entry.wire or entry.key)
            self.requests[wire_key(entry.wire or entry.key, entry.attempt)] = question.to_wire(entry.problem)
        return min(untils, default=None)

    def _wire(self, key: str, name: str) -> str | None:
        """What clients are to know a new question by: its name, or with a number if another question has that."""
        if self.journal.version == 1:
            return None
        base = name if self.journal.generation == 1 else f"{name}@{self.journal.generation}"
        wire = self._wire_names.new(base)
        return None if wire == key else wire

    @property
    def _wire_names(self) -> Wires:
        if self._wires is None:
            self._wires = Wires({entry.wire or entry.key for entry in self.journal.questions.values()})
        return self._wires

    # remembering

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Options = ONCE,
    ) -> Any:
        """What the function returned, now or in an earlier run; it is run once, and remembered.

        Raises:
            StepFailed: it raised, now or then. (A `ToolError` is raised again as such.)
            NotJson: what it returned cannot be remembered.
            OutcomeUnknown: an `at_most_once` step was begun by a worker that died.
        """
        branch = await self._enter("step", name)
        task = self._task("step", branch, name, function, args, kwargs or {})
        match self.journal.steps.get(task.key):
            case Finished() | Raised():
                await self._in_order(branch, task.key)
            case Began():
                async with self._noting_cut(task.key, task.what):
                    await self._learn(branch, task.key)
        while not isinstance(known := self.journal.steps.get(task.key), (Finished, Raised, Began)):
            if isinstance(known, Cut):
                await self._be_cut_again(branch, known)
            check_return(function, name)
            async with self._noting_cut(task.key, task.what):
                await self._in_order(branch, task.key)
                if isinstance(known, Tried):
                    await self._wait_until(branch, known.again_ms)
                await self._before_step(branch, needs_task=options.at_most_once)
                await self._run_step(branch, task, options, known.attempts if isinstance(known, Tried) else 0)
        return outcome_of(known, name)

    async def poll(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], every_s: float) -> Any:
        """What the function returned when for the first time that was not `None`; asked now and then, then remembered.

        Raises:
            StepFailed, NotJson: as `step`.
        """
        branch = await self._enter("step", name)
        task = self._task("poll", branch, name, function, args, {})
        if isinstance(self.journal.steps.get(task.key), (Finished, Raised)):
            await self._in_order(branch, task.key)
        while not isinstance(known := self.journal.steps.get(task.key), (Finished, Raised)):
            if isinstance(known, Cut):
                await self._be_cut_again(branch, known)
            async with self._noting_cut(task.key, task.what):
                await self._in_order(branch, task.key)
                await self._before_step(branch)
                said = await self._run_step(branch, task, ONCE, 0, only_values=True)
                if said is None:
                    await self._wait_until(branch, self._clock.now_ms() + round(every_s * 1000))
        return outcome_of(known, name)

    # what branches learn, in order

    async def _in_order(self, branch: Branch, key: str) -> None:
        """Wait until all has been told that became known before, and what follows from it has happened.

        What the branch learned in an earlier run before it was given up it learns before that in this run, too.
        """
        order = self._order
        if order is None or order.is_over:
            return
        if not self.root.has_branched:
            order.pass_by(key)
            return
        cancelled: list[asyncio.Task[Any]] = []
        while True:
            try:
                await self._turn(branch, order, order.rank(key))
                break
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or order.is_new(key) or self.stopped is not None or self._is_being_ended():
                    raise
                task.uncancel()
                cancelled.append(task)
        for task in cancelled:
            task.cancel()

    async def _learn(self, branch: Branch, place: str) -> None:
        """Return when a branch may learn what has no entry of its own: that a sleep is over, or what was answered."""
        if self.journal.version == 1 or (self._order is None and not self.root.has_branched):
            return
        entry = Told.of(place)
        await self._in_order(branch, entry.key)
        if self.root.has_branched and entry.key not in self.journal.steps:
            self.journal.add(entry)
            self._unwritten.append(entry)
            await self._tell(branch, self._order_here.new_rank())

    async def _tell(self, branch: Branch, rank: float) -> None:
        """Return when a branch may learn what has a rank. If it is given up before, nobody does."""
        try:
            await self._turn(branch, self._order_here, rank)
        except BaseException:
            self._order_here.drop(rank)
            raise

    async def _turn(self, branch: Branch, order: Order, rank: float) -> None:
        with self.quiescence.moving():
            await order.turn(rank, branch.path.count("/"))
        if self.stopped is not None:
            await self._refuse()

    @property
    def _order_here(self) -> Order:
        """Made for a handler that has branches and begins anew."""
        if self._order is None:
            self._order = Order(())
        return self._order

    def _task(
        self,
        kind: str,
        branch: Branch,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Task:
        """The step at its place; ends the run if something else was there before."""
        key = self._place(branch).key("step", name)
        what = None if self.journal.version == 1 else identity(kind, function, args, kwargs)
        self._compare(key, what)
        return Task(key, what, function, args, kwargs)

    def _compare(self, key: str, what: str | None) -> None:
        """Raises Suspend, and ends the run, if something else is remembered at a place."""
        known = self.journal.steps.get(key)
        before = getattr(known, "what", None)
        if before is not None and before != what:
            self.fail(NondeterminismError(key, before, what))
            raise Suspend

    async def _before_step(self, branch: Branch, *, needs_task: bool = False) -> None:
        """At the boundary of a step: stop if there is no time for it, or no certainty that it may begin."""
        if self.stopped is not None:  # while it waited
            await self._refuse()
        await self._within_scopes(branch)
        becomes_task = self.call.may_become_task and (self.call.needs_row or needs_task)
        remaining_ms = self.call.deadline.remaining_ms()
        short = remaining_ms is not None and remaining_ms < self._longest_ms * SLOWER + SHED_MARGIN_MS
        if self._is_stopping or becomes_task or (short and self._steps_run > 0):
            self.wants_task = True
            await self._park(branch)
        await self._be_admitted()

    async def _be_admitted(self) -> None:
        """Return once it is certain that a step may begin; raises Suspend if it may not."""
        if self._checkpointer is not None:
            with self.quiescence.moving():
                await self._checkpointer.admit()

    async def _run_step(
        self, branch: Branch, task: Task, options: Options, attempts: int, *, only_values: bool = False
    ) -> Entry | None:
        """What is remembered of the step now; `None` if that is nothing."""
        with self.quiescence.moving():
            begun_ms = self._clock.monotonic_ms()
            if options.at_most_once:
                await self._remember(Began(task.key, task.what))
                await self._be_admitted()  # to write that may have taken longer than the lease lasts
            try:
                with inside(InStep(self._owner, task.key)):
                    entry = await attempt(task, options.timeout_s, self.call.step_threads, self.call.principal)
            finally:
                self._longest_ms = max(self._longest_ms, self._clock.monotonic_ms() - begun_ms)
            self._steps_run += 1
            return await self._note(branch, entry, options, attempts + 1, only_values=only_values)

    @asynccontextmanager
    async def _noting_cut(self, key: str, what: str | None = None) -> AsyncIterator[None]:
        """Remember it if the handler itself gives up what is inside (`asyncio.timeout`, a failed sibling): it will
        again in every replay, however much is known by then.

        A value that became durable while it was being given up is replaced: the handler has not seen it.
        """
        begun_ms = self._clock.monotonic_ms()
        try:
            yield
        except asyncio.CancelledError:
            place = here.get()
            branch = place if isinstance(place, Branch) else self.root
            if self.stopped is None and not self._is_being_ended() and not self._is_cut_as_before(branch):
                await self._remember(Cut(key, round(self._clock.monotonic_ms() - begun_ms), what), branch)
            raise

    def _is_cut_as_before(self, branch: Branch) -> bool:
        """Whether what follows from things remembered ends something that an earlier run did not come to. A time limit
        follows from nothing."""
        if self._order is None or self._order.is_over or not self.root.has_branched:
            return False
        is_timer = self.root.timeouts is not None and self.root.timeouts.is_ending(branch.path)
        return not is_timer and not any(scope.has_fired for scope in _around(branch))

    def _is_being_ended(self) -> bool:
        """Whether it is not the handler that cancels: an event loop that ends cancels all its tasks, in any order."""
        return self.driver is not None and self.driver.cancelling() > self.driver_cancelling

    async def _note(
        self, branch: Branch, entry: Finished | Raised, options: Options, attempts: int, *, only_values: bool
    ) -> Entry | None:
        if only_values and isinstance(entry, Finished) and entry.value is None:
            return None
        if isinstance(entry, Raised) and entry.how != "value" and attempts <= options.retries:
            again_ms = self._clock.now_ms() + options.pause_ms(attempts)
            tried = Tried(entry.key, attempts, again_ms, entry.what)
            await self._remember(tried)
            return tried
        await self._remember(entry, branch)
        return entry

    async def _remember(self, entry: Entry, told_to: Branch | None = None) -> None:
        """Make an entry durable, and wait for the turn of the branch to which it is told.

        A handler that is being cancelled waits first until the entry is durable.
        """
        if told_to is None or not self.root.has_branched or self.journal.version == 1:
            await self._write(entry)
            return
        rank = self._order_here.new_rank()
        try:
            await self._write(entry)
        except BaseException:
            self._order_here.drop(rank)
            raise
        await self._tell(told_to, rank)

    async def _write(self, entry: Entry) -> None:
        self.journal.add(entry)
        if self._checkpointer is None:
            return
        entries, self._unwritten = [*self._unwritten, entry], []
        with inside(None):
            writing = asyncio.ensure_future(self._checkpointer.checkpoint(*entries))
        cancelled: asyncio.CancelledError | None = None
        while not writing.done():
            try:
                await asyncio.wait([writing])
            except asyncio.CancelledError as error:
                cancelled = error
        writing.result()
        if cancelled is not None:
            raise cancelled

    async def _be_cut_if_before(self, branch: Branch, key: str) -> None:
        known = self.journal.steps.get(key)
        if isinstance(known, Cut):
            await self._be_cut_again(branch, known)

    async def _be_cut_again(self, branch: Branch, cut: Cut) -> NoReturn:
        """Wait to be cancelled as in the run in which it was cut: by the same time-out, or the same sibling.

        One whose siblings are gone may never be; it does not keep the others for long.
        """
        self._fire_scopes(branch)
        order = self._order_here
        order.drop(order.rank(Told.of(cut.key).key))
        rank = order.rank(cut.key)
        try:
            with self.quiescence.moving(), order.expected(rank):
                await asyncio.sleep(cut.after_ms / 1000 + CUT_HOLD_S)
            await asyncio.sleep(CUT_GRACE_S - CUT_HOLD_S)
        except asyncio.CancelledError:
            await self._tell(branch, rank)
            raise
        order.drop(rank)
        raise StepFailed(f"{cut.key!r} was given up by its handler in an earlier run, and was not in this one")

    async def key_for(self, name: str) -> str:
        """A key for a service that takes one to do a thing once: the same in every run, another for another place."""
        branch = await self._enter("key", name)
        key = self._place(branch).key("key", name)
        known = self.journal.steps.get(key)
        if not isinstance(known, Finished):
            source = self.call.idempotency or self.call.task_id
            known = Finished(key, self._clock.new_id() if source is None else digest([source, key]))
            self.journal.add(known)
        text: str = known.value
        return text

    # waiting

    async def shed(self, name: str) -> None:
        """Give the turn back once: the client's next retry, or another worker, goes on from here."""
        branch = await self._enter("shed", name)
        key = self._place(branch).key("shed", name)
        if key not in self.journal.steps:
            async with self._noting_cut(key):
                await self._remember(Passed(key))
                await self._park(branch)
        await self._pass(branch, key)

    async def continue_as_task(self) -> None:
        """End the ordinary call here, if it may go on as a task; nothing happens if it may not, or already is one."""
        branch = await self._enter("task")
        key = self._place(branch).key("task", "task")
        if self.call.may_become_task:
            self.wants_task = True
            async with self._noting_cut(key):
                await self._park(branch)
        await self._pass(branch, key)

    async def _pass(self, branch: Branch, key: str) -> None:
        """Go on behind a place where the turn was given back."""
        await self._be_cut_if_before(branch, key)
        async with self._noting_cut(key):
            await self._learn(branch, key)

    async def restart(self, arguments: Mapping[str, Any]) -> NoReturn:
        """End this run, and begin another with a fresh journal and these arguments."""
        branch = await self._enter("restart")
        self.restart_with = plain(arguments, "the arguments of ctx.restart")
        await self._park(branch)

    async def sleep(self, name: str, seconds: float) -> None:
        """Wait, once: a later run waits for what is left, a task without holding a worker."""
        branch = await self._enter("sleep", name)
        key = self._place(branch).key("sleep", name)
        until_ms = self._time_of(key, "sleep", seconds)
        await self._be_cut_if_before(branch, key)
        async with self._noting_cut(key, self._time_identity("sleep", seconds)):
            await self._sleep_until(branch, key, until_ms)

    async def sleep_until(self, name: str, until_ms: int) -> None:
        """Wait for a moment, in milliseconds since the epoch."""
        branch = await self._enter("sleep", name)
        key = self._place(branch).key("sleep", name)
        what = None if self.journal.version == 1 else f"sleep until {until_ms}"
        self._compare(key, what)
        await self._be_cut_if_before(branch, key)
        self.journal.add(Slept(key, until_ms, what))
        async with self._noting_cut(key, what):
            await self._sleep_until(branch, key, until_ms)

    async def _sleep_until(self, branch: Branch, key: str, until_ms: int) -> None:
        if Told.of(key).key not in self.journal.steps:
            await self._wait_until(branch, until_ms)
        await self._learn(branch, key)

    async def begin_limit(self, name: str, seconds: float) -> tuple[Branch, int]:
        """The branch of a time limit, and when it is over, in milliseconds since the epoch."""
        branch = await self._enter("timeout", name)
        key = self._place(branch).key("timeout", name)
        return branch, self._time_of(key, "timeout", seconds)

    def _time_of(self, key: str, kind: str, seconds: float) -> int:
        """When what began at a place is over. It is kept with whatever the run leaves; if that is nothing, nobody was
        waiting."""
        what = self._time_identity(kind, seconds)
        self._compare(key, what)
        known = self.journal.steps.get(key)
        if isinstance(known, Cut):
            return self._clock.now_ms()
        if not isinstance(known, Slept):
            known = Slept(key, self._clock.now_ms() + round(seconds * 1000), what)
            self.journal.add(known)
        return known.until_ms

    def _time_identity(self, kind: str, seconds: float) -> str | None:
        return None if self.journal.version == 1 else f"{kind} {round(seconds * 1000)} ms"

    async def _wait_until(self, branch: Branch, until_ms: int) -> None:
        """Wait for a moment: here if it is near, otherwise by giving the turn back.

        An ordinary call that may become a task does so if the moment is beyond its deadline; one that may not gives its
        turn back just before that, and goes on waiting in its next round.
        """
        if until_ms <= self._clock.now_ms() and all(until_ms <= scope.until_ms for scope in _around(branch)):
            return
        await self._within_scopes(branch)
        limits_ms = [scope.until_ms for scope in _around(branch) if branch.is_thread]
        await self._wait(branch, min([until_ms, *limits_ms]))
        if any(limit_ms < until_ms for limit_ms in limits_ms):
            await self._within_scopes(branch)

    async def _wait(self, branch: Branch, until_ms: int) -> None:
        left_ms = until_ms - self._clock.now_ms()
        remaining_ms = self.call.deadline.remaining_ms()
        here_ms = math.inf if remaining_ms is None else max(0.0, remaining_ms - SHED_MARGIN_MS)
        if self.call.task_id is not None:
            here_ms = min(here_ms, HOLD_MS)
        if self.call.needs_row and self.call.may_become_task:
            here_ms = 0.0
        if left_ms <= here_ms:
            await self._wait_here(left_ms)
            return
        if self.call.task_id is None and not self.call.may_become_task:
            await self._wait_here(here_ms)
        self.wants_task = True
        await self.quiescence.park(branch, until_ms, until_ms - self._clock.now_ms())

    async def _wait_here(self, for_ms: float) -> None:
        with self.quiescence.moving():
            await asyncio.sleep(max(0.0, for_ms) / 1000)

    async def _park(self, branch: Branch) -> NoReturn:
        """Wait until every branch has come to rest, then suspend."""
        if self.stopped is not None:
            await self._refuse()
        await self.quiescence.park(branch)
        raise AssertionError("what waits for nothing is only ever woken by Suspend")

    async def _within_scopes(self, branch: Branch) -> None:
        """Go on only if every durable time limit around it has time left; else wait to be cancelled by it."""
        while over := self._fire_scopes(branch):
            if branch.is_thread:  # which nobody can cancel
                raise TimeoutError("the time limit around it is over")
            with self.quiescence.moving():
                await over[0].wait_until_left()

    def _fire_scopes(self, branch: Branch) -> list[Scope]:
        over = [scope for scope in _around(branch) if scope.until_ms <= self._clock.now_ms()]
        for scope in over:
            scope.fire()
        return over

    # entering and ending

    async def branch(self, kind: str, name: str) -> Branch:
        """The branch that is about to have one with this name in it."""
        return await self._enter(kind, name)

    def _place(self, branch: Branch) -> Branch:
        """What numbers uses of a name: the branch, or in version 1 the run as a whole."""
        return self.root if self.journal.version == 1 else branch

    async def _enter(self, kind: str, *names: str) -> Branch:
        """The branch that asks. Nothing begins once the run has ended, nor under a name that cannot be a key."""
        place = here.get()
        if getattr(place, "owner", None) is not self._owner:
            ended = ", and that has ended" if self.stopped is not None else ""
            raise RuntimeError(
                f"ctx can be used by its handler and by tasks that it creates, not from outside of it{ended}"
            )
        if self.stopped is not None:
            await self._refuse()
        for name in names:
            if not NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name for a {kind}: use 1 to 64 of A-Z a-z 0-9 _ . -")
        if not isinstance(place, Branch):
            # a later run remembers the step as a whole: what it contains would be skipped there, or never answered
            raise RuntimeError(
                f"step {getattr(place, 'key', None)!r} contains the {kind} {', '.join(map(repr, names))}; "
                "a step is one piece: use ctx beside it"
            )
        return place

    async def _refuse(self) -> NoReturn:
        """What a handler gets that goes on although its run has ended: at first the suspension, in the end nothing."""
        self._refusals += 1
        since_ms = self._clock.monotonic_ms() - self._stopped_at_ms
        is_late = since_ms > STOP_GRACE_S * 1000 and self._refusals > LATE_REFUSALS
        is_hopeless = self._refusals > MAX_REFUSALS or is_late
        place = here.get()
        is_in_thread = isinstance(place, Branch) and place.is_thread
        if is_hopeless and not is_in_thread:  # also when nobody drives it any more and Python closes it
            await END
        raise Suspend

    @property
    def is_hopeless(self) -> bool:
        """Whether the handler has gone on asking for too long after its run has ended."""
        return self._refusals > MAX_REFUSALS

    def stop_soon(self) -> None:
        """Have it let go at its next step, because the process is about to stop."""
        self._is_stopping = True

    def stop(self, why: Stop) -> None:
        """End the run from outside: whatever waits ends now, whatever asks anything of the engine ends then."""
        if self.stopped is None:
            self.stopped = why
            self._stopped_at_ms = self._clock.monotonic_ms()
            waits = [one.until_ms for one in self._parked if one.until_ms is not None]
            limits = [scope.until_ms for one in self._parked for scope in _around(one.branch)]
            soon = [] if self.requests else self._timeouts_s()
            timeouts = [self._clock.now_ms() + max(0, round(left_s * 1000)) for left_s in soon]
            self.wake_ms = None if self._must_go_on() else min([*waits, *limits, *timeouts], default=None)
            of_this_loop().set(self, STOP_GRACE_S, self._enforce)
        self.quiescence.unpark(Suspend)
        if self._order is not None:
            self._order.open()

    def fail(self, error: Exception) -> None:
        """End the run with an error that its handler cannot catch."""
        self.error = self.error or error
        self.stop(Stop.FAULT)

    def close(self) -> None:
        """The handler has ended: branches that it left behind begin nothing more."""
        if self.stopped is None:
            self.stopped, self._stopped_at_ms = Stop.OVER, self._clock.monotonic_ms()
        else:
            of_this_loop().drop(self)
        self.root_task = None
        if self._made_quiescence is not None:
            self._made_quiescence.close()

    def begin_thread(self) -> None:
        """The handler is a plain function: between two calls of the engine its thread moves, and nobody sees that."""
        self.root.is_thread = True
        self.quiescence.begin()

    @property
    def quiescence(self) -> Quiescence:
        """What moves and what waits; made for a handler that asks for the first time, most never do."""
        if self._made_quiescence is None:
            self._made_quiescence = Quiescence(self._come_to_rest, self._hold_s)
        return self._made_quiescence

    @property
    def _parked(self) -> Collection[Parked]:
        return () if self._made_quiescence is None else self._made_quiescence.parked

    def _must_go_on(self) -> bool:
        """Whether a branch waits only for its next turn."""
        return any(one.until_ms is None for one in self._parked) and not self.requests

    def _come_to_rest(self) -> None:
        self.stop(Stop.SUSPENDED)

    def _left_ms(self, until_ms: int | None) -> int | None:
        return None if until_ms is None else until_ms - self._clock.now_ms()

    def _hold_s(self) -> float:
        """For how long a task at rest is worth keeping: until a time limit ends one of its waits, if that is soon.

        One that has something to do in its next turn is not kept from it.
        """
        if self.call.task_id is None or self.requests or self._is_stopping or self._must_go_on():
            return 0.0
        branches = [one.branch for one in self._parked]
        limits = {scope for branch in branches for scope in _around(branch) if scope.is_pending}
        left = (scope.until_ms - self._clock.now_ms() for scope in limits)
        soon = [max(left_ms, _TICK_MS) / 1000 for left_ms in left if left_ms <= HOLD_MS]
        return max(0.0, min([*soon, *self._timeouts_s()], default=0.0))

    def _timeouts_s(self) -> list[float]:
        """When `asyncio.timeout` will end a wait: not in another process, so this one has to wait for it."""
        now_s = asyncio.get_running_loop().time()
        longest_s = max((self._wait_s(one) for one in self._parked), default=0.0)
        whens = [] if self.root.timeouts is None else self.root.timeouts.whens(now_s)
        left = [max(when - now_s, 0.0) + _TICK_MS / 1000 for when in whens if when - now_s < longest_s]
        if any(left_s > HOLD_FOR_TIMEOUTS_S for left_s in left):
            log.warning("asyncio.timeout does not reach over a wait that lets go of its worker; use ctx.timeout")
        return [left_s for left_s in left if left_s <= HOLD_FOR_TIMEOUTS_S]

    def _wait_s(self, one: Parked) -> float:
        ends_ms = [scope.until_ms for scope in _around(one.branch)]
        if one.until_ms is not None:
            ends_ms.append(one.until_ms)
        return (min(ends_ms) - self._clock.now_ms()) / 1000 if ends_ms else math.inf

    def _enforce(self) -> None:
        if self.root_task is not None:
            self.is_enforced = True
            self.root_task.cancel()

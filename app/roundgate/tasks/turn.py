"""One turn at a task: a run of the handler takes a claimed record to its next state.

    claimed ──▶ run the handler from the top ──▶ finish     the handler returned or raised
                                             ├─▶ suspend    the handler asks the client; no worker waits for the answer
                                             ├─▶ release    the handler sleeps, or its time is up; a message follows
                                             ├─▶ decline    this worker cannot serve the task; others may
                                             └─▶ (nothing)  the lease is lost: its new holder continues

**During the run** every finished step is a conditional write before the handler continues. A step
begins only while enough of the lease is left; a worker that was stopped and continued first checks
that it still holds the task. Each write also renews the lease, so the heartbeat writes only if no
step ends for half a lease:

    handler      step 1 ──── (process stopped, lease over) ──── admit ─── step 2
    carrier             ✓ checkpoint                              └ renew: yes, it is ours │ LeaseLost: the run ends

**The end of the turn** is one write, with the message that makes a worker claim the task again:

| turn | the row | attempts | blame |
|---|---|---|---|
| finished | terminal | | |
| step failed | terminal; the work is kept for `tasks retry` | | |
| asked, released | free, or waits for its client | 0 | lifted |
| declined: this worker cannot serve the task | free after a pause | as before | stays |
| restarted: `ctx.restart` | free, with a fresh journal | 0 | lifted |
| parked: the handler took another path | asleep until its operator wakes it | as before | stays |
| fault of the gateway | free after a pause | one more | stays |
| the process crashes, perhaps because of a handler | free, a suspect | as before | begins |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Final, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from roundgate.clock import Clock
from roundgate.errors import (
    ArgumentsRefused,
    CallTimeout,
    HandlerVersionError,
    InternalError,
    JobLeft,
    LeaseLost,
    NondeterminismError,
    NotJson,
    NotServedHere,
    QuotaExceeded,
    Suspend,
    TaskGivenUp,
    TaskTimeout,
    ToolError,
    Unavailable,
    WorkerFault,
)
from roundgate.json import encode
from roundgate.protocol import Status
from roundgate.replay import (
    HOLD_MS,
    JOURNAL_VERSION,
    Answered,
    Asked,
    Call,
    Completed,
    Entry,
    Failed,
    Opened,
    Raised,
    Restarted,
    Run,
    Stop,
    Suspended,
    Unanswered,
    plain,
    row,
)
from roundgate.settings import TasksConfig
from roundgate.storage import Ending, TaskRef
from roundgate.tasks.call import TaskCall, make_journal
from roundgate.tasks.events import NOTHING, Added, Mark
from roundgate.tasks.lease import ClockTrust, LeaseTime, Moment
from roundgate.tasks.life import Life, waits_until_ms
from roundgate.tasks.outcome import Ended, ended, failed, log_failure
from roundgate.tasks.running import Outcome, Patience, to_its_end
from roundgate.tasks.stored import Claimed, Lease, StoredTasks

MAX_MESSAGE_DELAY_MS: Final = 900_000
"""The maximum delay of a message in SQS, in milliseconds. The sweep wakes tasks that sleep
longer."""
BACKOFF_MS: Final = (1_000, 5_000, 20_000, 60_000)
CLEANUP_PAUSES_S: Final = (5, 30, 120, 600, 1_800, 3_600, 7_200, 14_400)
"""The seconds between attempts to end the external work of a task: nine attempts in eight hours,
for a service that is unavailable."""
DECLINED_MS: Final = (1_000, 60_000)
"""The shortest and the longest pause after a decline, in milliseconds; between them, a quarter of
the time since the first decline."""
PARKED: Final = "Waiting for the operator of this server"
"""The beginning of the status message of a parked task."""

log = logging.getLogger("roundgate.tasks")


class Turn(StrEnum):
    """The result of a turn at a task, as the log names it."""

    NOT_CLAIMED = "not claimed"
    SUSPECT = "suspect"
    """The task was not claimed: it has to run alone."""
    FINISHED = "finished"
    STEP_FAILED = "step failed"
    """The task ended because of a failed step that has no retries left."""
    ASKED = "asked"
    RELEASED = "released"
    RESTARTED = "restarted"
    PARKED = "parked"
    DECLINED = "declined"
    LOST = "lost"
    FAULT = "fault"
    GIVEN_UP = "given up"
    CLEANED_UP = "cleaned up"
    """The external work of the task was ended, or there was none."""
    TO_CLEAN_UP = "to be cleaned up"
    """The external work could not be ended; a worker will try again."""
    NOT_CLEANED_UP = "not cleaned up"
    """The external work could not be ended; the workers have given up."""


class Means(Struct, frozen=True):
    """The resources that the turns of one worker share."""

    tasks: StoredTasks
    clock: Clock
    config: TasksConfig
    life: Life
    skew_ms: int
    """The maximum difference in milliseconds of the clocks that share the store."""
    trust: ClockTrust
    shows_errors: bool = False

    def due_ms(self, wake_ms: int = 0) -> int:
        """Return when a sweep should check a task that continues at `wake_ms`, in milliseconds
        since the epoch: at that time if no message can be delayed so long, otherwise when the
        message may be assumed lost."""
        now_ms = self.clock.now_ms()
        if wake_ms > now_ms + MAX_MESSAGE_DELAY_MS:
            return wake_ms
        return max(now_ms, wake_ms) + int(self.config.requeue_after_s * 1000)


class Carrier:
    """A claimed task during one turn. The carrier is the checkpointer of the run.

    `lost` is True once another worker has the task, or the task has ended.
    """

    def __init__(self, means: Means, claimed: Claimed) -> None:
        self._means = means
        self._store = means.tasks
        self._clock = means.clock
        self.claimed = claimed
        self._record = claimed.record
        self._time = LeaseTime(means.clock, int(means.config.lease_s * 1000), means.skew_ms)
        self._time.claimed(claimed.record.lease_until_ms)
        self._due_ms = claimed.record.due_ms or 0
        self._expires_ms = claimed.record.expires_ms
        """The expiry with every wait so far, perhaps not written yet."""
        self._written_expires_ms = self._expires_ms
        self._keeping = asyncio.Lock()
        self._renewing = asyncio.Lock()
        self._message = claimed.record.status_message
        self._state = claimed.state
        self._bytes = sum(map(len, [*claimed.journal, *claimed.answers.values()]))
        self.lost = False
        self.fault: Exception | None = None

    def begin(self, task_call: TaskCall, call: Call) -> None:
        """Make the run of the task's handler without starting it.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: the journal cannot be read.
        """
        self._task_call = task_call
        self._patience = Patience(lambda: call.deadline.is_past, task=str(self.ref))
        self.run = Run(call, make_journal(self.claimed, task_call), self, self._message)
        if self.run.journal.received:  # an answer ends a wait
            self._extend_life(self._clock.now_ms())
        # the store has the initial entries already: answers are read again with their questions
        self._saved = {_place(entry): entry for entry in self.run.journal.entries()}

    @property
    def ref(self) -> TaskRef:
        """Return the reference of the task."""
        return self.claimed.lease.ref

    @property
    def lease(self) -> Lease:
        """Return the lease of the task."""
        return self.claimed.lease

    @property
    def cleans_up(self) -> bool:
        """Return whether the task may have started external work that has to end with it."""
        return self._record.cleans_up

    def news(self) -> list[bytes] | None:
        """Return the whole journal if it has unwritten entries; otherwise `None`."""
        entries = list(self.run.journal.entries())
        if all(self._saved.get(_place(entry)) == entry for entry in entries):
            return None
        return [encode(row(entry)) for entry in entries]

    @property
    def end_ms(self) -> int:
        """Return when the task is ended because it takes too long, in milliseconds since the
        epoch."""
        return self._means.life.end_ms(self._record.created_ms, self._expires_ms)

    @property
    def limit(self) -> str:
        """Return the setting that limits the task."""
        return self._means.life.limit(self._record.created_ms, self._expires_ms)

    def _extend_life(self, from_ms: int) -> None:
        """Keep the task after a wait until `from_ms`. The next write extends the row."""
        self._expires_ms = self._means.life.extended_ms(
            self._record.created_ms, self._expires_ms, from_ms
        )

    # for the engine

    async def admit(self) -> None:
        """Return once a step may begin.

        Raises:
            Suspend: the lease is lost, or the store cannot confirm it.
        """
        if self._time.lets_begin:
            return
        try:
            await self._patience.attempt("renewing a lease", self._renew_in_time)
        except LeaseLost:
            self.lose()
            raise Suspend from None
        except Exception as error:
            self._stop_with(error)

    async def checkpoint(self, *entries: Entry) -> None:
        """Return once these entries and everything unwritten before them are durable.

        The engine calls this method in an asyncio task of its own, so cancelling the handler does
        not interrupt it.

        Raises:
            Suspend: the entries cannot be written.
            NotJson: `ctx.state` has no JSON form.
            ToolError: the journal exceeds `tasks.max_journal_bytes`.
        """
        try:
            rows = [encode(row(entry)) for entry in entries]
            self._account(entries, rows)
            # a failed write may have happened: repeat it before any other write
            async with self._keeping:
                added, begun = self._added(rows, entries), Moment.now(self._clock)
                await self._patience.attempt("a checkpoint", lambda: self._write(added))
                self._time.renewed(begun)  # any of the attempts may be the one that succeeded
                self._saved.update((_place(entry), entry) for entry in entries)
        except NotJson:  # in ctx.state, the handler's own data
            raise
        except LeaseLost:
            self.lose()
            raise Suspend from None
        except QuotaExceeded as error:  # the caller's limit, not a fault of the gateway
            self._stop_with(ToolError(str(error)))
        except Exception as error:
            self._stop_with(error)

    def _account(self, entries: Sequence[Entry], rows: Sequence[bytes]) -> None:
        self._bytes += sum(map(len, rows))
        most = self._means.config.max_journal_bytes
        if self._bytes > most:
            journal = self.run.journal
            for entry in entries:
                journal.add(entry)
            raise ToolError(
                f"The journal of the task has more than {most} bytes (tasks.max_journal_bytes); "
                f"the largest entry is {journal.largest()}"
            )

    async def _write(self, added: Added) -> None:
        async with self._renewing:
            await self._extend(added, Moment.now(self._clock))
        self._state = self._state if added.state is None else added.state

    async def _renew_in_time(self) -> None:
        """Renew the lease.

        Raises:
            TimeoutError: too little of the lease was left for a step when the store answered.
        """
        await self.renew()
        if not self._time.lets_begin:
            raise TimeoutError("the store answered too late to begin a step within the lease")

    # for the heartbeat

    async def attend(self, *, look: bool) -> None:
        """Renew the lease and write the status message if either is due.

        Args:
            look: if nothing is due, read the row to check that the lease still holds.

        Raises:
            LeaseLost: the task was cancelled, taken over, or has expired.
            Exception: any error of the store.
        """
        if self._clock.now_ms() >= self._expires_ms and self._means.trust.expires:
            raise LeaseLost(self.ref.id)
        is_due = self._time.is_half_over or self._time.is_due_soon(self._due_ms)
        if is_due or self._news() is not None:
            await self.renew()
        elif look:
            await self._look()

    async def renew(self) -> None:
        """Extend the lease and write the status message. `ctx.state` is not written, because the
        handler may be changing it.

        Raises:
            LeaseLost: the task was cancelled or taken over.
            Exception: any error of the store.
        """
        await to_its_end(self._renew())

    async def _renew(self) -> None:
        async with self._renewing:  # the last write decides when the lease ends
            sent = Moment.now(self._clock)
            added = Added(status_message=self._news(), expires_ms=self._later_expiry())
            await self._extend(added, sent)
            self._time.renewed(sent)

    async def _extend(self, added: Added, sent: Moment) -> None:
        """Write `added` and renew the lease in one write."""
        until_ms, due_ms = self._time.until_ms(sent), self._time.due_ms(sent, self._due_ms)
        await self._store.checkpoint(self.lease, added, sent.wall_ms, until_ms, due_ms)
        self._due_ms = due_ms or self._due_ms
        self._written_expires_ms = added.expires_ms or self._written_expires_ms
        self._message = self._message if added.status_message is None else added.status_message

    async def _look(self) -> None:
        record = await self._store.read(self.ref, self._clock.now_ms())
        if (
            record is None
            or record.status is not Status.WORKING
            or record.fence != self.lease.fence
        ):
            raise LeaseLost(self.ref.id)

    # the end of the run

    def lose(self) -> None:
        """Record that another worker has the task, or that the task has ended. The handler ends at
        its next call of the context."""
        self.lost = True
        self.run.stop(Stop.LOST)

    def end(self, error: Exception) -> None:
        """End the run with an error that its handler cannot catch."""
        self.fault = self.fault or error
        self.run.stop(Stop.FAULT)

    def _stop_with(self, error: Exception) -> NoReturn:
        self.end(error)
        raise Suspend from None

    # the end of the turn

    async def commit(self, tool: str, outcome: Outcome) -> Turn:
        """Write the outcome of the handler to its task and return the result of the turn.

        Raises:
            WorkerFault: a step exceeded the time limit of a worker.
            LeaseLost: the task was cancelled or taken over.
            Unavailable: the store cannot be reached.
        """
        try:
            return await self._commit(tool, outcome)
        except NotJson as error:  # in ctx.state
            return await self._commit(tool, Failed(error))
        except QuotaExceeded as error:  # an outcome of this size is always stored
            return await self._commit(tool, Failed(ToolError(str(error))))

    async def _commit(self, tool: str, outcome: Outcome) -> Turn:
        match outcome:
            case Suspended(requests=requests, wake_ms=wake_ms, awaits=awaits) if requests:
                await self._suspend(requests, wake_ms or 0, awaits)
                return Turn.ASKED
            case Suspended(wake_ms=wake_ms, awaits=awaits):
                await self._release(wake_ms or 0, awaits)
                return Turn.RELEASED
            case Restarted(arguments=arguments):
                await self._restart(arguments)
                return Turn.RESTARTED
            case Failed(HandlerVersionError() as error) if error.is_newer:
                return await self.decline(
                    NotServedHere(f"knows version {error.version} of {error.name!r} in {tool}")
                )
            case Failed(NondeterminismError() as error):
                await self._park(tool, error)
                return Turn.PARKED
            case Failed(CallTimeout()) if self.run.call.deadline.is_past:
                raise WorkerFault("a step exceeds the time limit of a worker")
            case Completed() | Failed():
                most, shows_errors = self._means.config.max_result_bytes, self._means.shows_errors
                end = ended(outcome, tool, self._clock, most, shows_errors=shows_errors)
                reason = outcome.error if isinstance(outcome, Failed) else None
                await self._finish(
                    end, is_early=isinstance(reason, TaskTimeout | JobLeft | ArgumentsRefused)
                )
                if end.ending is not Ending.STEP_FAILED:
                    return Turn.FINISHED
                self._log_failed_steps(end.failed_steps)
                return Turn.STEP_FAILED

    async def _suspend(
        self, requests: Mapping[str, Any], wake_ms: int, awaits: Collection[str]
    ) -> None:
        wire = {key: encode(request) for key, request in requests.items()}
        ready_ms = self._means.due_ms()
        self._extend_life(self._clock.now_ms())
        self._extend_life(waits_until_ms(self.run.journal.entries()))

        async def suspend(rest: Added) -> None:
            await self._store.suspend(
                self.lease,
                rest,
                wire,
                now_ms=self._clock.now_ms(),
                wake_ms=min(wake_ms, self.end_ms),
                awaits=awaits,
                ready_ms=ready_ms,
            )

        await self._last_with_rest(suspend)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("a task asks its client", extra={"fields": {"questions": list(wire)}})

    async def _release(self, wake_ms: int, awaits: Collection[str] = ()) -> None:
        self._extend_life(waits_until_ms(self.run.journal.entries()))
        wake_ms = min(wake_ms, self.end_ms)
        due_ms, ready_ms = self._means.due_ms(wake_ms), self._means.due_ms()

        async def release(rest: Added) -> None:
            await self._store.release(
                self.lease,
                rest,
                now_ms=self._clock.now_ms(),
                wake_ms=wake_ms,
                due_ms=due_ms,
                # a worker whose clock is slightly behind may claim the task when the message comes
                early_ms=HOLD_MS,
                awaits=awaits,
                ready_ms=ready_ms,
            )

        await self._last_with_rest(release)

    async def _restart(self, arguments: Mapping[str, Any]) -> None:
        generation = self._task_call.generation + 1
        task_call = replace(self._task_call, arguments=arguments, generation=generation)
        due_ms = self._means.due_ms()
        self._extend_life(self._clock.now_ms())
        anew = partial(
            self._store.restart, self.lease, task_call.to_bytes(), (), b"{}", JOURNAL_VERSION
        )
        await self._last(lambda: anew(self._clock.now_ms(), due_ms, self._later_expiry()))

    async def _park(self, tool: str, error: NondeterminismError) -> None:
        reference = log_failure(f"task {self.ref} (tool {tool})", error, self._clock)
        what = (
            f"does not support version {error.version} any more,"
            if isinstance(error, HandlerVersionError)
            else "took another path than before,"
        )
        why = f"{PARKED}: the handler {what} at {error.key!r} (reference {reference})"
        await self._last(lambda: self._store.park(self.lease, why, self._clock.now_ms()))

    async def _finish(self, end: Ended, *, is_early: bool) -> None:
        finish = partial(
            self._store.finish,
            self.lease,
            end.status,
            end.outcome,
            status_message=end.status_message,
            cleanup_due_ms=self._means.due_ms() if is_early and self.cleans_up else None,
            ending=end.ending,
            failed_steps=end.failed_steps,
        )
        await self._last(lambda: finish(now_ms=self._clock.now_ms()))

    def _log_failed_steps(self, places: Sequence[str]) -> None:
        """Log the steps that ended the task, each with its number of attempts."""
        steps = self.run.journal.steps
        for place in places:
            entry = steps.get(place)
            attempts = entry.attempts or 1 if isinstance(entry, Raised) else 1
            fields = {"step": place, "attempt": attempts}
            log.warning("a failed step has ended a task", extra={"fields": fields})

    async def _last_with_rest(self, write: Callable[[Added], Awaitable[None]]) -> None:
        """Write the unwritten entries with the end of the turn. A running checkpoint ends first, so
        that its entries are not written twice."""

        async def when_kept() -> None:
            async with self._keeping:
                rest = self._rest()
                await self._last(lambda: write(rest))

        await to_its_end(when_kept())

    async def _last(self, write: Callable[[], Awaitable[None]]) -> None:
        await to_its_end(self._patience.attempt("the last write of a turn", write))

    # without an outcome

    async def stopped(self) -> None:
        """Release the task because this process stops, so that another worker can claim it at
        once."""
        self._patience.hurry()
        await self._quietly(lambda: self._release(0))

    async def crashed(self) -> None:
        """Release the task as a suspect. The process is ending, and any of its tasks may be the
        cause."""
        now_ms, due_ms = self._clock.now_ms(), self._means.due_ms()

        async def let_go() -> None:
            fence = self.lease.fence
            await self._store.let_go(self.ref, fence, now_ms, due_ms, blame=True)

        await self._quietly(let_go)

    async def _quietly(self, write: Callable[[], Awaitable[None]]) -> None:
        try:
            await write()
        except (LeaseLost, Unavailable) as error:
            fields = {"task": str(self.ref), "error": str(error)}
            log.warning("cannot release a task", extra={"fields": fields})

    async def decline(self, needs: NotServedHere) -> Turn:
        """Release the task for a worker that can run it. Fail the task if none has claimed it
        within `tasks.unserved_s`.

        Raises:
            LeaseLost: this worker no longer holds the task.
            Unavailable: the store cannot be reached.
        """
        record, now_ms = self._record, self._clock.now_ms()
        since_ms = record.declined_ms or now_ms
        waited_ms = now_ms - since_ms
        if waited_ms >= self._means.config.unserved_s * 1000 and self._means.trust.expires:
            return await self.give_up(
                TaskGivenUp(f"for {waited_ms // 1000} s there was no worker that {needs}")
            )
        shortest_ms, longest_ms = DECLINED_MS
        wake_ms = now_ms + min(max(shortest_ms, waited_ms // 4), longest_ms)
        message = Added(status_message=f"Waiting for a worker that {needs}")
        await self._pause(message, wake_ms, attempts=record.attempts, declined_ms=since_ms)
        return Turn.DECLINED

    async def retry_or_fail(self, error: Exception) -> Turn:
        """Retry after a pause because of a fault of the gateway, or fail the task after
        `tasks.max_attempts`.

        Raises:
            LeaseLost: this worker no longer holds the task.
            Unavailable: the store cannot be reached.
        """
        record, attempt = self._record, self._record.attempts + 1
        what = f"task {record.ref} (tool {record.tool}, attempt {attempt})"
        reference = log_failure(what, error, self._clock)
        if attempt >= self._means.config.max_attempts:
            reason = (
                str(error) if isinstance(error, WorkerFault) else "the server's log has the details"
            )
            return await self._fail(f"after {attempt} attempts: {reason}", reference)
        wake_ms = self._clock.now_ms() + BACKOFF_MS[min(attempt, len(BACKOFF_MS)) - 1]
        await self._pause(NOTHING, wake_ms, attempts=attempt)
        return Turn.FAULT

    async def _pause(
        self, added: Added, wake_ms: int, *, attempts: int, declined_ms: int = 0
    ) -> None:
        """Release the task until `wake_ms` without counting the release as progress."""
        await self._store.release(
            self.lease,
            added,
            now_ms=self._clock.now_ms(),
            wake_ms=wake_ms,
            due_ms=self._means.due_ms(wake_ms),
            attempts=attempts,
            declined_ms=declined_ms,
            keeps_blame=True,
        )

    async def give_up(self, error: TaskGivenUp) -> Turn:
        """Fail the task for good.

        Raises:
            LeaseLost: this worker no longer holds the task.
            Unavailable: the store cannot be reached.
        """
        what = f"task {self.ref} (tool {self._record.tool})"
        return await self._fail(f"because {error}", log_failure(what, error, self._clock))

    async def _fail(self, why: str, reference: str) -> Turn:
        end = failed(InternalError(reference))
        message = f"Given up {why} (reference {reference})"
        due_ms = self._means.due_ms() if self.cleans_up else None
        now_ms = self._clock.now_ms()
        await self._store.finish(
            self.lease, end.status, end.outcome, message, now_ms, cleanup_due_ms=due_ms
        )
        return Turn.GIVEN_UP

    # what is written

    def _rest(self) -> Added:
        """Return everything that the run has not written yet: questions, sleeps, answers that it
        read, state, status message."""
        entries = self.run.journal.entries()
        unwritten = [entry for entry in entries if self._saved.get(_place(entry)) != entry]
        return self._added([encode(row(entry)) for entry in unwritten], unwritten)

    def _added(self, rows: Sequence[bytes], entries: Sequence[Entry]) -> Added:
        state = encode(plain(self.run.journal.state, "ctx.state"))
        return Added(
            entries=rows,
            state=state if state != self._state else None,
            status_message=self._news(),
            expires_ms=self._later_expiry(),
            events=[
                Mark(entry.name, entry.until_ms)
                for entry in entries
                if isinstance(entry, Opened) and entry.outcome is None
            ],
        )

    def _later_expiry(self) -> int | None:
        """Return the expiry if the record has an earlier one, otherwise `None`."""
        return self._expires_ms if self._expires_ms > self._written_expires_ms else None

    def _news(self) -> str | None:
        """Return the handler's status message, or `None` if the record already has it. Lone
        surrogates, as in some file names, are replaced."""
        message = self.run.message
        shown = None if message is None else message.encode(errors="replace").decode()
        return shown if shown != self._message else None


_QUESTIONS: Final = (Asked, Answered, Unanswered)


def _place(entry: Entry) -> tuple[bool, str]:
    """Return whether an entry belongs to a question, and its key. The journal holds one entry for
    each such pair."""
    return isinstance(entry, _QUESTIONS), entry.key

"""One turn at a task: carries a claimed record through a run of its handler to its next state.

    claimed ──▶ run the handler from the top ──▶ finish     it returned or raised
                                             ├─▶ suspend    it asks the client; no worker waits with it
                                             ├─▶ release    it sleeps, or its time is up; a message follows
                                             ├─▶ decline    this worker cannot serve it; others may
                                             └─▶ (nothing)  the lease is lost: its new holder carries on

**While it runs** every finished step is a conditional write before the handler continues. Before a
step begins, the lease is known to hold for long enough; a worker that was stopped and continued
finds out first whether the task is still its own. Each write also renews the lease, so the heartbeat
writes only where no step ends for half a lease:

    handler      step 1 ──── (process stopped, lease over) ──── admit ─── step 2
    carrier             ✓ checkpoint                              └ renew: yes, it is ours │ LeaseLost: the run ends

**Its end** is one write, with the message that makes a worker claim the task again:

| turn | the row | attempts | blame |
|---|---|---|---|
| finished | terminal | | |
| step failed | terminal; what a worker needs is kept for `tasks retry` | | |
| asked, released | free, or waits for its client | 0 | lifted |
| declined: this worker cannot serve it | free after a pause | as before | stays |
| restarted: `ctx.restart` | free, with a fresh journal | 0 | lifted |
| parked: the handler went another way | asleep until its operator wakes it | as before | stays |
| fault of ours | free after a pause | one more | stays |
| the process crashes, perhaps because of a handler | free, a suspect | as before | begins |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, NoReturn

from roundgate.clock import Clock
from roundgate.errors import (
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
from roundgate.tasks.outcome import Ended, ended, failed, log_failure
from roundgate.tasks.running import Outcome, Patience, to_its_end
from roundgate.tasks.stored import Claimed, Lease, StoredTasks

MAX_MESSAGE_DELAY_MS: Final = 900_000
"""Longer sleeps are woken by the sweep: SQS delays no message by more."""
BACKOFF_MS: Final = (1_000, 5_000, 20_000, 60_000)
CLEANUP_PAUSES_S: Final = (5, 30, 120, 600, 1_800, 3_600, 7_200, 14_400)
"""Between tries to end what a task has begun elsewhere: nine in eight hours, in which
a service may be away."""
DECLINED_MS: Final = (1_000, 60_000)
"""The shortest and the longest pause after a task was declined; in between, a quarter of
how long it has waited."""
PARKED: Final = "Waiting for the operator of this server"
"""How the status message of a task begins that was put aside."""

log = logging.getLogger("roundgate.tasks")


class Turn(StrEnum):
    """How a turn at a task ended, as the log says it."""

    NOT_CLAIMED = "not claimed"
    SUSPECT = "suspect"
    """Not claimed either: it has to be run alone."""
    FINISHED = "finished"
    STEP_FAILED = "step failed"
    """Finished because of a failed step that nothing retries any more."""
    ASKED = "asked"
    RELEASED = "released"
    RESTARTED = "restarted"
    PARKED = "parked"
    DECLINED = "declined"
    LOST = "lost"
    FAULT = "fault"
    GIVEN_UP = "given up"
    CLEANED_UP = "cleaned up"
    """What the task had begun elsewhere was ended, or there was nothing to end."""
    TO_CLEAN_UP = "to be cleaned up"
    """It could not be ended, and is tried again."""
    NOT_CLEANED_UP = "not cleaned up"
    """It could not be ended, and no worker tries any more."""


@dataclass(frozen=True, slots=True)
class Means:
    """What the turns of one worker share."""

    tasks: StoredTasks
    clock: Clock
    config: TasksConfig
    skew_ms: int
    """How far the clocks that share the store may differ."""
    trust: ClockTrust
    shows_errors: bool = False

    def due_ms(self, wake_ms: int = 0) -> int:
        """Return when a sweep should look at a task that continues at `wake_ms`: at that time if
        the delay is too long for a message, otherwise when the message may be assumed lost."""
        now_ms = self.clock.now_ms()
        if wake_ms > now_ms + MAX_MESSAGE_DELAY_MS:
            return wake_ms
        return max(now_ms, wake_ms) + int(self.config.requeue_after_s * 1000)


class Carrier:
    """A claimed task on its way through one turn. It is the checkpointer of the run.

    `lost` once another worker has the task, or it is over.
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
        self._keeping = asyncio.Lock()
        self._renewing = asyncio.Lock()
        self._message = claimed.record.status_message
        self._state = claimed.state
        self._bytes = sum(map(len, [*claimed.journal, *claimed.answers.values()]))
        self.lost = False
        self.fault: Exception | None = None

    def begin(self, task_call: TaskCall, call: Call) -> None:
        """Make the run of the task's handler; it has yet to be started.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: the journal cannot be read.
        """
        self._task_call = task_call
        self._patience = Patience(lambda: call.deadline.is_past, task=str(self.ref))
        self.run = Run(call, make_journal(self.claimed, task_call), self, self._message)
        # what is there at the beginning is there the next time too, answers by way of their
        # questions
        self._saved = {_place(entry): entry for entry in self.run.journal.entries()}

    @property
    def ref(self) -> TaskRef:
        """Return the task's place."""
        return self.claimed.lease.ref

    @property
    def lease(self) -> Lease:
        """Return the right to write to the task."""
        return self.claimed.lease

    @property
    def cleans_up(self) -> bool:
        """Return whether the task may have started work elsewhere that has to be ended with it."""
        return self._record.cleans_up

    def news(self) -> list[bytes] | None:
        """Return the whole journal if it has entries that are not written yet; otherwise `None`."""
        entries = list(self.run.journal.entries())
        if all(self._saved.get(_place(entry)) == entry for entry in entries):
            return None
        return [encode(row(entry)) for entry in entries]

    # for the engine

    async def admit(self) -> None:
        """Return once it is certain that a step may begin.

        Raises:
            Suspend: the lease is lost, or the store cannot say whether it is.
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
        """Return once these entries are durable, with everything that was not written before them.

        The engine calls this in an asyncio task of its own, which a cancellation of
        the handler does not reach.

        Raises:
            Suspend: they cannot be written.
        """
        try:
            rows = [encode(row(entry)) for entry in entries]
            self._account(entries, rows)
            # of a write that failed nobody knows whether it happened: no other before that
            async with self._keeping:
                added, begun = self._added(rows, entries), Moment.now(self._clock)
                await self._patience.attempt("a checkpoint", lambda: self._write(added))
                self._time.renewed(begun)  # of several attempts nobody says which one happened
                self._saved.update((_place(entry), entry) for entry in entries)
        except NotJson:  # ctx.state: the handler's own
            raise
        except LeaseLost:
            self.lose()
            raise Suspend from None
        except QuotaExceeded as error:  # its caller's fault, not a fault of the gateway
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
                f"The task had more remembered than {most} bytes; the largest is "
                f"{journal.largest()}"
            )

    async def _write(self, added: Added) -> None:
        async with self._renewing:
            await self._extend(added, Moment.now(self._clock))
        self._state = self._state if added.state is None else added.state

    async def _renew_in_time(self) -> None:
        """Renew the lease, and fail if the answer took so long that no step could begin."""
        await self.renew()
        if not self._time.lets_begin:
            raise TimeoutError("the store took longer to answer than the lease lasts")

    # for the heartbeat

    async def attend(self, *, look: bool) -> None:
        """One heartbeat: renew the lease and write the status message if either is due.

        Args:
            look: if nothing is due, read the row to see whether the lease is still ours.

        Raises:
            LeaseLost
            Exception: whatever the store raises.
        """
        if self._clock.now_ms() >= self._record.expires_ms and self._means.trust.expires:
            raise LeaseLost(self.ref.id)
        is_due = self._time.is_half_over or self._time.is_due_soon(self._due_ms)
        if is_due or self._news() is not None:
            await self.renew()
        elif look:
            await self._look()

    async def renew(self) -> None:
        """Extend the lease and write the status message. `ctx.state` is not written: the
        handler may be changing it.

        Raises:
            LeaseLost
            Exception: whatever the store raises.
        """
        await to_its_end(self._renew())

    async def _renew(self) -> None:
        async with self._renewing:  # the row has the end of the one that was written last
            sent = Moment.now(self._clock)
            await self._extend(Added(status_message=self._news()), sent)
            self._time.renewed(sent)

    async def _extend(self, added: Added, sent: Moment) -> None:
        """Add this and renew the lease in one write."""
        until_ms, due_ms = self._time.until_ms(sent), self._time.due_ms(sent, self._due_ms)
        await self._store.checkpoint(self.lease, added, sent.wall_ms, until_ms, due_ms)
        self._due_ms = due_ms or self._due_ms
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
        """Note that another worker has the task, or that it is over. The handler ends at its next
        call of the context."""
        self.lost = True
        self.run.stop(Stop.LOST)

    def end(self, error: Exception) -> None:
        """End the run with this error, whatever its handler does from now on."""
        self.fault = self.fault or error
        self.run.stop(Stop.FAULT)

    def _stop_with(self, error: Exception) -> NoReturn:
        self.end(error)
        raise Suspend from None

    # the end of the turn

    async def commit(self, tool: str, outcome: Outcome) -> Turn:
        """Write the outcome of the handler to its task; return how the turn ended.

        Raises:
            WorkerFault: a step took longer than a worker may run.
            LeaseLost: the task was cancelled or taken over.
            Unavailable: the store cannot be reached.
        """
        try:
            return await self._commit(tool, outcome)
        except NotJson as error:  # in ctx.state
            return await self._commit(tool, Failed(error))
        except QuotaExceeded as error:  # there is always room for this end
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
                raise WorkerFault("a step takes longer than a worker may run")
            case Completed() | Failed():
                most, shows_errors = self._means.config.max_result_bytes, self._means.shows_errors
                end = ended(outcome, tool, self._clock, most, shows_errors=shows_errors)
                reason = outcome.error if isinstance(outcome, Failed) else None
                await self._finish(end, is_early=isinstance(reason, TaskTimeout | JobLeft))
                if end.ending is not Ending.STEP_FAILED:
                    return Turn.FINISHED
                self._log_failed_steps(end.failed_steps)
                return Turn.STEP_FAILED

    async def _suspend(
        self, requests: Mapping[str, Any], wake_ms: int, awaits: Collection[str]
    ) -> None:
        wire = {key: encode(request) for key, request in requests.items()}
        ready_ms = self._means.due_ms()

        async def suspend(rest: Added) -> None:
            await self._store.suspend(
                *(self.lease, rest, wire, self._clock.now_ms()),
                wake_ms=wake_ms,
                awaits=awaits,
                ready_ms=ready_ms,
            )

        await self._last_with_rest(suspend)

    async def _release(self, wake_ms: int, awaits: Collection[str] = ()) -> None:
        due_ms, ready_ms = self._means.due_ms(wake_ms), self._means.due_ms()

        async def release(rest: Added) -> None:
            await self._store.release(
                *(self.lease, rest, self._clock.now_ms()),
                wake_ms=wake_ms,
                due_ms=due_ms,
                # a worker whose clock is a little behind may claim it when the message comes
                early_ms=HOLD_MS,
                awaits=awaits,
                ready_ms=ready_ms,
            )

        await self._last_with_rest(release)

    async def _restart(self, arguments: Mapping[str, Any]) -> None:
        generation = self._task_call.generation + 1
        task_call = replace(self._task_call, arguments=arguments, generation=generation)
        due_ms = self._means.due_ms()
        anew = partial(
            self._store.restart, self.lease, task_call.to_bytes(), (), b"{}", JOURNAL_VERSION
        )
        await self._last(lambda: anew(self._clock.now_ms(), due_ms))

    async def _park(self, tool: str, error: NondeterminismError) -> None:
        reference = log_failure(f"task {self.ref} (tool {tool})", error, self._clock)
        what = (
            f"does not support version {error.version} any more,"
            if isinstance(error, HandlerVersionError)
            else "went another way than before,"
        )
        why = f"{PARKED}: its handler {what} at {error.key!r} (reference {reference})"
        await self._last(lambda: self._store.park(self.lease, why, self._clock.now_ms()))

    async def _finish(self, end: Ended, *, is_early: bool) -> None:
        finish = partial(
            self._store.finish,
            *(self.lease, end.status, end.outcome, end.status_message),
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
        """Write what is left. A checkpoint that is under way ends first, or its entries
        would be written twice."""

        async def when_kept() -> None:
            async with self._keeping:
                rest = self._rest()
                await self._last(lambda: write(rest))

        await to_its_end(when_kept())

    async def _last(self, write: Callable[[], Awaitable[None]]) -> None:
        await to_its_end(self._patience.attempt("the last write of a turn", write))

    # without an outcome

    async def stopped(self) -> None:
        """Release the task because this process stops, so that no worker has to wait for the end
        of its lease."""
        self._patience.hurry()
        await self._quietly(lambda: self._release(0))

    async def crashed(self) -> None:
        """Release the task as a suspect: the process is ending, and any task that it runs may be
        the cause."""
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
            log.warning("a task could not be released", extra={"fields": fields})

    async def decline(self, needs: NotServedHere) -> Turn:
        """Release the task for a worker that can run it; fail it if none has come for
        `tasks.unserved_s`.

        Raises:
            LeaseLost: the task is not this worker's any more.
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
            LeaseLost: the task is not this worker's any more.
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
        """Release the task until a time, without counting that as progress."""
        await self._store.release(
            *(self.lease, added, self._clock.now_ms()),
            wake_ms=wake_ms,
            due_ms=self._means.due_ms(wake_ms),
            attempts=attempts,
            declined_ms=declined_ms,
            keeps_blame=True,
        )

    async def give_up(self, error: TaskGivenUp) -> Turn:
        """Fail the task for good.

        Raises:
            LeaseLost: the task is not this worker's any more.
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
        """Return what the run has left to write: questions, sleeps, answers that it has read,
        state, status message."""
        entries = self.run.journal.entries()
        left = [entry for entry in entries if self._saved.get(_place(entry)) != entry]
        return self._added([encode(row(entry)) for entry in left], left)

    def _added(self, rows: Sequence[bytes], entries: Sequence[Entry]) -> Added:
        state = encode(plain(self.run.journal.state, "ctx.state"))
        return Added(
            entries=rows,
            state=state if state != self._state else None,
            status_message=self._news(),
            events=[
                Mark(entry.name, entry.until_ms)
                for entry in entries
                if isinstance(entry, Opened) and entry.outcome is None
            ],
        )

    def _news(self) -> str | None:
        """Return the handler's status message if the record lacks it. Half a surrogate pair, as in
        some file names, cannot be written."""
        message = self.run.message
        shown = None if message is None else message.encode(errors="replace").decode()
        return shown if shown != self._message else None


_QUESTIONS: Final = (Asked, Answered, Unanswered)


def _place(entry: Entry) -> tuple[bool, str]:
    """Return the key of an entry in the journal, which holds one entry for each key."""
    return isinstance(entry, _QUESTIONS), entry.key

"""The journal of one run of one task, written under its lease, and the check that a step may begin.

Every finished step is a conditional write before the handler goes on. Before a step begins, the
lease is known to hold for long enough; a worker that was stopped and went on finds out first
whether the task is still its own. Each write renews the lease by the way, so a heartbeat has
something to write only where no step ends for half a lease:

    handler      step 1 ──── (process stopped, lease over) ──── admit ─── step 2
    this                ✓ checkpoint                              └ renew: yes, it is ours │ LeaseLost: the run ends
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NoReturn

from roundgate.clock import Clock
from roundgate.errors import LeaseLost, NotJson, Suspend, ToolError
from roundgate.json import encode
from roundgate.protocol import Status
from roundgate.replay import (
    JOURNAL_VERSION,
    Answered,
    Asked,
    Call,
    Entry,
    Run,
    Stop,
    Unanswered,
    plain,
    row,
)
from roundgate.settings import TasksConfig
from roundgate.storage import TaskRef
from roundgate.tasks.call import TaskCall, journal_of
from roundgate.tasks.events import Added
from roundgate.tasks.lease import ClockTrust, LeaseTime, Moment
from roundgate.tasks.outcome import Ended
from roundgate.tasks.patience import Patience, to_its_end
from roundgate.tasks.stored import Claimed, Lease, StoredTasks

log = logging.getLogger("roundgate.tasks")


class Checkpointer:
    """Keeps the journal of a claimed task in the store. `lost` once another worker
    has it, or it is over."""

    def __init__(
        self,
        store: StoredTasks,
        claimed: Claimed,
        task_call: TaskCall,
        call: Call,
        clock: Clock,
        config: TasksConfig,
        skew_ms: int,
        trust: ClockTrust,
    ) -> None:
        self._store = store
        self.claimed = claimed
        self._lease = claimed.lease
        self._record = claimed.record
        self._clock = clock
        self._trust = trust
        self._max_bytes = config.max_journal_bytes
        self._time = LeaseTime(clock, int(config.lease_s * 1000), skew_ms)
        self._time.claimed(claimed.record.lease_until_ms)
        self._due_ms = claimed.record.due_ms or 0
        self._patience = Patience(lambda: call.deadline.is_past, task=str(claimed.record.ref))
        self._keeping = asyncio.Lock()
        self._renewing = asyncio.Lock()
        self._message = claimed.record.status_message
        self._state = claimed.state
        self._bytes = sum(map(len, claimed.journal))
        self.lost = False
        self.fault: Exception | None = None
        self._task_call = task_call
        self.run = Run(call, journal_of(claimed, task_call), self, self._message)
        # what is there at the beginning is there the next time too, answers by way of their
        # questions
        self._saved = {_place(entry): entry for entry in self.run.journal.entries()}

    @property
    def ref(self) -> TaskRef:
        return self._lease.ref

    @property
    def lease(self) -> Lease:
        """The right to write to the task."""
        return self._lease

    @property
    def cleans_up(self) -> bool:
        """Whether the task may have begun something elsewhere that has to be ended with it."""
        return self._record.cleans_up

    def news(self) -> list[bytes] | None:
        """Return the whole journal if it has entries that are not written yet; otherwise `None`."""
        entries = self.run.journal.entries()
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
            self._give_up(error)

    async def checkpoint(self, *entries: Entry) -> None:
        """Return once these entries are durable, with everything that was not written before them.

        The engine calls this in an asyncio task of its own, which a cancellation of
        the handler does not reach.

        Raises:
            Suspend: they cannot be written.
        """
        try:
            self._account(entries)
            # of a write that failed nobody knows whether it happened: no other before that
            async with self._keeping:
                added, begun = self._added(entries), Moment.now(self._clock)
                await self._patience.attempt("a checkpoint", lambda: self._write(added))
                self._time.renewed(begun)  # of several attempts nobody says which one happened
                self._saved.update((_place(entry), entry) for entry in entries)
        except NotJson:  # ctx.state: the handler's own
            raise
        except LeaseLost:
            self.lose()
            raise Suspend from None
        except Exception as error:
            self._give_up(error)

    def _account(self, entries: Sequence[Entry]) -> None:
        self._bytes += sum(len(encode(row(entry))) for entry in entries)
        if self._bytes > self._max_bytes:
            journal = self.run.journal
            for entry in entries:
                journal.add(entry)
            raise ToolError(
                f"The task had more remembered than {self._max_bytes} bytes; the largest is "
                f"{journal.largest()}"
            )

    async def _write(self, added: Added) -> None:
        async with self._renewing:
            await self._extend(added, Moment.now(self._clock))
        self._state = self._state if added.state is None else added.state

    async def _renew_in_time(self) -> None:
        """Renew the lease, and fail if the answer took so long that no step could begin on it."""
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
        if self._clock.now_ms() >= self._record.expires_ms and self._trust.expires:
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
        """One write that adds this and renews the lease."""
        until_ms, due_ms = self._time.until_ms(sent), self._time.due_ms(sent, self._due_ms)
        await self._store.checkpoint(self._lease, added, sent.wall_ms, until_ms, due_ms)
        self._due_ms = due_ms or self._due_ms
        self._note(added)

    async def _look(self) -> None:
        record = await self._store.read(self.ref, self._clock.now_ms())
        if (
            record is None
            or record.status is not Status.WORKING
            or record.fence != self._lease.fence
        ):
            raise LeaseLost(self.ref.id)

    # the end of the run

    def lose(self) -> None:
        """Another worker has the task, or it is over: the handler ends at its
        next call of the context."""
        self.lost = True
        self.run.stop(Stop.LOST)

    def end(self, error: Exception) -> None:
        """End the run with this error, whatever its handler does from now on."""
        self.fault = self.fault or error
        self.run.stop(Stop.FAULT)

    def hurry(self) -> None:
        """Stop retrying a store that cannot be reached, because the process is about to end."""
        self._patience.hurry()

    def _give_up(self, error: Exception) -> NoReturn:
        self.end(error)
        raise Suspend from None

    async def suspend(self, requests: Mapping[str, Any], wake_ms: int | None) -> None:
        """Store the questions and free the worker. The task waits for `tasks/update`.

        Args:
            requests: the questions by wire key.
            wake_ms: when to go on without answers, in milliseconds since the epoch; `None` for
                never.

        Raises:
            LeaseLost, Unavailable
        """
        wire = {key: encode(request) for key, request in requests.items()}
        wake_ms = wake_ms or 0
        await self._last_with_rest(
            lambda rest: self._store.suspend(
                self._lease, rest, wire, self._clock.now_ms(), wake_ms=wake_ms
            )
        )

    async def release(self, *, wake_ms: int, due_ms: int) -> None:
        """Free the task until its next turn.

        Args:
            wake_ms: when it may be claimed again, in milliseconds since the epoch; 0 for at once.
            due_ms: when a sweep should look at it.

        Raises:
            LeaseLost, Unavailable
        """
        await self._last_with_rest(
            lambda rest: self._store.release(
                self._lease, rest, self._clock.now_ms(), wake_ms=wake_ms, due_ms=due_ms
            )
        )

    async def finish(self, ended: Ended, *, cleanup_due_ms: int | None = None) -> None:
        """Write the end of the task.

        Args:
            ended: how it ended.
            cleanup_due_ms: when a sweep should look whether what it has begun elsewhere
                was ended; `None`: never.

        Raises:
            LeaseLost, Unavailable
        """
        end = partial(
            self._store.finish,
            *(self._lease, ended.status, ended.outcome, ended.status_message),
            cleanup_due_ms=cleanup_due_ms,
            ending=ended.ending,
            failed_steps=ended.failed_steps,
        )
        await self._last(lambda: end(now_ms=self._clock.now_ms()))

    async def restart(self, arguments: Mapping[str, Any], due_ms: int) -> None:
        """Replace the call's arguments and empty the journal; the task begins again from the top.

        Raises:
            LeaseLost, Unavailable
        """
        task_call = replace(
            self._task_call, arguments=arguments, generation=self._task_call.generation + 1
        )
        anew = partial(
            self._store.restart, self._lease, task_call.to_bytes(), (), b"{}", JOURNAL_VERSION
        )
        await self._last(lambda: anew(self._clock.now_ms(), due_ms))

    async def park(self, why: str) -> None:
        """Put the task aside for its operator.

        Raises:
            LeaseLost, Unavailable
        """
        await self._last(lambda: self._store.park(self._lease, why, self._clock.now_ms()))

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

    # what is written

    def _rest(self) -> Added:
        """What the run leaves that is not written yet: questions, sleeps, answers it has
        read, state, a message."""
        return self._added(
            [one for one in self.run.journal.entries() if self._saved.get(_place(one)) != one]
        )

    def _added(self, entries: Sequence[Entry]) -> Added:
        state = encode(plain(self.run.journal.state, "ctx.state"))
        return Added(
            entries=[encode(row(entry)) for entry in entries],
            state=state if state != self._state else None,
            status_message=self._news(),
        )

    def _news(self) -> str | None:
        """The handler's status message, if it is not in the row yet."""
        message = None if self.run.message is None else _shown(self.run.message)
        return message if message != self._message else None

    def _note(self, added: Added) -> None:
        self._message = self._message if added.status_message is None else added.status_message


_QUESTIONS: Final = (Asked, Answered, Unanswered)


def _place(entry: Entry) -> tuple[bool, str]:
    """Where an entry stands in the journal: one place can hold one."""
    return isinstance(entry, _QUESTIONS), entry.key


def _shown(message: str) -> str:
    """A message as it can be written: half a surrogate pair, as in the name
    of a file, is no text."""
    return message.encode(errors="replace").decode()

"""The home of a task's journal: rows in the store, written under a lease while the handler runs.

Every finished step is a conditional write before the handler goes on. Between steps a heartbeat extends the lease and
writes the handler's status message; its failing is how a worker learns that the task is no longer its own:

    handler     step ────────── long step ──────────────── next engine call: Suspend
    heartbeat          ♥ renew      ♥ renew   ✗ LeaseLost: ctx.cancelled, the run is stopped
    client                              tasks/cancel: the row says cancelled
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn

from app.clock import Clock
from app.config import TasksConfig
from app.errors import LeaseLost, ToolError, Unavailable
from app.protocol import jsonrpc
from app.protocol.jsonrpc import encode
from app.protocol.tasks import Status
from app.replay.branches import Suspend
from app.replay.call import Call
from app.replay.journal import Answered, Asked, Entry, Journal, Unanswered, from_row, plain, row
from app.replay.run import Run, Stop
from app.storage.tasks import Added, Claimed, TaskStore
from app.tasks.outcome import Ended

RETRIES_S: Final = (0.1, 0.5, 2.0, 5.0)
"""Pauses between attempts at a write while the store cannot be reached."""
LOOK_S: Final = 5.0
"""How often a step that writes nothing is held against the row: by then a cancel is noticed."""
STOP_GRACE_S: Final = 2.0
"""How long a handler whose task was cancelled may go on before what it awaits is cancelled too."""

log = logging.getLogger("app.tasks")


class Home:
    """The journal of one run of one task. `lost` once the task is somebody else's, or nobody's."""

    def __init__(self, store: TaskStore, claimed: Claimed, call: Call, clock: Clock, config: TasksConfig) -> None:
        self.ref = claimed.record.ref
        self._store = store
        self._lease = claimed.lease
        self._clock = clock
        self._lease_ms = int(config.lease_s * 1000)
        self._max_bytes = config.max_journal_bytes
        self._until_ms = claimed.record.lease_until_ms
        self._expires_ms = claimed.record.expires_ms
        self._written = asyncio.Lock()
        self._message = claimed.record.status_message
        self._state = claimed.state
        self._bytes = sum(map(len, claimed.journal))
        self.lost = False
        self.fault: Exception | None = None
        self.run = self._begin(claimed, call)
        # what is there at the beginning is there the next time too, answers by way of their questions
        self._saved = {_place(entry): entry for entry in self.run.journal.entries()}

    def _begin(self, claimed: Claimed, call: Call) -> Run:
        journal = Journal(state=jsonrpc.decode(claimed.state))
        for entry in claimed.journal:
            journal.add(_entry(entry))
        # the keys of a task are never used twice, so old answers find no question any more
        journal.receive({key: jsonrpc.decode(answer) for key, answer in claimed.answers.items()})
        run = Run(call, journal, self)
        run.message = self._message
        return run

    async def suspend(self, requests: Mapping[str, Any]) -> None:
        """Put questions to the client; the task waits for `tasks/update`.

        Raises:
            LeaseLost, Unavailable
        """
        wire = {key: encode(request) for key, request in requests.items()}
        await self._patiently(lambda: self._store.suspend(self._lease, self._rest(), wire, self._clock.now_ms()))

    async def release(self, *, wake_ms: int, due_ms: int) -> None:
        """Let go of the task until its next turn.

        Raises:
            LeaseLost, Unavailable
        """
        await self._patiently(
            lambda: self._store.release(self._lease, self._rest(), self._clock.now_ms(), wake_ms=wake_ms, due_ms=due_ms)
        )

    async def finish(self, ended: Ended) -> None:
        """The task is over.

        Raises:
            LeaseLost, Unavailable
        """
        status, outcome, message = ended.status, ended.outcome, ended.status_message
        await self._patiently(lambda: self._store.finish(self._lease, status, outcome, message, self._clock.now_ms()))

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Keeps the lease while the handler runs."""
        task = asyncio.current_task()
        assert task is not None, "a run is a task of the event loop"
        heart = asyncio.create_task(self._beat(task))
        try:
            yield
        finally:
            heart.cancel()
            await asyncio.wait([heart])  # unlike `await heart`, this tells its end from a cancellation of ours
            if not heart.cancelled():
                heart.result()

    async def _beat(self, running: asyncio.Task[Any]) -> None:
        every_s = min(1.0, self._lease_ms / 6000)
        beats = 0
        while not self.lost:
            await asyncio.sleep(every_s)
            beats += 1
            try:
                await self._attend(is_time_to_look=beats * every_s >= LOOK_S)
            except LeaseLost:
                self._lose()
            except Unavailable as error:  # the next beat tries again; a lease holds until somebody takes it
                log.warning("a lease could not be seen to", extra={"fields": self._fields(error)})
            if beats * every_s >= LOOK_S:
                beats = 0
        await asyncio.sleep(STOP_GRACE_S)
        running.cancel()

    async def _attend(self, *, is_time_to_look: bool) -> None:
        """One beat: renew the lease and write the message if that is due, else perhaps see if the task is still ours.

        Raises:
            LeaseLost, Unavailable
        """
        now_ms = self._clock.now_ms()
        if now_ms >= self._expires_ms:
            raise LeaseLost(self.ref.id)
        if self._renewal() is not None or self._news() is not None:
            await self._renew()
        elif is_time_to_look:
            record = await self._store.read(self.ref, now_ms)
            if record is None or record.status is not Status.WORKING or record.fence != self._lease.fence:
                raise LeaseLost(self.ref.id)

    async def admit(self) -> None:
        """The engine's leave to begin a step."""

    async def checkpoint(self, entry: Entry) -> None:
        """The engine's checkpoint: the step is remembered before the handler goes on, or the run ends here."""
        try:
            self._account(entry)
            await self._patiently(lambda: self._write([entry]))
        except LeaseLost:
            self._lose()
            raise Suspend from None
        except (Unavailable, ToolError) as error:
            self._give_up(error)

    def _account(self, entry: Entry) -> None:
        self._bytes += len(encode(row(entry)))
        if self._bytes > self._max_bytes:
            journal = self.run.journal
            journal.add(entry)
            raise ToolError(
                f"The task had more remembered than {self._max_bytes} bytes; the largest is {journal.largest()}"
            )

    def _give_up(self, error: Exception) -> NoReturn:
        self.fault = error
        self.run.stop(Stop.FAULT)
        raise Suspend from None

    def _lose(self) -> None:
        self.lost = True
        self.run.stop(Stop.LOST)

    async def _write(self, entries: Sequence[Entry]) -> None:
        async with self._written:  # branches that run side by side write one after another
            until_ms, added = self._renewal(), self._added(entries)
            await self._store.checkpoint(self._lease, added, self._clock.now_ms(), until_ms)
            self._until_ms = until_ms or self._until_ms
            self._note(entries, added)

    async def _renew(self) -> None:
        """A heartbeat: the lease and the message alone; the handler may be in the middle of changing its state."""
        async with self._written:
            until_ms, added = self._renewal(), Added(status_message=self._news())
            await self._store.checkpoint(self._lease, added, self._clock.now_ms(), until_ms)
            self._until_ms = until_ms or self._until_ms
            self._message = self._message if added.status_message is None else added.status_message

    def _renewal(self) -> int | None:
        """The new end of the lease once half of it is over: a quick step does not pay for it."""
        now_ms = self._clock.now_ms()
        return now_ms + self._lease_ms if self._until_ms - now_ms < self._lease_ms / 2 else None

    def _rest(self) -> Added:
        """What the run leaves that is not written yet: questions, sleeps, what it made of answers, state, a message."""
        return self._added([one for one in self.run.journal.entries() if self._saved.get(_place(one)) != one])

    def _added(self, entries: Sequence[Entry]) -> Added:
        state = encode(plain(self.run.journal.state, "ctx.state"))
        return Added(
            entries=[encode(row(entry)) for entry in entries],
            state=state if state != self._state else None,
            status_message=self._news(),
        )

    def _news(self) -> str | None:
        """The handler's message, if the client has not got it yet."""
        return self.run.message if self.run.message != self._message else None

    def _note(self, entries: Sequence[Entry], added: Added) -> None:
        self._saved |= {_place(entry): entry for entry in entries}
        self._state = self._state if added.state is None else added.state
        self._message = self._message if added.status_message is None else added.status_message

    async def _patiently(self, write: Callable[[], Awaitable[None]]) -> None:
        """A write, again while the store cannot be reached: each is safe to repeat."""
        for pause_s in RETRIES_S:
            try:
                return await write()
            except Unavailable as error:
                log.warning("the store cannot be reached, trying again", extra={"fields": self._fields(error)})
                await asyncio.sleep(pause_s)
        return await write()

    def _fields(self, error: Exception) -> dict[str, Any]:
        return {"task": self.ref.id, "error": str(error)}


_QUESTIONS: Final = (Asked, Answered, Unanswered)


def _place(entry: Entry) -> tuple[bool, str]:
    """Where an entry stands in the journal: one place can hold one."""
    return isinstance(entry, _QUESTIONS), entry.key


def _entry(data: bytes) -> Entry:
    return from_row(jsonrpc.decode(data))

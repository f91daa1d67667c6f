"""The ports of a store beside tasks, and its opening (`settings.process.STORES`).

**TaskQueue** has hints that a task needs a worker. A message carries only the reference of a task;
the worker reads the task's record to learn its state. Messages are delivered at least once, in any
order, perhaps late. A lost message only costs time, because the sweep sends another
(`TaskStore.scan`).

**SessionStore** has expiring rows that every process can read: changes of the sessions of older
clients, the records of `once` tools, the rest of long results, the accounts and token buckets of
callers, and the latest changes of lists. It keeps values by key. `put_new` is a conditional insert:
of any number of inserts, in any processes, exactly one returns `True`. `replace` is a conditional
write on the version that was read; `put` writes without a condition and increments the version. An
expired row counts as absent, even if the database has not deleted it yet. Reads are strongly
consistent.

**OnceStore** keeps the records of `once` tools in such rows. A round of a `once` tool happens at
most once, even if its token is sent repeatedly. Each token id has up to two rows, which never
change:

    once.ID      the claim: the digest of the answers, and the claimer's deadline
    outcome.ID   the result of the round

Each row is a conditional insert. Of any number of claims, in any processes, exactly one gets `None`
and runs the round; every other claim gets the record. No process takes over the claim of a dead
process, because the effect may have happened, and a second run could repeat it.

Contracts in `tests/roundgate/storage` check each implementation: `task_contract` of `TaskStore`
(`storage/tasks.py`), `queue_contract`, `session_contract`, and with its rows `once_contract`,
`account_contract` and `rate_contract`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from roundgate import json
from roundgate.clock import Clock
from roundgate.storage.tasks import TaskRef, TaskStore

log = logging.getLogger("roundgate.storage")


class Message(Struct, frozen=True):
    """A delivery of a message. Each delivery has its own `receipt`."""

    ref: TaskRef
    receipt: str


class TaskQueue(Protocol):
    """A queue of task references. Every method raises `Unavailable` if the queue cannot be
    reached.

    Owners take turns, so one owner's ten thousand messages hardly delay another owner's single
    message.
    """

    async def send(self, ref: TaskRef, delay_ms: int = 0) -> None:
        """Send a message that is delivered after `delay_ms` or later. Queues may round the delay
        up and cap it.

        A queue may keep one message per task. Then a later send can bring the message forward, but
        never postpones it.
        """

    async def send_many(self, refs: Sequence[TaskRef]) -> None:
        """Send several messages without delay, in as few calls as possible."""

    async def receive(
        self, limit: int, wait_ms: int, *, skip: Collection[str] = ()
    ) -> Sequence[Message]:
        """Return up to `limit` messages; wait up to `wait_ms` for the first.

        The queue hides received messages for a while, then delivers them again unless they are
        deleted. `skip` names owners that already have enough running tasks in this process; a queue
        that can do so leaves their messages to other workers (see `put_back`).
        """

    async def delete(self, messages: Sequence[Message]) -> None:
        """Delete messages. An old receipt does not affect a message that was delivered again."""

    async def put_back(self, messages: Sequence[Message], delay_ms: int = 0) -> None:
        """Return messages that this worker cannot handle now; any worker may receive them after
        `delay_ms`."""

    async def depth(self) -> int | None:
        """Return the approximate number of messages waiting for delivery, or `None` if unknown."""

    async def waiting(self, refs: Sequence[TaskRef]) -> Collection[TaskRef] | None:
        """Return the tasks among `refs` that have a message in the queue, or `None` if unknown."""

    async def aclose(self) -> None:
        """Close the connections and end a waiting `receive`."""


class SessionRow(Struct, frozen=True):
    """A stored value, and the version that `replace` compares."""

    value: bytes
    version: int
    forget_ms: int = 0
    """When the row expires, in milliseconds since the epoch."""

    def __eq__(self, other: object) -> bool:
        """Compare value and version; not every read of a store knows when a row expires."""
        if not isinstance(other, SessionRow):
            return NotImplemented
        return (self.value, self.version) == (other.value, other.version)


class SessionStore(Protocol):
    """A store of expiring values by key. Keys have up to 200 characters. `forget_ms` is in
    milliseconds since the epoch."""

    async def put_new(self, key: str, value: bytes, forget_ms: int) -> bool:
        """Store a value if the key has none; return whether it was stored.

        Raises:
            Unavailable: the store cannot be reached.
        """

    async def replace(self, key: str, value: bytes, version: int, forget_ms: int) -> bool:
        """Replace a value if its version is still `version`. The new value has at most 300 KB.
        Return whether the value was replaced.

        Raises:
            Unavailable: as for `put_new`.
        """

    async def put(self, key: str, value: bytes, forget_ms: int) -> int:
        """Store a value of at most 300 KB unconditionally and return its version.

        Versions of a key begin at 1 and rise by one with each write until the row is forgotten.

        Raises:
            Unavailable: as for `put_new`; the value may have been stored, and a version skipped.
        """

    async def read(self, key: str) -> SessionRow | None:
        """Return the row of a key, or `None`.

        Raises:
            Unavailable: as for `put_new`.
        """

    async def read_values(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the values of the keys that have one. Large values may take several calls.

        Raises:
            Unavailable: as for `put_new`.
        """

    async def aclose(self) -> None:
        """Close the connections."""


async def write_row(
    rows: SessionStore, key: str, value: bytes, read: SessionRow | None, forget_ms: int
) -> bool:
    """Store a value if the row is still as it was read; `None` for no row. Return whether the value
    was stored."""
    if read is None:
        return await rows.put_new(key, value, forget_ms)
    return await rows.replace(key, value, read.version, forget_ms)


CLOCKS_AHEAD_MS: Final = 2 * 86_400_000
"""The time in milliseconds for which a record is kept beyond its expiry, so that a process whose
clock is ahead does not let another run the round again."""


_RELEASED: Final = -1
"""The deadline in a released claim. It has passed, so an older version takes the outcome for
unknown."""


class OnceRecord(Struct, frozen=True):
    """The record of a token id."""

    answers: str
    """The digest of the answers in the claim of the round."""
    outcome: bytes | None
    """The result of the round as it was sent; `None` while it runs."""
    give_up_ms: int
    """The claimer's deadline in milliseconds since the epoch. A record without an outcome at that
    time never gets one."""

    @property
    def is_released(self) -> bool:
        """Return whether the claimer released its claim without effect."""
        return self.give_up_ms == _RELEASED


class OnceStore:
    """One outcome for each token id. `forget_ms` is a time at which the token has certainly
    expired, in milliseconds since the epoch; the rows are kept for `CLOCKS_AHEAD_MS` more. Every
    method raises `Unavailable` if the store cannot be reached."""

    def __init__(self, rows: SessionStore) -> None:
        self._rows = rows

    async def claim(
        self, token_id: str, answers: str, give_up_ms: int, forget_ms: int
    ) -> OnceRecord | None:
        """Claim a token id. Return `None` if this call claimed it, otherwise the existing
        record."""
        claim, until_ms = json.encode([answers, give_up_ms]), forget_ms + CLOCKS_AHEAD_MS
        key = f"once.{token_id}"
        while not await self._rows.put_new(key, claim, until_ms):
            row = await self._rows.read(key)
            if row is None:
                continue
            if json.decode(row.value)[1] == _RELEASED:
                if await self._rows.replace(key, claim, row.version, until_ms):
                    return None
            elif (record := await self.read(token_id)) is not None:
                return record
        return None

    async def release(self, token_id: str, forget_ms: int) -> None:
        """Release a claim of this caller, whose round has done nothing, so that a retry can claim
        the token id."""
        key = f"once.{token_id}"
        if (row := await self._rows.read(key)) is not None:
            released = json.encode([json.decode(row.value)[0], _RELEASED])
            # the version rises, so a write that the store repeats cannot release a later claim
            await self._rows.replace(key, released, row.version, forget_ms + CLOCKS_AHEAD_MS)

    async def finish(self, token_id: str, outcome: bytes, forget_ms: int) -> None:
        """Store the outcome of a round that the caller claimed. A second outcome is dropped,
        because the first one was sent to the client."""
        await self._rows.put_new(f"outcome.{token_id}", outcome, forget_ms + CLOCKS_AHEAD_MS)

    async def read(self, token_id: str) -> OnceRecord | None:
        """Return the record of a token id, strongly consistent; `None` if the id was not
        claimed."""
        claim, outcome = f"once.{token_id}", f"outcome.{token_id}"
        values = await self._rows.read_values([claim, outcome])
        if claim not in values:
            return None
        answers, give_up_ms = json.decode(values[claim])
        return OnceRecord(answers, values.get(outcome), give_up_ms)


class Opening(Struct, frozen=True):
    """The settings of a process that a store may need."""

    text: str
    """The text of GATEWAY_STORE. A path in it is resolved in `file`."""
    file: Path
    """A file on this machine: the store itself, or a SQLite file for a queue beside it."""
    clock: Clock
    connections: int
    shards: int
    queue: TaskQueue | None
    """The queue that GATEWAY_QUEUE names; `None` for the store's own."""


class Outage:
    """Whether this process can use its database. Logs the first failure, and the first answer after
    it."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        """The reason for operators; `None` if the last call was answered."""
        self._lock = threading.Lock()

    def note(self, failure: str | None) -> None:
        """Note the end of a call, in any thread: the reason why the database did not answer, or
        `None` if it did."""
        if failure is None and self.trouble is None:
            return
        with self._lock:
            if failure is None and self.trouble is not None:
                log.info("the database answers again")
                self.trouble = None
            elif failure is not None and self.trouble is None:
                log.warning("cannot use the database", extra={"fields": {"error": failure}})
                self.trouble = "the database cannot be used; the log has the reason"


class StoreFacts(Struct, frozen=True):
    """What a process knows of its store."""

    prepares: Sequence[Callable[[], None]] = ()
    """Functions that make AWS clients before the first call needs them."""
    clock_skew_s: float = 5.0
    """The assumed maximum difference of clocks in seconds, unless the configuration sets one."""
    trouble: Callable[[], str | None] = lambda: None
    """Returns why the store cannot be used, or `None`, without a call of the store."""
    id: Callable[[], str | None] = lambda: None
    """Returns the id of the SQLite file or PostgreSQL database, which its processes share; `None`
    before it is opened, and for DynamoDB."""


class Ports(NamedTuple):
    """The parts of a store. Nothing stays connected before its first use."""

    tasks: TaskStore
    queue: TaskQueue
    sessions: SessionStore
    facts: StoreFacts

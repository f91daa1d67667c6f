"""The sweep: finds tasks that have something to do and for which no message is left.

A message that was lost, a worker that died with its lease, a sleep longer than a queue can delay, a
task past its time: each is an open task whose `due_ms` has come. So is one that is over and still
to be cleaned up. Any number of processes may sweep. They share the work by shards of the index, and
each late task is sent once, because moving its `due_ms` is a conditional write.

A task may also be late because workers are busy. Then its message is still there, and another would
only lengthen the queue. So a late task is not sent while the queue is known to have its message
(SQLite), nor while the queue is long and a message must have been lost for it to be needed (SQS);
and what is sent again is sent after ever longer pauses:

    due    +30 s    +60 s    +120 s …  +900 s      each time later, unless a worker has claimed it

What a worker has just now is not late. Claims leave the due time where it is, so the store tells
which those are, and looks for them again when their leases will have lapsed.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from typing import Final

from roundgate.aio import all_ended
from roundgate.clock import Clock, Deadline
from roundgate.errors import Unavailable
from roundgate.protocol import OPEN, Event, sources
from roundgate.settings import TasksConfig
from roundgate.storage import OpenTask, TaskQueue, TaskRef
from roundgate.tasks.events import Postponed, Sending
from roundgate.tasks.lease import LONGEST_LEASE_MS, ClockTrust
from roundgate.tasks.stored import Move, StoredTasks

AT_ONCE: Final = 200
"""Tasks of a shard that are read, moved and sent together."""
SIDE_BY_SIDE: Final = 2
"""Shards that a process sweeps at the same time, so that one waits for the store while the other
works. More would not be faster, because the processor is busy then; and four processes are to
share the usual eight shards."""
PULLED: Final = 10_000
"""How many tasks are examined after the clock was set back."""
SHARD_MS: Final = 5_000
"""For how long a sweeper has a shard to itself: usually enough for `AT_ONCE` tasks, and how long
one that dies delays them."""
LONG: Final = 100
"""A queue with more messages than this, and more than there are late tasks, has lost
none of them as it seems."""
SENT_ANYWAY: Final = 7
"""A task that has been late so often is sent however long the queue is: after about
three quarters of an hour."""
KNOWN_TO_WAIT: Final = 4
"""How many times `requeue_after_s` a task is left alone that has a message for certain."""
_MOVED: Final = frozenset({Postponed.MOVED, Postponed.LAPSED})

log = logging.getLogger("roundgate.tasks")


class Sweep:
    """Finds late tasks and sends messages for them."""

    def __init__(
        self,
        store: StoredTasks,
        queue: TaskQueue,
        clock: Clock,
        config: TasksConfig,
        *,
        skew_s: float = 5.0,
        trust: ClockTrust | None = None,
    ) -> None:
        """Make a sweep. `skew_s` is how far the clocks that share the store may differ, in seconds,
        unless `config` sets it; `trust` is the process's, if other parts share it."""
        self._store = store
        self._queue = queue
        self._clock = clock
        self._pause_ms = int(config.requeue_after_s * 1000)
        self._skew_ms = config.skew_ms(skew_s)
        self._longest_ms = max(self._pause_ms, int(config.requeue_at_most_s * 1000))
        self._me = clock.new_id()
        self._trust = trust or ClockTrust(clock, int(config.lease_s * 1000), self._skew_ms)

    @property
    def trouble(self) -> str | None:
        """Return why tasks are not acted on by this process's clock, if so."""
        return self._trust.trouble

    @property
    def is_outvoted(self) -> bool:
        """Return whether the other processes agree that this process's clock is wrong."""
        return self._trust.is_outvoted

    async def sweep(self, deadline: Deadline | None = None) -> int:
        """Sweep once, and return the number of late tasks. The next sweep finds those that are left at
        the deadline.

        Raises:
            Unavailable: the store or the queue cannot be reached.
        """
        deadline = deadline or Deadline(self._clock, None)
        await self._trust.look(self._store)
        if not self._trust.acts:
            return 0
        if set_back_ms := self._trust.take_set_back():
            await self._pull_back(set_back_ms)
        found = 0
        while late := await self._store.late_shards(self._clock.now_ms()):
            # sweepers that begin together are to begin with different shards, and not to ask for
            # those that are done
            done = await self._sweep_some_of(sorted(late, key=self._order), deadline)
            found += done
            if not done:
                break
        while (
            self._trust.expires
            and not deadline.is_past
            and await self._store.forget(self._clock.now_ms())
        ):
            pass  # in bites, so that others can write in between
        if found:
            log.info("late tasks", extra={"fields": {"count": found}})
        return found

    def _order(self, shard: int) -> int:
        return zlib.crc32(f"{self._me} {shard}".encode())

    async def _sweep_some_of(self, shards: Sequence[int], deadline: Deadline) -> int:
        """Sweep the first `SIDE_BY_SIDE` of these shards that no other process is sweeping."""
        left = iter(shards)

        async def sweep_one() -> int:
            for shard in left:
                if found := await self._sweep_shard(shard, deadline):
                    return found
            return 0

        return sum(await all_ended(sweep_one() for _ in range(SIDE_BY_SIDE)))

    async def _sweep_shard(self, shard: int, deadline: Deadline) -> int:
        found = 0
        while not deadline.is_past and await self._take(shard, SHARD_MS):
            late = await self._store.due(self._clock.now_ms(), AT_ONCE, shard)
            done = await self._see_to(late)
            found += done
            if len(late) < AT_ONCE or not done:
                break
        if found:
            await self._take(shard, 0)
        return found

    async def _take(self, shard: int, for_ms: int) -> bool:
        now_ms = self._clock.now_ms()
        return await self._store.take_shard(shard, self._me, now_ms, now_ms + for_ms)

    async def _see_to(self, late: Sequence[OpenTask]) -> int:
        """Handle these tasks, and return how many were late and not handled by another sweep. The
        index may be out of date."""
        now_ms = self._clock.now_ms()
        past = [task for task in late if task.expires_ms <= now_ms and task.status in OPEN]
        waiting = [task for task in late if task.expires_ms > now_ms or task.status not in OPEN]
        asking = [task for task in waiting if task.status in sources(Event.GO_ON)]
        working = [task for task in waiting if task.status not in sources(Event.GO_ON)]
        if not self._trust.expires:
            past, asking = [], []
        due_ms = now_ms + self._pause_ms
        await self._store.expire([task.ref for task in past], now_ms, due_ms)
        # the time of a question, or of a sleep beside it, is over
        gone_on = await self._store.go_on([task.ref for task in asking], now_ms, due_ms)
        return len(past) + gone_on + (await self._postpone(working, now_ms) if working else 0)

    async def _pull_back(self, by_ms: int) -> None:
        """Make tasks due that a clock ahead by `by_ms` has postponed, and end leases that end later
        than any can. A living worker would have renewed such a lease since."""
        now_ms = self._clock.now_ms()
        for task in await self._store.due(now_ms + by_ms, PULLED):
            if task.due_ms <= now_ms or task.status in sources(Event.GO_ON):
                continue
            record = await self._store.read(task.ref, 0)
            if record is None or record.wake_ms > now_ms:
                continue
            if record.lease_until_ms > now_ms + LONGEST_LEASE_MS + self._skew_ms:
                await self._store.let_go(task.ref, record.fence, now_ms, now_ms, blame=True)
            else:
                move = Move(task, now_ms, task.resends, Sending.LEFT)
                await self._store.postpone_many([move], now_ms, self._skew_ms)

    async def _postpone(self, late: Sequence[OpenTask], now_ms: int) -> int:
        """Set the next due time of each task, which sends a message if the task may need one.
        Return how many were moved."""
        waiting = await self._queue.waiting([task.ref for task in late])
        if waiting is None:
            doubted = await self._probably_sent(late)
            sending = dict.fromkeys(doubted, Sending.DOUBTED)
        else:
            sending = dict.fromkeys(waiting, Sending.WAITS)
        moves = [self._move(task, now_ms, sending.get(task.ref, Sending.NEEDED)) for task in late]
        became = await self._store.postpone_many(moves, now_ms, self._skew_ms)
        return sum(one in _MOVED for one in became)

    async def _probably_sent(self, late: Sequence[OpenTask]) -> Sequence[TaskRef]:
        """Return the tasks whose messages are probably in the queue, if it cannot say which it
        has."""
        sent_before = [task.ref for task in late if not task.unsent and task.resends < SENT_ANYWAY]
        is_long = bool(sent_before) and await self._depth() > max(LONG, len(sent_before))
        return sent_before if is_long else []

    async def _depth(self) -> int:
        """Return the number of waiting messages; 0 if the queue cannot say."""
        try:
            return await self._queue.depth() or 0
        except Unavailable:
            return 0

    def _move(self, task: OpenTask, now_ms: int, sending: Sending) -> Move:
        if sending is Sending.WAITS:
            return Move(task, now_ms + KNOWN_TO_WAIT * self._pause_ms, task.resends, sending)
        pause_ms = self._pause_ms * 2 ** min(task.resends, 20)
        return Move(task, now_ms + min(pause_ms, self._longest_ms), task.resends + 1, sending)

    async def overdue_s(self) -> float:
        """Return by how much the most overdue task is late, in seconds; 0 if none is. A task that a
        worker has claimed may count for some seconds."""
        now_ms = self._clock.now_ms()
        late = await self._store.due(now_ms, 1)
        return round((now_ms - late[0].due_ms) / 1000, 1) if late else 0.0

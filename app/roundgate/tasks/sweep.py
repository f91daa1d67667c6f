"""The sweep, which finds due tasks that no message will wake.

A task is in the index with a `due_ms` that has passed after a lost message, the death of a worker,
a sleep longer than a queue can delay, or its expiry. The same is true of a terminal task that needs
a cleanup. Any number of processes may sweep. They share the work by shards of the index, and each
late task is sent once, because moving its `due_ms` is a conditional write.

A task may also be late because workers are busy. Then its message is still in the queue, and
another would only lengthen the queue. So the sweep does not send a late task while the queue is
known to have its message (SQLite), or while the queue is long and probably has it (SQS). The pauses
between repeated messages grow:

    due    +30 s    +60 s    +120 s …  +900 s      each time later, unless a worker has claimed it

A task that a worker holds is not late. Claims may keep the due time, so the sweep postpones such a
task until its lease will have lapsed.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from roundgate import json
from roundgate.aio import all_ended
from roundgate.clock import Clock, Deadline
from roundgate.errors import Unavailable
from roundgate.protocol import OPEN, Event, sources
from roundgate.settings import TasksConfig
from roundgate.storage import OpenTask, SessionStore, TaskQueue, TaskRef, write_row
from roundgate.tasks.events import Expire, GoOn, LetGo, Postpone, Postponed, Sending
from roundgate.tasks.lease import LONGEST_LEASE_MS, ClockTrust
from roundgate.tasks.stored import StoredTasks

AT_ONCE: Final = 200
"""The number of tasks of a shard that are read, moved and sent together."""
SIDE_BY_SIDE: Final = 2
"""The number of shards that a process sweeps concurrently, so that one waits for the store while
the other works. More shards would not be faster, and would leave fewer for other processes."""
PULLED: Final = 10_000
"""The maximum number of tasks that are checked after the clock was set back."""
SHARD_MS: Final = 5_000
"""The lease of a shard in milliseconds: usually enough for `AT_ONCE` tasks, and the delay that a
dead sweeper causes."""
SHARD_AT_MOST_MS: Final = 60_000
"""The longest lease of a shard that a sweeper respects, in milliseconds."""
LONG: Final = 100
"""The number of messages from which a queue counts as long. A long queue with more messages than
late tasks has probably lost none of them."""
SENT_ANYWAY: Final = 7
"""The number of resends after which a task is sent despite a long queue: after about three quarters
of an hour."""
KNOWN_TO_WAIT: Final = 4
"""The pause for a task whose message is certainly in the queue, as a multiple of
`requeue_after_s`."""
_MOVED: Final = frozenset({Postponed.MOVED, Postponed.LAPSED})

log = logging.getLogger("roundgate.tasks")


@dataclass(eq=False)
class Sweep:
    """Finds late tasks and sends messages for them."""

    store: StoredTasks
    queue: TaskQueue
    rows: SessionStore
    """The rows that sweepers share."""
    clock: Clock
    config: TasksConfig
    skew_s: float = 5.0
    """The maximum difference in seconds of the clocks that share the store, unless `config` sets
    one."""
    trust: ClockTrust | None = None
    """The `ClockTrust` that the sweep shares with the worker, if any."""

    def __post_init__(self) -> None:
        self._pause_ms = int(self.config.requeue_after_s * 1000)
        self._skew_ms = self.config.skew_ms(self.skew_s)
        self._longest_ms = max(self._pause_ms, int(self.config.requeue_at_most_s * 1000))
        self._me = self.clock.new_id()
        lease_ms = int(self.config.lease_s * 1000)
        self._trust = self.trust or ClockTrust(self.clock, lease_ms, self._skew_ms)

    @property
    def trouble(self) -> str | None:
        """Return the reason why this process does not act by its clock; `None` if it does."""
        return self._trust.trouble

    @property
    def is_outvoted(self) -> bool:
        """Return whether the other processes agree that this process's clock is wrong."""
        return self._trust.is_outvoted

    async def sweep(self, deadline: Deadline | None = None) -> int:
        """Sweep once, and return the number of late tasks. The next sweep handles the tasks that
        are left at the deadline.

        Raises:
            Unavailable: the store or the queue cannot be reached.
        """
        deadline = deadline or Deadline(self.clock, None)
        await self._trust.look(self.store)
        if not self._trust.acts:
            return 0
        if set_back_ms := self._trust.take_set_back():
            await self._pull_back(set_back_ms)
        total = 0
        while late := await self.store.late_shards(self.clock.now_ms()):
            # sweepers that start together begin with different shards, and skip the shards that are
            # done
            done = await self._sweep_some(sorted(late, key=self._order), deadline)
            total += done
            if not done:
                break
        while (
            self._trust.expires
            and not deadline.is_past
            and await self.store.forget(self.clock.now_ms())
        ):
            pass  # in small transactions, so that other writers can proceed in between
        if total:
            log.info("late tasks", extra={"fields": {"count": total}})
        return total

    def _order(self, shard: int) -> int:
        return zlib.crc32(f"{self._me} {shard}".encode())

    async def _sweep_some(self, shards: Sequence[int], deadline: Deadline) -> int:
        """Sweep the first `SIDE_BY_SIDE` of these shards that no other process is sweeping."""
        remaining = iter(shards)

        async def sweep_one() -> int:
            for shard in remaining:
                if handled := await self._sweep_shard(shard, deadline):
                    return handled
            return 0

        return sum(await all_ended(sweep_one() for _ in range(SIDE_BY_SIDE)))

    async def _sweep_shard(self, shard: int, deadline: Deadline) -> int:
        total = 0
        while not deadline.is_past and await self._take(shard, SHARD_MS):
            late = await self.store.due(self.clock.now_ms(), AT_ONCE, shard)
            done = await self._handle(late)
            total += done
            if len(late) < AT_ONCE or not done:
                break
        if total:
            await self._take(shard, 0)
        return total

    async def _take(self, shard: int, for_ms: int) -> bool:
        """Lease a shard for a time, or release it after 0 ms; return `False` if another sweeper has
        it. Leases of shards only avoid duplicate work; correctness does not depend on them."""
        key, now_ms = f"sweep.{shard}", self.clock.now_ms()
        row = await self.rows.read(key)
        if row is not None:
            sweeper, until_ms = json.decode_own(row.value)
            # a lease that ends later came from a clock that was ahead
            if sweeper != self._me and now_ms < until_ms <= now_ms + SHARD_AT_MOST_MS:
                return False
        until_ms = now_ms + for_ms
        value = json.encode([self._me, until_ms])
        return await write_row(self.rows, key, value, row, until_ms + SHARD_AT_MOST_MS)

    async def _handle(self, late: Sequence[OpenTask]) -> int:
        """Handle these tasks, and return the number that were late and not yet handled by another
        sweep. The index may be out of date."""
        now_ms = self.clock.now_ms()
        past = [task for task in late if task.expires_ms <= now_ms and task.status in OPEN]
        waiting = [task for task in late if task.expires_ms > now_ms or task.status not in OPEN]
        asking = [task for task in waiting if task.status in sources(Event.GO_ON)]
        working = [task for task in waiting if task.status not in sources(Event.GO_ON)]
        if not self._trust.expires:
            past, asking = [], []
        due_ms = now_ms + self._pause_ms
        await self.store.apply_many([(task.ref, Expire(due_ms)) for task in past], now_ms)
        # the time limit of a question, or of a concurrent sleep, has passed
        gone_on = await self.store.apply_many([(task.ref, GoOn(due_ms)) for task in asking], now_ms)
        count = len(past) + sum(decision.happened for decision in gone_on)
        return count + (await self._postpone(working, now_ms) if working else 0)

    async def _pull_back(self, by_ms: int) -> None:
        """Make tasks due that a clock ahead by `by_ms` has postponed, and end leases with an
        impossibly late end. A living worker would have renewed such a lease since."""
        now_ms = self.clock.now_ms()
        for task in await self.store.due(now_ms + by_ms, PULLED):
            if task.due_ms <= now_ms or task.status in sources(Event.GO_ON):
                continue
            record = await self.store.read(task.ref, 0)
            if record is None or record.wake_ms > now_ms:
                continue
            if record.lease_until_ms > now_ms + LONGEST_LEASE_MS + self._skew_ms:
                let_go = LetGo(now_ms, blame=True, fence=record.fence)
                await self.store.apply(task.ref, let_go, now_ms)
            else:
                event = Postpone(task.due_ms, now_ms, task.resends, Sending.LEFT, self._skew_ms)
                await self.store.apply(task.ref, event, now_ms)

    async def _postpone(self, late: Sequence[OpenTask], now_ms: int) -> int:
        """Set the next due time of each task, and send a message if the task may need one. Return
        the number of moved tasks."""
        waiting = await self.queue.waiting([task.ref for task in late])
        if waiting is None:
            doubted = await self._probably_sent(late)
            sending = dict.fromkeys(doubted, Sending.DOUBTED)
        else:
            sending = dict.fromkeys(waiting, Sending.WAITS)
        moves = [
            (task.ref, self._move(task, now_ms, sending.get(task.ref, Sending.NEEDED)))
            for task in late
        ]
        decisions = await self.store.apply_many(moves, now_ms)
        return sum(decision.result in _MOVED for decision in decisions)

    async def _probably_sent(self, late: Sequence[OpenTask]) -> Sequence[TaskRef]:
        """Return the tasks whose messages are probably in a queue that cannot list its messages."""
        sent_before = [task.ref for task in late if not task.unsent and task.resends < SENT_ANYWAY]
        is_long = bool(sent_before) and await self._depth() > max(LONG, len(sent_before))
        return sent_before if is_long else []

    async def _depth(self) -> int:
        """Return the number of waiting messages; 0 if the queue cannot say."""
        try:
            return await self.queue.depth() or 0
        except Unavailable:
            return 0

    def _move(self, task: OpenTask, now_ms: int, sending: Sending) -> Postpone:
        if sending is Sending.WAITS:
            pause_ms, resends = KNOWN_TO_WAIT * self._pause_ms, task.resends
        else:
            pause_ms = min(self._pause_ms * 2 ** min(task.resends, 20), self._longest_ms)
            resends = task.resends + 1
        return Postpone(task.due_ms, now_ms + pause_ms, resends, sending, self._skew_ms)

    async def overdue_s(self) -> float:
        """Return the delay of the most overdue task in seconds; 0 if none is late. A task that a
        worker has claimed may count for some seconds."""
        now_ms = self.clock.now_ms()
        late = await self.store.due(now_ms, 1)
        return round((now_ms - late[0].due_ms) / 1000, 1) if late else 0.0

"""The task queue as a table in PostgreSQL. The queue keeps at most one message per task.

Workers take messages with `for update skip locked`. `notify` wakes a waiting worker of another
process; a lost notification costs `POLL_S`. A message is a hint, so no write waits for the disk.

Owners take turns. A message that becomes visible gets a turn: the turn after its owner's last
waiting message, or the last served turn (`served`) if that is later. The queue delivers messages in
the order of their turns, so a new owner's first message comes before another owner's ten thousand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Final

from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.storage.ports import Message
from roundgate.storage.postgres.database import PostgresDatabase
from roundgate.storage.tasks import TaskRef

POLL_S: Final = 1.0
"""The longest pause in seconds between two polls of a waiting worker."""
HIDDEN_MS: Final = 30_000
"""The time in milliseconds for which a received message stays hidden."""
_LISTEN_EVERY_MS: Final = 5_000
_PROMOTED_AT_ONCE: Final = 500
_CHANNEL: Final = "roundgate"
_QUICKLY: Final = "set_config('synchronous_commit', 'off', true)"
"""Lets the commit of the statement return before it is on the disk."""
_TURN: Final = """greatest((select last_value from roundgate.served),
    1 + (select max(turn) from roundgate.waiting where owner = r.owner and turn is not null)) + r.nth - 1"""
_SEND: Final = f"""
with sent as (
    insert into roundgate.waiting as w (owner, task, visible_ms, turn)
    select owner, task, $3::bigint, case when $4::boolean then {_TURN} end
    from (
        select owner, task, row_number() over (partition by owner order by place) as nth
        from unnest($1::text[], $2::text[]) with ordinality as u (owner, task, place)
    ) as r
    on conflict (task) do update set
        visible_ms = case when w.taken then excluded.visible_ms else least(w.visible_ms, excluded.visible_ms) end,
        turn = coalesce(w.turn, excluded.turn), receipt = w.receipt + w.taken::int, taken = false
)
select {_QUICKLY}, case when $5::boolean then pg_notify('{_CHANNEL}', '') end"""
_TAKE: Final = f"""
with next as (
    select n, turn from roundgate.waiting where turn is not null and owner <> all($1::text[])
    order by turn, n limit $2 for update skip locked
), taken as (
    update roundgate.waiting as w
    set turn = null, taken = true, receipt = w.receipt + 1, visible_ms = $3
    from next where w.n = next.n returning w.n, w.task, w.receipt, next.turn
)
select soonest_ms, n, task, receipt, {_QUICKLY}, case when n is not null then
    setval('roundgate.served', greatest(turn, (select last_value from roundgate.served))) end from
    (select min(visible_ms) as soonest_ms from roundgate.waiting where turn is null) as s
    left join taken on true order by turn, n"""
_PROMOTE: Final = f"""
with come as (
    select n, owner, visible_ms from roundgate.waiting where turn is null and visible_ms <= $1
    order by visible_ms limit {_PROMOTED_AT_ONCE} for update skip locked
), promoted as (
    update roundgate.waiting as w set turn = {_TURN}, taken = false
    from (
        select n, owner, row_number() over (partition by owner order by visible_ms, n) as nth from come
    ) as r where w.n = r.n
)
select {_QUICKLY}"""
_FOR_EACH: Final = f"""
with done as ({{}} from unnest($1::bigint[], $2::bigint[]) as r (n, receipt)
    where w.n = r.n and w.receipt = r.receipt {{}}) select {_QUICKLY}"""
_DELETE: Final = _FOR_EACH.format("delete from roundgate.waiting as w", "").replace(
    " from unnest", " using unnest"
)
_PUT_BACK: Final = _FOR_EACH.format(
    "update roundgate.waiting as w set visible_ms = $3, taken = false", "and w.taken"
)


class PostgresQueue:
    """A `TaskQueue` in a PostgreSQL database."""

    def __init__(self, database: PostgresDatabase, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._sent = asyncio.Event()
        self._waiting = 0
        self._closed = False
        self._listener: Any = None
        self._listens_again_ms = 0.0

    async def send(self, ref: TaskRef, delay_ms: int = 0) -> None:
        await self._send([ref], delay_ms)

    async def send_many(self, refs: Sequence[TaskRef]) -> None:
        if refs:
            await self._send(sorted(set(refs)), 0)  # sorted, to avoid deadlocks between senders

    async def receive(
        self, limit: int, wait_ms: int, *, skip: Collection[str] = ()
    ) -> Sequence[Message]:
        until_ms = self._clock.monotonic_ms() + wait_ms
        while True:
            await self._listen()
            if self._closed:  # perhaps during the call above
                self._end_listening()
                return []
            self._sent.clear()
            messages, soonest_ms = await self._take(limit, list(skip))
            left_s = (until_ms - self._clock.monotonic_ms()) / 1000
            if messages or left_s <= 0 or self._closed:
                return messages
            soon_s = (soonest_ms - self._clock.now_ms()) / 1000
            self._waiting += 1
            try:
                async with asyncio.timeout(max(0.001, min(POLL_S, left_s, soon_s))):
                    await self._sent.wait()
            except TimeoutError:
                pass
            finally:
                self._waiting -= 1

    async def delete(self, messages: Sequence[Message]) -> None:
        if messages:
            await self._database.fetch(_DELETE, *_receipts(messages))

    async def put_back(self, messages: Sequence[Message], delay_ms: int = 0) -> None:
        if messages:
            facts = (*_receipts(messages), self._clock.now_ms() + delay_ms)
            await self._database.fetch(_PUT_BACK, *facts)
            self._sent.set()

    async def depth(self) -> int | None:
        """Return the exact number of messages that wait for delivery."""
        select = "select count(*) from roundgate.waiting where turn is not null or visible_ms <= $1"
        ((count,),) = await self._database.fetch(select, self._clock.now_ms())
        return int(count)

    async def waiting(self, refs: Sequence[TaskRef]) -> Collection[TaskRef] | None:
        """Return tasks with a message, as `TaskQueue.waiting` does. A message with a long delay
        does not count, because it is for later."""
        select = (
            "select task from roundgate.waiting where task = any($1::text[])"
            " and (turn is not null or visible_ms <= $2)"
        )
        soon_ms = self._clock.now_ms() + HIDDEN_MS
        facts = ([str(ref) for ref in refs], soon_ms)
        rows = await self._database.fetch(select, *facts)
        return {TaskRef.parse(task) for (task,) in rows}

    async def aclose(self) -> None:
        self._closed = True
        self._sent.set()
        self._end_listening()
        await self._database.aclose()

    def _end_listening(self) -> None:
        if self._listener is not None:
            self._listener.terminate()

    async def _send(self, refs: Sequence[TaskRef], delay_ms: int) -> None:
        owners, tasks = [ref.owner for ref in refs], [str(ref) for ref in refs]
        is_now = delay_ms <= 0
        # a worker waiting in this process needs no notification, nor does any before the delay ends
        is_for_others = is_now and (len(refs) > 1 or not self._waiting or self._sent.is_set())
        facts = (owners, tasks, self._clock.now_ms() + delay_ms, is_now, is_for_others)
        await self._database.fetch(_SEND, *facts)
        self._sent.set()

    async def _take(self, limit: int, skip: Sequence[str]) -> tuple[list[Message], int]:
        """Return messages, and the earliest time at which the next one becomes visible, in
        milliseconds since the epoch."""
        for _ in range(2):
            now_ms = self._clock.now_ms()
            facts = (skip, limit, now_ms + HIDDEN_MS)
            rows = await self._database.fetch(_TAKE, *facts)
            messages = [
                Message(TaskRef.parse(task), f"{n}/{receipt}")
                for _, n, task, receipt, *_ in rows
                if n is not None
            ]
            soonest_ms = rows[0][0]
            if soonest_ms is None:
                return messages, now_ms + HIDDEN_MS
            if soonest_ms <= now_ms:
                await self._database.fetch(_PROMOTE, now_ms)
            if messages or soonest_ms > now_ms:
                return messages, soonest_ms
        return messages, soonest_ms

    async def _listen(self) -> None:
        """Listen to other processes, unless this process listens already or an attempt failed
        recently."""
        now_ms = self._clock.monotonic_ms()
        lives = self._listener is not None and not self._listener.is_closed()
        if not lives and not self._closed and now_ms >= self._listens_again_ms:
            self._listens_again_ms = now_ms + _LISTEN_EVERY_MS
            with suppress(Unavailable):
                self._listener = await self._database.listen(_CHANNEL, lambda *_: self._sent.set())


def _receipts(messages: Sequence[Message]) -> tuple[list[int], list[int]]:
    parts = [message.receipt.split("/") for message in messages]
    return [int(n) for n, _ in parts], [int(receipt) for _, receipt in parts]

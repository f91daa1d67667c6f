"""Tasks in DynamoDB: one head a task, whose conditional writes decide everything.

The layout of the table: app/storage/dynamodb.py; that of a head: app/storage/dynamodb_heads.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.errors import LeaseLost
from app.protocol.tasks import Event, Status, sources, target
from app.storage.dynamodb import HEAD, Change, Draft, Expression, Kept, Lost, Row, Table, Won, is_moved, whole
from app.storage.dynamodb_heads import (
    IS_FOUND,
    NOT_LEASED,
    ROOM,
    SHARDS,
    Notes,
    answers_taken,
    fit_in_head,
    is_in,
    lease_holds,
    lengthened,
    new_head,
    open_task_of,
    over,
    pk_of,
    record_of,
    said,
    seen,
    ttl_of,
    unexpired,
    unpacked,
    values_of,
    why_not,
    woken,
)
from app.storage.tasks import (
    NOTHING,
    Added,
    Answered,
    Claimed,
    Lease,
    NewTask,
    NotClaimed,
    OpenTask,
    TaskRecord,
    TaskRef,
)

EXACTLY: Final = 200
"""Up to so many open tasks are read from each part of the index, to have those that are due first of all."""


class DynamoDbTasks:
    """The `TaskStore`, see there."""

    def __init__(self, table: Table) -> None:
        self._table = table

    # for the owner

    async def create(self, task: NewTask) -> None:
        """See `TaskStore`."""
        draft = self._table.draft(pk_of(task.ref), ttl_of(task.expires_ms))
        row = new_head(task, draft)
        await self._table.put(draft)
        match await self._table.put_new(row):
            case Lost():
                raise ValueError(f"there is a task {task.ref} already")

    async def read(self, ref: TaskRef, now_ms: int) -> TaskRecord | None:
        """See `TaskStore`."""
        rows = await self._table.read(pk_of(ref))
        head = unexpired(rows.get(HEAD), now_ms)
        return None if head is None else record_of(head, rows)

    async def answer(self, ref: TaskRef, answers: Mapping[str, bytes], now_ms: int, due_ms: int) -> Answered:
        """See `TaskStore`."""
        if not fit_in_head(answers):
            return await self._answer_some(ref, await self._table.head(pk_of(ref)), answers, now_ms, due_ms)
        match await self._answer_all(ref, answers, now_ms, due_ms):
            case Lost(row=head):
                return await self._answer_some(ref, head, answers, now_ms, due_ms)
        return Answered.FULLY

    async def _answer_all(self, ref: TaskRef, answers: Mapping[str, bytes], now_ms: int, due_ms: int) -> Won | Lost:
        """The case without a surprise, in one call: exactly what is outstanding is answered."""
        names = {f"#key{place}": key for place, key in enumerate(answers)}
        sets = {f"#answers.#key{place}": value for place, value in enumerate(answers.values())}
        size = sum(map(len, answers.values()))
        change = Change(
            {**woken(now_ms, due_ms), **sets, "answered": Expression("#answered + :size")},
            when=[
                # A task that expired or was never there is not found.
                IS_FOUND,
                # Only a task that asks can be answered.
                is_in(Event.ANSWER_ALL),
                # Each answer is for a question that waits, ...
                *(f"attribute_exists(#requests.{name})" for name in names),
                # ... and no question waits that has none.
                "size(#requests) = :count",
                # All answers ever taken still fit the row.
                "#answered < :room",
            ],
            values=values_of(now_ms, size=size, count=len(answers), room=ROOM),
            names=names,
        )
        return await self._table.update(pk_of(ref), change)

    async def _answer_some(
        self, ref: TaskRef, head: Row | None, answers: Mapping[str, bytes], now_ms: int, due_ms: int
    ) -> Answered:
        """What fits the head as it was seen, for as often as it has changed meanwhile."""
        draft: Draft | None = None
        kept: dict[str, Kept] = {}
        while head := unexpired(head, now_ms):
            taken = [key for key in answers if key in head["requests"]]
            if not taken or head["status"] not in sources(Event.ANSWER_SOME):
                return Answered.NOT_NEEDED
            draft = draft or self._table.draft(pk_of(ref), head["ttl"])
            fresh = {key: answers[key] for key in taken if key not in kept}
            kept |= draft.keep_each("2", fresh, ROOM - head["answered"])
            await self._table.put(draft)
            change, answered = answers_taken(head, {key: kept[key] for key in taken}, now_ms, due_ms)
            match await self._table.update(pk_of(ref), change):
                case Won():
                    return answered
                case Lost(row=row):
                    head = row
        return Answered.UNKNOWN_TASK

    async def cancel(self, ref: TaskRef, status_message: str, now_ms: int) -> bool:
        """See `TaskStore`."""
        change = Change(
            over(target(Event.CANCEL), status_message, now_ms),
            # A terminal task stays as it is.
            when=[IS_FOUND, is_in(Event.CANCEL)],
            values=values_of(now_ms),
        )
        match await self._table.update(pk_of(ref), change):
            case Lost(row=head):
                return unexpired(head, now_ms) is not None
        return True

    # for the worker

    async def claim(self, ref: TaskRef, now_ms: int, until_ms: int) -> Claimed | NotClaimed:
        """See `TaskStore`."""
        # Who has it may go on until the lease ends.
        is_free = "#lease_until_ms <= :now"
        # It sleeps until something is worth looking at.
        is_awake = "#wake_ms <= :now"
        change = Change(
            {
                "fence": Expression("#fence + :one"),
                "attempts": Expression("#attempts + :one"),
                "lease_until_ms": until_ms,
                "due_ms": until_ms,
                "wake_ms": 0,
            },
            when=[IS_FOUND, is_in(Event.RUN), is_free, is_awake],
            values=values_of(now_ms),
        )
        match await self._table.update(pk_of(ref), change, wants_row=True):
            case Won(row=dict() as head):
                return await self._claimed(ref, head)
            case Lost(row=head):
                return why_not(head, now_ms)
        raise AssertionError("ALL_NEW has the row")

    async def _claimed(self, ref: TaskRef, head: Row) -> Claimed:
        kept = [head["call"], head["state"], *head["chunks"], *head["answers"].values()]
        rows = await self._table.blobs(pk_of(ref)) if any(map(is_moved, kept)) else {}
        older = [entry for chunk in head["chunks"] for entry in unpacked(whole(chunk, rows))]
        notes = Notes(head["expires_ms"], head.get("status_message"), len(head["chunks"]), list(head["tail"]))
        return Claimed(
            lease=Lease(ref, head["fence"], notes),
            record=record_of(head, {}),
            call=whole(head["call"], rows),
            journal=older + notes.tail,
            state=whole(head["state"], rows),
            answers={key: whole(value, rows) for key, value in head["answers"].items()},
        )

    async def checkpoint(self, lease: Lease, added: Added, now_ms: int, until_ms: int | None = None) -> None:
        """See `TaskStore`."""
        sets = {} if until_ms is None else {"lease_until_ms": until_ms, "due_ms": until_ms}
        await self._write(lease, added, now_ms, sets | ({"attempts": 0} if added.entries else {}))

    async def suspend(self, lease: Lease, added: Added, requests: Mapping[str, bytes], now_ms: int) -> None:
        """See `TaskStore`."""
        draft = self._draft(lease)
        kept = draft.keep_each("1", requests, ROOM)
        asked = {key: {"n": place, "b": value} for place, (key, value) in enumerate(kept)}
        sets = {
            **NOT_LEASED,
            **seen(now_ms),
            "status": target(Event.ASK).value,
            "requests": asked,
            "due_ms": Expression("#expires_ms"),
            "attempts": 0,
        }
        await self._write(lease, added, now_ms, sets, draft)

    async def release(
        self, lease: Lease, added: Added, now_ms: int, *, wake_ms: int, due_ms: int, keeps_attempts: bool = False
    ) -> None:
        """See `TaskStore`."""
        sets = {**NOT_LEASED, "wake_ms": wake_ms, "due_ms": due_ms}
        await self._write(lease, added, now_ms, sets | ({} if keeps_attempts else {"attempts": 0}))

    async def finish(
        self, lease: Lease, status: Status, outcome: bytes | None, status_message: str | None, now_ms: int
    ) -> None:
        """See `TaskStore`."""
        draft = self._draft(lease)
        kept = None if outcome is None else draft.keep("1", outcome)
        sets = {**over(status, status_message, now_ms), **({} if kept is None else {"outcome": kept})}
        await self._write(lease, NOTHING, now_ms, sets, draft)

    def _draft(self, lease: Lease) -> Draft:
        return self._table.draft(pk_of(lease.ref), ttl_of(lease.notes.expires_ms))

    async def _write(
        self,
        lease: Lease,
        added: Added,
        now_ms: int,
        sets: Mapping[str, Any],
        draft: Draft | None = None,
    ) -> None:
        """One write under a lease; its own large values are in `draft`.

        Raises:
            LeaseLost
        """
        notes: Notes = lease.notes
        draft = draft or self._draft(lease)
        async with notes.writing:  # the tail is as the write before left it
            journal, tail = lengthened(notes.tail, added.entries, draft)
            changes = {**sets, **journal, **said(notes, added, draft, now_ms)}
            await self._table.put(draft)
            values = values_of(now_ms, fence=lease.fence, none=0, chunks=notes.chunks, tail=len(notes.tail))
            match await self._table.update(pk_of(lease.ref), Change(changes, lease_holds(added), values)):
                case Lost():
                    raise LeaseLost(str(lease.ref))
            notes.tail, notes.chunks = tail, notes.chunks + ("chunks" in journal)
            if added.status_message is not None:
                notes.status_message = added.status_message

    # for the sweep

    async def due(self, now_ms: int, limit: int) -> Sequence[OpenTask]:
        """See `TaskStore`."""
        return await self._index(now_ms, limit)

    async def postpone(self, task: OpenTask, due_ms: int) -> bool:
        """See `TaskStore`."""
        # Whoever moved it before us does what is to be done; what is terminal has none.
        is_due_as_seen = "#due_ms = :due"
        change = Change({"due_ms": due_ms}, when=[is_due_as_seen], values={":due": task.due_ms})
        return isinstance(await self._table.update(pk_of(task.ref), change), Won)

    async def expire(self, ref: TaskRef, now_ms: int) -> None:
        """See `TaskStore`."""
        # Until then its owner may still ask for it.
        is_past = "#expires_ms <= :now"
        change = Change(
            over(target(Event.EXPIRE), "expired", now_ms),
            when=[is_past, is_in(Event.EXPIRE)],
            values=values_of(now_ms),
        )
        await self._table.update(pk_of(ref), change)

    async def forget(self, now_ms: int) -> int:
        """See `TaskStore`. DynamoDB deletes by itself: `ttl`."""
        return 0

    # for the operator

    async def open_tasks(self, limit: int) -> Sequence[OpenTask]:
        """See `TaskStore`."""
        return await self._index(None, limit)

    async def _index(self, until_ms: int | None, limit: int) -> list[OpenTask]:
        # exact where few are asked for; of many, each part of the index gives its share
        share = limit if limit <= EXACTLY else -(-limit // SHARDS)
        shards = (self._table.index(str(shard), until_ms, share) for shard in range(SHARDS))
        rows = [row for rows in await asyncio.gather(*shards) for row in rows]
        return sorted(map(open_task_of, rows), key=lambda task: task.due_ms)[:limit]

    async def find(
        self,
        *,
        owner: str | None = None,
        status: Status | None = None,
        created_before_ms: int | None = None,
        limit: int = 100,
    ) -> Sequence[TaskRecord]:
        """See `TaskStore`. Reads the whole table; large payloads are left out."""
        wanted = {
            "begins_with(#pk, :pk)": f"T#{owner}." if owner is not None else "T#",
            "#status = :status": status and status.value,
            "#created_ms < :before": created_before_ms,
        }
        asked = {text: value for text, value in wanted.items() if value is not None}
        values = {text.rstrip(")").rpartition(" ")[2]: value for text, value in asked.items()}
        return [record_of(row, None) for row in await self._table.scan(list(asked), values, limit)]

    async def requeue(self, ref: TaskRef, now_ms: int, due_ms: int) -> bool:
        """See `TaskStore`."""
        change = Change(
            {**NOT_LEASED, "fence": Expression("#fence + :one"), "attempts": 0, "due_ms": due_ms},
            # Whether somebody has it does not matter: that is what this is for.
            when=[IS_FOUND, is_in(Event.RUN)],
            values=values_of(now_ms),
        )
        return isinstance(await self._table.update(pk_of(ref), change), Won)

    async def aclose(self) -> None:
        """Let go of the connections."""
        await self._table.aclose()

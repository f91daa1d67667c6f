"""Tasks in DynamoDB: one head a task, whose conditional writes decide everything. The layout: app/storage/dynamodb.py.

What a head has, besides the fields of `TaskRecord`:

    shard       in which part of the index of open tasks it is; gone when the task is terminal
    call, state, outcome                  each a value or the reference to its rows
    requests    wire key → {"n": place in order, "b": value or reference}
    answers     wire key → value or reference; `answered`: how many bytes of them are in the head
    chunks      references to rows with the journal's older entries
    tail        its latest entries, until they are moved into a chunk
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from app.errors import LeaseLost
from app.protocol.tasks import TERMINAL, Event, Status, sources, target
from app.storage.dynamodb import (
    HEAD,
    SMALL,
    Append,
    Change,
    Draft,
    Expression,
    Kept,
    Lost,
    Row,
    Table,
    Won,
    is_moved,
    whole,
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

FORGET_AFTER_S: Final = 2 * 86_400
"""How long after its end a task stays in the table, for its operator."""
SHARDS: Final = 8
"""Parts of the index of open tasks: each takes 1,000 writes a second."""
TAIL: Final = 8 * 1024
"""How much of the journal stays in the head, which is paid for at each checkpoint."""
ROOM: Final = 16 * 1024
"""How much of all questions, and of all answers, stays in the head."""
_AT_ONCE: Final = 50
"""Answers in one expression, which may have 4 KB."""

_STATUSES: Final = {f":{status.value}": status.value for status in Status}
_ONE_MORE: Final = Expression("#revision + :one")
_NOT_LEASED: Final[Mapping[str, Any]] = MappingProxyType({"lease_until_ms": 0, "wake_ms": 0})
_OUT_OF_THE_INDEX: Final[Mapping[str, Any]] = MappingProxyType({"shard": None, "due_ms": None})
_NO_WORK: Final = MappingProxyType(dict.fromkeys(("call", "state", "answers", "answered", "chunks", "tail")))


@dataclass(slots=True)
class _Notes:
    """What a worker knows of a head that only it may change."""

    expires_ms: int
    status_message: str | None
    chunks: int
    tail: list[bytes]
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)


class DynamoDbTasks:
    """The `TaskStore`, see there."""

    def __init__(self, table: Table) -> None:
        self._table = table

    # for the owner

    async def create(self, task: NewTask) -> None:
        """See `TaskStore`."""
        draft = self._table.draft(_pk(task.ref), _ttl(task.expires_ms))
        row = _new_head(task, draft)
        await self._table.put(draft)
        match await self._table.put_new(row):
            case Lost():
                raise ValueError(f"there is a task {task.ref} already")

    async def read(self, ref: TaskRef, now_ms: int) -> TaskRecord | None:
        """See `TaskStore`."""
        rows = await self._table.read(_pk(ref))
        head = _unexpired(rows.get(HEAD), now_ms)
        return None if head is None else _record(head, rows)

    async def answer(self, ref: TaskRef, answers: Mapping[str, bytes], now_ms: int, due_ms: int) -> Answered:
        """See `TaskStore`."""
        if not _fit_in_head(answers):
            return await self._answer_some(ref, await self._table.head(_pk(ref)), answers, now_ms, due_ms)
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
            {**_woken(now_ms, due_ms), **sets, "answered": Expression("#answered + :size")},
            when=[
                # A task that expired or was never there is not found.
                _FOUND,
                # Only a task that asks can be answered.
                _in(Event.ANSWER_ALL),
                # Each answer is for a question that waits, ...
                *(f"attribute_exists(#requests.{name})" for name in names),
                # ... and no question waits that has none.
                "size(#requests) = :count",
                # All answers ever taken still fit the row.
                "#answered < :room",
            ],
            values=_values(now_ms, size=size, count=len(answers), room=ROOM),
            names=names,
        )
        return await self._table.update(_pk(ref), change)

    async def _answer_some(
        self, ref: TaskRef, head: Row | None, answers: Mapping[str, bytes], now_ms: int, due_ms: int
    ) -> Answered:
        """What fits the head as it was seen, for as often as it has changed meanwhile."""
        draft: Draft | None = None
        kept: dict[str, Kept] = {}
        while head := _unexpired(head, now_ms):
            taken = [key for key in answers if key in head["requests"]]
            if not taken or head["status"] not in sources(Event.ANSWER_SOME):
                return Answered.NOT_NEEDED
            draft = draft or self._table.draft(_pk(ref), head["ttl"])
            fresh = {key: answers[key] for key in taken if key not in kept}
            kept |= draft.keep_each("2", fresh, ROOM - head["answered"])
            await self._table.put(draft)
            change, answered = _answers_taken(head, {key: kept[key] for key in taken}, now_ms, due_ms)
            match await self._table.update(_pk(ref), change):
                case Won():
                    return answered
                case Lost(row=row):
                    head = row
        return Answered.UNKNOWN_TASK

    async def cancel(self, ref: TaskRef, status_message: str, now_ms: int) -> bool:
        """See `TaskStore`."""
        change = Change(
            _over(target(Event.CANCEL), status_message, now_ms),
            # A terminal task stays as it is.
            when=[_FOUND, _in(Event.CANCEL)],
            values=_values(now_ms),
        )
        match await self._table.update(_pk(ref), change):
            case Lost(row=head):
                return _unexpired(head, now_ms) is not None
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
            when=[_FOUND, _in(Event.RUN), is_free, is_awake],
            values=_values(now_ms),
        )
        match await self._table.update(_pk(ref), change, wants_row=True):
            case Won(row=dict() as head):
                return await self._claimed(ref, head)
            case Lost(row=head):
                return _why_not(head, now_ms)
        raise AssertionError("ALL_NEW has the row")

    async def _claimed(self, ref: TaskRef, head: Row) -> Claimed:
        kept = [head["call"], head["state"], *head["chunks"], *head["answers"].values()]
        rows = await self._table.blobs(_pk(ref)) if any(map(is_moved, kept)) else {}
        older = [entry for chunk in head["chunks"] for entry in _unpacked(whole(chunk, rows))]
        notes = _Notes(head["expires_ms"], head.get("status_message"), len(head["chunks"]), list(head["tail"]))
        return Claimed(
            lease=Lease(ref, head["fence"], notes),
            record=_record(head, {}),
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
            **_NOT_LEASED,
            **_seen(now_ms),
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
        sets = {**_NOT_LEASED, "wake_ms": wake_ms, "due_ms": due_ms}
        await self._write(lease, added, now_ms, sets | ({} if keeps_attempts else {"attempts": 0}))

    async def finish(
        self, lease: Lease, status: Status, outcome: bytes | None, status_message: str | None, now_ms: int
    ) -> None:
        """See `TaskStore`."""
        draft = self._draft(lease)
        kept = None if outcome is None else draft.keep("1", outcome)
        sets = {**_over(status, status_message, now_ms), **({} if kept is None else {"outcome": kept})}
        await self._write(lease, NOTHING, now_ms, sets, draft)

    def _draft(self, lease: Lease) -> Draft:
        return self._table.draft(_pk(lease.ref), _ttl(lease.notes.expires_ms))

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
        notes: _Notes = lease.notes
        draft = draft or self._draft(lease)
        async with notes.writing:  # the tail is as the write before left it
            journal, tail = _lengthened(notes.tail, added.entries, draft)
            changes = {**sets, **journal, **_said(notes, added, draft, now_ms)}
            await self._table.put(draft)
            values = _values(now_ms, fence=lease.fence, none=0, chunks=notes.chunks, tail=len(notes.tail))
            match await self._table.update(_pk(lease.ref), Change(changes, _holds(added), values)):
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
        return isinstance(await self._table.update(_pk(task.ref), change), Won)

    async def expire(self, ref: TaskRef, now_ms: int) -> None:
        """See `TaskStore`."""
        # Until then its owner may still ask for it.
        is_past = "#expires_ms <= :now"
        change = Change(
            _over(target(Event.EXPIRE), "expired", now_ms),
            when=[is_past, _in(Event.EXPIRE)],
            values=_values(now_ms),
        )
        await self._table.update(_pk(ref), change)

    async def forget(self, now_ms: int) -> int:
        """See `TaskStore`. DynamoDB deletes by itself: `ttl`."""
        return 0

    # for the operator

    async def open_tasks(self, limit: int) -> Sequence[OpenTask]:
        """See `TaskStore`."""
        return await self._index(None, limit)

    async def _index(self, until_ms: int | None, limit: int) -> list[OpenTask]:
        shards = (self._table.index(str(shard), until_ms, limit) for shard in range(SHARDS))
        rows = [row for rows in await asyncio.gather(*shards) for row in rows]
        return sorted(map(_open_task, rows), key=lambda task: task.due_ms)[:limit]

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
        return [_record(row, None) for row in await self._table.scan(list(asked), values, limit)]

    async def requeue(self, ref: TaskRef, now_ms: int, due_ms: int) -> bool:
        """See `TaskStore`."""
        change = Change(
            {**_NOT_LEASED, "fence": Expression("#fence + :one"), "attempts": 0, "due_ms": due_ms},
            # Whether somebody has it does not matter: that is what this is for.
            when=[_FOUND, _in(Event.RUN)],
            values=_values(now_ms),
        )
        return isinstance(await self._table.update(_pk(ref), change), Won)

    async def aclose(self) -> None:
        """Let go of the connections."""
        await self._table.aclose()


# What is asked of a head


_FOUND: Final = "#expires_ms > :now"
"""There is such a task, and still is: of one that never was DynamoDB compares nothing to be greater."""


def _in(event: Event) -> str:
    """The event happens in the state it is in."""
    return f"#status IN ({', '.join(sorted(f':{status.value}' for status in sources(event)))})"


def _holds(added: Added) -> list[str]:
    """A worker may still write."""
    # Nobody has claimed it since, nor was it taken away.
    is_the_last_claim = "#fence = :fence"
    # Neither cancelled, nor finished, nor expired, nor asking.
    is_working = _in(Event.RUN)
    # Not given back either: it may be `working` again, with nobody on it yet, and wait for its next claim.
    is_leased = "#lease_until_ms > :none"
    # A write that was given up as unavailable did not happen after all: else this one would add its entries twice.
    is_as_left = "size(#chunks) = :chunks AND size(#tail) = :tail"
    return [is_the_last_claim, is_working, is_leased, *([is_as_left] if added.entries else [])]


def _values(now_ms: int, **more: Any) -> dict[str, Any]:
    return {**_STATUSES, ":now": now_ms, ":one": 1, **{f":{name}": value for name, value in more.items()}}


def _unexpired(head: Row | None, now_ms: int) -> Row | None:
    """The task if there is one, and still is."""
    return head if head is not None and head["expires_ms"] > now_ms else None


def _why_not(head: Row | None, now_ms: int) -> NotClaimed:
    """Why a task could not be claimed."""
    head = _unexpired(head, now_ms)
    if head is None:
        return NotClaimed.GONE
    if head["status"] in TERMINAL:
        return NotClaimed.OVER
    if head["status"] not in sources(Event.RUN):
        return NotClaimed.WAITING
    return NotClaimed.LEASED if head["lease_until_ms"] > now_ms else NotClaimed.ASLEEP


# What is made of it


def _seen(now_ms: int) -> dict[str, Any]:
    """The client can see a change."""
    return {"updated_ms": now_ms, "revision": _ONE_MORE}


def _woken(now_ms: int, due_ms: int) -> dict[str, Any]:
    """Nothing is outstanding any more."""
    return {**_seen(now_ms), "status": target(Event.ANSWER_ALL).value, "requests": {}, "due_ms": due_ms}


def _over(status: Status, message: str | None, now_ms: int) -> dict[str, Any]:
    """A terminal state: nothing outstanding, nothing due, nothing left to work with."""
    said: dict[str, Any] = {"status": status.value, "status_message": message, "requests": {}}
    return {**_seen(now_ms), **_NOT_LEASED, **_OUT_OF_THE_INDEX, **_NO_WORK, **said}


def _new_head(task: NewTask, draft: Draft) -> Row:
    """The head of a new task; what does not fit goes to the draft."""
    row: Row = {
        "pk": _pk(task.ref),
        "sk": HEAD,
        "ttl": _ttl(task.expires_ms),
        "tool": task.tool,
        "status": task.status.value,
        "status_message": task.status_message,
        "created_ms": task.created_ms,
        "updated_ms": task.created_ms,
        "expires_ms": task.expires_ms,
        "revision": 1,
        "fence": 0,
        "attempts": 0,
        "requests": {},
        "outcome": None if task.outcome is None else draft.keep("1", task.outcome),
        **_NOT_LEASED,
    }
    return row if task.status.is_terminal else row | _work(task, draft)


def _work(task: NewTask, draft: Draft) -> Row:
    """What only an open task has."""
    fits = sum(map(len, task.journal)) <= TAIL
    return {
        "shard": _shard(task.ref),
        "due_ms": task.due_ms,
        "call": draft.keep("2", task.call),
        "state": draft.keep("2", task.state),
        "answers": {},
        "answered": 0,
        "chunks": [] if fits else [draft.move("2", _packed(task.journal))],
        "tail": list(task.journal) if fits else [],
    }


def _lengthened(tail: list[bytes], entries: Sequence[bytes], draft: Draft) -> tuple[dict[str, Any], list[bytes]]:
    """What a longer journal sets, and the tail that it then has."""
    longer = [*tail, *entries]
    if not entries:
        return {}, tail
    if sum(map(len, longer)) <= TAIL:
        return {"tail": Append(list(entries))}, longer
    return {"chunks": Append([draft.move("2", _packed(longer))]), "tail": []}, []


def _said(notes: _Notes, added: Added, draft: Draft, now_ms: int) -> dict[str, Any]:
    """The new state, and the new message if it is another: then the client can see a change."""
    state = {} if added.state is None else {"state": draft.keep("2", added.state)}
    if added.status_message is None or added.status_message == notes.status_message:
        return state
    return {**state, **_seen(now_ms), "status_message": added.status_message}


def _answers_taken(head: Row, taken: Mapping[str, Kept], now_ms: int, due_ms: int) -> tuple[Change, Answered]:
    """What answers make of a head, which must still be as it was seen."""
    left = {key: asked for key, asked in head["requests"].items() if key not in taken}
    size = sum(len(value) for value in taken.values() if isinstance(value, bytes))
    sets = {"answers": {**head["answers"], **taken}, "answered": head["answered"] + size}
    if left:
        sets |= {**_seen(now_ms), "status": target(Event.ANSWER_SOME).value, "requests": left}
    else:
        sets |= _woken(now_ms, due_ms)
    # Nobody has written since.
    is_as_seen = "#version = :version"
    change = Change(sets, when=[is_as_seen], values=_values(now_ms, version=head["version"]))
    return change, Answered.PARTLY if left else Answered.FULLY


def _fit_in_head(answers: Mapping[str, bytes]) -> bool:
    """Whether the answers can be written without a look at the head first. An empty key would be no path."""
    size = sum(len(key) + len(value) for key, value in answers.items())
    are_usual = all(key and len(value) <= SMALL for key, value in answers.items())
    return are_usual and size <= ROOM and len(answers) <= _AT_ONCE


# From and to rows


def _pk(ref: TaskRef) -> str:
    return f"T#{ref}"


def _ttl(expires_ms: int) -> int:
    """When DynamoDB may delete it, in seconds."""
    return -(-expires_ms // 1000) + FORGET_AFTER_S


def _shard(ref: TaskRef) -> str:
    return str(zlib.crc32(ref.id.encode()) % SHARDS)


def _record(head: Row, rows: Mapping[str, Row] | None) -> TaskRecord:
    """A head as a record; without its rows what is in them is left out."""

    def known(kept: Kept) -> bool:
        return rows is not None or not is_moved(kept)

    asked = sorted(head["requests"].items(), key=lambda item: item[1]["n"])
    outcome = head.get("outcome")
    return TaskRecord(
        ref=TaskRef.parse(head["pk"].removeprefix("T#")),
        tool=head["tool"],
        status=Status(head["status"]),
        status_message=head.get("status_message"),
        created_ms=head["created_ms"],
        updated_ms=head["updated_ms"],
        expires_ms=head["expires_ms"],
        revision=head["revision"],
        requests={key: whole(one["b"], rows or {}) for key, one in asked if known(one["b"])},
        outcome=whole(outcome, rows or {}) if outcome is not None and known(outcome) else None,
        fence=head["fence"],
        lease_until_ms=head["lease_until_ms"],
        wake_ms=head["wake_ms"],
        due_ms=head.get("due_ms"),
        attempts=head["attempts"],
    )


def _open_task(row: Row) -> OpenTask:
    """A row of the index."""
    facts = {name: row[name] for name in ("tool", "created_ms", "expires_ms", "due_ms")}
    return OpenTask(ref=TaskRef.parse(row["pk"].removeprefix("T#")), status=Status(row["status"]), **facts)


def _packed(entries: Sequence[bytes]) -> bytes:
    """Entries as one value: each after its length."""
    return b"".join(struct.pack(">I", len(entry)) + entry for entry in entries)


def _unpacked(chunk: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(chunk):
        (length,) = struct.unpack_from(">I", chunk, at)
        at += 4 + length
        yield chunk[at - length : at]

"""The head of a task in DynamoDB, as values: what writes ask of it, what they make of it, what is read from it. No I/O.

Besides the fields of `TaskRecord` it has

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

from app.protocol.tasks import TERMINAL, Event, Status, sources, target
from app.storage.dynamodb import HEAD, SMALL, Append, Change, Draft, Expression, Kept, Row, is_moved, whole
from app.storage.tasks import Added, Answered, NewTask, NotClaimed, OpenTask, TaskRecord, TaskRef

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
NOT_LEASED: Final[Mapping[str, Any]] = MappingProxyType({"lease_until_ms": 0, "wake_ms": 0})
_OUT_OF_THE_INDEX: Final[Mapping[str, Any]] = MappingProxyType({"shard": None, "due_ms": None})
_NO_WORK: Final = MappingProxyType(dict.fromkeys(("call", "state", "answers", "answered", "chunks", "tail")))


@dataclass(slots=True)
class Notes:
    """What a worker knows of a head that only it may change."""

    expires_ms: int
    status_message: str | None
    chunks: int
    tail: list[bytes]
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)


# What is asked of a head


IS_FOUND: Final = "#expires_ms > :now"
"""There is such a task, and still is: of one that never was DynamoDB compares nothing to be greater."""


def is_in(event: Event) -> str:
    """The event happens in the state it is in."""
    return f"#status IN ({', '.join(sorted(f':{status.value}' for status in sources(event)))})"


def lease_holds(added: Added) -> list[str]:
    """A worker may still write."""
    # Nobody has claimed it since, nor was it taken away.
    is_the_last_claim = "#fence = :fence"
    # Neither cancelled, nor finished, nor expired, nor asking.
    is_working = is_in(Event.RUN)
    # Not given back either: it may be `working` again, with nobody on it yet, and wait for its next claim.
    is_leased = "#lease_until_ms > :none"
    # A write that was given up as unavailable did not happen after all: else this one would add its entries twice.
    is_as_left = "size(#chunks) = :chunks AND size(#tail) = :tail"
    return [is_the_last_claim, is_working, is_leased, *([is_as_left] if added.entries else [])]


def values_of(now_ms: int, **more: Any) -> dict[str, Any]:
    return {**_STATUSES, ":now": now_ms, ":one": 1, **{f":{name}": value for name, value in more.items()}}


def unexpired(head: Row | None, now_ms: int) -> Row | None:
    """The task if there is one, and still is."""
    return head if head is not None and head["expires_ms"] > now_ms else None


def why_not(head: Row | None, now_ms: int) -> NotClaimed:
    """Why a task could not be claimed."""
    head = unexpired(head, now_ms)
    if head is None:
        return NotClaimed.GONE
    if head["status"] in TERMINAL:
        return NotClaimed.OVER
    if head["status"] not in sources(Event.RUN):
        return NotClaimed.WAITING
    return NotClaimed.LEASED if head["lease_until_ms"] > now_ms else NotClaimed.ASLEEP


# What is made of it


def seen(now_ms: int) -> dict[str, Any]:
    """The client can see a change."""
    return {"updated_ms": now_ms, "revision": _ONE_MORE}


def woken(now_ms: int, due_ms: int) -> dict[str, Any]:
    """Nothing is outstanding any more."""
    return {**seen(now_ms), "status": target(Event.ANSWER_ALL).value, "requests": {}, "due_ms": due_ms}


def over(status: Status, message: str | None, now_ms: int) -> dict[str, Any]:
    """A terminal state: nothing outstanding, nothing due, nothing left to work with."""
    end: dict[str, Any] = {"status": status.value, "status_message": message, "requests": {}}
    return {**seen(now_ms), **NOT_LEASED, **_OUT_OF_THE_INDEX, **_NO_WORK, **end}


def new_head(task: NewTask, draft: Draft) -> Row:
    """The head of a new task; what does not fit goes to the draft."""
    row: Row = {
        "pk": pk_of(task.ref),
        "sk": HEAD,
        "ttl": ttl_of(task.expires_ms),
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
        **NOT_LEASED,
    }
    return row if task.status.is_terminal else row | _work(task, draft)


def _work(task: NewTask, draft: Draft) -> Row:
    """What only an open task has."""
    chunk = _packed(task.journal)
    fits = len(chunk) <= TAIL
    return {
        "shard": _shard(task.ref),
        "due_ms": task.due_ms,
        "call": draft.keep("2", task.call),
        "state": draft.keep("2", task.state),
        "answers": {},
        "answered": 0,
        "chunks": [] if fits else [draft.move("2", chunk)],
        "tail": list(task.journal) if fits else [],
    }


def lengthened(tail: list[bytes], entries: Sequence[bytes], draft: Draft) -> tuple[dict[str, Any], list[bytes]]:
    """What a longer journal sets, and the tail that it then has."""
    longer = [*tail, *entries]
    if not entries:
        return {}, tail
    chunk = _packed(longer)
    if len(chunk) <= TAIL:
        return {"tail": Append(list(entries))}, longer
    return {"chunks": Append([draft.move("2", chunk)]), "tail": []}, []


def said(notes: Notes, added: Added, draft: Draft, now_ms: int) -> dict[str, Any]:
    """The new state, and the new message if it is another: then the client can see a change."""
    state = {} if added.state is None else {"state": draft.keep("2", added.state)}
    if added.status_message is None or added.status_message == notes.status_message:
        return state
    return {**state, **seen(now_ms), "status_message": added.status_message}


def answers_taken(head: Row, taken: Mapping[str, Kept], now_ms: int, due_ms: int) -> tuple[Change, Answered]:
    """What answers make of a head, which must still be as it was seen."""
    left = {key: asked for key, asked in head["requests"].items() if key not in taken}
    size = sum(len(value) for value in taken.values() if isinstance(value, bytes))
    sets = {"answers": {**head["answers"], **taken}, "answered": head["answered"] + size}
    if left:
        sets |= {**seen(now_ms), "status": target(Event.ANSWER_SOME).value, "requests": left}
    else:
        sets |= woken(now_ms, due_ms)
    # Nobody has written since.
    is_as_seen = "#version = :version"
    change = Change(sets, when=[is_as_seen], values=values_of(now_ms, version=head["version"]))
    return change, Answered.PARTLY if left else Answered.FULLY


def fit_in_head(answers: Mapping[str, bytes]) -> bool:
    """Whether the answers can be written without a look at the head first. An empty key would be no path."""
    size = sum(len(key) + len(value) for key, value in answers.items())
    are_usual = all(key and len(value) <= SMALL for key, value in answers.items())
    return are_usual and size <= ROOM and len(answers) <= _AT_ONCE


# From and to rows


def pk_of(ref: TaskRef) -> str:
    return f"T#{ref}"


def ttl_of(expires_ms: int) -> int:
    """When DynamoDB may delete it, in seconds."""
    return -(-expires_ms // 1000) + FORGET_AFTER_S


def _shard(ref: TaskRef) -> str:
    return str(zlib.crc32(ref.id.encode()) % SHARDS)


def record_of(head: Row, rows: Mapping[str, Row] | None) -> TaskRecord:
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


def open_task_of(row: Row) -> OpenTask:
    """A row of the index."""
    facts = {name: row[name] for name in ("tool", "created_ms", "expires_ms", "due_ms")}
    return OpenTask(ref=TaskRef.parse(row["pk"].removeprefix("T#")), status=Status(row["status"]), **facts)


def _packed(entries: Sequence[bytes]) -> bytes:
    """Entries as one value: each after its length."""
    return b"".join(struct.pack(">I", len(entry)) + entry for entry in entries)


def unpacked(chunk: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(chunk):
        (length,) = struct.unpack_from(">I", chunk, at)
        at += 4 + length
        yield chunk[at - length : at]

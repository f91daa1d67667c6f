"""The root item of a task in DynamoDB, as values: conditions and updates for writes, records from
reads. No I/O.

Besides the fields of `TaskRecord` it has

    shard       in which part of the index of due tasks it is; gone when the task is terminal
    owner       for the index of open tasks by owner; gone when the task is terminal
    ended       the shard of a task that failed, was cancelled, or was ended by a failed step: in which part of the
                index `ended` it is
    call, state, outcome                  each a value or the reference to its rows
    requests    wire key → {"n": place in order, "b": value or reference}
    answers     wire key → value or reference; `answered`: how many bytes of them are in the root item
    settled     references to rows with answers that were in the root item
    chunks      references to rows with the journal's older entries
    tail        its latest entries, until they become a chunk
    noted       the number of the lease's last write of entries: app/roundgate/storage/noted.py

Fields of `TaskRecord` that are usually 0 or false are omitted if so: `suspect`, `alone`, `deaths`,
`declined_ms`, `resends`, `cleans_up`, and so is `unsent` of `OpenTask`, and so is a
`journal_version` of 1; `failed_steps`, `retried_as` and `call_id` are omitted if empty. A terminal
task that needs a cleanup keeps its shard and the data that a worker needs; a task that a failed
step ended keeps only the latter.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from roundgate.protocol import TERMINAL, Event, Status, sources, target
from roundgate.storage.dynamodb.journal import (
    Log,
    chunk_of,
    lengthened,
    packed,
    room_of,
    unpacked,
    with_chunk,
)
from roundgate.storage.dynamodb.table import (
    ROOT,
    SMALL,
    Append,
    Change,
    Draft,
    Expression,
    Kept,
    Row,
    is_spilled,
    load,
)
from roundgate.storage.noted import Noted
from roundgate.storage.tasks import (
    ENDING_OF,
    UNHAPPY,
    Added,
    Answered,
    Ending,
    NewTask,
    NotClaimed,
    OpenTask,
    TaskRecord,
    TaskRef,
    Work,
    shown_status,
)

FORGET_AFTER_S: Final = 2 * 86_400
"""How long after its end a task stays in the table, for its operator."""
SHARDS: Final = 8
"""Parts of the index of due tasks that a table has at least: each takes 1,000 writes a second."""
TAIL: Final = 1024
"""How much of the journal stays in the root item of a new task."""
ROOM: Final = 16 * 1024
"""How much of all questions, and of all answers, stays in the root item."""
LIGHT: Final = 64
"""A call up to here stays in the root item for good."""
SETTLED: Final = 512
"""From here on a worker moves answers out of the root item, which it pays
for at each checkpoint."""
_AT_ONCE: Final = 50
"""Answers in one expression, which may have 4 KB."""

_STATUSES: Final = {f":{status.value}": status.value for status in Status}
_ONE_MORE: Final = Expression("#revision + :one")
NOT_LEASED: Final[Mapping[str, Any]] = MappingProxyType({"lease_until_ms": 0, "wake_ms": 0})
_OUT_OF_THE_INDEX: Final[Mapping[str, Any]] = MappingProxyType(
    {"shard": None, "due_ms": None, "owner": None, "unsent": None}
)
LOOKED_FOR: Final = TERMINAL - {Status.COMPLETED}
"""The statuses in the index `ended`, as an operator sees them."""
_WAS_IN: Final = Expression("#shard")
_NO_WORK: Final = MappingProxyType(
    dict.fromkeys(("call", "state", "answers", "answered", "settled", "chunks", "tail", "noted"))
)
CLEANED_UP: Final[Mapping[str, Any]] = MappingProxyType(
    {**_OUT_OF_THE_INDEX, **_NO_WORK, "cleans_up": None}
)
"""Nothing due, nothing left to work with."""
NO_BLAME: Final[Mapping[str, Any]] = MappingProxyType({"deaths": None, "suspect": None})
PROGRESS: Final[Mapping[str, Any]] = MappingProxyType(
    {**NO_BLAME, "attempts": 0, "declined_ms": None}
)
BLAMED: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "suspect": 1,
        "deaths": Expression("if_not_exists(#deaths, :none) + if_not_exists(#alone, :none)"),
    }
)
"""A lease ended badly; if its worker had nothing else, it is a death. Expressions
see the row as it was."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a worker knows of a root item that only it may change."""

    root: Row
    """Its attributes, those of the journal and what others move excepted."""
    journal: Log
    settled: Log
    """Answers in rows of their own: keys and values by turns."""


@dataclass(slots=True)
class Notes:
    """What a lease remembers."""

    known: Known
    noted: Noted[Known]


@dataclass(frozen=True, slots=True)
class Step:
    """What a write of a worker sets, what it then knows, and the rows that
    nothing refers to afterwards."""

    sets: Mapping[str, Any]
    known: Known
    superseded: Sequence[Kept] = ()


# What is asked of a root item


IS_FOUND: Final = "#expires_ms > :now"
"""There is such a task, and still is: of one that never was DynamoDB compares
nothing to be greater."""


IS_DUE_AS_SEEN: Final = "#due_ms = :due"
"""Whoever has moved it since does what is to be done; what is terminal has no due time."""
IS_NOT_HELD: Final = "#lease_until_ms <= :lapsed"
"""No worker has it, or the one that had it died or stalled."""


def is_in(event: Event) -> str:
    """The event happens in the state it is in."""
    return f"#status IN ({', '.join(sorted(f':{status.value}' for status in sources(event)))})"


def lease_holds(noted: bool = False) -> list[str]:
    """A worker may still write; if it notes entries, also that no write has happened
    that it has not heard of."""
    # Nobody has claimed it since, nor was it taken away.
    is_the_last_claim = "#fence = :fence"
    # Neither cancelled, nor finished, nor expired, nor asking.
    is_working = is_in(Event.RUN)
    # Not given back either: it may be `working` again, with nobody on it yet, and
    # wait for its next claim.
    is_leased = "#lease_until_ms > :none"
    # A write that was given up as unavailable did not happen after all: else this one
    # would add its entries twice.
    is_as_left = "#noted = :noted"
    return [is_the_last_claim, is_working, is_leased, *([is_as_left] if noted else [])]


def is_held(root: Row, fence: int) -> bool:
    """The same of a root item that was read, but for what is noted in it."""
    is_working = root["status"] in sources(Event.RUN)
    return bool(root["fence"] == fence and is_working and root["lease_until_ms"] > 0)


CLEANS_UP_NOTHING: Final = "attribute_not_exists(#cleans_up)"
"""Whatever becomes of the task, nothing is left to do elsewhere."""


def is_to_clean_up(root: Row) -> bool:
    """Whether a task is over, and something is left to do."""
    return root["status"] in TERMINAL and root.get("due_ms") is not None


def may_be_cleaned_up() -> list[str]:
    """A task that is over, has something left to do, and is nobody's, or was the caller's
    before."""
    # Whoever had it when it was cancelled may still be about to do it.
    is_free = "(#lease_until_ms <= :lapsed OR #fence = :fence)"
    # The last try has failed, and it is too early for another.
    is_awake = "#wake_ms <= :now"
    return [IS_TO_CLEAN_UP, is_free, is_awake]


IS_TO_CLEAN_UP: Final = (
    f"#status IN ({', '.join(sorted(f':{status.value}' for status in TERMINAL))})"
    " AND attribute_exists(#due_ms)"
)


def is_over() -> str:
    """Nothing happens to it any more: it is terminal, or its time is over."""
    terminal = ", ".join(sorted(f":{status.value}" for status in TERMINAL))
    return f"(#status IN ({terminal}) OR #expires_ms <= :now)"


def values_of(now_ms: int, **more: Any) -> dict[str, Any]:
    return {
        **_STATUSES,
        ":now": now_ms,
        ":none": 0,
        ":one": 1,
        **{f":{name}": value for name, value in more.items()},
    }


def unexpired(root: Row | None, now_ms: int) -> Row | None:
    """The task if there is one, and still is."""
    return root if root is not None and root["expires_ms"] > now_ms else None


def why_not(root: Row | None, now_ms: int, lapsed_ms: int, alone: bool) -> NotClaimed | None:
    """Why a task cannot be claimed; `None` if it can."""
    if root is not None and is_to_clean_up(root):
        return NotClaimed.CLEAN_UP
    root = unexpired(root, now_ms)
    if root is None:
        return NotClaimed.GONE
    if root["status"] in TERMINAL:
        return NotClaimed.OVER
    if root["status"] not in sources(Event.RUN):
        return NotClaimed.WAITING
    if root["lease_until_ms"] > lapsed_ms:
        return NotClaimed.LEASED
    if root["wake_ms"] > now_ms:
        return NotClaimed.ASLEEP
    return NotClaimed.SUSPECT if (has_lapsed(root) or root.get("suspect")) and not alone else None


def has_lapsed(root: Row) -> bool:
    """Whether a lease that is over by its time was not given back."""
    return bool(root["lease_until_ms"] > 0)


def may_be_claimed(lapsed: bool, far: bool, alone: bool) -> list[str]:
    """A task that is free, or one whose lease has lapsed; one that is due soon
    enough, or `far` too late."""
    # Who has it may go on until the lease ends.
    is_free = "#lease_until_ms = :none"
    # Its worker died or stalled with it.
    is_lapsed = "#lease_until_ms > :none AND #lease_until_ms <= :lapsed"
    # It sleeps until something is worth looking at.
    is_awake = "#wake_ms <= :now"
    # Where a worker has died it must harm no other task.
    is_no_suspect = "attribute_not_exists(#suspect)"
    # It is found in time if we die with it, without a write to the index.
    is_due_soon_enough = "#due_ms <= :due"
    return [
        IS_FOUND,
        is_in(Event.RUN),
        is_lapsed if lapsed else is_free,
        is_awake,
        *([] if alone else [is_no_suspect]),
        *([] if far else [is_due_soon_enough]),
    ]


# What is made of it


def seen(now_ms: int) -> dict[str, Any]:
    """The client can see a change."""
    return {"updated_ms": now_ms, "revision": _ONE_MORE}


def woken(now_ms: int, due_ms: int) -> dict[str, Any]:
    """Nothing is outstanding any more."""
    return {**working(now_ms, due_ms), "requests": {}}


def working(now_ms: int, due_ms: int) -> dict[str, Any]:
    """Return the update that makes a task `working`."""
    status = target(Event.ANSWER_ALL).value
    return {**seen(now_ms), "status": status, "due_ms": due_ms, "wake_ms": 0}


def over(
    status: Status, message: str | None, now_ms: int, ending: Ending | None = None
) -> dict[str, Any]:
    """A terminal state: nothing outstanding, nothing due, nothing left to work with."""
    return {**_ended(status, message, now_ms, ending), **NOT_LEASED, **CLEANED_UP}


def over_with_work(
    status: Status, message: str | None, now_ms: int, failed_steps: Sequence[str]
) -> dict[str, Any]:
    """Return the update that ends a task because of failed steps and keeps the data for a retry."""
    over = {**NOT_LEASED, **_OUT_OF_THE_INDEX, "cleans_up": None}
    ended = _ended(status, message, now_ms, Ending.STEP_FAILED)
    return {**ended, **over, "failed_steps": list(failed_steps)}


def over_but_for(
    due_ms: int, status: Status, message: str | None, now_ms: int, *, is_leased: bool
) -> dict[str, Any]:
    """A terminal state with something left to do elsewhere. A lease goes on if the task was
    taken from its worker."""
    lease = {"wake_ms": 0} if is_leased else NOT_LEASED
    rest = {"owner": None, "due_ms": due_ms, "unsent": None, "resends": None, "attempts": 0}
    return {**_ended(status, message, now_ms), **lease, **rest}


def _ended(
    status: Status, message: str | None, now_ms: int, ending: Ending | None = None
) -> dict[str, Any]:
    end: dict[str, Any] = {"status": status.value, "status_message": message, "requests": {}}
    ending = ending or ENDING_OF[status]
    end["ending"] = ending.value
    if shown_status(status, ending) in LOOKED_FOR:
        end["ended"] = _WAS_IN
    return {**seen(now_ms), **end}


def claimed_to_clean_up(until_ms: int, due_ms: int) -> dict[str, Any]:
    """A lease of a task that is over."""
    return {
        "fence": Expression("#fence + :one"),
        "attempts": Expression("#attempts + :one"),
        "lease_until_ms": until_ms,
        "due_ms": due_ms,
        "wake_ms": 0,
        "resends": None,
        "unsent": 1,
    }


def claimed(until_ms: int, alone: bool) -> dict[str, Any]:
    """A new lease. Nothing of it is in the index of due tasks, unless a sweep
    has sent the task again."""
    return {
        "fence": Expression("#fence + :one"),
        "lease_until_ms": until_ms,
        "wake_ms": 0,
        "alone": 1 if alone else None,
        "resends": None,
        "noted": 0,
    }


def moved(due_ms: int) -> dict[str, Any]:
    """Another due time, for which nobody sends a message."""
    return {"due_ms": due_ms, "unsent": 1}


def new_root_item(task: NewTask, draft: Draft, shards: int) -> Row:
    """The root item of a new task; what does not fit goes to the draft."""
    row: Row = {
        "pk": pk_of(task.ref),
        "sk": ROOT,
        "ttl": ttl_of(task.expires_ms),
        **task.first_row(),
        "requests": {},
        "outcome": None if task.outcome is None else draft.spill_if_large("1", task.outcome),
        "cleans_up": 1 if task.cleans_up else None,
    }
    shard = _shard(task.ref, shards)
    if task.status.is_terminal:
        return {**row, "ended": shard} if row["ending"] in UNHAPPY else row
    index = {"shard": shard, "due_ms": task.due_ms, "owner": task.ref.owner}
    return {
        **row,
        **index,
        **work(task.call, task.journal, task.state, task.journal_version, draft),
    }


def work(
    call: bytes, journal: Sequence[bytes], state: bytes, journal_version: int, draft: Draft
) -> Row:
    """What an open task has to work with."""
    chunk = packed(journal)
    fits = len(chunk) <= TAIL
    return {
        "call": draft.spill_if_large("2", call),
        "state": draft.spill_if_large("2", state),
        "answers": {},
        "answered": 0,
        "settled": None,
        "chunks": [] if fits else [draft.spill("2", chunk)],
        "tail": list(journal) if fits else [],
        "journal_version": journal_version if journal_version > 1 else None,
    }


def known_of(root: Row, rows: Mapping[str, Row]) -> Known:
    """What a worker knows of a root item that it has claimed, from the rows that it names."""
    journal = Log(_chunks(root["chunks"], rows), tuple(root["tail"]))
    return Known(root, journal, Log(_chunks(root.get("settled", []), rows)))


def _chunks(refs: Sequence[str], rows: Mapping[str, Row]) -> tuple[Any, ...]:
    return tuple(chunk_of(ref, load(ref, rows)) for ref in refs)


def entries_of(root: Row, rows: Mapping[str, Row]) -> list[bytes]:
    """The journal, in order."""
    return [
        *(entry for ref in root["chunks"] for entry in unpacked(load(ref, rows))),
        *root["tail"],
    ]


def answers_of(root: Row, rows: Mapping[str, Row]) -> dict[str, bytes]:
    """Every answer; of two to a key the later one, which is in the root item."""
    settled = [one for ref in root.get("settled", []) for one in unpacked(load(ref, rows))]
    older = {key.decode(): value for key, value in zip(settled[::2], settled[1::2], strict=True)}
    return older | {key: load(value, rows) for key, value in root["answers"].items()}


def refs_for_work(root: Row) -> list[Kept]:
    """What a root item refers to that a worker needs."""
    values = [root.get("call", b""), root.get("state", b"")]
    return [
        *values,
        *root.get("chunks", []),
        *root.get("settled", []),
        *root.get("answers", {}).values(),
    ]


def refs_shown(root: Row | None) -> list[Kept]:
    """What a root item refers to that `tasks/get` shows."""
    if root is None:
        return []
    return [*(asked["b"] for asked in root["requests"].values()), root.get("outcome", b"")]


def step(known: Known, added: Added, sets: Mapping[str, Any], now_ms: int, draft: Draft) -> Step:
    """A write of a worker: what it sets anyway, and what it adds."""
    changes = {**sets, **_said(known.root, added, draft, now_ms)}
    superseded = [] if added.state is None else [known.root.get("state", b"")]
    settled, older_answers = _settled(known, added, draft)
    root = _after(known.root, {**changes, **settled})
    grown, journal = lengthened(
        known.journal, added.entries, room_of({**root, "chunks": known.journal.refs}), draft
    )
    grown |= _lightened(root, grown, draft)
    plain = {name: value for name, value in grown.items() if name != "tail"}
    return Step(
        {**changes, **settled, **grown},
        Known(_after(root, plain), journal, older_answers),
        superseded,
    )


def _lightened(root: Row, grown: Mapping[str, Any], draft: Draft) -> dict[str, Any]:
    """Whose journal needs rows of its own makes many steps: its call moves to a row, too, and is no
    longer paid for at each of them."""
    call = root.get("call")
    if "chunks" in grown and isinstance(call, bytes) and len(call) > LIGHT:
        return {"call": draft.spill("2", call)}
    return {}


def _after(root: Row, sets: Mapping[str, Any]) -> Row:
    """A root item with plain values set in it; what DynamoDB computes is of no
    other size than before."""
    plain = {
        name: value for name, value in sets.items() if not isinstance(value, (Expression, Append))
    }
    return {name: value for name, value in {**root, **plain}.items() if value is not None}


def _said(root: Row, added: Added, draft: Draft, now_ms: int) -> dict[str, Any]:
    """The new state, and the new message if it is another: then the client can see a change."""
    state = {} if added.state is None else {"state": draft.spill_if_large("2", added.state)}
    if added.status_message is None or added.status_message == root.get("status_message"):
        return state
    return {**state, **seen(now_ms), "status_message": added.status_message}


def _settled(known: Known, added: Added, draft: Draft) -> tuple[dict[str, Any], Log]:
    """With entries, the answers in the root item go to a row of their own if they are
    large: nobody adds to them."""
    answers = known.root.get("answers", {})
    if not added.entries or known.root.get("answered", 0) < SETTLED:
        return {}, known.settled
    inside = {key: value for key, value in answers.items() if isinstance(value, bytes)}
    moved = {key: value for key, value in answers.items() if key not in inside}
    pairs = packed([one for key, value in inside.items() for one in (key.encode(), value)])
    grown = Log(with_chunk(known.settled.chunks, pairs, draft))
    return {"settled": grown.refs, "answers": moved, "answered": 0}, grown


def answers_taken(
    root: Row, taken: Mapping[str, Kept], now_ms: int, due_ms: int
) -> tuple[Change, Answered]:
    """What answers make of a root item, which must still be as it was seen."""
    left = {key: asked for key, asked in root["requests"].items() if key not in taken}
    size = sum(len(value) for value in taken.values() if isinstance(value, bytes))
    sets = {"answers": {**root["answers"], **taken}, "answered": root["answered"] + size}
    if left:
        sets |= {**seen(now_ms), "status": target(Event.ANSWER_SOME).value, "requests": left}
    else:
        sets |= woken(now_ms, due_ms)
    # Nobody has written since.
    is_as_seen = "#version = :version"
    change = Change(sets, when=[is_as_seen], values=values_of(now_ms, version=root["version"]))
    return change, Answered.PARTLY if left else Answered.FULLY


def fit_in_root(answers: Mapping[str, bytes]) -> bool:
    """Whether the answers can be written without a look at the root item first. An
    empty key would be no path."""
    size = sum(len(key) + len(value) for key, value in answers.items())
    are_usual = all(key and len(value) <= SMALL["1"] for key, value in answers.items())
    return are_usual and size <= ROOM and len(answers) <= _AT_ONCE


# From and to rows


def pk_of(ref: TaskRef) -> str:
    return f"T#{ref}"


def ttl_of(expires_ms: int) -> int:
    """When DynamoDB may delete it, in seconds."""
    return -(-expires_ms // 1000) + FORGET_AFTER_S


def _shard(ref: TaskRef, shards: int) -> str:
    return str(zlib.crc32(ref.id.encode()) % shards)


def record_of(root: Row, rows: Mapping[str, Row] | None) -> TaskRecord:
    """A root item as a record; without its rows what is in them is left out."""

    def known(kept: Kept) -> bool:
        return rows is not None or not is_spilled(kept)

    asked = sorted(root["requests"].items(), key=lambda item: item[1]["n"])
    asks = root["status"] in sources(Event.ANSWER_ALL)
    outcome = root.get("outcome")
    return TaskRecord(
        ref=TaskRef.parse(root["pk"].removeprefix("T#")),
        tool=root["tool"],
        status=Status(root["status"]),
        status_message=root.get("status_message"),
        created_ms=root["created_ms"],
        updated_ms=root["updated_ms"],
        expires_ms=root["expires_ms"],
        revision=root["revision"],
        requests={
            key: load(one["b"], rows or {}) for key, one in asked if asks and known(one["b"])
        },
        outcome=load(outcome, rows or {}) if outcome is not None and known(outcome) else None,
        fence=root["fence"],
        lease_until_ms=root["lease_until_ms"],
        wake_ms=root["wake_ms"],
        due_ms=root.get("due_ms"),
        attempts=root["attempts"],
        deaths=root.get("deaths", 0),
        suspect=bool(root.get("suspect", 0)),
        alone=bool(root.get("alone", 0)),
        declined_ms=root.get("declined_ms", 0),
        journal_version=root.get("journal_version", 1),
        resends=root.get("resends", 0),
        cleans_up=bool(root.get("cleans_up", 0)),
        ending=Ending(root["ending"]) if root.get("ending") else None,
        failed_steps=tuple(root.get("failed_steps", ())),
        retried_as=root.get("retried_as"),
        call_id=root.get("call_id"),
    )


def work_of(root: Row, rows: Mapping[str, Row]) -> Work | None:
    """Return the data that a worker needs from a root item and its rows; `None` if the item no
    longer holds it."""
    if "call" not in root:
        return None
    return Work(
        load(root["call"], rows),
        entries_of(root, rows),
        load(root["state"], rows),
        answers_of(root, rows),
    )


def open_task_of(row: Row) -> OpenTask:
    """A row of the index."""
    facts = {name: row[name] for name in ("tool", "created_ms", "expires_ms", "due_ms")}
    ref = TaskRef.parse(row["pk"].removeprefix("T#"))
    swept = {"resends": row.get("resends", 0), "unsent": bool(row.get("unsent", 0))}
    return OpenTask(ref=ref, status=Status(row["status"]), **facts, **swept)

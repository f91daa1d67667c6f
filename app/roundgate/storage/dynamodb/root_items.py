"""The attributes of a task's root item in DynamoDB, converted from and to a record. The module does
no I/O.

Besides the fields of `TaskRecord` a root item has

    version     unique; each write compares it
    shard       the part of the index of due tasks; absent when nothing is due
    owner       the key of the index of open tasks by owner; absent when the task is terminal
    ended       the part of the index `ended`, for a task that failed, was cancelled, or was ended by a failed
                step
    call, state, outcome                  each a value or the reference to its rows
    requests    wire key → {"n": place in order, "b": value or reference}: `TaskRecord.asked`
    answers     wire key → value or reference; `answered`: the bytes of answers in the root item
    settled     references to rows with answers that were in the root item
    chunks      references to rows with the journal's older entries
    tail        the latest entries of the journal, until they become a chunk

Fields in `_USUAL` are omitted if they have their usual value. Once a task no longer needs its work
(`TaskRecord.keeps_work`), the item has no attributes of the work.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

from roundgate.protocol import TERMINAL, Status
from roundgate.storage import tasks
from roundgate.storage.dynamodb.journal import (
    Chunk,
    JournalLog,
    free_space,
    lengthened,
    make_chunk,
    packed,
    unpacked,
    with_chunk,
)
from roundgate.storage.dynamodb.table import (
    PART,
    ROOT,
    Append,
    Draft,
    Kept,
    Row,
    load,
    row_names,
)

SHARDS: Final = 8
"""The minimum number of parts of the index of due tasks; each part takes 1,000 writes a second."""
TAIL: Final = 1024
"""The maximum size in bytes of the journal of a new task in its root item."""
ROOM: Final = 16 * 1024
"""The maximum size in bytes of all questions, and of all answers, in the root item."""
LIGHT: Final = 64
"""The maximum size in bytes of a call that always stays in the root item."""
SETTLED: Final = 512
"""The size in bytes from which a worker moves answers out of the root item, because it pays for
them at each checkpoint."""
LOOKED_FOR: Final = TERMINAL - {Status.COMPLETED}
"""The statuses in the index `ended`, as an operator sees them."""

_WORK: Final = ("call", "state", "answers", "answered", "settled", "chunks", "tail", "noted")
_NO_WORK: Final[Mapping[str, Any]] = MappingProxyType(dict.fromkeys(_WORK))
_NOT_KEPT: Final = frozenset({"ref", "requests", "outcome", "asked", "version", "notes"})
"""The fields of a record that are not attributes under their names."""
_USUAL: Final[Mapping[str, Any]] = MappingProxyType(
    {
        **dict.fromkeys(("suspect", "alone", "unsent", "cleans_up"), False),
        **dict.fromkeys(("deaths", "declined_ms", "resends"), 0),
        "journal_version": 1,
        **dict.fromkeys(("failed_steps", "events"), ()),
    }
)
"""The values that are omitted."""
_FIELDS: Final = tuple(n for n in tasks.TaskRecord.__struct_fields__ if n not in _NOT_KEPT)

_DAY_S: Final = 86_400


class Notes(Struct, frozen=True):
    """The knowledge of a root item beside its record."""

    root: Row
    journal: JournalLog
    settled: JournalLog
    """The answers in rows of their own: keys and values alternate."""


class Step(Struct, frozen=True):
    """The changes of a write, the knowledge of the root item afterwards, and the rows without
    references."""

    sets: Mapping[str, Any]
    notes: Notes
    superseded: Sequence[Kept] = ()


# Attributes of a record


def _attribute(name: str, value: Any) -> Any:
    """Return the value of a field as an attribute; `None` if the attribute is omitted."""
    if value is None or (name in _USUAL and value == _USUAL[name]):
        return None
    match value:
        case bool():
            return int(value)
        case StrEnum():
            return value.value
        case tuple():
            return list(map(str, value))
        case _:
            return value


def _indexed(record: tasks.TaskRecord, shard: str) -> dict[str, Any]:
    """Return the attributes that determine the indexes of a record."""
    is_looked_for = not record.is_open and record.shown_status in LOOKED_FOR
    return {
        "shard": None if record.due_ms is None else shard,
        "owner": record.ref.owner if record.is_open else None,
        "ended": shard if is_looked_for else None,
    }


def new_root_item(
    record: tasks.TaskRecord, puts: Sequence[tasks.Put], draft: Draft, shards: int
) -> Row:
    """Return the root item of a new task, and add values that do not fit to the draft."""
    row: Row = {"pk": partition_key(record.ref), "sk": ROOT, "ttl": ttl_seconds(record.expires_ms)}
    row |= {name: _attribute(name, getattr(record, name)) for name in _FIELDS}
    row |= {**_indexed(record, _shard(record.ref, shards)), "requests": _asked(puts, draft)}
    row["outcome"] = _outcome(puts, draft)
    if not record.keeps_work:
        return row
    (call,), (state,) = _values(puts, tasks.RecordPart.CALL), _values(puts, tasks.RecordPart.STATE)
    row |= {"call": draft.spill_if_large("2", call), "state": draft.spill_if_large("2", state)}
    journal, _ = _journal_anew(_values(puts, tasks.RecordPart.JOURNAL), draft)
    return {**row, **journal, "answers": {}, "answered": 0}


def _outcome(puts: Sequence[tasks.Put], draft: Draft) -> Kept | None:
    outcomes = _values(puts, tasks.RecordPart.OUTCOME)
    return draft.spill_if_large("1", outcomes[0]) if outcomes else None


def _values(puts: Sequence[tasks.Put], part: tasks.RecordPart) -> list[bytes]:
    return [put.value for put in puts if put.part is part]


def _journal_anew(entries: Sequence[bytes], draft: Draft) -> tuple[dict[str, Any], JournalLog]:
    chunk = packed(entries)
    if len(chunk) <= TAIL:
        return {"chunks": [], "tail": list(entries)}, JournalLog((), tuple(entries))
    log = JournalLog((make_chunk(draft.spill("2", chunk), chunk),))
    return {"chunks": log.refs, "tail": []}, log


# A change of a root item


def step(change: tasks.RecordChange, draft: Draft) -> Step:
    """Return the changes of a root item, and add values that do not fit to the draft."""
    notes, after = change.before.notes, change.record()
    root = notes.root
    shard = root.get("shard") or root.get("ended") or _shard(after.ref, SHARDS)
    sets: dict[str, Any] = {
        name: _attribute(name, value)
        for name, value in change.changes.items()
        if name not in _NOT_KEPT
    }
    sets |= _indexed(after, shard)
    if "expires_ms" in sets:
        sets["ttl"] = ttl_seconds(after.expires_ms)
    shown, superseded = _shown(root, change.puts, change.drops, draft)
    sets |= shown
    journal, settled = notes.journal, notes.settled
    if after.keeps_work:
        worked, journal, settled, dropped = _worked(notes, change, sets, draft)
        sets, superseded = {**sets, **worked}, [*superseded, *dropped]
    else:
        sets |= _NO_WORK
    sets = {name: value for name, value in sets.items() if _is_news(root, name, value)}
    root = {name: value for name, value in {**root, **sets}.items() if value is not None}
    if "tail" in root:
        root["tail"] = list(journal.tail)
    return Step(sets, Notes(root, journal, settled), superseded)


def _is_news(root: Row, name: str, value: Any) -> bool:
    return isinstance(value, Append) or root.get(name) != value


def _shown(
    root: Row, puts: Sequence[tasks.Put], drops: Sequence[tasks.Drop], draft: Draft
) -> tuple[dict[str, Any], list[Kept]]:
    """Return the new values that a client sees, by name, and the stored values to delete."""
    outcome = _outcome(puts, draft)
    sets: dict[str, Any] = {} if outcome is None else {"outcome": outcome}
    before = root["requests"]
    remaining = {
        key: request
        for key, request in before.items()
        if not _is_dropped(drops, tasks.RecordPart.REQUEST, key)
    }
    requests = remaining | _asked(puts, draft)
    if requests != before:
        sets["requests"] = requests
    return sets, [question["b"] for key, question in before.items() if key not in remaining]


def _asked(puts: Sequence[tasks.Put], draft: Draft) -> dict[str, Any]:
    values = {put.name: put.value for put in puts if put.part is tasks.RecordPart.REQUEST}
    stored = enumerate(draft.keep_each("1", values, ROOM))
    return {key: {"n": place, "b": value} for place, (key, value) in stored}


def _is_dropped(
    drops: Sequence[tasks.Drop], part: tasks.RecordPart, name: str | None = None
) -> bool:
    return any(drop.part is part and drop.name in (None, name) for drop in drops)


def _worked(
    notes: Notes, change: tasks.RecordChange, sets: Mapping[str, Any], draft: Draft
) -> tuple[dict[str, Any], JournalLog, JournalLog, list[Kept]]:
    """Return the changes of the values that a worker needs, their logs, and the values that they
    replace."""
    root, entries = notes.root, _values(change.puts, tasks.RecordPart.JOURNAL)
    worked: dict[str, Any] = {}
    superseded: list[Kept] = []
    for name, part in (("call", tasks.RecordPart.CALL), ("state", tasks.RecordPart.STATE)):
        for value in _values(change.puts, part):
            worked[name] = draft.spill_if_large("2", value)
            superseded.append(root.get(name, b""))
    answers, settled = _answered(notes, change, draft)
    worked |= answers
    if _is_dropped(change.drops, tasks.RecordPart.ANSWER):
        superseded += [*root["answers"].values(), *root.get("settled", [])]
    if _is_dropped(change.drops, tasks.RecordPart.JOURNAL):
        anew, journal = _journal_anew(entries, draft)
        return {**worked, **anew}, journal, settled, [*superseded, *root["chunks"]]
    rest = {**root, **sets, **worked, "chunks": notes.journal.refs}
    room = free_space({name: value for name, value in rest.items() if value is not None})
    grown, journal = lengthened(notes.journal, entries, room, draft)
    call = worked.get("call", root["call"])
    if "chunks" in grown and isinstance(call, bytes) and len(call) > LIGHT:
        # a task whose journal needs rows makes many steps: moving its call to a row, too, makes
        # each of them cheaper
        grown["call"] = draft.spill("2", call)
    return {**worked, **grown}, journal, settled, superseded


def _answered(
    notes: Notes, change: tasks.RecordChange, draft: Draft
) -> tuple[dict[str, Any], JournalLog]:
    """Return the changes of the answers. A worker that adds entries moves large answers out of the
    root item, because it would pay for them at each checkpoint."""
    if _is_dropped(change.drops, tasks.RecordPart.ANSWER):
        return {"answers": {}, "answered": 0, "settled": None}, JournalLog()
    answers, size = notes.root["answers"], notes.root["answered"]
    new = {put.name: put.value for put in change.puts if put.part is tasks.RecordPart.ANSWER}
    if new:
        stored = dict(draft.keep_each("2", new, ROOM - size))
        inside = sum(len(value) for value in stored.values() if isinstance(value, bytes))
        return {"answers": {**answers, **stored}, "answered": size + inside}, notes.settled
    if size < SETTLED or not any(put.part is tasks.RecordPart.JOURNAL for put in change.puts):
        return {}, notes.settled
    small = {key: value for key, value in answers.items() if isinstance(value, bytes)}
    spilled = {key: value for key, value in answers.items() if key not in small}
    pairs = packed([part for key, value in small.items() for part in (key.encode(), value)])
    grown = JournalLog(with_chunk(notes.settled.chunks, pairs, draft))
    return {"settled": grown.refs, "answers": spilled, "answered": 0}, grown


# From rows


def make_notes(root: Row, rows: Mapping[str, Row], before: Notes | None = None) -> Notes:
    """Return the knowledge of a root item from the rows that were read and from earlier notes."""
    logs = (before.journal, before.settled) if before else ()
    chunks = {chunk.ref: chunk for log in logs for chunk in log.chunks}

    def make_chunks(refs: Collection[str]) -> tuple[Chunk, ...]:
        return tuple(chunks.get(ref) or _chunk(ref, rows) for ref in refs)

    journal = JournalLog(make_chunks(root.get("chunks", ())), tuple(root.get("tail", ())))
    return Notes(root, journal, JournalLog(make_chunks(root.get("settled", ()))))


def _chunk(ref: str, rows: Mapping[str, Row]) -> Chunk:
    """Return a chunk. An unread chunk counts as a large one, and stays unchanged."""
    if all(name in rows for name in row_names(ref)):
        return make_chunk(ref, load(ref, rows))
    return Chunk(ref, PART, None)


def refs_for_work(root: Row) -> list[Kept]:
    """Return the values and references that a worker needs."""
    return [
        root.get("call", b""),
        root.get("state", b""),
        *root.get("chunks", ()),
        *root.get("settled", ()),
        *root.get("answers", {}).values(),
    ]


def refs_shown(root: Row) -> list[Kept]:
    """Return the values and references that a client sees."""
    return [*(question["b"] for question in root["requests"].values()), root.get("outcome", b"")]


def make_record(
    root: Row, rows: Mapping[str, Row] | None = None, before: Notes | None = None
) -> tasks.TaskRecord:
    """Return a root item as a record. With `rows`, the record has the values that a client sees."""
    values = {name: root[name] for name in _FIELDS if name in root}
    values |= {name: bool(root[name]) for name in _USUAL if _USUAL[name] is False and name in root}
    questions = sorted(root["requests"].items(), key=lambda item: item[1]["n"])
    if rows is not None and root["status"] == Status.INPUT_REQUIRED:
        values["requests"] = {key: load(question["b"], rows) for key, question in questions}
    if rows is not None and "outcome" in root:
        values["outcome"] = load(root["outcome"], rows)
    return tasks.TaskRecord(
        **{
            "status_message": None,
            **values,
            "ref": tasks.TaskRef.parse(root["pk"].removeprefix("T#")),
            "status": Status(root["status"]),
            "ending": tasks.Ending(root["ending"]) if "ending" in root else None,
            "failed_steps": tuple(root.get("failed_steps", ())),
            "events": tuple(map(tasks.Mark.parse, root.get("events", ()))),
            "asked": tuple(key for key, _ in questions),
            "version": root["version"],
            "notes": make_notes(root, rows or {}, before),
        }
    )


def make_work(root: Row, rows: Mapping[str, Row]) -> tasks.Work | None:
    """Return the values that a worker needs from a root item and its rows; `None` if the item no
    longer holds them."""
    if "call" not in root:
        return None
    entries = [entry for ref in root["chunks"] for entry in unpacked(load(ref, rows))]
    # the later of two answers to a key is in the root item and counts
    settled = [part for ref in root.get("settled", ()) for part in unpacked(load(ref, rows))]
    older = {key.decode(): value for key, value in zip(settled[::2], settled[1::2], strict=True)}
    answers = older | {key: load(value, rows) for key, value in root["answers"].items()}
    return tasks.Work(
        load(root["call"], rows), [*entries, *root["tail"]], load(root["state"], rows), answers
    )


def make_open_task(row: Row) -> tasks.OpenTask:
    """Return a row of the index as an `OpenTask`."""
    facts = {name: row[name] for name in ("tool", "created_ms", "expires_ms", "due_ms")}
    ref = tasks.TaskRef.parse(row["pk"].removeprefix("T#"))
    swept = {"resends": row.get("resends", 0), "unsent": bool(row.get("unsent", 0))}
    return tasks.OpenTask(ref=ref, status=Status(row["status"]), **facts, **swept)


def partition_key(ref: tasks.TaskRef) -> str:
    """Return the partition key of a task."""
    return f"T#{ref}"


def ttl_seconds(expires_ms: int) -> int:
    """Return when DynamoDB may delete a task, in seconds since the epoch."""
    return -(-expires_ms // 1000) + tasks.FORGET_AFTER_MS // 1000


def value_ttl_seconds(expires_ms: int) -> int:
    """Return when DynamoDB may delete the rows of a task's values, in seconds since the epoch. The
    time is rounded up to a day, so that waits that extend the task seldom have to move it."""
    return -(-ttl_seconds(expires_ms) // _DAY_S) * _DAY_S


def _shard(ref: tasks.TaskRef, shards: int) -> str:
    return str(zlib.crc32(ref.id.encode()) % shards)

"""Tasks in DynamoDB: one root item a task, whose conditional writes decide everything.

The layout of the table is in `roundgate.storage.dynamodb.table`, that of a
root item in `….root items`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from roundgate.errors import LeaseLost, Unavailable
from roundgate.protocol import OPEN, Event, Status, sources, target
from roundgate.storage.dynamodb.finding import Search, parts_of
from roundgate.storage.dynamodb.journal import packed
from roundgate.storage.dynamodb.root_items import (
    BLAMED,
    CLEANED_UP,
    CLEANS_UP_NOTHING,
    IS_DUE_AS_SEEN,
    IS_FOUND,
    IS_NOT_HELD,
    IS_TO_CLEAN_UP,
    NO_BLAME,
    NOT_LEASED,
    PROGRESS,
    ROOM,
    SHARDS,
    Known,
    Notes,
    answers_of,
    answers_taken,
    claimed,
    claimed_to_clean_up,
    entries_of,
    fit_in_root,
    has_lapsed,
    is_held,
    is_in,
    is_over,
    known_of,
    lease_holds,
    may_be_claimed,
    may_be_cleaned_up,
    moved,
    new_root_item,
    open_task_of,
    over,
    over_but_for,
    over_with_work,
    pk_of,
    record_of,
    refs_for_work,
    refs_shown,
    seen,
    step,
    ttl_of,
    unexpired,
    values_of,
    why_not,
    woken,
    work,
    work_of,
    working,
)
from roundgate.storage.dynamodb.table import (
    ROOT,
    Applied,
    Change,
    ConditionFailed,
    Draft,
    Expression,
    Kept,
    Row,
    Table,
    load,
    names_of,
)
from roundgate.storage.noted import Doubt, Noted
from roundgate.storage.tasks import (
    ANY,
    NOTHING,
    SHARD_AT_MOST_MS,
    Added,
    Answered,
    Cancelled,
    Claimed,
    Ending,
    Found,
    Lease,
    Move,
    NewTask,
    NotClaimed,
    OpenTask,
    Postponed,
    TaskRecord,
    TaskRef,
    Wanted,
    Work,
    is_for_a_sweep,
)

EXACTLY: Final = 200
"""Up to so many open tasks are read from each part of the index, to have those
that are due first of all."""


_READ_TRIES: Final = 5
_TOLD: Final = "S#told"
"""The key of the row that holds the latest report of a sweeper's clock."""
_DAY_S: Final = 86_400


class DynamoDbTasks:
    """The `TaskStore`, see there. New tasks are spread over `shards` parts of
    the index of due tasks."""

    def __init__(self, table: Table, shards: int = SHARDS) -> None:
        self._table = table
        self._shards = shards

    # for the owner

    async def create(self, task: NewTask) -> bool:
        """See `TaskStore`."""
        pk = pk_of(task.ref)
        draft = self._table.draft(pk, ttl_of(task.expires_ms))
        row = new_root_item(task, draft, self._shards)
        await self._table.put(draft)
        match await self._table.put_new(row):
            case ConditionFailed(row=root):
                await self._drop_draft(pk, draft, root)
                return False
        return True

    async def count_open(self, owner: str, up_to: int) -> int:
        """See `TaskStore`. Tasks from before there was this index are not counted."""
        return await self._table.count(owner, up_to)

    async def read(self, ref: TaskRef, now_ms: int) -> TaskRecord | None:
        """See `TaskStore`."""
        for _ in range(_READ_TRIES):
            rows = await self._table.read(pk_of(ref))
            root = unexpired(rows.get(ROOT), now_ms)
            if all(name in rows for kept in refs_shown(root) for name in names_of(kept)):
                return None if root is None else record_of(root, rows)
            # a question was answered and its rows deleted while they were read
        raise Unavailable("The task changes faster than it can be read")

    async def answer(
        self, ref: TaskRef, answers: Mapping[str, bytes], now_ms: int, due_ms: int
    ) -> Answered:
        """See `TaskStore`."""
        if not fit_in_root(answers):
            return await self._answer_some(
                ref, await self._table.root(pk_of(ref)), answers, now_ms, due_ms
            )
        match await self._answer_all(ref, answers, now_ms, due_ms):
            case ConditionFailed(row=root):
                return await self._answer_some(ref, root, answers, now_ms, due_ms)
        return Answered.FULLY

    async def _answer_all(
        self, ref: TaskRef, answers: Mapping[str, bytes], now_ms: int, due_ms: int
    ) -> Applied | ConditionFailed:
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
        return await self._update_and_drop(ref, change)

    async def _update_and_drop(self, ref: TaskRef, change: Change) -> Applied | ConditionFailed:
        """A write after which nobody shows the questions that were there, if they were large."""
        won_or_lost = await self._table.update(pk_of(ref), change, returns="ALL_OLD")
        match won_or_lost:
            case Applied(row=dict() as before):
                left = change.sets["requests"]
                gone = [asked["b"] for key, asked in before["requests"].items() if key not in left]
                await self._drop(ref, gone)
        return won_or_lost

    async def _drop(self, ref: TaskRef, kept: Sequence[Kept]) -> None:
        names = [name for value in kept for name in names_of(value)]
        if names:
            await self._table.drop(pk_of(ref), names)

    async def _drop_draft(self, pk: str, draft: Draft, root: Row | None) -> None:
        """Of a write that did not happen; or it had, and botocore sent it again when
        others had written since."""
        live = {
            name
            for kept in (*refs_shown(root), *refs_for_work(root or {}))
            for name in names_of(kept)
        }
        names = [name for name in draft.names if name not in live]
        if names:
            await self._table.drop(pk, names)

    async def _answer_some(
        self, ref: TaskRef, root: Row | None, answers: Mapping[str, bytes], now_ms: int, due_ms: int
    ) -> Answered:
        """What fits the root item as it was seen, for as often as it has changed meanwhile."""
        draft: Draft | None = None
        kept: dict[str, Kept] = {}
        while root := unexpired(root, now_ms):
            taken = [key for key in answers if key in root["requests"]]
            if not taken:
                return Answered.NOT_NEEDED
            if root["status"] not in sources(Event.ANSWER_SOME):
                return Answered.LATER
            draft = draft or self._table.draft(pk_of(ref), root["ttl"])
            fresh = {key: answers[key] for key in taken if key not in kept}
            kept |= draft.keep_each("2", fresh, ROOM - root["answered"])
            await self._table.put(draft)
            change, answered = answers_taken(
                root, {key: kept[key] for key in taken}, now_ms, due_ms
            )
            match await self._update_and_drop(ref, change):
                case Applied():
                    return answered
                case ConditionFailed(row=row):
                    root = row
        return Answered.UNKNOWN_TASK

    async def cancel(
        self, ref: TaskRef, status_message: str, now_ms: int, due_ms: int | None = None
    ) -> Cancelled:
        """See `TaskStore`."""
        # A terminal task stays as it is.
        when = [IS_FOUND, is_in(Event.CANCEL)]
        status = target(Event.CANCEL)
        ended = await self._end_early(ref, status, status_message, when, now_ms, due_ms)
        if isinstance(ended, Cancelled):
            return ended
        is_there = unexpired(ended.row, now_ms) is not None
        return Cancelled.OVER if is_there else Cancelled.UNKNOWN_TASK

    async def _end_early(
        self,
        ref: TaskRef,
        status: Status,
        message: str,
        when: Sequence[str],
        now_ms: int,
        due_ms: int | None,
    ) -> Cancelled | ConditionFailed:
        """Make a task terminal whose work is not done: as most are, or else as one
        that is to be cleaned up."""
        plain = over(status, message, now_ms)
        values = values_of(now_ms)
        tried = await self._update_and_drop(ref, Change(plain, [*when, CLEANS_UP_NOTHING], values))
        match tried:
            case Applied():
                return Cancelled.OVER
            case ConditionFailed(row=dict() as root) if root.get("cleans_up"):
                due_ms = now_ms if due_ms is None else due_ms
                kept = over_but_for(due_ms, status, message, now_ms, is_leased=True)
                again = await self._update_and_drop(ref, Change(kept, when, values))
                return again if isinstance(again, ConditionFailed) else Cancelled.CLEAN_UP
        return tried

    # for the worker

    async def claim(
        self,
        ref: TaskRef,
        now_ms: int,
        until_ms: int,
        *,
        due_ms: int | None = None,
        lapsed_ms: int | None = None,
        alone: bool = False,
    ) -> Claimed | NotClaimed:
        """See `TaskStore`."""
        lapsed_ms = now_ms if lapsed_ms is None else lapsed_ms
        due_ms = until_ms if due_ms is None else due_ms
        values = values_of(now_ms, lapsed=lapsed_ms, due=due_ms)
        is_lapsed = is_far = False
        while True:
            sets = {
                **claimed(until_ms, alone),
                **(BLAMED if is_lapsed else {}),
                **(moved(due_ms) if is_far else {}),
            }
            change = Change(sets, may_be_claimed(is_lapsed, is_far, alone), values)
            match await self._table.update(pk_of(ref), change, returns="ALL_NEW"):
                case Applied(row=dict() as root):
                    return await self._claimed(ref, root, is_lapsed)
                case ConditionFailed(row=root):
                    refused = why_not(root, now_ms, lapsed_ms, alone)
                    if refused is not None or root is None:
                        return refused or NotClaimed.GONE
                    is_lapsed, is_far = has_lapsed(root), root["due_ms"] > due_ms

    async def _claimed(self, ref: TaskRef, root: Row, was_lapsed: bool) -> Claimed:
        rows = await self._table.named(pk_of(ref), refs_for_work(root))
        if was_lapsed:
            await self._tidy(ref)
        return Claimed(
            lease=Lease(ref, root["fence"], Notes(known_of(root, rows), Noted())),
            record=record_of(root, {}),
            call=load(root["call"], rows),
            journal=entries_of(root, rows),
            state=load(root["state"], rows),
            answers=answers_of(root, rows),
        )

    async def _tidy(self, ref: TaskRef) -> None:
        """Nothing that a client is shown is live while a worker has the task: what is
        there was left by one that died between its rows and the root item, and would be
        read by each `tasks/get`."""
        names = await self._table.names_shown(pk_of(ref))
        if names:
            await self._table.drop(pk_of(ref), names)

    async def checkpoint(
        self,
        lease: Lease,
        added: Added,
        now_ms: int,
        until_ms: int | None = None,
        due_ms: int | None = None,
    ) -> None:
        """See `TaskStore`."""
        sets: dict[str, Any] = dict(PROGRESS) if added.entries else {}
        if until_ms is not None:
            sets["lease_until_ms"] = until_ms
        if due_ms is not None:
            sets |= moved(due_ms)
        await self._write(lease, added, now_ms, lambda draft: sets)

    async def suspend(
        self,
        lease: Lease,
        added: Added,
        requests: Mapping[str, bytes],
        now_ms: int,
        *,
        wake_ms: int = 0,
    ) -> None:
        """See `TaskStore`."""

        def asked(draft: Draft) -> Mapping[str, Any]:
            kept = draft.keep_each("1", requests, ROOM)
            questions = {key: {"n": place, "b": value} for place, (key, value) in enumerate(kept)}
            due = {
                "due_ms": wake_ms or Expression("#expires_ms"),
                "wake_ms": wake_ms,
                "unsent": None,
            }
            status = {"status": target(Event.ASK).value, "requests": questions}
            return {**NOT_LEASED, **PROGRESS, **seen(now_ms), **due, **status}

        await self._write(lease, added, now_ms, asked)

    async def release(
        self,
        lease: Lease,
        added: Added,
        now_ms: int,
        *,
        wake_ms: int,
        due_ms: int,
        attempts: int = 0,
        declined_ms: int = 0,
        keeps_blame: bool = False,
    ) -> None:
        """See `TaskStore`."""
        unsent = 1 if is_for_a_sweep(wake_ms, due_ms) else None
        times = {**NOT_LEASED, "wake_ms": wake_ms, "due_ms": due_ms, "unsent": unsent}
        told = {"attempts": attempts, "declined_ms": declined_ms or None}
        # after a fault, the next turn may still ask the previous questions
        sets = {**times, **told, **({} if keeps_blame else {**NO_BLAME, "requests": {}})}
        await self._write(lease, added, now_ms, lambda draft: sets)

    async def restart(
        self,
        lease: Lease,
        call: bytes,
        journal: Sequence[bytes],
        state: bytes,
        journal_version: int,
        now_ms: int,
        due_ms: int,
    ) -> None:
        """See `TaskStore`."""
        before = refs_for_work(lease.notes.known.root)

        def begun(draft: Draft) -> Mapping[str, Any]:
            due = {"due_ms": due_ms, "unsent": None}
            return {
                **NOT_LEASED,
                **PROGRESS,
                **due,
                **work(call, journal, state, journal_version, draft),
            }

        await self._write(lease, NOTHING, now_ms, begun)
        await self._drop(lease.ref, before)

    async def park(self, lease: Lease, status_message: str, now_ms: int) -> None:
        """See `TaskStore`."""
        end = Expression("#expires_ms")
        sets = {**NOT_LEASED, "wake_ms": end, "due_ms": end}
        await self._write(lease, Added(status_message=status_message), now_ms, lambda draft: sets)

    async def let_go(
        self, ref: TaskRef, fence: int, now_ms: int, due_ms: int, *, blame: bool
    ) -> bool:
        """See `TaskStore`."""
        sets = {**NOT_LEASED, **moved(due_ms), **(BLAMED if blame else {})}
        change = Change(sets, [IS_FOUND, *lease_holds()], values_of(now_ms, fence=fence))
        return isinstance(await self._table.update(pk_of(ref), change), Applied)

    async def finish(
        self,
        lease: Lease,
        status: Status,
        outcome: bytes | None,
        status_message: str | None,
        now_ms: int,
        *,
        cleanup_due_ms: int | None = None,
        ending: Ending | None = None,
        failed_steps: Sequence[str] = (),
    ) -> None:
        """See `TaskStore`."""
        if ending is Ending.STEP_FAILED:
            end = over_with_work(status, status_message, now_ms, failed_steps)
        elif cleanup_due_ms is None:
            end = over(status, status_message, now_ms, ending)
        else:
            end = over_but_for(cleanup_due_ms, status, status_message, now_ms, is_leased=False)

        def ended(draft: Draft) -> Mapping[str, Any]:
            kept = {} if outcome is None else {"outcome": draft.spill_if_large("1", outcome)}
            return {**end, **kept}

        await self._write(lease, NOTHING, now_ms, ended)

    async def claim_cleanup(
        self,
        ref: TaskRef,
        now_ms: int,
        until_ms: int,
        *,
        due_ms: int,
        lapsed_ms: int,
        fence: int | None = None,
        journal: Sequence[bytes] | None = None,
    ) -> Claimed | None:
        """See `TaskStore`. If the write fails, `ttl` removes the new rows of the journal."""
        sets = claimed_to_clean_up(until_ms, due_ms)
        if journal is not None:
            draft = self._table.draft(pk_of(ref), ttl_of(now_ms))
            sets |= {"chunks": [draft.spill("2", packed(journal))], "tail": []}
            await self._table.put(draft)
        # fences begin with 0
        values = values_of(now_ms, lapsed=lapsed_ms, fence=-1 if fence is None else fence)
        change = Change(sets, may_be_cleaned_up(), values)
        match await self._table.update(pk_of(ref), change, returns="ALL_NEW"):
            case Applied(row=dict() as root):
                return await self._claimed(ref, root, was_lapsed=False)
        return None

    async def postpone_cleanup(self, lease: Lease, *, wake_ms: int, due_ms: int) -> bool:
        """See `TaskStore`."""
        unsent = 1 if is_for_a_sweep(wake_ms, due_ms) else None
        sets = {**NOT_LEASED, "wake_ms": wake_ms, "due_ms": due_ms, "unsent": unsent}
        return await self._cleaning(lease, sets)

    async def end_cleanup(self, lease: Lease) -> bool:
        """See `TaskStore`."""
        return await self._cleaning(lease, {**NOT_LEASED, **CLEANED_UP})

    async def _cleaning(self, lease: Lease, sets: Mapping[str, Any]) -> bool:
        # Nobody has claimed it since.
        is_the_last_claim = "#fence = :fence"
        values = values_of(0, fence=lease.fence)
        change = Change(sets, [IS_TO_CLEAN_UP, is_the_last_claim], values)
        return isinstance(await self._table.update(pk_of(lease.ref), change), Applied)

    async def _write(
        self, lease: Lease, added: Added, now_ms: int, make: Callable[[Draft], Mapping[str, Any]]
    ) -> None:
        """One write under a lease, of what is made with a draft for its large
        values, and of what is added.

        Raises:
            LeaseLost
        """
        notes: Notes = lease.notes
        async with notes.noted.writing:  # the journal is as the write before left it
            while doubt := await self._attempt(lease, notes, added, now_ms, make):
                notes.known = doubt.then  # a write that nobody had heard of has happened
                if doubt.entries == added.entries:
                    return

    async def _attempt(
        self,
        lease: Lease,
        notes: Notes,
        added: Added,
        now_ms: int,
        make: Callable[[Draft], Mapping[str, Any]],
    ) -> Doubt[Known] | None:
        """`None` if the write has happened now; else one before it that had happened already.

        Raises:
            LeaseLost
        """
        pk, has_entries = pk_of(lease.ref), bool(added.entries)
        draft = self._table.draft(pk, ttl_of(notes.known.root["expires_ms"]))
        this = step(notes.known, added, make(draft), now_ms, draft)
        await self._table.put(draft)
        values = values_of(now_ms, fence=lease.fence, noted=notes.noted.happened)
        number = notes.noted.attempt(added.entries, this.known) if has_entries else 0
        sets = {
            **this.sets,
            **({"noted": number} if has_entries and "noted" not in this.sets else {}),
        }
        match await self._table.update(pk, Change(sets, lease_holds(has_entries), values)):
            case ConditionFailed(row=root):
                await self._drop_draft(pk, draft, root)
                return _what_had_happened(lease, root)
        notes.noted.settle(number)
        notes.known = this.known
        await self._drop(lease.ref, this.superseded)
        return None

    # for the sweep

    @property
    def shards(self) -> int:
        """See `TaskStore`. A table may have tasks from when it had the usual number."""
        return max(self._shards, SHARDS)

    async def due(self, now_ms: int, limit: int, shard: int | None = None) -> Sequence[OpenTask]:
        """See `TaskStore`."""
        if shard is None:
            return await self._index(now_ms, limit)
        return [open_task_of(row) for row in await self._table.index(str(shard), now_ms, limit)]

    async def late_shards(self, now_ms: int) -> Sequence[int]:
        """See `TaskStore`."""
        firsts = await asyncio.gather(
            *(self._table.index(f"{shard}", now_ms, 1) for shard in range(self.shards))
        )
        return [shard for shard, first in enumerate(firsts) if first]

    async def take_shard(self, shard: int, sweeper: str, now_ms: int, until_ms: int) -> bool:
        """See `TaskStore`."""
        # Never taken, expired, taken for longer than allowed, or already ours.
        is_free = (
            "(attribute_not_exists(#pk) OR #until_ms <= :now OR #until_ms > :latest"
            " OR #sweeper = :sweeper)"
        )
        change = Change(
            {"sweeper": sweeper, "until_ms": until_ms, "ttl": until_ms // 1000 + _DAY_S},
            when=[is_free],
            values=values_of(now_ms, sweeper=sweeper, latest=now_ms + SHARD_AT_MOST_MS),
        )
        return isinstance(await self._table.update(f"S#{shard}", change), Applied)

    async def tell_time(self, said: bytes) -> bytes | None:
        """See `TaskStore`."""
        change = Change({"said": said}, when=[], values={})
        match await self._table.update(_TOLD, change, returns="ALL_OLD"):
            case Applied(row=dict() as before):
                kept: bytes | None = before.get("said")
                return kept
        return None

    async def postpone_many(
        self, moves: Sequence[Move], now_ms: int, skew_ms: int = 0
    ) -> Sequence[Postponed]:
        """See `TaskStore`. A write each: a transaction would cost twice as much. Of one that
        is held there are two."""
        return await asyncio.gather(*(self._move(move, now_ms, skew_ms) for move in moves))

    async def _move(self, move: Move, now_ms: int, skew_ms: int) -> Postponed:
        sets = {
            "due_ms": move.due_ms,
            "unsent": 1 if move.unsent else None,
            "resends": move.resends or None,
        }
        values = {":due": move.task.due_ms, ":lapsed": now_ms - skew_ms}
        change = Change(sets, [IS_DUE_AS_SEEN, IS_NOT_HELD], values)
        match await self._table.update(pk_of(move.task.ref), change, returns="ALL_OLD"):
            case Applied(row=dict() as root):
                return Postponed.LAPSED if has_lapsed(root) else Postponed.MOVED
            case ConditionFailed(row=dict() as root) if root.get("due_ms") == move.task.due_ms:
                return await self._put_off(move.task, root["lease_until_ms"], skew_ms)
        return Postponed.MISSED

    async def _put_off(self, task: OpenTask, until_ms: int, skew_ms: int) -> Postponed:
        """Look at it again when the lease that was seen has lapsed."""
        # Neither renewed nor given back since.
        is_that_lease = "#lease_until_ms = :until"
        values = {":due": task.due_ms, ":until": until_ms}
        change = Change(moved(until_ms + skew_ms), [IS_DUE_AS_SEEN, is_that_lease], values)
        was_put_off = isinstance(await self._table.update(pk_of(task.ref), change), Applied)
        return Postponed.HELD if was_put_off else Postponed.MISSED

    async def expire(self, ref: TaskRef, now_ms: int, due_ms: int | None = None) -> bool:
        """See `TaskStore`."""
        # Until then its owner may still ask for it.
        is_past = "#expires_ms <= :now"
        when, status = [is_past, is_in(Event.EXPIRE)], target(Event.EXPIRE)
        ended = await self._end_early(ref, status, "expired", when, now_ms, due_ms)
        return ended is Cancelled.CLEAN_UP

    async def forget(self, now_ms: int) -> int:
        """See `TaskStore`. DynamoDB deletes by itself: `ttl`."""
        return 0

    # for the operator

    async def open_tasks(self, limit: int) -> Sequence[OpenTask]:
        """See `TaskStore`."""
        return [task for task in await self._index(None, limit) if task.status in OPEN]

    async def _index(self, until_ms: int | None, limit: int) -> list[OpenTask]:
        # Exact for small limits. For large ones each part of the index returns twice its share, so
        # a result below the limit is complete unless the parts are very uneven.
        share = limit if limit <= EXACTLY else -(-2 * limit // self.shards)
        shards = (self._table.index(str(shard), until_ms, share) for shard in range(self.shards))
        rows = [row for rows in await asyncio.gather(*shards) for row in rows]
        return sorted(map(open_task_of, rows), key=lambda task: task.due_ms)[:limit]

    async def find(
        self, wanted: Wanted = ANY, limit: int = 100, cursor: str | None = None
    ) -> Found:
        """See `TaskStore`. Large payloads are left out."""
        parts = parts_of(self._table, wanted, self.shards)
        return await Search(self._table, parts, wanted, cursor).run(limit)

    async def read_work(self, ref: TaskRef) -> Work | None:
        """See `TaskStore`."""
        pk = pk_of(ref)
        for _ in range(_READ_TRIES):
            root = await self._table.root(pk)
            if root is None:
                return None
            refs = refs_for_work(root)
            rows = await self._table.named(pk, refs)
            if all(name in rows for kept in refs for name in names_of(kept)):
                return work_of(root, rows)
            # a worker has moved on, and the older rows are gone
        raise Unavailable("The task changes faster than it can be read")

    async def note_retry(self, ref: TaskRef, as_id: str) -> bool:
        """See `TaskStore`."""
        # A failed step ended the task, ...
        has_failed = "#ending = :failed"
        # ... and no other task continues its work.
        is_first = "attribute_not_exists(#retried_as)"
        values = values_of(0, failed=Ending.STEP_FAILED.value)
        change = Change({"retried_as": as_id}, [has_failed, is_first], values)
        return isinstance(await self._table.update(pk_of(ref), change), Applied)

    async def purge(self, ref: TaskRef, now_ms: int) -> bool:
        """See `TaskStore`."""
        return await self._table.delete(pk_of(ref), [is_over()], values_of(now_ms))

    async def go_on(self, ref: TaskRef, now_ms: int, due_ms: int) -> bool:
        """See `TaskStore`."""
        # Only what was to go on at some time, ...
        is_to_go_on = "#wake_ms > :none"
        # ... which has come.
        is_time = "#wake_ms <= :now"
        change = Change(
            {**working(now_ms, due_ms), "unsent": None},
            when=[IS_FOUND, is_in(Event.GO_ON), is_to_go_on, is_time],
            values=values_of(now_ms, none=0),
        )
        return isinstance(await self._table.update(pk_of(ref), change), Applied)

    async def requeue(
        self, ref: TaskRef, now_ms: int, due_ms: int, *, fence: int | None = None
    ) -> bool:
        """See `TaskStore`."""
        is_unclaimed = [] if fence is None else ["#fence = :fence"]
        change = Change(
            {
                **NOT_LEASED,
                **PROGRESS,
                "fence": Expression("#fence + :one"),
                "due_ms": due_ms,
                "resends": None,
                "unsent": None,
            },
            # Whether somebody has it does not matter: that is what this is for.
            when=[IS_FOUND, is_in(Event.RUN), *is_unclaimed],
            values={**values_of(now_ms), ":fence": fence},
        )
        return isinstance(await self._table.update(pk_of(ref), change), Applied)

    async def aclose(self) -> None:
        """Let go of the connections."""
        await self._table.aclose()


def _what_had_happened(lease: Lease, root: Row | None) -> Doubt[Known]:
    """The write that makes a refused one too late, while the lease holds.

    Raises:
        LeaseLost
    """
    notes: Notes = lease.notes
    doubt = (
        notes.noted.settle(root["noted"])
        if root is not None and is_held(root, lease.fence)
        else None
    )
    if doubt is None:
        raise LeaseLost(str(lease.ref))
    return doubt

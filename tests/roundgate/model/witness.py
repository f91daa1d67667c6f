"""Who sees every change of every row, every beginning of a step and every effect, and
knows what must not be."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from roundgate import json
from roundgate.protocol.tasks import OPEN
from roundgate.replay.branches import InStep, here
from roundgate.replay.journal import Began, Finished, Raised, Slept, from_row
from roundgate.tasks.stored import Lease
from roundgate.tasks.turn import Turn
from roundgate.tasks.watchdog import RUNNING

if TYPE_CHECKING:
    from tests.roundgate.model.processes import Process, Shared

COLUMNS: Final = (
    "n, id, status, status_message, revision, fence, lease_until_ms, "
    "wake_ms, attempts, deaths, suspect, alone"
)
GRACE_S: Final = 0.1


@dataclass(frozen=True)
class Effect:
    """Something that happened outside, which nobody can take back."""

    fence: int
    process: str
    at_s: float


@dataclass
class Seen:
    """One task as it was last seen."""

    row: dict[str, Any]
    call: bytes
    journal: list[bytes] = field(default_factory=list)
    remembered: set[str] = field(default_factory=set)
    answers: dict[str, bytes] = field(default_factory=dict)
    held_by: Process | None = None
    surely_until_s: float = 0.0
    """Until when its lease surely holds, in true time."""
    ends: dict[int, str] = field(default_factory=dict)
    """How each lease was over: given back, or lapsed."""


class Witness:
    """See above."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.seen: dict[str, Seen] = {}
        self.effects: dict[tuple[str, str], list[Effect]] = defaultdict(list)
        self.poison: set[str] = set()
        self.counts: dict[str, int] = defaultdict(int)

    # rows

    def look(self, process: Process, lease: Lease | None, sent_s: float) -> None:
        """Something was written."""
        db = self._shared.db
        for found in db.execute(f"select {COLUMNS} from tasks order by n").fetchall():
            row = dict(zip(COLUMNS.split(", "), found, strict=True))
            seen = self.seen.get(row["id"])
            if seen is None:
                call = _payloads(db, row["n"], "call")[0]
                self.seen[row["id"]] = Seen(row, call)
            else:
                self._compare(process, lease, sent_s, seen, row)
                seen.row = row

    def _compare(
        self, process: Process, lease: Lease | None, sent_s: float, seen: Seen, row: dict[str, Any]
    ) -> None:
        before, name = seen.row, row["id"]
        lease = lease if lease is not None and lease.ref.id == name else None
        has_changed = before != row or len(seen.journal) != self._entries(row)
        if has_changed:
            note = "" if lease is None else f"under {lease.fence} "
            self._shared.world.tell(f"{process.name} {note}→ {name}: {_difference(before, row)}")
            self._may_change(lease, before, row)
        if row["fence"] > before["fence"]:
            self._claimed(process, sent_s, seen, row)
        elif lease is not None and row["lease_until_ms"] > before["lease_until_ms"]:
            seen.surely_until_s = self._surely_until_s(process, sent_s, row)
        if before["lease_until_ms"] and not row["lease_until_ms"]:
            seen.ends[before["fence"]] = "blamed" if row["suspect"] else "given back"
        self._read_payloads(seen, row)

    def _may_change(self, lease: Lease | None, before: dict[str, Any], row: dict[str, Any]) -> None:
        if before["status"] not in OPEN:
            self._wrong(row["id"], f"is over and was changed: {_difference(before, row)}")
        elif lease is not None and lease.fence != before["fence"]:
            self._wrong(
                row["id"], f"was written under the lease {lease.fence}, and has been claimed since"
            )
        if row["deaths"] > before["deaths"] and not before["alone"]:
            self._wrong(row["id"], "is blamed for a death beside others")

    def _claimed(self, process: Process, sent_s: float, seen: Seen, row: dict[str, Any]) -> None:
        before, now_s = seen.row, self._shared.world.now_s
        has_lapsed = before["lease_until_ms"] > 0
        self.counts["claims"] += 1
        if has_lapsed:
            self.counts["lapsed"] += 1
            seen.ends[before["fence"]] = "lapsed"
            if now_s < seen.surely_until_s - 0.01:
                left_s = seen.surely_until_s - now_s
                self._wrong(
                    row["id"], f"{process.name} took a lease that held for {left_s:.1f} s more"
                )
        if (has_lapsed or before["suspect"]) and not row["alone"]:
            self._wrong(row["id"], f"{process.name} took a suspect and does not run it alone")
        seen.held_by, seen.surely_until_s = process, self._surely_until_s(process, sent_s, row)

    def _surely_until_s(self, process: Process, sent_s: float, row: dict[str, Any]) -> float:
        """Its worker counts from when it wanted to send the request, which may have waited for another one."""
        until_s = process.clock.true_s(row["lease_until_ms"])
        return min(until_s, sent_s + self._shared.config.lease_s)

    def _entries(self, row: dict[str, Any]) -> int:
        select = "select count(*) from payloads where task = ? and kind = 'journal'"
        count: int = self._shared.db.execute(select, (row["n"],)).fetchone()[0]
        return count

    def _read_payloads(self, seen: Seen, row: dict[str, Any]) -> None:
        db = self._shared.db
        (call,) = _payloads(db, row["n"], "call")
        if call != seen.call:  # it began anew
            seen.journal, seen.remembered, seen.call, seen.answers = [], set(), call, {}
        self._read_journal(seen, row, _payloads(db, row["n"], "journal"))
        select = "select name, value from payloads where task = ? and kind = 'answer'"
        answers = dict(db.execute(select, (row["n"],)).fetchall())
        if any(answers.get(key) != value for key, value in seen.answers.items()):
            self._wrong(row["id"], "an answer that was taken is gone")
        seen.answers = answers

    def _read_journal(self, seen: Seen, row: dict[str, Any], journal: list[bytes]) -> None:
        if journal[: len(seen.journal)] != seen.journal:
            self._wrong(row["id"], "its journal was changed and not added to")
        for data in journal[len(seen.journal) :]:
            entry = from_row(json.decode(data))
            place = f"began {entry.key}" if isinstance(entry, Began) else entry.key
            if isinstance(entry, (Finished, Raised, Began, Slept)):
                if place in seen.remembered:
                    self._wrong(row["id"], f"step {place} is remembered twice")
                seen.remembered.add(place)
        seen.journal = journal

    # steps

    def begins(self) -> None:
        """A step of the run that moves just now begins."""
        turn, place = RUNNING.get(), here.get()
        assert isinstance(turn, Turn)
        assert isinstance(place, InStep)
        lease, process = turn.lease, self._shared.running()
        assert process is not None
        seen = self.seen[lease.ref.id]
        self.counts["steps"] += 1
        self._shared.world.tell(
            f"{process.name} under {lease.fence} begins {place.key} of {lease.ref.id}"
        )
        if seen.row["fence"] != lease.fence:
            self._wrong(
                lease.ref.id,
                f"step {place.key} begins under lease {lease.fence}, which is somebody else's",
            )
        elif seen.row["status"] in OPEN and place.key in seen.remembered:
            self._wrong(lease.ref.id, f"step {place.key} begins though it is remembered")
        self._is_alone(process)

    def _is_alone(self, process: Any) -> None:
        held = [self.seen[one.ref.id] for one in process.worker.held()]
        mine = [one for one in held if one.held_by is process and one.row["lease_until_ms"]]
        if len(mine) > 1 and any(one.row["alone"] for one in mine):
            self._wrong(mine[0].row["id"], "a suspect does not run alone")

    def effect(self, label: str, *, at_most_once: bool = False) -> None:
        """A step does what it is there for."""
        turn = RUNNING.get()
        assert isinstance(turn, Turn)
        lease, process = turn.lease, self._shared.running()
        assert process is not None
        name, world = lease.ref.id, self._shared.world
        before = self.effects[name, label]
        if before:
            self.counts["doubled"] += 1
            if at_most_once:
                self._wrong(name, f"effect {label} happened twice and may at most once")
            elif not self._may_repeat(self.seen[name], before[-1], lease):
                self._wrong(name, f"effect {label} happened twice though nobody died")
        before.append(Effect(lease.fence, process.name, world.now_s))

    def _may_repeat(self, seen: Seen, before: Effect, lease: Lease) -> bool:
        if before.fence == lease.fence:
            return False
        first = min(before.fence, lease.fence)  # who lost the lease may be the later one of the two
        if seen.ends.get(first) in {"lapsed", "blamed"}:
            return True
        owner = next(one for one in self._shared.all if one.name == before.process)
        grace_s = self._shared.config.stop_grace_s or 0.0
        is_cut = (
            owner.told_to_end_s is not None
            and self._shared.world.now_s - owner.told_to_end_s >= grace_s
        )
        return is_cut or seen.row["status"] not in OPEN

    # who is to be spared

    def is_at_its_last(self, process: Process) -> bool:
        """Whether the process runs an innocent alone that would fail if it died again."""
        most = self._shared.config.max_deaths - 2
        held = [
            seen.row
            for seen in self.seen.values()
            if seen.held_by is process and seen.row["lease_until_ms"]
        ]
        return any(row["deaths"] >= most and row["id"] not in self.poison for row in held)

    def _wrong(self, name: str, what: str) -> None:
        self._shared.world.wrong(f"{name}: {what}")


def _payloads(db: sqlite3.Connection, n: int, kind: str) -> list[bytes]:
    select = "select value from payloads where task = ? and kind = ? order by n"
    return [value for (value,) in db.execute(select, (n, kind))]


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    changed = [f"{key} {before[key]} → {now[key]}" for key in now if before[key] != now[key]]
    return ", ".join(changed) or "its payloads"

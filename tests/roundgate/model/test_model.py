"""A bound of the model for every run of the suite, and proof that it sees: mutants of the
product are caught within it.

`scripts/chaos model --count 30` goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from roundgate.clock import Moment
from roundgate.protocol.tasks import Event, sources
from roundgate.storage.sqlite import tasks as sqlite_tasks
from roundgate.storage.tasks import Mark, TaskRecord, Work
from roundgate.tasks import events, machine, stored
from roundgate.tasks.stored import StoredTasks
from roundgate.tasks.sweep import Sweep
from roundgate.tasks.turn import Turn
from roundgate.tasks.worker import Worker
from tests.roundgate.model.explore import PROFILES, Ran, run
from tests.roundgate.model.world import Wrong
from tests.support.long import is_long

SEEDS = 10 if is_long() else 3
"""Worlds of each profile."""
MUTANT_SEEDS = 60
"""Worlds that may show a mutant, from the first of its profile that is known to."""


@pytest.mark.parametrize("profile", PROFILES)
def test_every_promise_holds_whatever_dies_stands_still_or_goes_unanswered(profile: str) -> None:
    worlds = _run_all(profile, range(SEEDS))
    assert all(ran.counts["claims"] >= PROFILES[profile].tasks // 2 for ran in worlds)


@pytest.mark.parametrize(
    ("seed", "profile"),
    [
        # a worker that had stood still gave its task back while a checkpoint was under way,
        # and wrote its entry again
        (1365755195, "stops"),
    ],
)
def test_a_world_in_which_something_was_wrong_once_is_right_now(seed: int, profile: str) -> None:
    assert run(seed, profile).counts["claims"] > 0


def test_a_seed_tells_the_same_story_again() -> None:
    assert run(3, "everything") == run(3, "everything")


@dataclass(frozen=True)
class Mutant:
    """Something left out of the product, and what has to be noticed."""

    owner: Any
    name: str
    instead: Callable[..., Any]
    profile: str
    noticed: str
    first_seed: int = 0


def _holds_without_fence(record: TaskRecord, fence: int) -> bool:
    return record.status in sources(Event.RUN) and record.lease_until_ms > 0


def _holds_without_status(record: TaskRecord, fence: int) -> bool:
    return record.fence == fence


def _learn_nothing(self: Any, record: Any, own: int) -> None:
    self.in_doubt.clear()


_work = sqlite_tasks._work


def _work_without_tail(db: Any, record: TaskRecord) -> Work:
    work = _work(db, record)
    return replace(work, journal=work.journal[:-1])


async def _admit_without_look(self: Turn) -> None:
    """A step begins whatever has become of the lease."""


async def _claim_without_skew(self: Worker, ref: Any, *, alone: bool = False) -> Any:
    now_ms = self._clock.now_ms()
    until_ms = now_ms + self._means.lease_ms
    return await self._store.claim(ref, events.Claim(until_ms, until_ms, now_ms, alone), now_ms)


_claim = StoredTasks.claim


async def _claim_with_blame(self: StoredTasks, ref: Any, event: Any, now_ms: int) -> Any:
    return await _claim(self, ref, replace(event, alone=True), now_ms)


async def _claim_beside_others(self: Worker, ref: Any, *, alone: bool = False) -> Any:
    return await _real_claim(self, ref, alone=True)


_real_claim = Worker.claim


async def _resume_without_row(self: Turn) -> None:
    self._time.renewed(Moment.now(self._clock))


def _wait_without_look(
    record: TaskRecord, awaits: Any, now_ms: int
) -> tuple[TaskRecord, events.Waited | None]:
    waiting = [replace(mark, is_awaited=mark.name in awaits) for mark in record.events]
    return replace(record, events=tuple(waiting)), None


_parse = Mark.parse


def _parse_without_wait(text: str) -> Mark:
    return replace(_parse(text), is_awaited=False)


async def _sweep_nothing(self: Sweep) -> int:
    return 0


MUTANTS = {
    "no fence in the condition": Mutant(
        machine,
        "holds",
        _holds_without_fence,
        "stops",
        "has been claimed since|is remembered twice|twice though",
        6,
    ),
    "no status in the condition": Mutant(
        machine, "holds", _holds_without_status, "cancels", "is over and was changed"
    ),
    "doubtful writes are written again": Mutant(
        stored.Lease, "learn", _learn_nothing, "answers", "is remembered twice"
    ),
    "the tail of the journal is not looked at": Mutant(
        sqlite_tasks,
        "_work",
        _work_without_tail,
        "stops",
        "begins though it is remembered|is remembered twice|is gone|failed with|not over",
        1,
    ),
    "no look at the lease before a step": Mutant(
        Turn, "admit", _admit_without_look, "stops", "which is somebody else's", 9
    ),
    "a lapsed lease is taken without regard to clocks": Mutant(
        Worker, "claim", _claim_without_skew, "clocks", "took a lease that held", 9
    ),
    "innocents are blamed": Mutant(
        StoredTasks, "claim", _claim_with_blame, "poison", "does not run alone|failed with"
    ),
    "a worker that went on does not ask the row": Mutant(
        Turn, "_renew_in_time", _resume_without_row, "stops", "which is somebody else's", 9
    ),
    "what waits does not look whether it was delivered meanwhile": Mutant(
        machine, "_wait", _wait_without_look, "events", "not over", 3
    ),
    "a delivery wakes nobody": Mutant(Mark, "parse", _parse_without_wait, "events", "not over"),
    "nobody sweeps": Mutant(Sweep, "sweep", _sweep_nothing, "everything", "not over", 3),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_the_model_notices(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutant.owner, mutant.name, mutant.instead)
    with pytest.raises(Wrong, match=mutant.noticed):
        _run_all(mutant.profile, range(mutant.first_seed, mutant.first_seed + MUTANT_SEEDS))


def _run_all(profile: str, seeds: range) -> list[Ran]:
    return [run(seed, profile) for seed in seeds]

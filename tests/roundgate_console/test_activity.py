"""The overview: the work of the last hour and day, tasks that need a person, and the replicas of a gateway."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roundgate.operators.facts import Need, need_of
from roundgate.protocol import Status
from roundgate.settings.process import Settings
from roundgate.storage import HIDDEN, Ending, TaskRecord, TaskRef
from roundgate_console.activity import DAY, HOUR, Activity, Cell, total
from roundgate_console.charts import Tick, age, histogram, picture, took
from roundgate_console.recent import RecentEvents
from roundgate_console.replicas import GONE_MS, KEY, ReplicaReport, Replicas
from roundgate_console.timeline import MomentKind, TimelineItem
from tests.support.console_tasks import operated, refund

MINUTE_MS = 60_000
NOW_MS = 1_700_000_000_000


def filled(*ages_min: float, outcome: str = "ok", took_ms: float = 10) -> Activity:
    """The activity of a run at each age in minutes."""
    activity = Activity()
    for each in sorted(ages_min, reverse=True):
        activity.add("shop", outcome, took_ms, NOW_MS - each * MINUTE_MS)
    return activity


def runs(activity: Activity) -> tuple[int, int]:
    """The runs of the last hour and of the last day."""
    hour, day = (
        sum(cell.runs for cells in activity.slots(span, NOW_MS) for cell in cells.values())
        for span in (HOUR, DAY)
    )
    return hour, day


def test_runs_are_counted_for_an_hour_and_for_a_day() -> None:
    assert runs(filled(0, 1, 59, 70, 23 * 60, 25 * 60)) == (3, 5)


def test_slots_are_bounded_also_when_the_clock_is_set_back() -> None:
    activity = filled(*range(10_000))
    activity.add("shop", "ok", 1, NOW_MS - 10**9)
    assert {span: len(slots) for span, slots in activity._slots.items()} == {HOUR: 60, DAY: 48}


@pytest.mark.parametrize(
    ("outcome", "failed"),
    [("ok", 0), ("task", 0), ("input_required", 0), ("tool_error", 1), ("step failed", 1)],
)
def test_failures_are_outcomes_that_need_a_look(outcome: str, failed: int) -> None:
    (cell,) = filled(0, outcome=outcome).slots(HOUR, NOW_MS)[-1].values()
    assert (cell.runs, cell.failed) == (1, failed)


def test_durations_are_exact_to_a_tenth() -> None:
    cell = Cell()
    for ms in range(1, 1001):
        cell.add(ms, is_failed=False)
    for part in (0.5, 0.95):
        assert cell.quantile_ms(part) == pytest.approx(part * 1000, rel=0.1)
    assert Cell().quantile_ms(0.5) is None
    assert total([cell, cell]).quantile_ms(0.5) == cell.quantile_ms(0.5)


def test_only_rounds_and_turns_count_and_a_tool_nobody_serves_has_no_back_end() -> None:
    ring = RecentEvents(backend_of=lambda _, name: "shop" if name == "refund" else "")
    for fields in (
        {"method": "tools/call", "name": "refund", "outcome": "ok"},
        {"method": "tools/call", "name": "invented", "outcome": "error"},
        {"method": "tasks/update", "name": "refund", "outcome": "ok"},
    ):
        record = logging.LogRecord("roundgate.request", logging.INFO, "", 1, "request", (), None)
        record.fields = {"call": "C", "ms": 2.0, **fields}
        ring.handle(record)
    cells = ring.activity(HOUR, int(record.created * 1000))[-1]
    assert {name: (cell.runs, cell.failed) for name, cell in cells.items()} == {
        "shop": (1, 0),
        "": (1, 1),
    }


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0.25, "0.25 ms"), (999, "999 ms"), (1500, "1.5 s"), (90_000, "1.5 min"), (0, "")],
)
def test_durations_do_not_break(ms: float, text: str) -> None:
    assert took(ms) == text.replace(" ", "\N{NO-BREAK SPACE}")


@pytest.mark.parametrize(
    ("at", "text"),
    [
        ("2026-11-28T12:00:00.000Z", "now"),
        ("2026-11-28T11:57:00.000Z", "3 min ago"),
        ("2026-11-26T11:00:00.000Z", "2 d ago"),
        ("2026-11-28T14:30:00.000Z", "in 2 h"),
    ],
)
def test_ages_are_in_words(at: str, text: str) -> None:
    now_ms = 1_795_867_200_000
    assert age(at, now_ms) == text.replace(" ", "\N{NO-BREAK SPACE}")


@pytest.mark.parametrize(
    ("length_ms", "labels"),
    [
        (7, ["0", "2 ms", "4 ms", "6 ms"]),
        (137, ["0", "50 ms", "100 ms"]),
        (4_100, ["0", "1 s", "2 s", "3 s", "4 s"]),
        (200_000, ["0", "1 min", "2 min", "3 min"]),
        (9 * 86_400_000, ["0", "2 d", "4 d", "6 d", "8 d"]),
    ],
)
def test_a_line_of_time_has_round_ticks(length_ms: int, labels: list[str]) -> None:
    moments = [
        TimelineItem(MomentKind.STEP, "a", 1_000),
        TimelineItem(MomentKind.STEP, "unknown"),
        TimelineItem(MomentKind.STEP, "b", 1_000 + length_ms),
        TimelineItem(MomentKind.TASK, "later", 10**12),
    ]
    drawn = picture(moments, 10**11)
    assert drawn is not None
    assert [tick.label.replace("\N{NO-BREAK SPACE}", " ") for tick in drawn.ticks] == labels
    assert drawn.ticks[0] == Tick(0, "0")
    assert [bar is None for bar in drawn.bars] == [False, True, False, True]
    assert all(bar.x + bar.width <= 100 for bar in drawn.bars if bar)


def test_the_buckets_of_a_histogram_are_below_their_bounds() -> None:
    buckets = histogram([0.5, 1, 3], [1, 2])
    assert [bucket.count for bucket in buckets] == [1, 1, 1]
    assert buckets[-1].label == "≥\N{NO-BREAK SPACE}2\N{NO-BREAK SPACE}s"


async def test_replicas_on_one_store_see_each_other_and_tell_which_differ(tmp_path: Path) -> None:
    differing: list[dict[str, Any]] = [{"version": "9"}, {"software": "9"}, {"keys": ["another"]}]
    using = Settings(store=f"sqlite:///{tmp_path}/shared.sqlite3")
    async with operated(using, refund) as gateway:
        console = gateway.app.state.console
        rows, clock = console.core.stores.sessions, console.clock

        (own,) = (await gateway.browser.get("/api/overview")).json()["replicas"]

        def of(age_ms: int = 0, **facts: Any) -> Callable[[], ReplicaReport]:
            now_ms = clock.now_ms() - age_ms
            known = own | {"started_ms": now_ms, "seen_ms": now_ms} | facts
            return lambda: ReplicaReport.model_validate(known)

        others = {"gone": of(GONE_MS + 1, version="9"), "same": of()}
        for name, report in others.items():
            await Replicas(rows, clock, name, report)._write()
        for facts in differing:
            await Replicas(rows, clock, "other", of(**facts))._write()
            replicas = (await gateway.browser.get("/api/overview")).json()["replicas"]
            assert {each["name"]: each["differs"] for each in replicas} == {
                console.process: False,
                "same": False,
                "other": True,
            }, facts
            assert "1</strong> replica differs" in await gateway.browser.page()
        await rows.put(KEY, b"of a later version", clock.now_ms() + GONE_MS)
        assert len((await gateway.browser.get("/api/overview")).json()["replicas"]) == 1


CALL = TaskRef("uOwner", f"{HIDDEN}A")


@pytest.mark.parametrize(
    ("need", "facts"),
    [
        (Need.FAILED, {"status": Status.FAILED}),
        (Need.FAILED, {"status": Status.COMPLETED, "ending": Ending.STEP_FAILED}),
        (None, {"status": Status.FAILED, "retried_as": "B"}),
        (None, {"status": Status.FAILED, "expires_ms": NOW_MS}),
        (None, {"status": Status.COMPLETED, "ending": Ending.OK}),
        (None, {"status": Status.CANCELLED}),
        (Need.APPROVAL, {"status": Status.INPUT_REQUIRED, "asked": ["ship/approve"]}),
        (Need.CLIENT, {"status": Status.INPUT_REQUIRED, "asked": ["why"]}),
        (None, {"updated_ms": NOW_MS - MINUTE_MS}),
        (Need.WORKER, {}),
        (None, {"wake_ms": NOW_MS + 1}),
        (None, {"lease_until_ms": NOW_MS + 1}),
        (Need.WORKER, {"declined_ms": 1, "wake_ms": NOW_MS + 1}),
        (None, {"declined_ms": NOW_MS - 1}),
        (None, {"ref": CALL}),
        (None, {"ref": CALL, "status": Status.FAILED}),
        (None, {"ref": CALL, "status": Status.INPUT_REQUIRED, "asked": ["approve"]}),
    ],
)
def test_a_task_needs_a_person_for_one_reason(need: Need | None, facts: dict[str, Any]) -> None:
    record = TaskRecord(
        **{
            "ref": TaskRef("uOwner", "A"),
            "tool": "refund",
            "status": Status.WORKING,
            "status_message": None,
            "created_ms": 0,
            "updated_ms": 0,
            "expires_ms": NOW_MS * 2,
            "revision": 1,
            **facts,
        }
    )
    assert need_of(record, NOW_MS) is need

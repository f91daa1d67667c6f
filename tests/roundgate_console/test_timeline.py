"""The line of time of a call: a table of what the log and the store tell, and what a page makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from roundgate.operators.continuing import StepDone
from roundgate.protocol import Status
from roundgate.storage import Ending, TaskRecord, TaskRef
from roundgate_console.recent import RecentEvent
from roundgate_console.timeline import MomentKind, Tone, make_timeline

RECORD = TaskRecord(
    ref=TaskRef("uOwner", "ID"),
    tool="refund",
    status=Status.WORKING,
    status_message=None,
    created_ms=1_000,
    updated_ms=1_000,
    expires_ms=90_000,
    revision=1,
    call_id="C",
)


def event(at_ms: float, message: str, **facts: Any) -> RecentEvent:
    level = facts.pop("level", "info")
    return RecentEvent(at_ms, message, level, "C", facts.pop("task", None), "refund", facts)


def titles(
    events: list[RecentEvent],
    record: TaskRecord | None = None,
    steps: list[StepDone] | None = None,
    now_ms: int = 5_000,
) -> list[str]:
    return [
        " · ".join(filter(None, (moment.title, moment.outcome)))
        for moment in make_timeline(events, record, steps, now_ms)
    ]


ROUND = event(900, "request", method="tools/call", name="refund", outcome="input_required", ms=10)
ASKS = event(899, "a call asks its client", round=1, questions=["confirm"])
SECOND = event(1_001, "request", method="tools/call", name="refund", outcome="task", ms=5)
TURN = event(1_200, "task", name="refund", outcome="finished", turn=1, ms=100)
PLAN = event(1_110, "a step ended", step="plan", attempt=1, outcome="ok", ms=5)


@pytest.mark.parametrize(
    ("events", "lines"),
    [
        ([], []),
        ([ASKS, ROUND], ["round 1: tools/call refund · input_required", "asks confirm"]),
        (
            [ASKS, ROUND, SECOND],
            [
                "round 1: tools/call refund · input_required",
                "asks confirm",
                "round 2: tools/call refund · task",
            ],
        ),
        ([PLAN, TURN], ["turn of a worker · finished", "step plan · ok"]),
        (
            [event(10, "request to a service", method="GET", host="api.example", status=200, ms=4)],
            ["GET api.example · 200"],
        ),
        (
            [event(10, "request to a server", backend="github", status="TimedOut", ms=4)],
            ["github · TimedOut"],
        ),
        ([event(10, "call of AWS Lambda", function="pay", status=200)], ["pay · 200"]),
        ([event(10, "a task is taken over", deaths=1)], ["a task is taken over"]),
        (
            [event(10, "request", method="tasks/cancel", outcome="ok")],
            ["cancelled by the client · ok"],
        ),
        (
            [event(10, "request", method="tasks/update", outcome="ok")],
            ["answers from the client · ok"],
        ),
        ([event(10, "request", outcome="unauthorized")], ["round 1: request · unauthorized"]),
        (
            [event(10, "an external event", event="paid", status=202, outcome="kept")],
            ["external event paid · kept"],
        ),
        (
            [event(10, "an operator acts on a task", action="cancel", outcome="done")],
            ["operator: cancel · done"],
        ),
        (
            [event(10, "a message of a later version", level="error")],
            ["a message of a later version"],
        ),
    ],
    ids=lambda value: value[0].message if value and isinstance(value[0], RecentEvent) else "",
)
def test_events_become_moments_in_the_order_in_which_they_began(
    events: list[RecentEvent], lines: list[str]
) -> None:
    assert titles(events) == lines


def test_the_two_lines_of_a_failed_attempt_are_one_moment() -> None:
    reason = {"step": "pay", "attempt": 1, "reason": "ConnectionError", "again": "…57.241Z"}
    (moment,) = make_timeline(
        [
            event(10, "a step failed, trying again", level="warning", **reason),
            event(11, "a step ended", step="pay", attempt=1, outcome="retried", ms=3),
        ]
    )
    assert (moment.outcome, moment.took_ms, moment.tone) == ("retried", 3, Tone.WAITS)
    assert moment.facts == {
        "attempt": "1",
        "reason": "ConnectionError",
        "will be retried at": "…57.241Z",
    }


def test_a_failed_attempt_of_which_only_one_line_is_known_is_shown() -> None:
    assert titles([event(10, "a step failed", step="pay", attempt=2, reason="E")]) == [
        "step pay · failed"
    ]


DONE = StepDone("plan", "done")
ASKED = StepDone("confirm", "asked")
FAILED = StepDone("pay", "failed", 2)


@pytest.mark.parametrize(
    ("record", "steps", "events", "lines"),
    [
        (
            RECORD,
            [DONE, ASKED],
            [],
            ["task created", "step plan · done", "question confirm · asked", "task working"],
        ),
        (  # the step has a time, and the question follows it
            RECORD,
            [DONE, ASKED],
            [SECOND, TURN, PLAN],
            [
                "round 1: tools/call refund · task",
                "task created",
                "turn of a worker · finished",
                "step plan · ok",
                "question confirm · asked",
                "task working",
            ],
        ),
        (  # another process ran the first step
            RECORD,
            [StepDone("first", "done"), DONE],
            [PLAN],
            ["task created", "step first · done", "step plan · ok", "task working"],
        ),
        (  # the journal tells whether a question was answered
            RECORD,
            [StepDone("confirm", "answered"), DONE],
            [PLAN, event(1_050, "a task asks its client", questions=["confirm"])],
            ["task created", "asks confirm · answered", "step plan · ok", "task working"],
        ),
        (RECORD, None, [], ["task created", "task working"]),
        (
            replace(RECORD, deaths=2, suspect=True),
            [],
            [],
            ["task created", "workers died or stalled", "task working"],
        ),
        (
            replace(RECORD, wake_ms=65_000),
            [StepDone("sleep", "pause begun")],
            [],
            ["task created", "pause sleep · pause begun", "task working", "continues in 1m"],
        ),
        (
            replace(
                RECORD, status=Status.COMPLETED, ending=Ending.STEP_FAILED, failed_steps=["pay"]
            ),
            [FAILED],
            [],
            ["task created", "step pay · failed", "task failed · step_failed"],
        ),
        (
            replace(RECORD, status=Status.FAILED, updated_ms=1_300, retried_as="NEXT"),
            [],
            [TURN, event(1_400, "an operator acts on a task", action="retry")],
            ["task created", "turn of a worker · finished", "task failed", "operator: retry"],
        ),
        (
            RECORD,
            [StepDone("paid", "can be delivered"), StepDone("late", "not answered in time")],
            [],
            [
                "task created",
                "external event paid · can be delivered",
                "question late · not answered in time",
                "task working",
            ],
        ),
    ],
)
def test_a_task_adds_its_journal_and_its_state(
    record: TaskRecord, steps: list[StepDone] | None, events: list[RecentEvent], lines: list[str]
) -> None:
    expiry = ["task expires"] if record.is_open else []
    assert titles(events, record, steps) == [*lines, *expiry]


def test_a_death_that_this_process_saw_is_shown_once() -> None:
    seen = event(1_100, "a task is taken over", deaths=1)
    moments = make_timeline([seen], replace(RECORD, deaths=1), None, 5_000)
    assert [moment.kind for moment in moments].count(MomentKind.DEATH) == 1


def test_an_expired_task_says_so() -> None:
    assert titles([], RECORD, now_ms=100_000)[-1] == "task expired"


def test_an_entry_without_an_event_has_no_time() -> None:
    moments = make_timeline([], RECORD, [DONE], 5_000)
    assert [moment.at_ms for moment in moments] == [1_000, None, 1_000, 90_000]


def test_a_round_comes_before_its_steps_although_its_begin_was_computed_late() -> None:
    step = event(10.2, "a step ended", step="plan", outcome="ok", ms=0.1)
    late = event(13.0, "request", method="tools/call", name="refund", outcome="ok", ms=0.4)
    assert titles([step, late]) == ["round 1: tools/call refund · ok", "step plan · ok"]


def test_rounds_within_one_millisecond_keep_their_steps() -> None:
    lines = [
        event(10.2, "a step ended", step="plan", outcome="ok", ms=0.1),
        event(10.3, "request", method="tools/call", outcome="input_required", ms=0.25),
        event(10.6, "a step ended", step="apply", outcome="ok", ms=0.1),
        event(10.7, "request", method="tools/call", outcome="ok", ms=0.25),
    ]
    assert [title.partition(" · ")[0] for title in titles(lines)] == [
        "round 1: tools/call",
        "step plan",
        "round 2: tools/call",
        "step apply",
    ]

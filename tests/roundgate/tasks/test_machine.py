"""The life of a task as a table, and its promises as properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from roundgate.protocol.tasks import OPEN, Status
from roundgate.storage.tasks import Ending, Mark, Put, RecordPart, TaskRecord, TaskRef
from roundgate.tasks import events, machine
from roundgate.tasks.events import (
    KEPT_DELIVERIES,
    NOTHING,
    Added,
    AnswersTaken,
    Cancelled,
    Delivered,
    Event,
    NewTask,
    Next,
    No,
    NotClaimed,
    Postponed,
    Refused,
    Sending,
    Waited,
)
from roundgate.tasks.machine import apply
from tests.support.long import examples

NOW: Final = 1_000_000
END: Final = NOW + 100_000
UNTIL: Final = NOW + 30_000
FENCE: Final = 3
NEW = machine.create(
    NewTask(TaskRef("owner", "id"), "tool", b"call", NOW - 1_000, END, NOW + 5_000)
).record
HELD = replace(NEW, fence=FENCE, lease_until_ms=UNTIL)
ASKING = replace(NEW, fence=FENCE, status=Status.INPUT_REQUIRED, asked=("a", "b"), due_ms=NOW - 1)
OVER = replace(NEW, fence=FENCE, status=Status.COMPLETED, ending=Ending.OK, due_ms=None)

OPEN_MARK: Final = (Mark("event:paid", END),)
AWAITED_MARK: Final = (Mark("event:paid", END, is_awaited=True),)

STATES: Final[Mapping[str, TaskRecord | None]] = {
    "unknown": None,
    "new": replace(NEW, fence=FENCE),
    "held": HELD,
    "held alone": replace(HELD, alone=True, suspect=True),
    "lapsed": replace(HELD, lease_until_ms=NOW),
    "asleep": replace(NEW, fence=FENCE, wake_ms=NOW + 1),
    "suspect": replace(NEW, fence=FENCE, suspect=True),
    "asking": ASKING,
    "may go on": replace(ASKING, wake_ms=NOW),
    "goes on": replace(NEW, fence=FENCE, asked=("a", "b")),
    "parked": replace(NEW, fence=FENCE, wake_ms=END, events=OPEN_MARK),
    "awaits": replace(NEW, fence=FENCE, wake_ms=END, events=AWAITED_MARK),
    "asks and awaits": replace(ASKING, events=AWAITED_MARK),
    "held with an event": replace(HELD, events=OPEN_MARK),
    "expired": replace(HELD, expires_ms=NOW),
    "completed": OVER,
    "step failed": replace(
        OVER, ending=Ending.STEP_FAILED, failed_steps=("charge",), events=OPEN_MARK
    ),
    "ended with an event": replace(OVER, events=OPEN_MARK),
    "to clean up": replace(
        OVER, status=Status.CANCELLED, ending=Ending.CANCELLED, due_ms=NOW, cleans_up=True
    ),
    "cleaned up by another": replace(
        OVER, due_ms=NOW, cleans_up=True, lease_until_ms=UNTIL, fence=FENCE + 1
    ),
}

EVENTS: Final[Mapping[str, Event]] = {
    "claim": events.Claim(UNTIL, UNTIL, NOW),
    "claim alone": events.Claim(UNTIL, UNTIL, NOW, alone=True),
    "checkpoint": events.Checkpoint(UNTIL, added=Added([b"1"]), fence=FENCE, number=1),
    "suspend": events.SuspendTask({"c": b"?"}, fence=FENCE),
    "release": events.Release(0, UNTIL, fence=FENCE),
    "restart": events.Restart(b"call", (), b"{}", 1, UNTIL, fence=FENCE),
    "park": events.Park("waits", fence=FENCE),
    "finish": events.Finish(Status.COMPLETED, b"{}", None, fence=FENCE),
    "let go": events.LetGo(NOW, blame=True, fence=FENCE),
    "answer one": events.TakeAnswers({"a": b"!"}, UNTIL),
    "answer all": events.TakeAnswers({"a": b"!", "b": b"!"}, UNTIL),
    "answer others": events.TakeAnswers({"x": b"!"}, UNTIL),
    "cancel": events.Cancel("no more", NOW),
    "expire": events.Expire(NOW),
    "go on": events.GoOn(UNTIL),
    "requeue": events.Requeue(NOW),
    "claim cleanup": events.ClaimCleanup(UNTIL, UNTIL, NOW),
    "postpone cleanup": events.PostponeCleanup(UNTIL, UNTIL, fence=FENCE),
    "end cleanup": events.EndCleanup(fence=FENCE),
    "note retry": events.NoteRetry("other"),
    "deliver": events.Deliver("event:paid", b"7", "digest", UNTIL),
    "rewind": events.Rewind(b"call", (), (), NOW, FENCE, OPEN_MARK),
}
UNDER_A_LEASE: Final = ("checkpoint", "suspend", "release", "restart", "park", "finish", "let go")
IS_HELD: Final = ("held", "held alone", "lapsed", "held with an event")
IS_OVER: Final = ("completed", "step failed", "ended with an event")
_EXPIRED_BUT_HELD: Final = "expired"

TABLE: Final[Mapping[str, Mapping[str, Any]]] = {
    "claim": {
        "unknown": NotClaimed.GONE,
        "expired": NotClaimed.GONE,
        "new": Status.WORKING,
        "goes on": Status.WORKING,
        "held": NotClaimed.LEASED,
        "held alone": NotClaimed.LEASED,
        "held with an event": NotClaimed.LEASED,
        "lapsed": NotClaimed.SUSPECT,
        "suspect": NotClaimed.SUSPECT,
        **dict.fromkeys(("asleep", "parked", "awaits"), NotClaimed.ASLEEP),
        **dict.fromkeys(("asking", "may go on", "asks and awaits"), NotClaimed.WAITING),
        **dict.fromkeys(IS_OVER, NotClaimed.OVER),
        "to clean up": NotClaimed.CLEAN_UP,
        "cleaned up by another": NotClaimed.CLEAN_UP,
    },
    "answer one": {
        **dict.fromkeys(STATES, AnswersTaken.NOT_NEEDED),
        "unknown": AnswersTaken.UNKNOWN_TASK,
        "expired": AnswersTaken.UNKNOWN_TASK,
        **dict.fromkeys(("asking", "may go on", "asks and awaits"), AnswersTaken.PARTLY),
        "goes on": AnswersTaken.LATER,
    },
    "answer others": {
        **dict.fromkeys(STATES, AnswersTaken.NOT_NEEDED),
        "unknown": AnswersTaken.UNKNOWN_TASK,
        "expired": AnswersTaken.UNKNOWN_TASK,
    },
    "cancel": {
        **dict.fromkeys(STATES, Status.CANCELLED),
        "unknown": Cancelled.UNKNOWN_TASK,
        "expired": Cancelled.UNKNOWN_TASK,
        **dict.fromkeys((*IS_OVER, "to clean up", "cleaned up by another"), Cancelled.OVER),
    },
    "expire": {**dict.fromkeys(STATES, No.NOT_NOW), "expired": Status.FAILED},
    "go on": {**dict.fromkeys(STATES, No.NOT_NOW), "may go on": Status.WORKING},
    "requeue": {
        **dict.fromkeys(STATES, No.NOT_NOW),
        **dict.fromkeys(
            ("new", *IS_HELD, "asleep", "suspect", "goes on", "parked", "awaits"), Status.WORKING
        ),
    },
    "claim cleanup": {**dict.fromkeys(STATES, No.NOT_NOW), "to clean up": Status.CANCELLED},
    "postpone cleanup": {**dict.fromkeys(STATES, No.LEASE_LOST), "to clean up": Status.CANCELLED},
    "end cleanup": {**dict.fromkeys(STATES, No.LEASE_LOST), "to clean up": Status.CANCELLED},
    "note retry": {**dict.fromkeys(STATES, No.NOT_NOW), "step failed": Status.COMPLETED},
    "deliver": {
        **dict.fromkeys(STATES, Delivered.CLOSED),
        "unknown": Delivered.UNKNOWN_TASK,
        "parked": Delivered.KEPT,
        "awaits": Delivered.WAKES,
        "asks and awaits": Delivered.WAKES,
        "held with an event": Delivered.KEPT,
        "step failed": Delivered.KEPT,
    },
    "rewind": {**dict.fromkeys(STATES, No.NOT_NOW), "parked": Status.WORKING},
    **{
        name: {
            **dict.fromkeys(STATES, No.LEASE_LOST),
            **dict.fromkeys((*IS_HELD, _EXPIRED_BUT_HELD), status),
        }
        for name, status in {
            "checkpoint": Status.WORKING,
            "suspend": Status.INPUT_REQUIRED,
            "release": Status.WORKING,
            "restart": Status.WORKING,
            "park": Status.WORKING,
            "finish": Status.COMPLETED,
        }.items()
    },
    "let go": {**dict.fromkeys(STATES, No.LEASE_LOST), **dict.fromkeys(IS_HELD, Status.WORKING)},
}
"""The status after each event in each state, or why it is refused. Where an answer is taken, what
became of it."""
ALONE: Final = {**TABLE["claim"], "lapsed": Status.WORKING, "suspect": Status.WORKING}
ALL: Final = {
    **TABLE["answer one"],
    **dict.fromkeys(("asking", "may go on", "asks and awaits"), AnswersTaken.FULLY),
}
WHOLE_TABLE: Final = {**TABLE, "claim alone": ALONE, "answer all": ALL}


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_an_event_in_a_state_comes_to_what_the_table_has(name: str, state: str) -> None:
    decision = apply(STATES[state], EVENTS[name], NOW)
    expected = WHOLE_TABLE[name][state]
    if isinstance(decision, Refused):
        assert decision.result is expected
    elif isinstance(expected, Delivered):
        assert decision.result is expected
        before, after = STATES[state], decision.record()
        assert before is not None
        assert [mark.digest for mark in after.events] == ["digest"]
        if expected is Delivered.WAKES:
            assert (after.status, after.wake_ms, after.due_ms) == (Status.WORKING, 0, UNTIL)
        else:
            kept = ("status", "wake_ms", "due_ms", "lease_until_ms", "revision")
            assert all(getattr(after, name) == getattr(before, name) for name in kept)
    elif isinstance(expected, AnswersTaken):
        assert decision.result is expected
        partly = expected is AnswersTaken.PARTLY
        status = Status.INPUT_REQUIRED if partly else Status.WORKING
        assert decision.record().status is status
    else:
        assert decision.record().status is expected


def test_the_table_is_whole() -> None:
    assert WHOLE_TABLE.keys() == EVENTS.keys()
    assert all(row.keys() == STATES.keys() for row in WHOLE_TABLE.values())


@pytest.mark.parametrize(
    ("state", "expected"),
    {
        **dict.fromkeys(("unknown", *IS_OVER), Postponed.MISSED),
        **dict.fromkeys(
            ("new", "asleep", "suspect", "asking", "parked", "awaits", "to clean up"),
            Postponed.MOVED,
        ),
        **dict.fromkeys(
            ("held", "held alone", "held with an event", "cleaned up by another"), Postponed.HELD
        ),
        "lapsed": Postponed.LAPSED,
    }.items(),
)
def test_a_sweep_moves_what_is_not_held(state: str, expected: Postponed) -> None:
    record = STATES[state]
    seen_ms = NOW if record is None or record.due_ms is None else record.due_ms
    decision = apply(record, events.Postpone(seen_ms, END, 1, Sending.NEEDED, 0), NOW)
    if isinstance(decision, Refused):
        assert decision.result is expected
        return
    assert decision.result is expected
    after = decision.record()
    is_held = expected is Postponed.HELD
    assert (after.due_ms, after.unsent) == ((UNTIL, True) if is_held else (END, False))
    assert after.fence == (record or after).fence


MESSAGES: Final[Mapping[str, tuple[str, Event, int | None]]] = {
    "claim": ("new", EVENTS["claim"], None),
    "checkpoint": ("held", EVENTS["checkpoint"], None),
    "questions": ("held", EVENTS["suspend"], None),
    "goes on at once": ("held", EVENTS["release"], 0),
    "goes on soon": ("held", events.Release(NOW + 5_000, UNTIL, fence=FENCE), 5_000),
    "goes on soon, for a worker that is early": (
        *("held", events.Release(NOW + 5_000, UNTIL, early_ms=1_000, fence=FENCE)),
        5_000,
    ),
    "is woken by a sweep": ("held", events.Release(UNTIL, UNTIL, fence=FENCE), None),
    "a write that took longer than a sweep waits": (
        *("held", events.Release(0, NOW, fence=FENCE)),
        None,
    ),
    "begins anew": ("held", EVENTS["restart"], 0),
    "parked": ("held", EVENTS["park"], None),
    "finished": ("held", EVENTS["finish"], None),
    "finished, to be cleaned up": (
        *("held", events.Finish(Status.FAILED, b"{}", None, UNTIL, fence=FENCE)),
        0,
    ),
    "let go, due now": ("held", EVENTS["let go"], None),
    "let go": ("held", events.LetGo(UNTIL, blame=True, fence=FENCE), 0),
    "answered in part": ("asking", EVENTS["answer one"], None),
    "answered": ("asking", EVENTS["answer all"], 0),
    "cancelled": ("held", EVENTS["cancel"], None),
    "goes on without answers": ("may go on", EVENTS["go on"], 0),
    "requeued": ("new", EVENTS["requeue"], 0),
    "cleanup claimed": ("to clean up", EVENTS["claim cleanup"], None),
    "cleanup postponed": (
        *("to clean up", events.PostponeCleanup(NOW + 5_000, UNTIL, fence=FENCE)),
        5_000,
    ),
    "cleanup ended": ("to clean up", EVENTS["end cleanup"], None),
    "taken up again": ("step failed", EVENTS["note retry"], None),
}
"""The delay of the message that follows an event in a state; `None` for none."""


@pytest.mark.parametrize(("state", "event", "expected"), MESSAGES.values(), ids=MESSAGES)
def test_an_event_that_wants_a_worker_calls_for_a_message(
    state: str, event: Event, expected: int | None
) -> None:
    decision = apply(STATES[state], event, NOW)
    assert isinstance(decision, Next)
    assert decision.message_ms == expected


@pytest.mark.parametrize("cleans_up", [True, False])
@pytest.mark.parametrize("name", ["cancel", "expire"])
def test_what_ends_early_calls_for_a_message_if_something_is_left(
    name: str, cleans_up: bool
) -> None:
    expires_ms = NOW if name == "expire" else END
    record = replace(HELD, cleans_up=cleans_up, expires_ms=expires_ms)
    decision = apply(record, EVENTS[name], NOW)
    assert isinstance(decision, Next)
    assert decision.message_ms == (0 if cleans_up else None)


@pytest.mark.parametrize("state", ["new", "held", "lapsed"])
@pytest.mark.parametrize("sending", Sending)
def test_a_move_calls_for_a_message_unless_a_worker_or_the_queue_has_the_task(
    state: str, sending: Sending
) -> None:
    record = STATES[state]
    assert record is not None
    event = events.Postpone(record.due_ms or 0, END, 1, sending, 0)
    decision = apply(record, event, NOW)
    assert isinstance(decision, Next)
    sends = {Sending.NEEDED: ("new", "lapsed"), Sending.DOUBTED: ("lapsed",)}.get(sending, ())
    assert decision.message_ms == (0 if state in sends else None)
    assert decision.record().unsent == (state == "held" or sending is Sending.LEFT)


@pytest.mark.parametrize(
    ("status", "message_ms"), [(Status.WORKING, 0), (Status.COMPLETED, None), (Status.FAILED, None)]
)
def test_a_new_task_calls_for_a_message_unless_it_is_over(
    status: Status, message_ms: int | None
) -> None:
    task = NewTask(NEW.ref, "tool", b"call", NOW, END, UNTIL, status=status)
    assert machine.create(task).message_ms == message_ms


def test_a_task_that_was_moved_since_is_missed() -> None:
    decision = apply(NEW, events.Postpone(NOW, END, 1, Sending.NEEDED, 0), NOW)
    assert decision == Refused(Postponed.MISSED)


def test_entries_whose_write_was_in_doubt_are_added_once() -> None:
    event = events.Checkpoint(added=Added([b"1"]), fence=FENCE, number=1)
    first = apply(HELD, event, NOW)
    assert isinstance(first, Next)
    assert apply(first.record(), event, NOW) == Refused(No.HAPPENED)
    last = apply(
        first.record(), events.Release(0, UNTIL, added=Added([b"1"]), fence=FENCE, number=1), NOW
    )
    assert isinstance(last, Next)
    assert last.puts == []


def test_what_begins_anew_has_forgotten_all() -> None:
    decision = apply(replace(HELD, asked=("a",)), EVENTS["restart"], NOW)
    assert isinstance(decision, Next)
    dropped = {drop.part for drop in decision.drops if drop.name is None}
    assert dropped == {RecordPart.JOURNAL, RecordPart.ANSWER, RecordPart.REQUEST}
    assert {put.part for put in decision.puts} == {RecordPart.CALL, RecordPart.STATE}


def test_what_goes_on_may_ask_the_same_again() -> None:
    decision = apply(STATES["may go on"], EVENTS["go on"], NOW)
    assert isinstance(decision, Next)
    assert (list(decision.record().asked), list(decision.drops)) == (["a", "b"], [])


ADDED: Final = (
    NOTHING,
    Added([b"1"]),
    Added([b"1", b"2"], b"{}", "on it"),
    Added((), None, ""),
    Added([b"3"], events=[Mark("a", NOW + 30_000), Mark("b", END)]),
    Added([b"4"], events=[Mark("c", NOW)]),
)

ANOTHER: Final = FENCE + 1
BLAMED: Final = replace(HELD, suspect=True, alone=True, deaths=2, attempts=3, declined_ms=NOW - 9)
LIFTED: Final = {"suspect": False, "deaths": 0, "attempts": 0, "declined_ms": 0}
FREE: Final = {"lease_until_ms": 0}
SEEN: Final = {"revision": 2, "updated_ms": NOW}
HELD_AGAIN: Final = {"fence": ANOTHER, "lease_until_ms": UNTIL}
CANCELLED: Final = {
    **SEEN,
    "status": "cancelled",
    "ending": "cancelled",
    "status_message": "no more",
}
TO_CLEAN_UP: Final = replace(OVER, due_ms=NOW, cleans_up=True)
NEW_DUE: Final = {"due_ms": UNTIL, "unsent": True}

CHANGES: Final[Mapping[str, tuple[TaskRecord, Event, dict[str, Any]]]] = {
    "claim": (replace(NEW, resends=3, fence=FENCE), EVENTS["claim"], HELD_AGAIN | {"resends": 0}),
    "claim, at its wake time": (
        *(replace(NEW, wake_ms=NOW, fence=FENCE), EVENTS["claim"]),
        HELD_AGAIN | {"wake_ms": 0},
    ),
    "claim, due too late": (
        *(replace(NEW, due_ms=UNTIL + 1, fence=FENCE), EVENTS["claim"]),
        HELD_AGAIN | NEW_DUE,
    ),
    "claim, due in time": (
        *(replace(NEW, due_ms=UNTIL, fence=FENCE), EVENTS["claim"]),
        HELD_AGAIN,
    ),
    "claim alone, lapsed": (
        *(replace(HELD, lease_until_ms=NOW), EVENTS["claim alone"]),
        HELD_AGAIN | {"suspect": True, "alone": True},
    ),
    "claim alone, lapsed alone": (
        *(replace(BLAMED, lease_until_ms=NOW), EVENTS["claim alone"]),
        HELD_AGAIN | {"deaths": 3},
    ),
    "claim alone, a suspect that is free": (
        *(replace(BLAMED, lease_until_ms=0), EVENTS["claim alone"]),
        HELD_AGAIN,
    ),
    "renewal": (
        *(BLAMED, events.Checkpoint(UNTIL + 5, fence=FENCE)),
        {"lease_until_ms": UNTIL + 5},
    ),
    "renewal with a state and a message": (
        BLAMED,
        events.Checkpoint(END, UNTIL, added=Added((), b"state", "on it"), fence=FENCE),
        {"lease_until_ms": END, **NEW_DUE, **SEEN, "status_message": "on it"},
    ),
    "a message that is gone": (
        *(replace(HELD, status_message="on it"), events.Checkpoint(added=ADDED[3], fence=FENCE)),
        SEEN | {"status_message": None},
    ),
    "entries": (
        *(BLAMED, events.Checkpoint(added=Added([b"1"]), fence=FENCE, number=1)),
        LIFTED | {"noted": 1},
    ),
    "suspend": (
        *(BLAMED, EVENTS["suspend"]),
        {**LIFTED, **FREE, **SEEN, "status": "input_required", "asked": ("c",), "due_ms": END},
    ),
    "suspend until a moment": (
        *(HELD, events.SuspendTask({"c": b"?"}, UNTIL, fence=FENCE)),
        {
            **(FREE | SEEN | {"status": "input_required", "asked": ("c",)}),
            "wake_ms": UNTIL,
            "due_ms": UNTIL,
        },
    ),
    "release": (
        *(replace(BLAMED, asked=("a",)), EVENTS["release"]),
        LIFTED | FREE | {"due_ms": UNTIL, "asked": ()},
    ),
    "release for a sleep": (
        *(HELD, events.Release(UNTIL, UNTIL, early_ms=10, fence=FENCE)),
        FREE | NEW_DUE | {"wake_ms": UNTIL - 10},
    ),
    "release after a fault": (
        replace(BLAMED, asked=("a",)),
        events.Release(0, UNTIL, 4, NOW - 5, keeps_blame=True, fence=FENCE),
        FREE | {"due_ms": UNTIL, "attempts": 4, "declined_ms": NOW - 5},
    ),
    "restart": (
        *(replace(BLAMED, events=OPEN_MARK, asked=("a",)), EVENTS["restart"]),
        LIFTED | FREE | {"due_ms": UNTIL, "events": (), "asked": ()},
    ),
    "park": (
        *(HELD, EVENTS["park"]),
        FREE | SEEN | {"status_message": "waits", "wake_ms": END, "due_ms": END},
    ),
    "let go": (
        *(replace(HELD, suspect=True), events.LetGo(UNTIL, blame=False, fence=FENCE)),
        FREE | NEW_DUE,
    ),
    "let go with blame": (
        *(HELD, events.LetGo(UNTIL, blame=True, fence=FENCE)),
        FREE | NEW_DUE | {"suspect": True},
    ),
    "let go with blame, alone": (
        *(BLAMED, events.LetGo(UNTIL, blame=True, fence=FENCE)),
        FREE | NEW_DUE | {"deaths": 3},
    ),
    "finish": (
        replace(HELD, status_message="on it", cleans_up=True, asked=("a",)),
        events.Finish(Status.COMPLETED, b"{}", None, fence=FENCE),
        {
            **(FREE | SEEN | {"status": "completed", "ending": "ok", "status_message": None}),
            "due_ms": None,
            "cleans_up": False,
            "asked": (),
        },
    ),
    "finish by its worker, given up": (
        *(HELD, events.Finish(Status.FAILED, b"{}", "over", fence=FENCE)),
        {
            **(FREE | SEEN | {"status": "failed", "ending": "error", "status_message": "over"}),
            "due_ms": None,
            "attempts": 1,
        },
    ),
    "finish with an error of its handler": (
        *(BLAMED, events.Finish(Status.FAILED, b"{}", ending=Ending.ERROR, fence=FENCE)),
        {
            **(FREE | SEEN | {"status": "failed", "ending": "error", "due_ms": None}),
            "attempts": 0,
            "deaths": 0,
            "declined_ms": 0,
        },
    ),
    "finish early": (
        replace(HELD, attempts=2, resends=2),
        events.Finish(Status.COMPLETED, b"{}", None, UNTIL, fence=FENCE),
        {
            **(FREE | SEEN | {"status": "completed", "ending": "ok", "due_ms": UNTIL}),
            "cleans_up": True,
            "attempts": 0,
            "resends": 0,
        },
    ),
    "answer one": (ASKING, EVENTS["answer one"], SEEN | {"asked": ("b",)}),
    "answer all": (
        *(replace(ASKING, wake_ms=END), EVENTS["answer all"]),
        SEEN | {"status": "working", "asked": (), "due_ms": UNTIL, "wake_ms": 0},
    ),
    "go on": (
        *(replace(ASKING, wake_ms=NOW, unsent=True), EVENTS["go on"]),
        SEEN | {"status": "working", "wake_ms": 0, "due_ms": UNTIL, "unsent": False},
    ),
    "cancel": (
        *(replace(HELD, unsent=True), EVENTS["cancel"]),
        CANCELLED | FREE | {"due_ms": None, "unsent": False},
    ),
    "cancel, asking": (
        *(replace(ASKING, wake_ms=END), EVENTS["cancel"]),
        CANCELLED | {"due_ms": None, "asked": (), "wake_ms": 0},
    ),
    "cancel, to be cleaned up by its worker first": (
        *(replace(HELD, cleans_up=True, attempts=2), EVENTS["cancel"]),
        CANCELLED | {"due_ms": NOW, "attempts": 0},
    ),
    "cancel, asleep, to be cleaned up": (
        *(replace(NEW, cleans_up=True, wake_ms=END), EVENTS["cancel"]),
        CANCELLED | {"due_ms": NOW, "wake_ms": 0},
    ),
    "expire": (
        *(replace(NEW, expires_ms=NOW), EVENTS["expire"]),
        {
            **(SEEN | {"status": "failed", "ending": "error", "status_message": "expired"}),
            "due_ms": None,
        },
    ),
    "expire, to be cleaned up": (
        *(replace(HELD, expires_ms=NOW, cleans_up=True), EVENTS["expire"]),
        {
            **(SEEN | {"status": "failed", "ending": "error", "status_message": "expired"}),
            "due_ms": NOW,
        },
    ),
    "claim cleanup": (
        *(replace(TO_CLEAN_UP, attempts=1, resends=1, wake_ms=NOW), EVENTS["claim cleanup"]),
        HELD_AGAIN | NEW_DUE | {"attempts": 2, "resends": 0, "wake_ms": 0},
    ),
    "claim cleanup of a worker that had the task": (
        replace(TO_CLEAN_UP, lease_until_ms=END),
        events.ClaimCleanup(UNTIL, UNTIL, NOW, fence=FENCE),
        HELD_AGAIN | NEW_DUE | {"attempts": 1},
    ),
    "postpone cleanup": (
        replace(TO_CLEAN_UP, lease_until_ms=END),
        events.PostponeCleanup(UNTIL, UNTIL + 5, fence=FENCE),
        FREE | {"wake_ms": UNTIL, "due_ms": UNTIL + 5},
    ),
    "end cleanup": (
        *(replace(TO_CLEAN_UP, lease_until_ms=END, unsent=True), EVENTS["end cleanup"]),
        FREE | {"due_ms": None, "unsent": False, "cleans_up": False},
    ),
    "requeue": (
        *(replace(BLAMED, resends=2, unsent=True), events.Requeue(UNTIL, fence=FENCE)),
        {**LIFTED, **FREE, "fence": ANOTHER, "due_ms": UNTIL, "resends": 0, "unsent": False},
    ),
    "requeue, asleep": (
        *(replace(NEW, wake_ms=END), events.Requeue(UNTIL)),
        {"fence": 1, "wake_ms": 0, "due_ms": UNTIL},
    ),
    "postpone": (
        replace(NEW, due_ms=NOW, unsent=True),
        events.Postpone(NOW, END, 1, Sending.NEEDED, 0),
        {"due_ms": END, "resends": 1, "unsent": False},
    ),
    "postpone, of a worker whose lease may have lapsed": (
        replace(HELD, due_ms=NOW, lease_until_ms=NOW - 4),
        events.Postpone(NOW, END, 1, Sending.NEEDED, 5),
        {"due_ms": NOW + 1, "unsent": True},
    ),
    "postpone, lapsed": (
        replace(HELD, due_ms=NOW, lease_until_ms=NOW - 5),
        events.Postpone(NOW, END, 1, Sending.NEEDED, 5),
        {"due_ms": END, "resends": 1},
    ),
}
"""All that an event changes in a record."""


@pytest.mark.parametrize(("record", "event", "changes"), CHANGES.values(), ids=CHANGES)
def test_an_event_changes_these_fields_alone(
    record: TaskRecord, event: Event, changes: dict[str, Any]
) -> None:
    decision = apply(record, event, NOW)
    assert isinstance(decision, Next)
    assert decision.changes == changes


REFUSALS: Final[Mapping[str, tuple[TaskRecord, Event, StrEnum]]] = {
    "a living lease": (HELD, events.Claim(END, END, UNTIL - 1), NotClaimed.LEASED),
    "a lease that has lapsed": (HELD, events.Claim(END, END, UNTIL), NotClaimed.SUSPECT),
    "to be cleaned up": (
        *(TO_CLEAN_UP, events.Claim(UNTIL, UNTIL, NOW, alone=True)),
        NotClaimed.CLEAN_UP,
    ),
    "no answers yet": (replace(ASKING, wake_ms=NOW + 1), EVENTS["go on"], No.NOT_NOW),
    "an answer that was needed before": (
        *(replace(NEW, asked=("a", "b")), events.TakeAnswers({"b": b"!", "x": b"!"}, UNTIL)),
        AnswersTaken.LATER,
    ),
    "not expired yet": (replace(NEW, expires_ms=NOW + 1), EVENTS["expire"], No.NOT_NOW),
    "claimed since": (HELD, events.Requeue(UNTIL, fence=FENCE + 1), No.NOT_NOW),
    "cleaned up by another": (
        *(replace(TO_CLEAN_UP, lease_until_ms=NOW + 1), EVENTS["claim cleanup"]),
        No.NOT_NOW,
    ),
    "cleaned up by another worker since": (
        replace(TO_CLEAN_UP, lease_until_ms=NOW + 1),
        events.ClaimCleanup(UNTIL, UNTIL, NOW, fence=FENCE - 1),
        No.NOT_NOW,
    ),
    "a cleanup that waits": (
        *(replace(TO_CLEAN_UP, wake_ms=NOW + 1), EVENTS["claim cleanup"]),
        No.NOT_NOW,
    ),
    "another's cleanup": (TO_CLEAN_UP, events.EndCleanup(fence=FENCE - 1), No.LEASE_LOST),
    "a cleanup that another postponed": (
        *(TO_CLEAN_UP, events.PostponeCleanup(END, END, fence=FENCE - 1)),
        No.LEASE_LOST,
    ),
}


@pytest.mark.parametrize(("record", "event", "expected"), REFUSALS.values(), ids=REFUSALS)
def test_an_event_is_refused_up_to_its_moment(
    record: TaskRecord, event: Event, expected: StrEnum
) -> None:
    assert apply(record, event, NOW) == Refused(expected)


def test_a_task_is_purged_once_it_is_over_or_expired() -> None:
    assert machine.may_purge(OVER, NOW)
    assert [machine.may_purge(HELD, now_ms) for now_ms in (END - 1, END)] == [False, True]


# external events


def happened(record: TaskRecord, event: Event, now_ms: int = NOW) -> TaskRecord:
    """The record after an event that is not refused."""
    decision = apply(record, event, now_ms)
    assert isinstance(decision, Next), decision
    return decision.record()


def test_a_mark_is_read_as_it_was_written() -> None:
    for mark in (
        Mark("event:paid", END),
        Mark("order@1/event:paid#2@3", 0, is_awaited=True),
        Mark("event:paid", END, digest="Xy-_3"),
    ):
        assert Mark.parse(str(mark)) == mark


def test_an_event_is_opened_with_its_entry_and_once() -> None:
    added = Added([b"1"], events=[Mark("event:paid", END)])
    opened = happened(HELD, events.Checkpoint(added=added, fence=FENCE, number=1))
    assert opened.events == OPEN_MARK
    again = happened(opened, events.Checkpoint(added=added, fence=FENCE, number=2))
    assert again.events == OPEN_MARK


def test_the_same_payload_is_known_again_and_another_is_refused() -> None:
    event = events.Deliver("event:paid", b"7", "digest", UNTIL)
    for state in ("awaits", "held with an event", "step failed"):
        record = STATES[state]
        assert record is not None
        after = happened(record, event)
        assert apply(after, event, NOW) == Refused(Delivered.AGAIN)
        other = replace(event, digest="other")
        assert apply(after, other, NOW) == Refused(Delivered.OTHER)
        ended = replace(after, status=Status.COMPLETED, ending=Ending.OK)
        assert apply(ended, event, NOW) == Refused(Delivered.AGAIN)


def test_nothing_is_accepted_once_the_time_is_over_or_a_claim_has_seen_that_it_is() -> None:
    record = STATES["held with an event"]
    assert record is not None
    event = events.Deliver("event:paid", b"7", "digest", UNTIL)
    assert apply(record, event, END) == Refused(Delivered.CLOSED)
    short = replace(NEW, events=(Mark("event:paid", NOW),))
    claimed = happened(short, EVENTS["claim"])
    assert claimed.events == ()
    # whatever the clock of the replica that gets the payload shows
    assert apply(claimed, event, NOW - 10_000) == Refused(Delivered.CLOSED)


def test_a_claim_keeps_what_was_delivered_and_what_can_be() -> None:
    marks = (*OPEN_MARK, Mark("event:late", NOW, digest="digest"))
    assert happened(replace(NEW, events=marks), EVENTS["claim"]).events == marks


@pytest.mark.parametrize("name", ["suspend", "release"])
@pytest.mark.parametrize("state", ["delivered", "closed", "over"])
def test_what_waits_for_an_event_that_is_there_goes_on_at_once(name: str, state: str) -> None:
    marks = {
        "delivered": [Mark("event:paid", END, digest="digest")],
        "closed": [],
        "over": [Mark("event:paid", NOW)],
    }[state]
    record = replace(HELD, events=tuple(marks))
    event: Any = EVENTS[name]
    event = replace(event, wake_ms=END, awaits=["event:paid"], ready_ms=UNTIL)
    decision = apply(record, event, NOW)
    assert isinstance(decision, Next)
    assert decision.result is Waited.READY
    after = decision.record()
    assert (after.status, after.wake_ms, after.due_ms) == (Status.WORKING, 0, UNTIL)
    assert not any(mark.is_awaited for mark in after.events)
    asked = ("c",) if name == "suspend" else ()
    assert tuple(after.asked) == asked, "the questions are kept, unseen"


@pytest.mark.parametrize("name", ["suspend", "release"])
def test_what_waits_for_an_event_sleeps_until_its_time_is_over(name: str) -> None:
    record = STATES["held with an event"]
    event: Any = EVENTS[name]
    event = replace(event, wake_ms=END, awaits=["event:paid"], ready_ms=UNTIL)
    assert record is not None
    decision = apply(record, event, NOW)
    assert isinstance(decision, Next)
    assert decision.result is None
    after = decision.record()
    assert after.events == AWAITED_MARK
    assert after.wake_ms == END
    assert apply(after, EVENTS["claim"], NOW) != decision
    assert not machine.is_parked(after)


def test_a_task_that_waits_for_something_else_is_not_woken_by_an_event() -> None:
    awaited = replace(HELD, events=AWAITED_MARK)  # as an earlier turn left it
    for name in ("park", "release"):
        after = happened(awaited, EVENTS[name])
        assert after.events == OPEN_MARK, name
        decision = apply(after, EVENTS["deliver"], NOW)
        assert isinstance(decision, Next)
        assert decision.result is Delivered.KEPT


def test_the_oldest_deliveries_are_forgotten_and_nothing_that_is_open() -> None:
    marks = [Mark(f"event:{n}", END, digest="digest") for n in range(KEPT_DELIVERIES + 5)]
    record = replace(HELD, events=(*marks, Mark("event:open", END)))
    added = Added([b"1"], events=[Mark("event:new", END)])
    names = [
        mark.name
        for mark in happened(record, events.Checkpoint(added=added, fence=FENCE, number=1)).events
    ]
    assert names == [*(mark.name for mark in marks[5:]), "event:open", "event:new"]


def test_a_rewind_is_refused_if_something_was_delivered_or_claimed_since() -> None:
    parked = STATES["parked"]
    assert parked is not None
    delivered = happened(parked, EVENTS["deliver"])
    assert apply(delivered, EVENTS["rewind"], NOW) == Refused(No.NOT_NOW)
    claimed = replace(parked, fence=FENCE + 1)
    assert apply(claimed, EVENTS["rewind"], NOW) == Refused(No.NOT_NOW)
    decision = apply(parked, EVENTS["rewind"], NOW)
    assert isinstance(decision, Next)
    assert {drop.part for drop in decision.drops} == {RecordPart.JOURNAL, RecordPart.ANSWER}
    assert decision.record().fence == FENCE + 1


# properties

TIME: Final = st.integers(0, 11).map(lambda n: NOW + n * 10_000)
STEP: Final = st.tuples(
    st.integers(0, 19), TIME, TIME, TIME, st.booleans(), st.integers(0, 7), st.integers(0, 3)
)
"""What happens, at which times, and how: `event_from` makes an event of it."""
ENDS: Final = (6, 9, 15)
"""Kinds of events after which little can happen."""
STEPS: Final = st.lists(STEP, min_size=1, max_size=25)


def event_from(
    record: TaskRecord, kind: int, times: tuple[int, int, int], flag: bool, keys: int, n: int
) -> Event:
    """Any event that could reach a task as it is, those of workers that lost it too."""
    first, second, third = times
    fence = record.fence - (n == 0)
    added, number = ADDED[(n + keys) % len(ADDED)], record.noted + (keys % 3 > 0)
    awaits = [mark.name for mark in record.events[:n]]
    asked = {key: b"value" for bit, key in ((1, "a"), (2, "b"), (4, "c")) if keys & bit}
    wake_ms = first if flag else 0
    match kind:
        case 0:
            return events.Claim(first, second, third, alone=flag)
        case 1 | 17:
            return events.Checkpoint(
                first, second if flag else None, added=added, fence=fence, number=number
            )
        case 2:
            questions = asked or {"a": b"?"}
            return events.SuspendTask(
                questions, wake_ms, awaits, second, added=added, fence=fence, number=number
            )
        case 3:
            if flag:
                return events.Release(
                    wake_ms, second, n, third, flag, added=added, fence=fence, number=number
                )
            rest = (awaits, third)
            return events.Release(
                first, second, 0, 0, False, *rest, added=added, fence=fence, number=number
            )
        case 4:
            return events.Restart(b"call", (), b"{}", 1, first, fence=fence)
        case 5:
            return events.Park("waits", fence=fence)
        case 6:
            status = Status.COMPLETED if n % 2 else Status.FAILED
            cleanup_ms, ending = first if flag else None, Ending.STEP_FAILED if keys > 5 else None
            return events.Finish(status, b"{}", None, cleanup_ms, ending, fence=fence)
        case 7:
            return events.LetGo(first, blame=flag, fence=fence)
        case 8:
            return events.TakeAnswers(asked, first)
        case 9:
            return events.Cancel("no more", first)
        case 10:
            journal = [b"1"] if n > 1 else None
            return events.ClaimCleanup(first, second, third, fence if flag else None, journal)
        case 11:
            return events.PostponeCleanup(first, second, fence=fence)
        case 12:
            return events.EndCleanup(fence=fence)
        case 13:
            return events.GoOn(first)
        case 14:
            return events.Postpone(record.due_ms or 0, first, n, [*Sending][keys % 4], 5_000)
        case 15:
            return events.Expire(first)
        case 18:
            return events.Deliver("abc"[keys % 3], b"payload", "xy"[flag], first)
        case 19:
            return events.Rewind(b"call", [b"1"], record.events[:n], first, fence, record.events)
        case _:
            return events.Requeue(first, fence if flag else None) if n else events.NoteRetry("x")


@dataclass
class Life:
    """A task on its way, with the values that a store would have."""

    record: TaskRecord
    questions: set[str] = field(default_factory=set)
    answers: dict[str, bytes] = field(default_factory=dict)
    journal: list[bytes] = field(default_factory=list)

    def happens(self, event: Event, now_ms: int) -> Next | None:
        """Apply an event as a store would write it."""
        decision = apply(self.record, event, now_ms)
        if isinstance(decision, Refused):
            return None
        for drop in decision.drops:
            match drop.part:
                case RecordPart.REQUEST:
                    self.questions -= self.questions if drop.name is None else {drop.name}
                case RecordPart.ANSWER:
                    self.answers.clear()
                case RecordPart.JOURNAL:
                    self.journal.clear()
        for put in decision.puts:
            match put.part:
                case RecordPart.REQUEST:
                    self.questions.add(put.name)
                case RecordPart.ANSWER:
                    self.answers[put.name] = put.value
                case RecordPart.JOURNAL:
                    self.journal.append(put.value)
        self.record = decision.record()
        return decision


def test_who_creates_a_task_may_have_it_or_have_asked() -> None:
    task = NewTask(NEW.ref, "tool", b"call", NOW, END, END, lease_until_ms=UNTIL)
    created = machine.create(task)
    held = created.record
    assert created.message_ms is None
    assert machine.holds(held, 1)
    assert (held.fence, held.lease_until_ms, held.alone) == (1, UNTIL, True)
    asked = replace(task, lease_until_ms=0, status=Status.INPUT_REQUIRED, requests={"a": b"?"})
    created = machine.create(asked)
    asking, puts = created.record, created.puts
    assert created.message_ms is None
    assert (asking.asked, asking.fence, asking.lease_until_ms) == (("a",), 0, 0)
    assert Put(RecordPart.REQUEST, b"?", "a") in puts
    assert isinstance(apply(asking, events.TakeAnswers({"a": b"!"}, END), NOW), Next)


@pytest.mark.parametrize(
    ("event", "due_ms"),
    [
        (
            events.Checkpoint(
                UNTIL, END + 9, added=Added(expires_ms=END + 9), fence=FENCE, number=1
            ),
            END + 9,
        ),
        (events.SuspendTask({"c": b"?"}, added=Added(expires_ms=END + 9), fence=FENCE), END + 9),
        (
            events.SuspendTask({"c": b"?"}, END + 3, added=Added(expires_ms=END + 9), fence=FENCE),
            END + 3,
        ),
        (events.Release(0, END + 9, added=Added(expires_ms=END + 9), fence=FENCE), END + 9),
        (events.Finish(Status.COMPLETED, b"", None, expires_ms=END + 9, fence=FENCE), None),
    ],
)
def test_a_lease_may_move_the_time_at_which_its_task_expires(
    event: Event, due_ms: int | None
) -> None:
    decision = apply(HELD, event, NOW)
    assert isinstance(decision, Next)
    assert (decision.record().expires_ms, decision.record().due_ms) == (END + 9, due_ms)


Check: TypeAlias = "Callable[[Life, Event, Life, int], None]"


def lives(steps: list[Any], cleans_up: bool, check: Check) -> None:
    """Lead a task through any events, and look at each that happens."""
    task = NewTask(NEW.ref, "tool", b"", NOW, END, NOW, cleans_up=cleans_up)
    life, now_ms = Life(machine.create(task).record), NOW
    for kind, first, second, third, flag, keys, n in steps:
        now_ms += (0, 1, 10_000, 30_000)[keys % 4]
        before = Life(life.record, {*life.questions}, {**life.answers}, [*life.journal])
        others = [other for other in range(kind + 1, kind + 20) if other % 20 not in ENDS]
        for one in (kind, *others):  # of what is drawn much cannot happen: then something else does
            event = event_from(life.record, one % 20, (first, second, third), flag, keys, n)
            if life.happens(event, now_ms) is not None:
                check(before, event, life, now_ms)
                break


any_life = given(STEPS, st.booleans())
often = examples(200)


@often
@any_life
def test_what_is_terminal_is_final(steps: list[Any], cleans_up: bool) -> None:
    def check(before: Life, event: Event, after: Life, now_ms: int) -> None:
        if before.record.status in OPEN:
            return
        kept = ("status", "status_message", "ending", "failed_steps", "revision", "updated_ms")
        for name in kept:
            assert getattr(after.record, name) == getattr(before.record, name)
        late = events.NoteRetry | events.Deliver
        assert before.record.due_ms is not None or isinstance(event, late)
        assert after.answers == before.answers or isinstance(event, events.Deliver)

    lives(steps, cleans_up, check)


@often
@any_life
def test_a_fence_never_goes_back_and_each_lease_has_its_own(
    steps: list[Any], cleans_up: bool
) -> None:
    def check(before: Life, event: Event, after: Life, now_ms: int) -> None:
        takers = events.Claim | events.ClaimCleanup | events.Requeue | events.Rewind
        takes = isinstance(event, takers)
        assert after.record.fence == before.record.fence + takes
        if not before.record.lease_until_ms and after.record.lease_until_ms:
            assert takes

    lives(steps, cleans_up, check)


@often
@any_life
def test_nothing_outstanding_is_forgotten(steps: list[Any], cleans_up: bool) -> None:
    """An open task is due at some time, and a question goes only with its answer, or because the
    task ends, asks anew, begins anew or lets go."""
    forgets = (
        *(events.SuspendTask, events.Release, events.Restart, events.Finish),
        *(events.Cancel, events.Expire, events.Rewind),
    )

    def check(before: Life, event: Event, after: Life, now_ms: int) -> None:
        record = after.record
        assert {*record.asked} == after.questions
        assert not record.is_open or record.due_ms is not None
        assert record.status is not Status.INPUT_REQUIRED or record.asked
        if not isinstance(event, forgets):
            gone = before.questions - after.questions
            assert all(
                isinstance(event, events.TakeAnswers) and key in after.answers for key in gone
            )
        if record.lease_until_ms:
            assert record.due_ms is not None, "who dies with it is found"

    lives(steps, cleans_up, check)


@often
@any_life
def test_what_was_remembered_stays_until_it_begins_anew(steps: list[Any], cleans_up: bool) -> None:
    def check(before: Life, event: Event, after: Life, now_ms: int) -> None:
        if isinstance(event, events.Restart):
            assert (after.journal, after.answers) == ([], {})
        elif isinstance(event, events.Rewind):
            assert (after.journal, after.answers) == ([b"1"], {})
        elif not isinstance(event, events.ClaimCleanup):
            assert after.journal[: len(before.journal)] == before.journal
            assert before.answers.keys() <= after.answers.keys()

    lives(steps, cleans_up, check)


@often
@any_life
def test_blame_falls_on_what_ran_alone(steps: list[Any], cleans_up: bool) -> None:
    def check(before: Life, event: Event, after: Life, now_ms: int) -> None:
        lease = before.record.lease_until_ms
        if after.record.deaths > before.record.deaths:
            assert before.record.alone
            assert lease
            assert after.record.deaths == before.record.deaths + 1
        if after.record.suspect and not before.record.suspect:
            assert lease, "nothing is suspected of what had no worker"
        if isinstance(event, events.Claim) and after.record.suspect:
            assert after.record.alone
        if isinstance(event, events.Claim):
            assert lease <= event.lapsed_ms, "a living lease is not taken"

    lives(steps, cleans_up, check)


@often
@any_life
def test_an_event_under_a_lease_happens_under_that_lease_alone(
    steps: list[Any], cleans_up: bool
) -> None:
    def check(before: Life, event: Event, after: Life, now_ms: int) -> None:
        if isinstance(event, events.UnderLease) and not isinstance(event, events.Cleaning):
            assert event.fence == before.record.fence
            assert before.record.lease_until_ms
            assert before.record.status is Status.WORKING

    lives(steps, cleans_up, check)


@often
@any_life
def test_a_payload_that_was_accepted_is_never_lost_and_nobody_sleeps_beside_it(
    steps: list[Any], cleans_up: bool
) -> None:
    def check(before: Life, event: Event, after: Life, now_ms: int) -> None:
        marks = {mark.name: mark for mark in after.record.events}
        if isinstance(event, events.Deliver):
            assert after.answers[event.name] == b"payload"
            assert not any(m.name == event.name and m.digest for m in before.record.events)
        if isinstance(event, events.Restart | events.Rewind):
            return
        for mark in before.record.events:
            now = marks.get(mark.name)
            if mark.digest is not None:
                assert now is None or now.digest == mark.digest
                assert mark.name in after.answers
            elif now is None:
                assert isinstance(event, events.Claim)
                assert now_ms >= mark.until_ms
        if isinstance(event, events.SuspendTask | events.Release) and event.awaits:
            is_there = {name for name in event.awaits if name in after.answers}
            if is_there & {mark.name for mark in marks.values() if mark.digest}:
                assert (after.record.wake_ms, after.record.status) == (0, Status.WORKING)
        if after.record.is_open and not after.record.lease_until_ms:
            assert not any(mark.is_awaited and mark.digest for mark in marks.values())

    lives(steps, cleans_up, check)


@often
@any_life
def test_a_revision_counts_what_the_client_can_see(steps: list[Any], cleans_up: bool) -> None:
    def check(before: Life, event: Event, after: Life, now_ms: int) -> None:
        def seen(life: Life) -> Any:
            shown = life.record.status is Status.INPUT_REQUIRED
            questions = life.record.asked if shown else ()
            return life.record.status, life.record.status_message, questions

        is_longer = before.record.expires_ms != after.record.expires_ms
        is_cleared = getattr(event, "added", NOTHING).status_message == ""
        if seen(before) != seen(after):
            assert after.record.revision == before.record.revision + 1
            assert after.record.updated_ms == now_ms
        elif not (is_longer or is_cleared):
            assert after.record.revision == before.record.revision
            assert after.record.updated_ms == before.record.updated_ms

    lives(steps, cleans_up, check)


def test_changes_are_fields_of_a_record() -> None:
    known = set(TaskRecord.__struct_fields__)
    for record in STATES.values():
        for event in EVENTS.values():
            decision = apply(record, event, NOW)
            if isinstance(decision, Next):
                assert decision.changes.keys() <= known - {"ref", "requests", "outcome", "version"}

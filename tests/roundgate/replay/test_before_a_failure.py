"""What is left of a journal when a call is taken up again at the step that failed, and when it is
refused."""

from __future__ import annotations

import pytest

from roundgate.errors import NotRetryable, StepFailed
from roundgate.replay.journal import (
    Answered,
    Asked,
    Began,
    Cut,
    Entry,
    Finished,
    Raised,
    Remembered,
    Slept,
    Told,
    Tried,
    before_failure,
    find_failed_steps,
    from_row,
    row,
)

DONE, FAILED = Finished("plan", 1), Raised("charge", "away", False)
ANSWER = Answered("who", "digest", 1, 0, {"action": "accept"})


@pytest.mark.parametrize(
    ("entries", "left"),
    [
        ([DONE, FAILED], [DONE]),
        ([FAILED], []),
        ([DONE, Tried("charge", 1, 5), FAILED], [DONE, Tried("charge", 1, 5)]),
        ([ANSWER, DONE, FAILED], [ANSWER, DONE]),
        ([DONE, FAILED, Slept("sleep:x", 5), Told("told:sleep:x")], [DONE]),
        ([DONE, FAILED, Remembered("key:refund", "k")], [DONE]),
        ([DONE, FAILED, Remembered("now:now", 5), Remembered("version:x", 2)], [DONE]),
        ([Remembered("seed:", "s"), FAILED], [Remembered("seed:", "s")]),
        ([DONE, FAILED, Cut("pack", 5)], [DONE]),
    ],
    ids=["last", "only", "tried", "answered", "slept", "key", "later", "seed", "cancelled with it"],
)
def test_it_is_cut_off_at_the_failed_step(entries: list[Entry], left: list[Entry]) -> None:
    kept = before_failure(entries, ["charge"])
    assert [one for one in kept if one.key != "charge"] == [
        one for one in left if one.key != "charge"
    ]
    assert FAILED not in kept


@pytest.mark.parametrize(
    "later",
    [
        Finished("refund", 1),
        Raised("refund", "away", False),
        Began("refund"),
        Asked("again", "digest"),
        ANSWER,
    ],
    ids=lambda entry: type(entry).__name__,
)
def test_what_was_begun_after_the_failure_refuses_it(later: Entry) -> None:
    with pytest.raises(NotRetryable, match=f"{later.key} happened after charge had failed"):
        before_failure([DONE, FAILED, later], ["charge"])


def test_what_ran_beside_it_is_remembered_if_it_ended_well_and_else_run_again() -> None:
    failed = Raised("charge", "away", False, beside=["book", "print"])
    entries: list[Entry] = [DONE, failed, Finished("book", 2), Raised("print", "away", False)]
    assert before_failure(entries, ["charge"]) == [DONE, Finished("book", 2)]
    assert from_row(row(failed)) == failed


def test_several_that_failed_run_again() -> None:
    other = Raised("book", "away", False)
    assert before_failure([DONE, FAILED, other], ["book", "charge"]) == [DONE]


@pytest.mark.parametrize(
    "entries", [[Began("charge"), FAILED], [Began("pack"), FAILED, Cut("pack", 5)]]
)
def test_what_may_run_only_once_refuses_it(entries: list[Entry]) -> None:
    with pytest.raises(NotRetryable, match="may run only once"):
        before_failure(entries, ["charge"])


def test_a_step_of_which_nobody_knows_whether_it_took_effect_refuses_it() -> None:
    with pytest.raises(NotRetryable, match="the outcome of charge is unknown"):
        before_failure([DONE, Began("charge")], ["charge"])


def failure(step: str) -> StepFailed:
    error = StepFailed(step)
    error.failed_step = step
    return error


def test_the_nearest_failure_of_a_step_ended_a_call() -> None:
    charge, refund = failure("charge"), failure("refund")
    refund.__context__ = charge
    in_words = RuntimeError("sorry")
    in_words.__cause__ = charge
    hidden = RuntimeError("sorry")
    hidden.__context__, hidden.__suppress_context__ = charge, True
    both = ExceptionGroup("two", [charge, ValueError(), ExceptionGroup("one", [refund])])
    assert find_failed_steps(charge) == ("charge",)
    assert find_failed_steps(refund) == ("refund",)
    assert find_failed_steps(in_words) == find_failed_steps(hidden) == ("charge",)
    assert find_failed_steps(both) == ("charge", "refund")
    assert find_failed_steps(RuntimeError("its own")) == ()


def test_errors_that_lead_to_each_other_end_the_search() -> None:
    first, second = RuntimeError("1"), RuntimeError("2")
    first.__cause__, second.__cause__ = second, first
    assert find_failed_steps(first) == ()

"""The facts about a task that its operator sees: in commands, in JSON and in the console.

Arguments, answers and results are never among them, because they belong to the task's owner. The
text of an error, which may repeat them, can be left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roundgate.clock import iso, span
from roundgate.json import decode
from roundgate.protocol import Status
from roundgate.storage import Ending, TaskRecord, TaskRef
from roundgate.tasks.events import Mark, marks_from_record
from roundgate.tasks.machine import is_parked
from roundgate.tasks.operating import StepDone


def activity(record: TaskRecord, now_ms: int) -> str:
    """Return the activity of an open task in a few words, or the failed steps of an ended task or
    its successor; otherwise `-`."""
    if record.expires_ms <= now_ms:
        return "-"
    if record.retried_as is not None:
        return f"retried as {TaskRef(record.ref.owner, record.retried_as)}"
    if is_retryable(record):
        return f"failed at {', '.join(record.failed_steps)}"
    if record.status.is_terminal:
        return "-"
    if record.status is Status.INPUT_REQUIRED:
        return "waits for its client"
    if is_parked(record):
        return "parked: waits for `tasks retry`"
    if record.declined_ms:
        return "waits for a worker that serves it"
    if (awaited := [mark.name for mark in marks_from_record(record) if mark.is_awaited]) and (
        record.wake_ms > now_ms
    ):
        return f"waits for {', '.join(awaited)}"
    if record.wake_ms > now_ms:
        return f"sleeps for {span(record.wake_ms - now_ms)}"
    if record.lease_until_ms > now_ms:
        return "runs alone" if record.alone else "runs"
    if record.ref.is_hidden:
        return "waits for a request of its client"
    is_alone = record.suspect or record.lease_until_ms
    return "waits to be run alone" if is_alone else "waits for a worker"


def is_retryable(record: TaskRecord) -> bool:
    """Return whether a failed step ended a task and no other task continues its work."""
    return record.ending is Ending.STEP_FAILED and record.retried_as is None


def task_facts(
    record: TaskRecord,
    now_ms: int,
    steps: Sequence[StepDone] | None = None,
    *,
    shows_values: bool = False,
) -> dict[str, Any]:
    """Return the facts about a task for JSON. Times are in UTC, unknown facts are omitted. `steps`
    is the progress of the task, if known. Without `shows_values` the text of its last failure is
    left out."""
    requests = record.requests.items()
    retried_as = record.retried_as
    return known(
        {
            "task": str(record.ref),
            "hidden": record.ref.is_hidden or None,
            "tool": record.tool,
            "call": record.call_id,
            "status": record.shown_status.value,
            "outcome": None if record.ending is None else record.ending.value,
            "failedSteps": list(record.failed_steps) or None,
            "retriedAs": retried_as and str(TaskRef(record.ref.owner, retried_as)),
            "expired": record.expires_ms <= now_ms,
            "message": record.status_message,
            "lastFailure": _last_failure(steps or (), shows_values=shows_values),
            "doing": activity(record, now_ms),
            "created": iso(record.created_ms),
            "changed": iso(record.updated_ms),
            "expires": iso(record.expires_ms),
            "asks": [{"key": key, "method": decode(request)["method"]} for key, request in requests]
            or None,
            "events": [_event_facts(mark) for mark in marks_from_record(record)] or None,
            "outcomeBytes": None if record.outcome is None else len(record.outcome),
            "attempts": record.attempts,
            "deaths": record.deaths or None,
            "suspect": record.suspect or None,
            "declined": _iso(record.declined_ms),
            "claims": record.fence,
            "leasedUntil": _iso(record.lease_until_ms),
            "wakes": _iso(record.wake_ms),
            "due": _iso(record.due_ms),
            "steps": [_step_facts(step) for step in steps] if steps else None,
        }
    )


def _last_failure(steps: Sequence[StepDone], *, shows_values: bool) -> dict[str, Any] | None:
    """Return the last failure of a step, with the command that finds its lines in the log."""
    failed = [(step, step.failure) for step in steps if step.failure is not None]
    if not failed:
        return None
    step, failure = max(failed, key=lambda one: one[1].at_ms)
    return known(
        {
            "step": step.name,
            "type": failure.type,
            "text": failure.text if shows_values else None,
            "at": iso(failure.at_ms),
            "reference": failure.reference,
            "find": f"grep -e {failure.reference} LOG",
        }
    )


def _event_facts(mark: Mark) -> dict[str, Any]:
    state = "delivered" if mark.digest else "awaited" if mark.is_awaited else "open"
    return {"name": mark.name, "state": state, "until": iso(mark.until_ms)}


def _step_facts(step: StepDone) -> dict[str, Any]:
    again = _iso(step.again_ms)
    return known(
        {"name": step.name, "state": step.state, "attempts": step.attempts, "again": again}
    )


def known(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that are known."""
    return {name: value for name, value in facts.items() if value is not None}


def _iso(ms: int | None) -> str | None:
    return iso(ms) if ms else None

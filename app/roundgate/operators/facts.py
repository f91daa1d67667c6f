"""The facts about a task that its operator sees: in commands, in JSON and in the console.

Arguments, answers and results are never among them, because they belong to the task's owner. The
text of an error, which may repeat them, can be left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

from roundgate.clock import iso, span
from roundgate.json import decode
from roundgate.operators.continuing import StepDone
from roundgate.protocol import Status
from roundgate.storage import Mark, TaskRecord, TaskRef
from roundgate.tasks.machine import is_parked


def activity(record: TaskRecord, now_ms: int) -> str:
    """Return the activity of an open task in a few words, or the failed steps of an ended task or
    its successor; otherwise `-`."""
    if record.expires_ms <= now_ms:
        return "-"
    if record.retried_as is not None:
        return f"retried as {TaskRef(record.ref.owner, record.retried_as)}"
    if record.may_be_retried:
        return f"failed at {', '.join(record.failed_steps)}" if record.failed_steps else "given up"
    if record.status.is_terminal:
        return "-"
    if record.status is Status.INPUT_REQUIRED:
        return "waits for its client"
    if is_parked(record):
        return "parked: waits for `tasks retry`"
    if record.declined_ms:
        return "waits for a worker, or for a place at its back end"
    if (awaited := [mark.name for mark in record.events if mark.is_awaited]) and (
        record.wake_ms > now_ms
    ):
        return f"waits for {', '.join(awaited)}"
    if record.wake_ms > now_ms:
        return f"sleeps for {span(record.wake_ms - now_ms)}"
    if record.lease_until_ms > now_ms:
        return "runs alone" if record.alone else "runs"
    if record.ref.is_hidden:
        return "waits for a request of its client, or for the process that holds it"
    is_alone = record.suspect or record.lease_until_ms
    return "waits to be run alone" if is_alone else "waits for a worker"


class Need(StrEnum):
    """The reason for which a task needs a person."""

    FAILED = "failed"
    """The task failed, and no other task continues its work."""
    OPERATOR = "operator"
    """The task is parked."""
    APPROVAL = "approval"
    """The task waits for the answer to a question named `approve`, as approvals are."""
    CLIENT = "client"
    """The task waits for the answer to another question."""
    WORKER = "worker"
    """The task has waited for over a minute for a worker, or for a place at its back end."""


STATUS_OF_NEED: Final[Mapping[Need, Status]] = MappingProxyType(
    {
        Need.FAILED: Status.FAILED,
        Need.OPERATOR: Status.WORKING,
        Need.APPROVAL: Status.INPUT_REQUIRED,
        Need.CLIENT: Status.INPUT_REQUIRED,
        Need.WORKER: Status.WORKING,
    }
)
"""The status of the tasks with each need, as the operator sees it."""
LATE_MS: Final = 60_000
"""The wait for a worker after which a task needs a person, in milliseconds."""
_APPROVE: Final = "approve"


def need_of(record: TaskRecord, now_ms: int) -> Need | None:
    """Return the reason for which a task needs a person, or `None`. A hidden task is a call, whose
    client has its questions and its end."""
    if record.ref.is_hidden or record.expires_ms <= now_ms or record.retried_as is not None:
        return None
    if record.shown_status is Status.FAILED:
        return Need.FAILED
    if record.status is Status.INPUT_REQUIRED:
        names = {key.rpartition("/")[2] for key in record.asked}
        return Need.APPROVAL if _APPROVE in names else Need.CLIENT
    if record.status is not Status.WORKING:
        return None
    if is_parked(record):
        return Need.OPERATOR
    asleep_until_ms = max(record.updated_ms, record.wake_ms, record.lease_until_ms)
    since_ms = record.declined_ms or asleep_until_ms
    return Need.WORKER if since_ms + LATE_MS < now_ms else None


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
            "events": [_event_facts(mark) for mark in record.events] or None,
            "outcomeBytes": None if record.outcome is None else len(record.outcome),
            "faults": record.attempts,
            "deaths": record.deaths or None,
            "suspect": record.suspect or None,
            "declined": _iso(record.declined_ms),
            "turns": record.fence,
            "leasedUntil": _iso(record.lease_until_ms),
            "wakes": _iso(record.wake_ms),
            "due": _iso(record.due_ms),
            "steps": [_step_facts(step) for step in steps] if steps else None,
        }
    )


def _last_failure(steps: Sequence[StepDone], *, shows_values: bool) -> dict[str, Any] | None:
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


def short_event(name: str) -> str:
    """Return the name of an event without its kind: `order@1/paid` for `order@1/event:paid`."""
    path, slash, last = name.rpartition("/")
    return f"{path}{slash}{last.removeprefix('event:')}"


class Detail(Struct, frozen=True):
    """A fact about a task in words."""

    name: str
    """The name of the fact in JSON."""
    label: str
    text: str


_LABELS: Final = {
    "outcomeBytes": "result",
    "leasedUntil": "leased until",
    "failedSteps": "failed at",
    "retriedAs": "retried as",
    "lastFailure": "last failure",
}
_MEANINGS: Final = {
    "faults": "{} (turns in a row that a fault of the gateway ended)",
    "deaths": "{} (workers that died or stalled while they ran only this task)",
    "turns": "{} (workers have begun)",
    "outcomeBytes": "{} bytes",
    "hidden": "a call of an older client, or a round of an older server; no worker runs it",
    "suspect": "a worker died or stalled with this task, so it runs alone",
    "declined": "since {}: no worker serves it, or its back end has no place",
}


def details(facts: Mapping[str, Any]) -> list[Detail]:
    """Return the facts of `task_facts` in words, without the steps."""
    return [
        Detail(name, _LABELS.get(name, name), _text(name, value))
        for name, value in facts.items()
        if name != "steps" and value is not False
    ]


def _text(name: str, value: Any) -> str:
    match name, value:
        case "failedSteps", [*steps]:
            return ", ".join(steps)
        case "lastFailure", {"step": step, "at": at, "type": kind, **more}:
            text = f": {more['text']}" if "text" in more else ""
            find = f"reference {more['reference']}, see `{more['find']}`"
            return f"{step} at {at}: {kind}{text} ({find})"
        case "asks", [*questions]:
            return ", ".join(f"{asked['key']} ({asked['method']})" for asked in questions)
        case "events", [*events]:
            return ", ".join(f"{event['name']} ({_event_state(event)})" for event in events)
    return _MEANINGS.get(name, "{}").format(value)


def _event_state(event: Mapping[str, str]) -> str:
    is_over = event["state"] == "delivered"
    return event["state"] if is_over else f"{event['state']} until {event['until']}"

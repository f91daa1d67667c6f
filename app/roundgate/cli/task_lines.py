"""How `roundgate tasks` shows a task: a row of a table, facts below each other, or JSON.

Arguments, answers and results of the call are never shown: they belong to its owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from roundgate.cli.arguments import UNITS_S
from roundgate.cli.output import say
from roundgate.clock import iso
from roundgate.json import decode
from roundgate.protocol import Status
from roundgate.storage import Ending, TaskRecord, TaskRef
from roundgate.tasks.operating import StepDone

HEAD: Final = ("TASK", "TOOL", "STATUS", "OUTCOME", "AGE", "CHANGED", "ATTEMPTS", "DOING")


def row(record: TaskRecord, now_ms: int) -> tuple[str, ...]:
    """Return a task's row of the table."""
    return (
        str(record.ref),
        record.tool,
        "expired" if record.expires_ms <= now_ms else record.shown_status.value,
        "-" if record.ending is None else record.ending.value,
        _span(now_ms - record.created_ms),
        _span(now_ms - record.updated_ms),
        str(record.attempts),
        activity(record, now_ms),
    )


def activity(record: TaskRecord, now_ms: int) -> str:
    """Return the reason why an open task waits, or the failed steps that ended a task."""
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
    if record.wake_ms > now_ms:
        return f"sleeps for {_span(record.wake_ms - now_ms)}"
    if record.lease_until_ms > now_ms:
        return "runs alone" if record.alone else "runs"
    is_alone = record.suspect or record.lease_until_ms
    return "waits to be run alone" if is_alone else "waits for a worker"


def is_parked(record: TaskRecord) -> bool:
    """Return whether a task waits until an operator retries it."""
    return record.status is Status.WORKING and record.wake_ms >= record.expires_ms


def is_retryable(record: TaskRecord) -> bool:
    """Return whether a failed step ended the task and no other task continues its work."""
    return record.ending is Ending.STEP_FAILED and record.retried_as is None


def task_facts(
    record: TaskRecord, now_ms: int, steps: Sequence[StepDone] | None = None
) -> dict[str, Any]:
    """Return the facts about a task as JSON: times in UTC, unknown facts absent. `steps` lists the
    steps done, if known."""
    requests = record.requests.items()
    retried_as = record.retried_as
    return _known(
        {
            "task": str(record.ref),
            "tool": record.tool,
            "call": record.call_id,
            "status": record.shown_status.value,
            "outcome": None if record.ending is None else record.ending.value,
            "failedSteps": list(record.failed_steps) or None,
            "retriedAs": retried_as and str(TaskRef(record.ref.owner, retried_as)),
            "expired": record.expires_ms <= now_ms,
            "message": record.status_message,
            "doing": activity(record, now_ms),
            "created": iso(record.created_ms),
            "changed": iso(record.updated_ms),
            "expires": iso(record.expires_ms),
            "asks": [{"key": key, "method": decode(asked)["method"]} for key, asked in requests]
            or None,
            "outcomeBytes": None if record.outcome is None else len(record.outcome),
            "attempts": record.attempts,
            "deaths": record.deaths or None,
            "suspect": record.suspect or None,
            "declined": _time(record.declined_ms),
            "claims": record.fence,
            "leasedUntil": _time(record.lease_until_ms),
            "wakes": _time(record.wake_ms),
            "due": _time(record.due_ms),
            "steps": [_step_facts(step) for step in steps] if steps else None,
        }
    )


def _step_facts(step: StepDone) -> dict[str, Any]:
    again = _time(step.again_ms)
    return _known(
        {"name": step.name, "state": step.state, "attempts": step.attempts, "again": again}
    )


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


_LABELS: Final = {
    "outcomeBytes": "result",
    "leasedUntil": "leased until",
    "failedSteps": "failed at",
    "retriedAs": "retried as",
}
_COUNTED: Final = {
    "attempts": "faults of the gateway in a row",
    "deaths": "workers that died or stalled while they ran nothing else",
    "claims": "turns that workers have begun",
}
"""The nouns of the counters."""


def print_facts(record: TaskRecord, now_ms: int, steps: Sequence[StepDone] | None) -> None:
    """Print the facts about a task, for people."""
    for name, value in task_facts(record, now_ms).items():
        match name:
            case "expired" if not value:
                continue
            case "attempts" | "deaths" | "claims":
                value = f"{value} ({_COUNTED[name]})"
            case "failedSteps":
                value = ", ".join(value)
            case "asks":
                value = ", ".join(f"{asked['key']} ({asked['method']})" for asked in value)
            case "outcomeBytes":
                value = f"{value} bytes"
            case "suspect":
                value = "a worker died or stalled with it: it is run alone"
            case "declined":
                value = f"since {value}: no worker serves it"
        say(f"{_LABELS.get(name, name) + ':':14}{value}")
    if steps is None:
        say(f"{'steps:':14}not known: they are kept no longer, or of a later version")
    for number, step in enumerate(steps or ()):
        say(f"{'steps:' if number == 0 else '':14}{step.name}: {_step_state(step)}")


def _step_state(step: StepDone) -> str:
    times = "" if step.attempts is None else f" after {step.attempts} attempt"
    times += "s" if (step.attempts or 1) > 1 else ""
    if step.again_ms is not None:
        return f"failed{times}, is tried again at {iso(step.again_ms)}"
    return f"{step.state}{times}"


def _time(ms: int | None) -> str | None:
    return iso(ms) if ms else None


def _span(ms: int) -> str:
    """Return a span of time in its largest fitting unit."""
    seconds = ms / 1000
    unit = next((unit for unit in "dhm" if seconds >= UNITS_S[unit]), "s")
    return f"{seconds / UNITS_S[unit]:.3g}{unit}"

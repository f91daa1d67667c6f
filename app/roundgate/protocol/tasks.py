"""The life of a task: its states, the events allowed in each, and its wire form (tasks extension,
SEP-2663).

    (created) ──▶ working ◀──answered── input_required
                    │  └───────ask────────▶  │
                    │ complete, fail         │ cancel
                    ▼ cancel                 ▼ expire
                  completed · failed · cancelled          a terminal task never changes

A tool's own failure is a *completed* task whose result has `isError`; *failed* is
for JSON-RPC errors alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

from roundgate.clock import iso
from roundgate.json import encode

EXTENSION: Final = "io.modelcontextprotocol/tasks"
REQUIRED: Final[Mapping[str, Any]] = MappingProxyType({"extensions": {EXTENSION: {}}})
"""The capability that a client must declare, shaped as `ClientCapabilities`."""


class Status(StrEnum):
    """The schema's `TaskStatus`."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL


TERMINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
OPEN: Final = frozenset(Status) - TERMINAL


class Event(StrEnum):
    """The events of a task."""

    RUN = "run"
    """A worker claims the task, saves its progress, or releases it."""
    ASK = "ask"
    ANSWER_SOME = "answer some"
    ANSWER_ALL = "answer all"
    GO_ON = "go on"
    """The task continues without answers, because their time is over."""
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    EXPIRE = "expire"


_W, _I = Status.WORKING, Status.INPUT_REQUIRED

TRANSITIONS: Final[Mapping[tuple[Status, Event], Status]] = MappingProxyType(
    {
        (_W, Event.RUN): _W,
        (_W, Event.ASK): _I,
        (_I, Event.ANSWER_SOME): _I,
        (_I, Event.ANSWER_ALL): _W,
        (_I, Event.GO_ON): _W,
        (_W, Event.COMPLETE): Status.COMPLETED,
        (_W, Event.FAIL): Status.FAILED,
        (_W, Event.CANCEL): Status.CANCELLED,
        (_I, Event.CANCEL): Status.CANCELLED,
        (_W, Event.EXPIRE): Status.FAILED,
        (_I, Event.EXPIRE): Status.FAILED,
    }
)
"""The allowed transitions. Stores derive the conditions of their writes from them."""


def after(status: Status, event: Event) -> Status | None:
    """Return the next state, or `None` if the event cannot happen in this state."""
    return TRANSITIONS.get((status, event))


@cache
def sources(event: Event) -> frozenset[Status]:
    """Return the states in which an event can happen."""
    return frozenset(status for status, at in TRANSITIONS if at is event)


@cache
def target(event: Event) -> Status:
    """Return the state that an event leads to."""
    (status,) = {after for (_, at), after in TRANSITIONS.items() if at is event}
    return status


class TaskView(Struct, frozen=True):
    """The client's view of a task; times in milliseconds since the epoch, payloads as serialised
    JSON."""

    task_id: str
    status: Status
    status_message: str | None
    created_ms: int
    updated_ms: int
    expires_ms: int | None
    """The expiry; `None` if the task is kept without a limit."""
    requests: Mapping[str, bytes]
    """The outstanding questions by wire key."""
    outcome: bytes | None
    """The result of a completed task, or the error of a failed task."""
    poll_interval_ms: int | None = None
    """The pause in milliseconds between polls that the service of a remote task asks for, if
    any."""


def to_wire(view: TaskView, poll_interval_ms: int) -> dict[str, Any]:
    """Return the schema's `Task`, the answer of a creation and the beginning of all other answers.

    Args:
        view: the task.
        poll_interval_ms: the pause between polls, unless the service of a remote task asks for a
            longer one.
    """
    message = {} if view.status_message is None else {"statusMessage": view.status_message}
    return {
        "taskId": view.task_id,
        "status": view.status.value,
        **message,
        "createdAt": iso(view.created_ms),
        "lastUpdatedAt": iso(view.updated_ms),
        "ttlMs": None if view.expires_ms is None else view.expires_ms - view.created_ms,
        "pollIntervalMs": max(poll_interval_ms, view.poll_interval_ms or 0),
    }


def detailed(view: TaskView, poll_interval_ms: int) -> bytes:
    """Return the schema's `DetailedTask`, serialised, with `inputRequests`, `result` or `error`,
    depending on the status."""
    task = encode(to_wire(view, poll_interval_ms))
    if view.status is Status.INPUT_REQUIRED:
        pairs = (b"%b:%b" % (encode(key), request) for key, request in view.requests.items())
        return b'%b,"inputRequests":{%b}}' % (task[:-1], b",".join(pairs))
    member = {Status.COMPLETED: b"result", Status.FAILED: b"error"}.get(view.status)
    return (
        task
        if member is None or view.outcome is None
        else b'%b,"%b":%b}' % (task[:-1], member, view.outcome)
    )

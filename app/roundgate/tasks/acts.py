"""The actions of an operator on tasks: `roundgate tasks` and the console offer the same.

Each acts on a task that the operator names, or that a search selected. The audit log records an
action before it happens, and then its result (`recorded`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Struct

from roundgate.auth import Principal
from roundgate.errors import NotRetryable
from roundgate.protocol import OPEN, TERMINAL, Status
from roundgate.storage import Ending, TaskRecord, TaskRef
from roundgate.tasks.events import Cancelled, Delivered, marks_from_record
from roundgate.tasks.facts import is_retryable
from roundgate.tasks.machine import is_parked
from roundgate.tasks.operating import retry, rewind
from roundgate.tasks.stored import StoredTasks

T = TypeVar("T")

CANCELLED_BY_OPERATOR: Final = "The operator cancelled the task"

DELIVERED: Final[Mapping[Delivered, str]] = {
    Delivered.KEPT: "has the event; its handler reads the event when it waits for it",
    Delivered.WAKES: "has the event and continues",
    Delivered.AGAIN: "already had this event with the same payload",
    Delivered.OTHER: "already had this event with another payload, which is kept",
    Delivered.CLOSED: "no longer accepts this event: its time is over, or the task has ended",
}
"""The results of a delivery, in words that follow the task's name."""
ACCEPTED: Final = frozenset({Delivered.KEPT, Delivered.WAKES, Delivered.AGAIN})


def short_event(name: str) -> str:
    """Return the name of an event without its kind: `order@1/paid` for `order@1/event:paid`."""
    path, slash, last = name.rpartition("/")
    return f"{path}{slash}{last.removeprefix('event:')}"


def find_event(record: TaskRecord, text: str) -> str | None:
    """Return the name of an event in a task's record, from this name or its short form; `None` if
    the task has no such event."""
    names = (mark.name for mark in marks_from_record(record))
    return next((name for name in names if text in (name, short_event(name))), None)


async def retry_from(store: StoredTasks, record: TaskRecord, now_ms: int, step: str) -> str:
    """Let a parked or failed task continue from a chosen step. Return the result in words.

    Raises:
        NotRetryable: the task is neither parked nor ended by a failed step, or has no such step.
    """
    if is_parked(record):
        await rewind(store, record.ref, now_ms, step)
        return f"continues from {step}"
    return f"continues as {await retry(store, record.ref, now_ms, step)}, from {step}"


Chosen: TypeAlias = tuple[TaskRef, int | None]
"""A task, and its fence when a search selected it. The fence is `None` for a named task, which is
taken even from a worker."""


class Action(Struct, frozen=True):
    """An action on tasks."""

    act: Callable[[StoredTasks, Chosen, int], Awaitable[str | None]]
    """A function that returns the result in words, or `None` if nothing was done. Its last argument
    is the time in milliseconds."""
    statuses: frozenset[Status]
    """The statuses of the tasks that a search selects."""
    refusal: str
    """The reason for doing nothing, in words that follow the task's name."""
    is_meant: Callable[[TaskRecord, int], bool] = lambda record, now_ms: True
    """A function that returns whether the action applies to a task that a search selected."""


async def _cancel(store: StoredTasks, chosen: Chosen, now_ms: int) -> str | None:
    ref = chosen[0]
    cancelled = await store.cancel(ref, CANCELLED_BY_OPERATOR, now_ms)
    if cancelled is Cancelled.UNKNOWN_TASK:
        return None
    if cancelled is Cancelled.CLEAN_UP:
        return "is cancelled; a worker cancels its job"
    record = await store.read(ref, now_ms)
    return f"is {record.status.value if record else 'deleted'}"


async def _requeue(store: StoredTasks, chosen: Chosen, now_ms: int) -> str | None:
    """Queue a task again; return the result in words, or `None` if the task cannot be queued.

    Raises:
        NotRetryable: the task is hidden, and no worker runs hidden tasks.
    """
    ref, fence = chosen
    if ref.is_hidden:
        raise NotRetryable(
            "is a call that only its client's requests can continue; cancel it instead"
        )
    if not await store.requeue(ref, now_ms, now_ms, fence=fence):
        return None
    return "is queued; a worker that ran it can no longer write to it"


async def _retry(store: StoredTasks, chosen: Chosen, now_ms: int) -> str | None:
    """Retry a task at the failed step that ended it, or requeue a parked task. Return the result in
    words, or `None` if nothing was done.

    Raises:
        NotRetryable: the task cannot be retried.
    """
    ref = chosen[0]
    record = await store.read(ref, now_ms)
    if record is None or record.ending is not Ending.STEP_FAILED:
        return await _requeue(store, chosen, now_ms)
    successor = await retry(store, ref, now_ms)
    return f"continues as {successor}: finished steps are kept, the failed step runs again"


async def _purge(store: StoredTasks, chosen: Chosen, now_ms: int) -> str | None:
    return "is purged" if await store.purge(chosen[0], now_ms) else None


def _is_alive(record: TaskRecord, now_ms: int) -> bool:
    return record.expires_ms > now_ms


def _waits(record: TaskRecord, now_ms: int) -> bool:
    """Return whether a task has not expired, is not leased, and does not sleep."""
    is_free = record.lease_until_ms <= now_ms and record.wake_ms <= now_ms
    return _is_alive(record, now_ms) and is_free and not record.ref.is_hidden


ACTIONS: Final[dict[str, Action]] = {
    "cancel": Action(_cancel, OPEN, "does not exist", _is_alive),
    "requeue": Action(
        _requeue,
        frozenset({Status.WORKING}),
        "is not working, or a worker has claimed it meanwhile:"
        " only a task that waits for a worker can be queued again",
        _waits,
    ),
    "retry": Action(
        _retry,
        frozenset({Status.WORKING, Status.FAILED}),
        "is not parked, and no failed step ended it, or a worker has claimed it meanwhile: there"
        " is nothing to retry",
        lambda record, now_ms: (
            _is_alive(record, now_ms) and (is_parked(record) or is_retryable(record))
        ),
    ),
    "purge": Action(_purge, TERMINAL, "does not exist, or is open: cancel it first"),
}


async def recorded(
    store: StoredTasks,
    action: str,
    ref: TaskRef | None,
    act: Callable[[], Awaitable[T]],
    principal: Principal | None = None,
    **facts: Any,
) -> T:
    """Return the result of an operator's act. Record the act in the audit log before it happens, and
    then its result.

    Args:
        store: the tasks, with the audit log.
        action: the name of the act.
        ref: the task on which the operator acts, if any.
        act: acts, and returns the result in words, or `None` if nothing was done.
        principal: the operator; by default the user that runs this process.
        facts: further members of the first record.

    Raises:
        Unavailable: the audit log cannot be written, and nothing was done.
    """
    trail = store.trail
    if trail is None:
        return await act()
    about = {} if ref is None else {"task": str(ref)}
    trail.operator(action, principal, **about, **facts)
    result: object = "failed"
    try:
        result = value = await act()
        return value
    finally:
        outcome = "nothing done" if result is None else str(result)
        trail.record("operator_ended", {"action": action, **about, "outcome": outcome})
